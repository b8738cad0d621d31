"""Programs of ``torch.export.save`` (``.pt2``): names, types and shapes come from the program itself.

The archive is read here and not by ``torch.export.load``, which runs code of its author: see ``exported_check``.
Weights are mapped from the file.
"""

from __future__ import annotations

from typing import Any, Final

from backends.declared import check_complete, narrow
from backends.errors import LoadFailed
from backends.spec import ModelSpec, TensorSpec
from backends.torch import exported_check, exported_signature, faults, signature
from backends.torch.archive import Archive
from backends.torch.artifact import Artifact
from backends.torch.exported_signature import Described
from backends.torch.framework import import_part, torch
from backends.torch.options import Options
from backends.torch.program import CONVENTION, Program

PLATFORM: Final = "pytorch_export"

_MODELS: Final = "models/"
_VERSION: Final = "0"
_WEIGHTS: Final = ("data/weights/", "data/weights/{}_weights_config.json")
_CONSTANTS: Final = ("data/constants/", "data/constants/{}_constants_config.json")


def load(artifact: Artifact, spec: ModelSpec, chosen: Options, device: Any) -> Program:
    """Raises ``LoadFailed``: no whole program, one that does more than compute, declarations that contradict it."""
    name = artifact.path.name
    model = model_name(artifact.archive)
    checked = exported_check.read(artifact.archive.read(f"{_MODELS}{model}.json"), name)
    described = exported_signature.describe(checked, name)
    program = _deserialize(artifact.archive, checked.program, model)
    state = _state(checked.program, program)
    if state and not chosen.shares_state:
        raise LoadFailed(
            f"the program changes its buffer(s) {', '.join(state)}: a request would begin with what the one before it, "
            "of another client perhaps, left there. Export the model in eval() mode, or with its state as inputs and "
            "outputs; or set the option state = shared if all clients are meant to share it"
        )
    module = _module(program, checked.program, chosen, device)
    if chosen.compile:
        varies = any(size.fixed is None for value in described.inputs for size in value.sizes)
        module = torch.compile(module, mode=chosen.compile, dynamic=varies)
    return _program(module, described, spec, writes=_writes(program), keeps_state=bool(state))


def model_name(archive: Archive) -> str:
    """The archive's only model. Raises ``LoadFailed`` if there are several."""
    if archive.text("archive_version").strip() != _VERSION:
        raise LoadFailed(
            f"{archive.path.name} is in version {archive.text('archive_version')[:20]!r} of the .pt2 format, torch "
            f"{torch.__version__} reads version {_VERSION}: save it with this torch, or install a newer one"
        )
    if "byteorder" in archive and archive.text("byteorder").strip() != "little":
        raise LoadFailed(f"{archive.path.name} was saved on a big-endian machine: save it on a little-endian one")
    names = [name.removeprefix(_MODELS).removesuffix(".json") for name in archive.under(_MODELS)]
    if len(names) != 1:
        raise LoadFailed(f"{archive.path.name} holds {len(names)} programs ({', '.join(names)}); save one in each file")
    return names[0]


def _deserialize(archive: Archive, serialized: Any, model: str) -> Any:
    weights = _payloads(archive, model, *_WEIGHTS)
    constants = _payloads(archive, model, *_CONSTANTS)
    deserializer = import_part("torch._export.serde.serialize").ExportedProgramDeserializer()
    try:
        return deserializer.deserialize(serialized, weights, constants)
    except Exception as error:  # torch raises anything for a program that contradicts itself
        if faults.is_out_of_memory(error):
            raise
        text = (str(error).strip() or type(error).__name__).rpartition("\n")[2]
        raise LoadFailed(
            f"{archive.path.name} cannot be loaded ({text[:400]}): export it again with torch {torch.__version__}"
        ) from error


def _module(program: Any, serialized: Any, chosen: Options, device: Any) -> Any:
    """A function of flat inputs that gives a flat answer."""
    if exported_signature.devices(serialized) != {device.type} or device.index:
        program = import_part("torch.export.passes").move_to_device_pass(program, str(device))
    module = program.module(check_guards=False)
    # without the trees of inputs and outputs, which are flat already; shapes are checked by exported_signature
    module.graph.set_codegen(torch.fx.graph.CodeGen())
    module.recompile()
    if chosen.channels_last:
        module = module.to(memory_format=torch.channels_last)
    return module.forward


# --- weights -------------------------------------------------------------------------------------------------------


def _payloads(archive: Archive, model: str, folder: str, config: str) -> dict[str, Any]:
    """Weights or constants by name. Raises ``LoadFailed`` for what would have to be unpickled."""
    name = config.format(model)
    data = exported_check.parse(archive.read(name), archive.path.name)
    storages: dict[str, Any] = {}
    try:
        items = dict(data["config"])
        return {key: _payload(archive, folder, key, item, storages) for key, item in items.items()}
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise LoadFailed(f"{archive.path.name}: {name} is not as torch writes it ({error!r}); save it again") from error


def _payload(archive: Archive, folder: str, key: str, item: dict[str, Any], storages: dict[str, Any]) -> Any:
    path, meta = item["path_name"], item.get("tensor_meta")
    if item.get("use_pickle") is not False or meta is None or not path.startswith(("weight_", "tensor_")):
        raise LoadFailed(
            f"{archive.path.name} holds {key!r} as a pickle (a custom object, or a tensor of a class of its own), and "
            "unpickling runs whatever its author put there: export the model with plain tensors"
        )
    if path not in storages:
        storages[path] = archive.storage(folder + path)
    serde = import_part("torch._export.serde.serialize")
    dtype = serde._SERIALIZE_TO_TORCH_DTYPE[meta["dtype"]]
    storage = storages[path]
    flat = torch.empty(0, dtype=dtype).set_(storage, 0, (len(storage) // dtype.itemsize,))
    sizes, strides = ([_fixed(size) for size in meta[field]] for field in ("sizes", "strides"))
    tensor = torch.as_strided(flat, sizes, strides, _fixed(meta["storage_offset"]))
    return torch.nn.Parameter(tensor, requires_grad=False) if item.get("is_param") else tensor


def _fixed(size: dict[str, int]) -> int:
    return int(size["as_int"])


# --- what the program does to its inputs and to itself ---------------------------------------------------------------


def _state(serialized: Any, program: Any) -> list[str]:
    """The buffers that a run changes."""
    outputs = serialized.graph_module.signature.output_specs
    names = {each.buffer_mutation.buffer_name for each in outputs if each.type == "buffer_mutation"}
    buffers = program.graph_signature.inputs_to_buffers
    for node in program.graph.nodes:
        if _is_mutable(node) and node.args and getattr(node.args[0], "name", "") in buffers:
            names.add(buffers[node.args[0].name])
    return sorted(names)


def _writes(program: Any) -> bool:
    """Whether some operator writes to one of its arguments, which might be an input or a view of one."""
    mutates = program.graph_signature.user_inputs_to_mutate
    return bool(mutates) or any(_is_mutable(node) for node in program.graph.nodes)


def _is_mutable(node: Any) -> bool:
    if not isinstance(node.target, torch._ops.OpOverload | torch._ops.HigherOrderOperator):
        return False
    schema = getattr(node.target, "_schema", None)
    return schema is None or bool(schema.is_mutable)


# --- the program ---------------------------------------------------------------------------------------------------


def _program(module: Any, described: Described, spec: ModelSpec, *, writes: bool, keeps_state: bool) -> Program:
    given = {value.name: value for value in described.inputs}
    places, output_places = described.places, described.output_places
    inputs_of = signature.assign(spec.inputs, list(given)) if spec.inputs else {name: name for name in given}
    check_complete(given, inputs_of.values())
    outputs_of = _outputs_of(spec.outputs, list(output_places))
    source = {own: name for name, own in inputs_of.items()}

    def run(feeds: dict[str, Any], wanted: tuple[str, ...]) -> dict[str, Any]:
        answer = module(*[place[0] if isinstance(place, tuple) else feeds[source[place]] for place in places])
        return {name: answer[output_places[outputs_of[name]]] for name in wanted}

    batch = _batch_size(described) if not keeps_state else None
    return Program(
        platform=PLATFORM,
        inputs=narrow("input", spec.inputs, [value.spec() for value in described.inputs], own_names=inputs_of),
        outputs=narrow("output", spec.outputs, [value.spec() for value in described.outputs], own_names=outputs_of),
        run=run,
        numbers=frozenset(source[value.name] for value in described.inputs if value.is_number),
        writes_inputs=writes,
        keeps_state=keeps_state,
        rows_apart=batch is not None,
        max_rows=batch.largest if batch is not None else None,
        check=exported_signature.checker(described.inputs, source),
        trial_shapes={source[own]: shape for own, shape in exported_signature.trial_shapes(described.inputs).items()},
    )


def _outputs_of(declared: tuple[TensorSpec, ...], own: list[str]) -> dict[str, str]:
    """Declared output -> the program's: by name, by number, or in order where as many are declared as there are."""
    names = [tensor.name for tensor in declared]
    if not names:
        return {name: name for name in own}
    if all(name in own for name in names):
        return {name: name for name in names}
    numbers = [CONVENTION.fullmatch(name) for name in names]
    places = [int(match[1]) for match in numbers if match]
    if len(places) == len(names) and all(place < len(own) for place in places):
        return {name: own[place] for name, place in zip(names, places, strict=True)}
    if len(names) == len(own) and not any(name in own for name in names):
        return dict(zip(names, own, strict=True))
    wrong = next(name for name in names if name not in own)
    raise LoadFailed(f"the model has no output {wrong!r}; it has {', '.join(map(repr, own))}")


def _batch_size(described: Described) -> exported_signature.Size | None:
    """The dimension that all inputs and outputs begin with, if it varies and is nothing else besides; else None."""
    values = [*described.inputs, *described.outputs]
    if not described.inputs or any(not value.sizes or value.sizes[0].fixed is not None for value in values):
        return None
    if any(len(value.sizes) < 2 for value in described.inputs):
        return None  # a vector of variable length is more often a sequence
    first = described.inputs[0].sizes[0]
    elsewhere = {size.expression for value in values for size in value.sizes[1:]}
    same = all(value.sizes[0].expression == first.expression for value in values)
    return first if same and first.expression not in elsewhere and first.smallest <= 1 else None
