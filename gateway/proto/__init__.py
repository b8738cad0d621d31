"""The protocol's messages, from our own definition files.

They live in a descriptor pool of their own: client libraries register the same full names in protobuf's default pool,
and both must fit into one process. ``scripts/build_protos.py`` compiles the files into ``descriptors.binpb``.
"""

from __future__ import annotations

from importlib import resources
from typing import Any, Final

from google.protobuf import descriptor_pb2, message_factory
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper

SERVICE: Final = "inference.GRPCInferenceService"


def descriptor_set() -> descriptor_pb2.FileDescriptorSet:
    """The compiled definition files, a file after those that it imports."""
    return descriptor_pb2.FileDescriptorSet.FromString(
        resources.files(__name__).joinpath("descriptors.binpb").read_bytes()
    )


def _load() -> DescriptorPool:
    pool = DescriptorPool()
    for file in descriptor_set().file:
        pool.AddSerializedFile(file.SerializeToString())
    return pool


POOL: Final = _load()


def namespace(file_name: str) -> dict[str, Any]:
    """What a generated module of that definition file would hold: message classes, enums and their values."""
    file = POOL.FindFileByName(f"gateway/proto/{file_name}")
    names: dict[str, Any] = {"DESCRIPTOR": file}
    for name, message in file.message_types_by_name.items():
        names[name] = message_factory.GetMessageClass(message)
    for name, enum in file.enum_types_by_name.items():
        names[name] = EnumTypeWrapper(enum)
        names.update((value.name, value.number) for value in enum.values)
    return names
