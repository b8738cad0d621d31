"""What commands print: tables (with lines and colour only on a terminal), JSON, and a spinner while something runs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

#: Controls that a name or a reason may hold must not reach a terminal.
_CONTROLS = dict.fromkeys((*range(32), *range(127, 160)), " ")
Row = Sequence[object]


def print_json(value: Any) -> None:
    """Indented JSON on stdout."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def print_table(columns: Sequence[str], rows: Sequence[Row], *, title: str = "") -> None:
    """A table: with lines on a terminal, and columns of plain text elsewhere (one row a line, never wrapped)."""
    cells = [[_clean(value) for value in row] for row in rows]
    if title:
        print(f"\n{_clean(title)}")
    if sys.stdout.isatty():
        _print_rich(columns, cells)
        return
    lines = [[name.upper() for name in columns], *cells]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def _print_rich(columns: Sequence[str], cells: list[list[str]]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for name in columns:
        table.add_column(name, overflow="fold")
    for row in cells:
        table.add_row(*map(Text, row))
    Console().print(table)


def _clean(value: object) -> str:
    return str(value if value is not None else "").translate(_CONTROLS)


@contextmanager
def spinner(text: str) -> Iterator[Callable[[str], None]]:
    """Show on a terminal that ``text`` goes on, and how far it is: what the function is called with.

    Elsewhere that is a plain line on standard error each time, and ``text`` is not said.
    """
    if not sys.stderr.isatty():
        yield lambda stage: print(_clean(stage), file=sys.stderr, flush=True)
        return
    from rich.console import Console
    from rich.markup import escape

    with Console(stderr=True).status(escape(text)) as status:
        yield lambda stage: status.update(escape(_clean(stage)))


def size(count: int) -> str:
    """``23068672`` -> ``"22.0 MiB"``."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            break
        value /= 1024
    return f"{count} B" if unit == "B" else f"{value:.1f} {unit}"


def load_text(load: Any) -> str:
    """What a load took: ``in 1.84 s, 312.0 MiB (20.0 MiB of them the model's)``."""
    return f"in {load['total_s']:.2f} s, {size(load['memory_bytes'])} ({size(load['model_bytes'])} of them the model's)"
