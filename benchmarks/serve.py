"""Measures the servers side by side: ``python -m benchmarks.serve [--quick]``.

All servers of a tuning are up at once. In each cell (point, protocol, concurrency) they take turns
under load, in an order that rotates from repeat to repeat; the ratios come from those rounds.
"""

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from benchmarks import machine
from benchmarks.contender import NATIVE, PERF_ANALYZER
from benchmarks.contest import Contest, Plan, Results, say
from benchmarks.engines import ENGINES, tensorgate_command
from benchmarks.home import Home, default_home
from benchmarks.load import perf_analyzer_command
from benchmarks.models import TUNINGS
from benchmarks.payloads import ENCODERS, Point, points
from benchmarks.peers.setup import install, missing_tools
from benchmarks.report import OURS, markdown

CLIENTS = {"native": NATIVE, "perf_analyzer": PERF_ANALYZER}
# Where the model computes nothing, a second instance or a batch has nothing to win.
ONCE_ONLY = ("add64", "add64k")


def main() -> int:
    arguments = parse_arguments()
    if missing := missing_generators(arguments.clients):
        raise SystemExit("\n".join(missing))
    # An orderly exit stops the servers; the default action would leave them behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    plan = make_plan(arguments)
    install(plan.home)
    results = Results(arguments.output or plan.home.root / time.strftime("serve-%Y%m%d-%H%M%S.jsonl"))
    results.note(machine=machine.describe(), command=sys.argv[1:])
    with tempfile.TemporaryDirectory(prefix="tensorgate-bench-") as folder:
        Contest(plan, results, Path(folder)).run()
    print_results(results, arguments.subject)
    return 1 if results.errors else 0


def missing_generators(clients: list[str]) -> list[str]:
    """A line for each load generator that the run wants and that is not there."""
    missing = missing_tools()
    if "perf_analyzer" in clients and perf_analyzer_command() is None:
        missing.append("perf_analyzer is missing: put it on PATH, or its path into PERF_ANALYZER")
    return missing


def print_results(results: Results, subject: str) -> None:
    about = machine.describe()
    print(f"{about['cpu']}, {about['cores']} cores, Python {about['python']}, {about['tools']}\n")
    print(markdown(results.rows, subject) if results.rows else "nothing was measured")
    for error in results.errors:
        print(f"\nERROR {error}")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--home", type=Path, default=default_home(), help="work folder of the peers")
    add("--output", type=Path, help="results file, JSON lines; default: a new one in the work folder")
    add("--servers", type=names_of(ENGINES), help=f"of {', '.join(ENGINES)}; default: all")
    add("--points", type=names_of(points()), help=f"of {', '.join(points())}; default: by tuning")
    add("--tunings", type=names_of(TUNINGS), help=f"of {', '.join(TUNINGS)}; default: all")
    add("--protocols", type=names_of(ENCODERS), default=list(ENCODERS))
    add("--clients", type=names_of(CLIENTS), default=["native"], help=f"of {', '.join(CLIENTS)}")
    add("--concurrency", type=numbers, default=[1, 8, 32])
    add("--repeats", type=int, help="rounds in each cell; default 3")
    add("--seconds", type=int, help="length of one window; default 3")
    add("--quick", action="store_true", help="one round of 1 s, tuning `one`: does it work at all?")
    add("--tensorgate-args", default="", help="appended to `tensorgate serve`")
    add("--subject", default=OURS, help="the server that the ratios are of")
    return parser.parse_args()


def names_of(known: Iterable[str]) -> Callable[[str], list[str]]:
    """An argument type: a comma-separated list of known names."""

    def parse(text: str) -> list[str]:
        names = text.split(",")
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(known)}")
        return names

    return parse


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def make_plan(arguments: argparse.Namespace) -> Plan:
    quick = arguments.quick
    tunings = arguments.tunings or (["one"] if quick else list(TUNINGS))
    return Plan(
        home=Home(arguments.home.resolve()),
        servers=arguments.servers or default_servers(),
        points={TUNINGS[name]: chosen_points(name, arguments.points) for name in tunings},
        protocols=arguments.protocols,
        clients=[CLIENTS[name] for name in arguments.clients],
        concurrency=arguments.concurrency,
        repeats=arguments.repeats or (1 if quick else 3),
        seconds=arguments.seconds or (1 if quick else 3),
        tensorgate_arguments=arguments.tensorgate_args,
    )


def default_servers() -> list[str]:
    """All of them; ours only where it is installed."""
    if tensorgate_command() is not None:
        return list(ENGINES)
    say(f"{OURS} is not installed beside {sys.executable}: measuring the peers alone")
    return [name for name in ENGINES if name != OURS]


def chosen_points(tuning: str, names: list[str] | None) -> list[Point]:
    known = points()
    if names is None:
        names = [name for name in known if tuning == "one" or name not in ONCE_ONLY]
    return [known[name] for name in names]


if __name__ == "__main__":
    sys.exit(main())
