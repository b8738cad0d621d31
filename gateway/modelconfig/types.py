"""The data types of a configuration."""

from __future__ import annotations

from typing import Final

from gateway.proto.model_config_pb2 import DataType

#: Data type of a config -> datatype of the protocol.
DATATYPE: Final[dict[int, str]] = {
    number: "BYTES" if name == "TYPE_STRING" else name.removeprefix("TYPE_")
    for name, number in DataType.items()
    if name != "TYPE_INVALID"
}
