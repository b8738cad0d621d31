"""What a serialised ``torch.export`` program may say, so that loading it runs nothing but torch's operators.

torch's loader trusts the archive, and each of these runs code of its author: custom objects and some tensors are
pickles; an operator is any attribute of ``torch`` or ``operator``, found by its dotted name (``torch.os.system``);
sizes are evaluated as Python; guards are executed as Python; names of nodes and inputs are written into the Python that
torch makes of the graph; trees of inputs and outputs import modules. So here every text of the program has to be of a
harmless form, and what is of no use for serving (metadata, guards, trees, sample inputs) is dropped. What is not known
is refused.
"""

from __future__ import annotations

import ast
import dataclasses
import json
import math
import operator
import re
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from backends.errors import LoadFailed
from backends.torch.framework import import_part, torch

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PATH: Final = re.compile(r"(?!__)[A-Za-z_][A-Za-z0-9_]*(\.(?!__)[A-Za-z0-9_]+)*")
_SYMBOL: Final = re.compile(r"[a-z_]+[0-9]+")
_DEVICE: Final = re.compile(r"[a-z]+")
_OVERLOAD: Final = re.compile(r"torch\.ops\.([a-z_0-9]+)\.([A-Za-z_0-9]+)\.([A-Za-z_0-9]+)")
_PLAIN: Final = re.compile(r"(torch|_operator|math)\.([a-z_]+)")
_NUMBER: Final = re.compile(r"-?[0-9.]+(e[+-]?[0-9]+)?|-?inf|nan")

#: Namespaces whose operators compute. Some of aten reach files.
_NAMESPACES: Final = frozenset({
    "aten", "prims", "quantized", "quantized_decomposed", "_quantized", "mkldnn", "onednn", "torchvision", "torchaudio",
})  # fmt: skip
_REFUSED: Final = frozenset({("aten", "from_file"), ("aten", "save"), ("aten", "_print")})
_HIGHER_ORDER: Final = frozenset({
    "associative_scan", "cond", "flex_attention", "map_impl", "scan", "while_loop", "wrap_with_autocast",
    "wrap_with_set_grad_enabled",
})  # fmt: skip

_FUNCTIONS: Final = frozenset({
    "Symbol", "Integer", "Float", "Rational", "Add", "Mul", "Pow", "Mod", "Max", "Min", "Abs", "floor", "ceiling",
    "sqrt",
    "Equality", "Unequality", "Eq", "Ne", "Ge", "Gt", "Le", "Lt", "GreaterThan", "LessThan", "StrictGreaterThan",
    "StrictLessThan", "And", "Or", "Not", "Piecewise", "ExprCondPair",
    "FloorDiv", "ModularIndexing", "Where", "PythonMod", "CleanDiv", "CeilToInt", "FloorToInt", "CeilDiv", "LShift",
    "RShift", "PowByNatural", "FloatPow", "FloatTrueDiv", "IntTrueDiv", "IsNonOverlappingAndDenseIndicator",
    "TruncToFloat", "TruncToInt", "RoundToInt", "RoundDecimal", "ToFloat", "Identity",
})  # fmt: skip
_NODES: Final = (
    ast.Expression, ast.BinOp, ast.UnaryOp, ast.Compare, ast.BoolOp, ast.Call, ast.Name, ast.Constant, ast.Load,
    ast.keyword, ast.Tuple, ast.operator, ast.unaryop, ast.cmpop, ast.boolop,
)  # fmt: skip
_CONSTANTS: Final = ("true", "false", "oo", "zoo", "nan", "S")
_MAX_EXPRESSION: Final = 4000
#: torch counts up to the number in the name of such a symbol.
_UNBACKED: Final = re.compile(r"(u|zuf)[0-9]{7,}")
#: What makes huge numbers of small ones, unless one of them is a symbol.
_POWERS: Final = ("Pow", "PowByNatural", "FloatPow", "LShift")

_LEAF: Final[dict[str, Any]] = {"type": None, "context": None, "children_spec": []}
_MEND: Final = (
    "export the model again with torch.export.save, without custom objects, custom operators and tensor subclasses"
)


class Trees(NamedTuple):
    """What a program said about the names of its inputs and outputs. Unchecked: for reading, not for torch."""

    inputs: str = ""
    outputs: str = ""
    arguments: tuple[str, ...] = ()


class Checked(NamedTuple):
    """``program`` is torch's ``schema.ExportedProgram``, with flat inputs and outputs."""

    program: Any
    trees: Trees


def read(content: bytes, name: str) -> Checked:
    """The checked program. Raises ``LoadFailed`` with what is wrong in it."""
    schema, serde = import_part("torch._export.serde.schema"), import_part("torch._export.serde.serialize")
    data = parse(content, name)
    _check_version(data, schema.SCHEMA_VERSION, name)
    try:
        program = serde._dict_to_dataclass(schema.ExportedProgram, data)
        trees = _drop(program)
        check(program, name)
        _flatten(program, schema)
    except LoadFailed:
        raise
    except Exception as error:  # whatever a wrong type in the wrong place leads to
        raise LoadFailed(f"{name} holds no program of torch.export ({error!r}); {_MEND}") from error
    return Checked(program, trees)


def parse(content: bytes, name: str) -> Any:
    """JSON. Raises ``LoadFailed``."""
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise LoadFailed(f"{name}: its program is no JSON ({error}); save the model again") from error


def check(value: Any, name: str) -> None:
    """Raises ``LoadFailed`` for a text in ``value``, a tree of schema objects, that has no harmless form."""
    waiting = [("", value)]
    while waiting:
        field, item = waiting.pop()
        if isinstance(item, str):
            rule = _RULES.get(field)
            if rule is None or not rule(item):
                raise LoadFailed(f"{name} has {item[:100]!r} as {field or 'text'}, which is not let through: {_MEND}")
        elif isinstance(item, list | tuple):
            waiting.extend((field, inside) for inside in item)
        elif isinstance(item, dict):
            for key, inside in item.items():
                waiting.append(("key", str(key)))
                waiting.append((field, inside))
        elif dataclasses.is_dataclass(item):
            waiting.extend(_fields(item))


def _fields(item: Any) -> list[tuple[str, Any]]:
    if hasattr(item, "type") and hasattr(item, "value"):  # a union, of which only one field is there
        return [(item.type, item.value)]
    return [(each.name, getattr(item, each.name)) for each in dataclasses.fields(item)]


def _check_version(data: Any, ours: tuple[int, int], name: str) -> None:
    version = data.get("schema_version") if isinstance(data, dict) else None
    major = version.get("major") if isinstance(version, dict) else None
    if major != ours[0]:
        wrote = str(data.get("torch_version", "?"))[:40] if isinstance(data, dict) else "?"
        raise LoadFailed(
            f"{name} was exported by torch {wrote} in version {major} of the format, torch {torch.__version__} reads "
            f"version {ours[0]}: export it again with this torch, or install the one that it was exported with"
        )


def _drop(program: Any) -> Trees:
    """Leave out what serving does not need; gives what tells the names of inputs and outputs."""
    program.guards_code = []
    program.verifiers = [name for name in program.verifiers if name in ("ATEN", "TRAINING")][:1] or ["ATEN"]
    program.torch_version = ""
    module = program.graph_module
    module.metadata, module.treespec_namedtuple_fields = {}, {}
    root = next((entry.signature for entry in module.module_call_graph if entry.fqn == ""), None)
    module.module_call_graph = []
    graphs = [module.graph]
    while graphs:
        for node in graphs.pop().nodes:
            node.metadata = {}
            graphs.extend(_inner_graphs([given.arg for given in node.inputs]))
    if root is None:
        return Trees()
    return Trees(str(root.in_spec), str(root.out_spec), tuple(map(str, root.forward_arg_names or ())))


def _flatten(program: Any, schema: Any) -> None:
    """Give the program one tuple of inputs and one of outputs, in place of the trees that it had."""
    specs = program.graph_module.signature
    taken = sum(each.type in ("user_input", "constant_input") for each in specs.input_specs)
    given = sum(each.type == "user_output" for each in specs.output_specs)
    arguments = _tuple(_tuple(*[_LEAF] * taken), {"type": "builtins.dict", "context": "[]", "children_spec": []})
    signature = schema.ModuleCallSignature(
        inputs=[], outputs=[], in_spec=json.dumps([1, arguments]), out_spec=json.dumps([1, _tuple(*[_LEAF] * given)])
    )
    program.graph_module.module_call_graph = [schema.ModuleCallEntry(fqn="", signature=signature)]


def _tuple(*children: Any) -> dict[str, Any]:
    return {"type": "builtins.tuple", "context": "null", "children_spec": list(children)}


def _inner_graphs(arguments: list[Any]) -> list[Any]:
    """Graphs in a node's arguments, at any depth."""
    found = []
    waiting = list(arguments)
    while waiting:
        argument = waiting.pop()
        if argument.type == "as_graph":
            found.append(argument.value.graph)
        elif argument.type == "as_string_to_argument":
            waiting.extend(argument.value.values())
    return found


# --- rules ---------------------------------------------------------------------------------------------------------


def _is_name(text: str) -> bool:
    return not text or _NAME.fullmatch(text) is not None


def _is_path(text: str) -> bool:
    return not text or _PATH.fullmatch(text) is not None


def is_operator(text: str) -> bool:
    """Whether a target is an operator that computes."""
    match = _OVERLOAD.fullmatch(text)
    if match:
        namespace, name, overload = match.groups()
        if namespace not in _NAMESPACES or (namespace, name) in _REFUSED:
            return False
        packet = getattr(getattr(torch.ops, namespace), name, None)
        if not isinstance(packet, torch._ops.OpOverloadPacket):
            return False
        return overload in packet.overloads() and isinstance(getattr(packet, overload), torch._ops.OpOverload)
    if text.startswith("torch.ops.higher_order."):
        return text.removeprefix("torch.ops.higher_order.") in _HIGHER_ORDER
    match = _PLAIN.fullmatch(text)
    if match is None:
        return False
    found = getattr({"torch": torch, "_operator": operator, "math": math}[match[1]], match[2], None)
    return found is operator.getitem or found in import_part("torch._export.serde.serialize")._SYM_OPS


def is_expression(text: str) -> bool:
    """Whether a size is an expression over symbols and numbers, and one that is computed at once."""
    if len(text) > _MAX_EXPRESSION:
        return False
    try:
        nodes = list(ast.walk(ast.parse(text, mode="eval")))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    called = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
    quoted = {id(given) for node in nodes for given in _quoted(node)}
    return all(_is_harmless(node, called, quoted) for node in nodes)


def _quoted(node: ast.AST) -> list[ast.expr]:
    """The texts that a call may have: a symbol's name, a number's digits."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args):
        return []
    first = node.args[0]
    rule = {"Symbol": _NAME, "Float": _NUMBER}.get(node.func.id)
    if rule and isinstance(first, ast.Constant) and isinstance(first.value, str) and rule.fullmatch(first.value):
        return [first]
    return []


def _is_harmless(node: ast.AST, called: set[int], quoted: set[int]) -> bool:
    match node:
        case ast.Call(func=ast.Name(id=name), args=args):
            return name not in _POWERS or (bool(args) and _has_symbol(args[0]))
        case ast.Name(id=name):
            is_value = name in _CONSTANTS or _SYMBOL.fullmatch(name) is not None
            return name in _FUNCTIONS if id(node) in called else is_value
        case ast.BinOp(left=left, op=ast.Pow() | ast.LShift()):
            return _has_symbol(left)
        case ast.Constant(value=value):
            return id(node) in quoted or isinstance(value, bool | int | float)
    return isinstance(node, _NODES) and not isinstance(node, ast.Call)


def _has_symbol(node: ast.AST) -> bool:
    return any(isinstance(inside, ast.Name) and _is_symbol(inside.id) for inside in ast.walk(node))


def _is_symbol(name: str) -> bool:
    return name == "Symbol" or _SYMBOL.fullmatch(name) is not None


def _is_anything(_: str) -> bool:
    return True


def _is_nothing(text: str) -> bool:
    return not text


#: Field of the schema -> whether its text is harmless. A field that is not here may hold no text.
_RULES: Final[dict[str, Callable[[str], bool]]] = {
    "key": lambda text: _is_path(text) and not _UNBACKED.fullmatch(text),
    "name": _is_name, "as_name": _is_name,
    "parameter_name": _is_path, "buffer_name": _is_path, "tensor_constant_name": _is_path, "user_input_name": _is_path,
    "path_name": _is_path,
    "target": is_operator, "as_operator": is_operator,
    "expr_str": is_expression,
    "as_string": _is_anything, "as_strings": _is_anything,  # written with repr()
    "type": lambda text: _DEVICE.fullmatch(text) is not None,
    "verifiers": _is_name, "torch_version": _is_nothing,
    "class_fqn": _is_nothing,
}  # fmt: skip
