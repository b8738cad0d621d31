"""The worker process: ``python -P -m backends.worker``. Says hello, loads one model, serves it, leaves in order.

It needs numpy, msgspec and its framework, nothing else. End of file on the channel means that the gateway is gone; the
worker then ends at once. Exit codes: 0 drained, 3 the model could not be loaded, 4 the gateway is gone, 5 rubbish on
the channel; any other end is a fault, with a traceback on standard error.
"""

from __future__ import annotations

import argparse
import ctypes
import fcntl
import gc
import os
import signal
import socket
import sys
import threading
import time
import traceback

from backends.arena import Mapping
from backends.contract import Backend
from backends.errors import LoadFailed
from backends.executor import Executor
from backends.memory import Idleness, give_back, rss_bytes
from backends.messages import PROTOCOL_VERSION, Drain, Drained, Failed, Heartbeat, Hello, Load, Ready
from backends.padding import offered
from backends.port import Disconnected, Port, sendable
from backends.stages import load_in_stages
from backends.wire import WireError

EXIT_DRAINED, EXIT_NOT_LOADED, EXIT_NO_GATEWAY, EXIT_RUBBISH = 0, 3, 4, 5
_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS = 1, 38


def main() -> int:
    """Run one worker to its end."""
    arguments = _parse()
    _bind_to_parent(arguments.parent)
    sock = socket.socket(fileno=_own(arguments.channel_fd))
    requests = Mapping(_own(arguments.request_arena_fd), writable=False) if arguments.request_arena_fd >= 0 else None
    responses = Mapping(_own(arguments.response_arena_fd), writable=True) if arguments.response_arena_fd >= 0 else None
    port = Port(sock, requests, responses)
    try:
        return _serve(port)
    except Disconnected:
        return EXIT_NO_GATEWAY
    except WireError as error:
        print(f"rubbish on the channel: {error}", file=sys.stderr)
        return EXIT_RUBBISH


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="backends.worker", description="started by the gateway, not by hand")
    parser.add_argument("--channel-fd", type=int, required=True)
    parser.add_argument("--request-arena-fd", type=int, default=-1)
    parser.add_argument("--response-arena-fd", type=int, default=-1)
    parser.add_argument("--parent", type=int, default=0, help="the gateway's process id")
    return parser.parse_args()


def _bind_to_parent(parent: int) -> None:
    """Die with the gateway even while stuck in C code, and never gain privileges."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, "this worker may outlive its gateway while its model computes")
    _prctl(_PR_SET_NO_NEW_PRIVS, 1, "what the model's code starts may gain privileges")
    if parent and os.getppid() != parent:  # it died before the line above, or it is not the one that started us
        print(
            f"process {os.getppid()} started this worker, and not the gateway, process {parent}: if the gateway runs, "
            'its setting interpreters names a script that stays in between; it has to end in `exec python "$@"`',
            file=sys.stderr,
        )
        sys.exit(EXIT_NO_GATEWAY)


def _prctl(option: int, value: int, otherwise: str) -> None:
    """Ask the kernel. A sandbox may refuse: the model is served all the same, and the log says what is lost."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        reason = os.strerror(ctypes.get_errno())
        print(f"prctl({option}, {value}) is refused ({reason}): {otherwise}", file=sys.stderr)


def _own(fd: int) -> int:
    """The inherited descriptor under another number, for this process alone.

    What the model's code starts must not hold the channel open when the worker is dead, and the gateway's number may
    be one of thousands: ``select`` takes none over 1023.
    """
    own = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    os.close(fd)
    return own


def _serve(port: Port) -> int:
    port.send(Hello(PROTOCOL_VERSION, os.getpid()))
    load = _wait_load(port)
    if load is None:
        return EXIT_DRAINED
    try:
        backend, signature, report = load_in_stages(load.spec, port.send)
        signature = offered(load.spec, signature)
    except LoadFailed as error:
        return _not_loaded(port, error.kind, str(error))
    except (Exception, SystemExit) as error:  # a framework may raise anything: the operator sees all of it in the log
        traceback.print_exc()
        return _not_loaded(port, LoadFailed.kind, f"{type(error).__name__}: {error}")
    executor = Executor(port, backend, load.spec, signature)
    port.send(Ready(signature, backend.runtime, executor.credits, report))
    _start_heartbeat(port, executor, backend, load)
    gc.freeze()  # framework and model stay for ever: looking through them for garbage would only cost
    executor.run()
    backend.unload()
    port.send(Drained())
    return EXIT_DRAINED


def _wait_load(port: Port) -> Load | None:
    """What to load. None if the gateway wants no worker any more, which it may say in the same breath."""
    load = None
    while load is None:
        for message, _ in port.receive(None):
            if isinstance(message, Drain):
                return None
            if load is not None or not isinstance(message, Load):
                raise WireError(f"{type(message).__name__} before the model is loaded")
            load = message
    return load


def _not_loaded(port: Port, kind: str, text: str) -> int:
    port.send(Failed(kind, sendable(text)))
    return EXIT_NOT_LOADED


def _start_heartbeat(port: Port, executor: Executor, backend: Backend, load: Load) -> None:
    idleness = Idleness(load.idle_trim_s)

    def beat() -> None:
        while True:
            time.sleep(load.heartbeat_s)
            waiting, age = executor.waiting(), executor.batch_age_ns()
            activity = (executor.executions, port.releases)
            if idleness.is_due(activity, time.monotonic(), busy=bool(waiting or age)):
                _trim(port, backend)
            try:
                port.send(Heartbeat(executor.executions, waiting, age, rss_bytes()))
            except Disconnected:
                os._exit(EXIT_NO_GATEWAY)  # the main thread may be deep in C code

    threading.Thread(target=beat, name="heartbeat", daemon=True).start()


def _trim(port: Port, backend: Backend) -> None:
    """Nobody has asked for a while: others can use what is kept for the next request."""
    try:
        backend.trim()
    except Exception:  # a courtesy; what is wrong with the model shows in its requests
        traceback.print_exc()
    port.trim()
    give_back()


if __name__ == "__main__":
    try:
        code = main()
    except Exception:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # no interpreter shutdown: frameworks' threads and destructors crash there, and nobody needs it
