"""Which operators of a TensorFlow graph a computation can reach. Reads the protobuf messages, runs nothing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any


def nodes(graph: Any) -> Iterator[tuple[str, Any]]:
    """Every ``NodeDef`` of a ``GraphDef``, those inside of functions too, with the function's name ("" for none)."""
    for node in graph.node:
        yield "", node
    for function in graph.library.function:
        for node in function.node_def:
            yield function.signature.name, node


def node_name(tensor: str) -> str:
    """The node that a tensor (``name:1``), an operation or a control input (``^name``) stands for."""
    return tensor.removeprefix("^").partition(":")[0]


class Reach:
    """What the nodes of one graph depend on."""

    def __init__(self, graph: Any) -> None:
        self._nodes = {node.name: node for node in graph.node}
        self._functions = {function.signature.name: function for function in graph.library.function}
        self._gradients = {each.function_name: each.gradient_func for each in graph.library.gradient}
        # TensorFlow may take a function's place with another one that says to do the same
        self._alike = defaultdict(list)
        for name, function in self._functions.items():
            if "api_implements" in function.attr:
                self._alike[function.attr["api_implements"].s].append(name)

    def operators(self, roots: Iterable[str]) -> set[str]:
        """Every operator that may run to compute ``roots`` (names of tensors or nodes)."""
        return {node.op for node in self._needed(roots)}

    def calls(self, roots: Iterable[str]) -> set[str]:
        """The nodes outside of functions that call one and are needed for ``roots``."""
        return {
            node.name
            for node in self._above(map(node_name, roots))
            if "f" in node.attr and node.attr["f"].func.name in self._functions
        }

    def _needed(self, roots: Iterable[str]) -> Iterator[Any]:
        waiting: list[str] = []
        for node in self._above(map(node_name, roots)):
            yield node
            waiting.extend(self._used(node))
        seen: set[str] = set()
        while waiting:
            name = waiting.pop()
            if name in seen or name not in self._functions:
                continue
            seen.add(name)
            function = self._functions[name]
            waiting.append(self._gradients.get(name, ""))
            if "api_implements" in function.attr:
                waiting.extend(self._alike[function.attr["api_implements"].s])
            for node in function.node_def:
                yield node
                waiting.extend(self._used(node))

    def _above(self, roots: Iterable[str]) -> Iterator[Any]:
        """The nodes outside of functions that ``roots`` depend on, themselves included."""
        waiting, seen = list(roots), set()
        while waiting:
            name = waiting.pop()
            if name in seen or name not in self._nodes:
                continue
            seen.add(name)
            node = self._nodes[name]
            yield node
            waiting.extend(node_name(source) for source in node.input)

    def _used(self, node: Any) -> Iterator[str]:
        """The functions that a node may call."""
        yield node.op
        for value in node.attr.values():
            if value.HasField("func"):
                yield value.func.name
            for function in value.list.func:
                yield function.name
