"""Message classes of ``inference.proto``; their types are in the stub beside this file."""

from gateway.proto import namespace

globals().update(namespace("inference.proto"))
