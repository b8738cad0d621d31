"""Message classes of ``model_config.proto``; their types are in the stub beside this file."""

from gateway.proto import namespace

globals().update(namespace("model_config.proto"))
