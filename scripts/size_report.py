"""Prints how large modules and functions are, and fails where one is over its budget.

A module has at most 350 lines, a function's body at most 50; generated code and migrations are not ours to size.
"""

from __future__ import annotations

import ast
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("gateway", "registry", "backends")
MODULE_LINES = 350
BODY_LINES = 50


def main() -> int:
    """Print the report; the exit status says whether every budget is kept."""
    modules = {path: path.read_text() for package in PACKAGES for path in sources(ROOT / package)}
    over = []
    lines, bodies = [], []
    for path, text in modules.items():
        length = text.count("\n")
        if length:
            lines.append(length)
        if length > MODULE_LINES:
            over.append(f"{path.relative_to(ROOT)}: {length} lines")
        for name, line, body in functions(text):
            bodies.append(body)
            if body > BODY_LINES:
                over.append(f"{path.relative_to(ROOT)}:{line} {name}: {body} lines")
    tests = sum(path.read_text().count("\n") for path in sources(ROOT / "tests"))
    report("module", lines, MODULE_LINES)
    report("function", bodies, BODY_LINES)
    print(f"{sum(lines)} lines in {len(lines)} modules; {tests} lines of tests: {tests / sum(lines):.2f} a line")
    print("\n".join(over))
    return 1 if over else 0


def sources(folder: Path) -> Iterator[Path]:
    """The modules that people wrote."""
    for path in sorted(folder.rglob("*.py")):
        if "_pb2" not in path.name and "versions" not in path.parts:
            yield path


def functions(text: str) -> Iterator[tuple[str, int, int]]:
    """Name, line and number of body lines, the docstring not counted, of every function."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0].end_lineno if ast.get_docstring(node) else node.body[0].lineno - 1
            yield node.name, node.lineno, (node.end_lineno or 0) - (first or 0)


def report(what: str, sizes: list[int], budget: int) -> None:
    """One line: the median, the 90th percentile and the largest."""
    tenths = statistics.quantiles(sizes, n=10)
    middle = statistics.median(sizes)
    print(f"lines of a {what}: median {middle:.0f}, 90th percentile {tenths[-1]:.0f}, largest {max(sizes)} of {budget}")


if __name__ == "__main__":
    sys.exit(main())
