"""What a TorchScript program may do. It is a program of its own language, without Python, but not without a reach.

TorchScript has operators that read and write files (``torch.save``, ``torch.from_file``), call other machines and join
process groups; a model from elsewhere could write wherever the server may. So only operators that compute are let
through, first in the text of methods that run while the archive is being loaded (``__setstate__``), then in everything
that was compiled, before any of it runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from backends.errors import LoadFailed
from backends.torch.archive import Archive

#: Namespaces whose operators compute. ``prim`` and ``aten`` have exceptions.
_NAMESPACES: Final = frozenset({
    "aten", "prim", "prims", "quantized", "quantized_decomposed", "_quantized", "mkldnn", "onednn", "mkldnn_prepacked",
    "sparse", "rnn", "tensorexpr", "torchvision", "torchaudio", "static_runtime",
})  # fmt: skip
_REFUSED: Final = frozenset({"aten::save", "aten::from_file", "aten::_print", "prim::PythonOp"})
_REFUSED_PREFIX: Final = "prim::rpc_"
#: Namespaces of C++ classes whose objects only hold numbers.
_CLASSES: Final = frozenset({
    "quantized", "sparse", "rnn", "mkldnn", "mkldnn_prepacked", "xnnpack", "torchvision", "torchaudio",
})  # fmt: skip
_CLASS: Final = re.compile(r"__torch__\.torch\.classes\.(\w+)")

_SETSTATE: Final = "__setstate__"
#: Words that a method which runs during the load cannot do its harm without; ``getattr`` could put them together.
_WORDS: Final = re.compile(r"\b(?:save|from_file|rpc_\w+|_?c10d\w*|symm_mem|dist_rpc|debugprims|inductor|getattr)\b")
#: How TorchScript itself writes attributes whose names are no identifiers.
_PLAIN_GETATTR: Final = re.compile(r'getattr\(([\w.() ]*), "([^"\\]*)"\)')

_MEND: Final = "a model that computes does not need it: remove it from the model's code, and save the model again"


def check_source(archive: Archive) -> None:
    """Raises ``LoadFailed`` for an archive that could do more than compute while it is being loaded."""
    sources = {name: archive.text(name) for name in archive.under("code/") if name.endswith(".py")}
    if not any(_SETSTATE in text for text in sources.values()):
        return
    for name, text in sources.items():
        found = _WORDS.search(_resolved(text))
        if found:
            raise LoadFailed(
                f"{archive.path.name} runs code while it is loaded ({_SETSTATE}), and {name} has the word "
                f"{found[0]!r}, which files or the network are reached with; {_MEND}"
            )


def _resolved(text: str) -> str:
    """The text with every plain ``getattr`` as its object and its name, the inner ones first."""
    before = ""
    while before != text:
        before, text = text, _PLAIN_GETATTR.sub(r"(\1 \2)", text)
    return text


def check_compiled(unit: Any, module: Any) -> None:
    """Raises ``LoadFailed`` for an operator or a C++ class that reaches out of the model."""
    for graph in _graphs(unit, module):
        for node in nodes(graph):
            kind = node.kind()
            namespace = kind.partition("::")[0]
            if kind in _REFUSED or kind.startswith(_REFUSED_PREFIX) or namespace not in _NAMESPACES:
                name = kind.replace("::", ".")
                raise LoadFailed(f"the model uses the operator {name}, which reaches out of the model; {_MEND}")
            for value in node.outputs():
                _check_class(str(value.type()))


def _check_class(text: str) -> None:
    for namespace in _CLASS.findall(text):
        if namespace not in _CLASSES:
            raise LoadFailed(f"the model uses an object of torch.classes.{namespace}; {_MEND}")


def _graphs(unit: Any, module: Any) -> Iterator[Any]:
    """Every graph that may run. To ask for one compiles it, which may bring in more."""
    seen: set[str] = set()
    for inner in module.modules():
        for name in inner._c._method_names():
            yield inner._c._get_method(name).graph
    while new := [function for function in unit.get_functions() if function.qualified_name not in seen]:
        for function in new:
            seen.add(function.qualified_name)
            yield function.graph


def nodes(graph: Any) -> Iterator[Any]:
    """Every node of a graph, those of its branches and loops included."""
    blocks = [graph]
    while blocks:
        for node in blocks.pop().nodes():
            yield node
            blocks.extend(node.blocks())
