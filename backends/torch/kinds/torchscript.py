"""TorchScript: programs of ``torch.jit.script`` and ``torch.jit.trace``.

They name their arguments and nothing else, so types, shapes and outputs have to be declared: see
``backends.torch.signature``. Arguments may be tensors, numbers, or one list or dict of tensors.

A program may keep state between runs; silero-vad does, which judges 32 ms of sound by what it heard before. It is
served only with a word about that, since clients would hear with each other's ears. With ``x`` FP32 and ``sr`` INT64
``[1]`` declared, and ``reset_method = reset_states``, its method ``audio_forward`` takes whole recordings (``x``
``[1, -1]``), and ``forward`` one window by itself (``[1, 512]``); with ``state = shared``, ``forward`` follows the
stream of one client.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any, Final

import msgspec

from backends.errors import LoadFailed
from backends.spec import ModelSpec, TensorSpec
from backends.torch import script_safety, signature
from backends.torch.artifact import Artifact
from backends.torch.framework import import_part, torch
from backends.torch.options import Options
from backends.torch.program import Outputs, Program

#: As Triton calls it; clients show it.
PLATFORM: Final = "pytorch_libtorch"

_NUMBER: Final = re.compile(r"(?:Optional\[)?(int|float|bool)\]?")
_TENSOR: Final = ("Tensor", "Optional[Tensor]")
_DICT: Final = "Dict[str, Tensor]"
_LIST: Final = "List[Tensor]"
_UNKNOWN_OPERATOR: Final = re.compile(r"Unknown builtin op: (\S+?)\.?\s")


class Argument(msgspec.Struct):
    """An argument of a method: ``kind`` is ``Tensor``, ``int``, ``float``, ``bool``, or a type that takes no input."""

    name: str
    kind: str
    is_required: bool
    default: Any


def load(artifact: Artifact, spec: ModelSpec, chosen: Options, device: Any) -> Program:
    """Raises ``LoadFailed``: the program does more than compute, or its declaration is missing or does not fit."""
    module = _read(artifact, device)
    method = _method(module, chosen.method)
    arguments = _arguments(method)
    outputs = _check_declared(spec, artifact.path.name, arguments, method.schema)
    graph = _graph(module, chosen.method)
    state = _state(graph)
    if state and not (chosen.reset_method or chosen.shares_state):
        raise LoadFailed(_keeps_state(chosen.method, state, module))
    module, dtype = _prepare(module, chosen)
    method = _method(module, chosen.method)
    reset = _method(module, chosen.reset_method) if chosen.reset_method else None
    call, numbers = _calling(method, arguments, spec.inputs)

    def run(feeds: dict[str, Any], wanted: tuple[str, ...]) -> dict[str, Any]:
        if reset is not None:
            reset()
        return outputs.pick(call(feeds), wanted)

    return Program(
        platform=PLATFORM,
        inputs=tuple(spec.inputs),
        outputs=tuple(spec.outputs),
        run=run,
        numbers=numbers,
        writes_inputs=_writes_inputs(graph),
        keeps_state=bool(state) or reset is not None,
        dtype=dtype,
    )


def _read(artifact: Artifact, device: Any) -> Any:
    """What ``torch.jit.load`` does, with the program looked through before any of it can run."""
    name = artifact.path.name
    script_safety.check_source(artifact.archive)
    unit = torch._C.CompilationUnit()
    try:
        loaded = torch._C.import_ir_module(unit, str(artifact.path), device, {}, False)
    except RuntimeError as error:
        unknown = _UNKNOWN_OPERATOR.search(str(error))
        if unknown is None:
            raise
        raise LoadFailed(
            f"{name} uses the operator {unknown[1]}, which torch {torch.__version__} does not have: it was saved by "
            "a newer torch, or needs a library of operators; save it with this torch, or install a newer one"
        ) from error
    module = import_part("torch.jit._recursive").wrap_cpp_module(loaded)
    script_safety.check_compiled(unit, module)
    return module.eval()


def _prepare(module: Any, chosen: Options) -> tuple[Any, Any]:
    """The module as the options want it, and the type to which floating inputs are converted."""
    dtype = getattr(torch, chosen.dtype) if chosen.dtype else None
    if dtype is not None:
        module = module.to(dtype)
    if chosen.channels_last:
        module = module.to(memory_format=torch.channels_last)
    kept = [name for name in (chosen.method, chosen.reset_method) if name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript as a whole is deprecated
        if chosen.optimize_for_inference:
            module = torch.jit.optimize_for_inference(module, kept)
        elif chosen.freeze:
            module = torch.jit.freeze(module, preserved_attrs=[name for name in kept if name != "forward"])
    return module, dtype


def _method(module: Any, name: str) -> Any:
    names = module._c._method_names()
    if name not in names:
        raise LoadFailed(f"the model has no method {name!r}; it has {', '.join(names) or 'none'}")
    return module._c._get_method(name)


# --- arguments -----------------------------------------------------------------------------------------------------


def _arguments(method: Any) -> list[Argument]:
    found = []
    for argument in method.schema.arguments[1:]:
        text = argument.type.annotation_str
        number = _NUMBER.fullmatch(text)
        kind = "Tensor" if text in _TENSOR else number[1] if number else text
        found.append(Argument(argument.name, kind, not argument.has_default_value(), argument.default_value))
    return found


def _check_declared(spec: ModelSpec, name: str, arguments: list[Argument], schema: Any) -> Outputs:
    """Raises ``LoadFailed`` that says what to declare, or what is declared wrongly."""
    count = _count(schema.returns[0].type) if schema.returns else 0
    if not spec.inputs or not spec.outputs:
        offered = {each.name: each.kind for each in arguments if each.is_required or each.kind == "Tensor"}
        missing = [] if spec.outputs else [f"OUTPUT__{number}" for number in range(count or 1)]
        raise LoadFailed(signature.undeclared(name, offered, not spec.inputs, missing))
    outputs = Outputs([tensor.name for tensor in spec.outputs])
    if count is not None:
        outputs.check(count)
    return outputs


def _count(returned: Any) -> int | None:
    """How many tensors a method gives; None where only the run will tell."""
    if returned.kind() == "TensorType":
        return 1
    if returned.kind() == "TupleType" and all(each.kind() == "TensorType" for each in returned.elements()):
        return len(returned.elements())
    return None


def _calling(
    method: Any, arguments: list[Argument], inputs: tuple[TensorSpec, ...]
) -> tuple[Callable[[dict[str, Any]], Any], frozenset[str]]:
    """How to call the method with inputs by name, and which of them are Python numbers."""
    if len(arguments) == 1 and arguments[0].kind in (_DICT, _LIST):
        is_dict = arguments[0].kind == _DICT
        names = [tensor.name for tensor in inputs]
        return lambda feeds: method(feeds if is_dict else [feeds[name] for name in names]), frozenset()
    assigned = signature.assign(inputs, [each.name for each in arguments])
    source = {argument: name for name, argument in assigned.items()}
    by_name = {tensor.name: tensor for tensor in inputs}
    numbers = set()
    for argument in arguments:
        given = source.get(argument.name)
        if given is None:
            if argument.is_required:
                raise LoadFailed(f"the model needs its argument {argument.name!r}, for which no input is declared")
        elif argument.kind in ("int", "float", "bool"):
            signature.check_number(by_name[given], argument.kind)
            numbers.add(given)
        elif argument.kind != "Tensor":
            raise LoadFailed(f"argument {argument.name!r} is of type {argument.kind}, which no input can be given for")
    # the last arguments that have no input are left to their defaults
    places = [(source.get(each.name), each.default) for each in arguments]
    while places and places[-1][0] is None:
        places.pop()
    return lambda feeds: method(*[_value(feeds, name, default) for name, default in places]), frozenset(numbers)


def _value(feeds: dict[str, Any], name: str | None, default: Any) -> Any:
    return default if name is None else feeds.get(name, default)


# --- what the program does to its inputs and to itself ---------------------------------------------------------------


def _graph(module: Any, method: str) -> Any:
    """What a run of the method does, without the branches that only training takes."""
    preserved = [] if method == "forward" else [method]
    try:
        # a copy of the program; its weights are shared, and stay out of it
        frozen = torch._C._freeze_module(module._c, preserved, True, True)
        return frozen._get_method(method).inlined_graph
    except RuntimeError:  # a program that cannot be frozen is taken as it is, and may look as if it did more
        return module._c._get_method(method).inlined_graph


def _writes_inputs(graph: Any) -> bool:
    aliases = graph.alias_db(False, False)
    given = list(graph.inputs())[1:]
    return any(aliases.has_writers(value) for value in given)


def _state(graph: Any) -> list[str]:
    """The attributes that a run assigns, or changes in place."""
    names = set()
    for node in script_safety.nodes(graph):
        kind = node.kind()
        if kind == "prim::SetAttr" and not _is_local(next(iter(node.inputs())).node()):
            names.add(node.s("name"))
        elif kind.startswith("aten::") and kind.endswith("_") and not kind.endswith("__"):
            target = next(iter(node.inputs())).node()
            if target.kind() == "prim::GetAttr":
                names.add(target.s("name"))
    return sorted(names)


def _is_local(node: Any) -> bool:
    """Whether an object was made in the run itself."""
    return bool(node.kind() == "prim::CreateObject")


def _keeps_state(method: str, names: list[str], module: Any) -> str:
    resets = [name for name in module._c._method_names() if "reset" in name]
    offer = f" (it has {', '.join(resets)})" if resets else ""
    return (
        f"{method} changes the model's attribute(s) {', '.join(names)}: a request would begin with what the one before "
        "it, of another client perhaps, left there. Set the option reset_method to the method that clears them"
        f"{offer}, or the option method to one that does not need them between calls, or state = shared if all clients "
        "are meant to share them"
    )
