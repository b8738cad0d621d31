"""Rows of one run and the tables made of them. ``python -m benchmarks.report FILE`` prints them again."""

import argparse
import json
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

OURS = "tensorgate"


@dataclass(frozen=True)
class Row:
    """One window of load on one server. ``requests`` counts good answers only.

    ``encoding`` differs from ``protocol`` where a server has no binary REST and was sent JSON.
    ``other_cpu`` is the share of the machine that neither server nor client used meanwhile: above
    a few hundredths, something else was running and the figures are not to be trusted.
    """

    client: str
    tuning: str
    point: str
    protocol: str
    concurrency: int
    server: str
    encoding: str
    repeat: int
    requests: float
    failed: int
    requests_per_s: float
    p50_ms: float
    p99_ms: float
    server_cpu_s: float
    client_cpu_s: float
    other_cpu: float

    @property
    def cell(self) -> "Cell":
        return Cell(self.client, self.tuning, self.point, self.protocol, self.concurrency)

    @property
    def cpu_s_per_1000(self) -> float:
        return self.server_cpu_s / self.requests * 1000


@dataclass(frozen=True)
class Cell:
    """Servers are compared within a cell and nowhere else."""

    client: str
    tuning: str
    point: str
    protocol: str
    concurrency: int

    def __str__(self) -> str:
        return f"{self.tuning} | {self.point} | {self.protocol} | {self.concurrency}"


Repeats = dict[int, Row]
Table = dict[Cell, dict[str, Repeats]]
CELL_HEADING = "tuning | point | protocol | clients"


def tabulate(rows: Iterable[Row]) -> Table:
    """Cell -> server -> repeat -> row, in the order of the run."""
    table: Table = defaultdict(lambda: defaultdict(dict))
    for row in rows:
        table[row.cell][row.server][row.repeat] = row
    return table


def markdown(rows: list[Row], subject: str = OURS) -> str:
    """Figures and ratios, once for each client that took part."""
    sections = []
    for client in dict.fromkeys(row.client for row in rows):
        table = tabulate(row for row in rows if row.client == client)
        sections += [f"### {client}: figures", figures(table)]
        if any(subject in servers and len(servers) > 1 for servers in table.values()):
            sections += [f"### {client}: {subject} ÷ peer", ratios(table, subject)]
    return "\n\n".join([*sections, quality(rows)])


def figures(table: Table) -> str:
    lines = [
        f"| {CELL_HEADING} | server | requests/s | p50 ms | p99 ms | CPU s / 1000 | failed |",
        "|---|---|---|--:|---|--:|--:|--:|--:|--:|",
    ]
    for cell, servers in table.items():
        lines += [f"| {cell} | {figure_cells(repeats)} |" for repeats in servers.values()]
    return "\n".join(lines)


def figure_cells(repeats: Repeats) -> str:
    first = next(iter(repeats.values()))
    note = "" if first.encoding == first.protocol else f" ({first.encoding})"
    return " | ".join(
        [
            first.server + note,
            f"{middle(repeats, requests_per_s):.1f}",
            f"{middle(repeats, p50_ms):.3g}",
            f"{middle(repeats, p99_ms):.3g}",
            cpu_cell(first.client, middle(repeats, cpu_s_per_1000)),
            str(sum(row.failed for row in repeats.values())),
        ]
    )


def cpu_cell(client: str, value: float) -> str:
    """perf_analyzer does not tell how many requests it sent outside its windows."""
    return "–" if client == "perf_analyzer" else f"{value:.3g}"


def ratios(table: Table, subject: str) -> str:
    """Rate, p99 and CPU of ``subject`` over those of each peer: median over the repeats, each in itself."""
    peers = list(dict.fromkeys(name for servers in table.values() for name in servers if name != subject))
    lines = [
        f"| {CELL_HEADING} | {' | '.join(f'{peer}: rate, p99, CPU' for peer in peers)} |",
        "|---|---|---|--:|" + "--:|" * len(peers),
    ]
    for cell, servers in table.items():
        if subject in servers:
            cells = [ratio_cell(servers[subject], servers.get(peer, {})) for peer in peers]
            lines.append(f"| {cell} | {' | '.join(cells)} |")
    return "\n".join(lines)


def ratio_cell(ours: Repeats, theirs: Repeats) -> str:
    if not ours.keys() & theirs.keys():
        return "–"
    rate = ratio(ours, theirs, requests_per_s)
    p99 = ratio(ours, theirs, p99_ms)
    client = next(iter(ours.values())).client
    return f"**{rate:.2f}**, {p99:.2f}, {cpu_cell(client, ratio(ours, theirs, cpu_s_per_1000))}"


Measure = Callable[[Row], float]


def requests_per_s(row: Row) -> float:
    return row.requests_per_s


def p50_ms(row: Row) -> float:
    return row.p50_ms


def p99_ms(row: Row) -> float:
    return row.p99_ms


def cpu_s_per_1000(row: Row) -> float:
    return row.cpu_s_per_1000


def middle(repeats: Repeats, measure: Measure) -> float:
    return median(measure(row) for row in repeats.values())


def ratio(ours: Repeats, theirs: Repeats, measure: Measure) -> float:
    """Repeats are paired: drift of the machine between them then falls out of the ratio."""
    common = ours.keys() & theirs.keys()
    return median(measure(ours[repeat]) / measure(theirs[repeat]) for repeat in common)


def quality(rows: list[Row]) -> str:
    failed = sum(row.failed for row in rows)
    busy = [row.other_cpu for row in rows]
    return (
        f"{len(rows)} windows, {failed} failed requests. Processor time used by anything else on the "
        f"machine: median {median(busy):.1%}, worst window {max(busy):.1%}."
    )


def load_rows(path: Path) -> list[Row]:
    """The measured rows of a results file; its other lines say what ran where."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [Row(**line["row"]) for line in lines if "row" in line]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--subject", default=OURS, help="the server that the ratios are of")
    arguments = parser.parse_args()
    print(markdown(load_rows(arguments.file), arguments.subject))


if __name__ == "__main__":
    main()
