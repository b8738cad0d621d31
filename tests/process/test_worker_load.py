"""Workers that do not come to be: a load that fails, crashes or hangs, an interpreter that is none, rubbish."""

from __future__ import annotations

import resource
import sys
from pathlib import Path
from typing import Final

import psutil
import pytest

from backends.messages import PROTOCOL_VERSION
from backends.spec import ModelSpec
from gateway.workers import restart
from support.wait import until
from support.workers import (
    LIMITS,
    Running,
    ask,
    descriptors,
    echo,
    floats,
    gone,
    impostor,
    limits,
    running,
    script,
    shell,
)

QUICK: Final = 0.3  # seconds that pass in a test of a time limit


# --- a model that does not load ---


async def test_a_load_that_fails_is_told_in_the_backends_words_and_not_tried_again() -> None:
    async with running(echo(load_fail="the file is no model")) as run:
        assert await run.given_up() == "the file is no model"
        assert run.replica.restarts == 0
        assert run.changes[-1] == (False, "the file is no model")


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (ModelSpec("m", 1, "nonsense", ""), "framework 'nonsense' is not known; known are echo, onnx"),
        (echo(oddity="1"), "the echo backend has no option 'oddity'"),
        (echo(load_fail="long " * 20_000), "long long long"),
        (ModelSpec("m", 1, "echo", "/models/\udcff"), "the model's specification cannot be passed to a worker: "),
        (echo(load_fail="x" * (17 << 20)), "the model's specification cannot be passed to a worker: header of "),
    ],
    ids=["framework", "option", "long reason", "path", "huge"],
)
async def test_a_spec_that_nobody_can_load_says_why(spec: ModelSpec, reason: str) -> None:
    async with running(spec) as run:
        assert reason in await run.given_up()
        assert run.replica.restarts == 0


@pytest.mark.parametrize(
    ("crash", "how"),
    [
        ("7", "exited with code 7"),
        ("0", "exited with code 0"),
        ("SIGSEGV", "was killed by signal 11, SIGSEGV"),
        ("SIGKILL", r"was killed by signal 9, SIGKILL \(often: out of memory\)"),
    ],
)
async def test_a_crash_while_loading_is_told_with_its_code_or_signal(crash: str, how: str) -> None:
    async with running(echo(load_crash=crash)) as run:
        assert await run.down() == f"the worker {how} while it loaded the model".replace("\\", "")
        await until(lambda: run.replica.restarts > 0)  # it may have been an accident


async def test_a_crash_while_loading_is_told_with_the_last_lines_that_were_written(tmp_path: Path) -> None:
    interpreter = shell(tmp_path / "python", 'echo first; seq 1 9; echo "cannot open libcuda.so" >&2; exit 3')
    async with running(interpreter=interpreter) as run:
        reason = await run.down()
        assert reason == (
            "the worker exited with code 3 while it loaded the model"
            "; its last words: 6 | 7 | 8 | 9 | cannot open libcuda.so"
        )


async def test_a_worker_that_ends_with_a_traceback_shows_it(tmp_path: Path) -> None:
    async with running(
        interpreter=script(tmp_path / "python", f"#!{sys.executable}\nraise RuntimeError('odd')\n")
    ) as run:
        reason = await run.down()
        assert "exited with code 1" in reason
        assert "RuntimeError: odd" in reason


@pytest.mark.parametrize("hang", ["true", "gil"])
async def test_a_load_that_hangs_is_ended_after_its_time(hang: str) -> None:
    async with running(echo(load_hang=hang), limits(load_timeout_s=QUICK)) as run:
        process = await run.started()
        assert await run.down() == "the model was not loaded within 0.3 s (setting load_timeout_s)"
        await gone(process.pid)
        await until(lambda: run.replica.restarts > 0)


async def test_a_load_that_never_works_is_given_up_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restart, "MAX_FAILURES", 2)
    async with running(echo(load_crash="7")) as run:
        assert await run.given_up() == (
            "3 deaths in a row, tried again every 30 s; the worker exited with code 7 while it loaded the model"
        )
        assert run.replica.restarts == 2


# --- an interpreter that is none ---


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("missing", "No such file or directory"),
        ("folder", "Permission denied"),
        ("not executable", "Permission denied"),
    ],
)
async def test_an_interpreter_that_cannot_be_started_is_named_and_not_tried_again(
    tmp_path: Path, kind: str, reason: str
) -> None:
    path = tmp_path / "python"
    if kind == "folder":
        path.mkdir()
    elif kind != "missing":
        path.write_text("#!/bin/sh\n")
    before = descriptors()
    async with running(interpreter=str(path)) as run:
        text = await run.given_up()
        assert text.startswith(f"cannot start {path}: ")
        assert reason in text
        assert run.replica.restarts == 0
    await until(lambda: descriptors() == before)


async def test_a_shortage_of_descriptors_is_no_fault_of_the_interpreter_and_passes() -> None:
    before = descriptors()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(before) + 4, hard))
    try:
        run = Running(echo(), LIMITS, sys.executable)
        assert "Too many open files" in await run.down()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    await run.ready(restarts=1)
    await run.replica.stop()
    await run.task
    await until(lambda: descriptors() == before)


async def test_an_interpreter_without_our_package_says_so(tmp_path: Path) -> None:
    interpreter = shell(tmp_path / "python", 'exec PYTHON -S -E -I "$@"')
    async with running(interpreter=interpreter) as run:
        assert "No module named" in await run.down()


async def test_a_script_that_stays_between_gateway_and_worker_is_told_how_to_mend_it(tmp_path: Path) -> None:
    async with running(interpreter=shell(tmp_path / "python", 'PYTHON "$@"; exit $?')) as run:
        reason = await run.down()
        assert "exited with code 4" in reason
        assert 'it has to end in `exec python "$@"`' in reason


async def test_a_script_that_ends_in_exec_is_an_interpreter(tmp_path: Path) -> None:
    async with running(interpreter=shell(tmp_path / "python", 'export SET_BY=script; exec PYTHON "$@"')) as run:
        process = await run.ready()
        assert psutil.Process(process.pid).environ()["SET_BY"] == "script"


@pytest.mark.parametrize("code", [0, 1, 9])
async def test_a_child_that_exits_at_once_is_told_with_its_code(tmp_path: Path, code: int) -> None:
    async with running(interpreter=shell(tmp_path / "python", f"exit {code}")) as run:
        assert await run.down() == f"the worker exited with code {code} while it loaded the model"


# --- rubbish ---

RUBBISH = {
    "text": (
        'channel.sendall(b"Traceback (most recent call last):" * 100)',
        "header of 1667330644 bytes",
    ),
    "an unknown message": (
        'channel.sendall(b"\\4" + bytes(11) + b"\\x93\\x63\\x01\\x01")',
        "not a message",
    ),
    "an endless payload": (
        'channel.sendall(b"\\x01\\0\\0\\0" + b"\\xff" * 8 + b"x" * 100)',
        "payload of 18446744073709551615 bytes",
    ),
    "a deep message": (
        'channel.sendall((5_000_002).to_bytes(4, "little") + bytes(8) + b"\\x96\\x26" + b"\\x91" * 5_000_000)',
        "not a message",
    ),
}


@pytest.mark.parametrize("kind", RUBBISH)
async def test_rubbish_from_a_child_ends_the_child_and_nothing_else(tmp_path: Path, kind: str) -> None:
    code, reason = RUBBISH[kind]
    interpreter = impostor(tmp_path / "python", f"{code}\ntime.sleep(1000)\n")
    async with running(interpreter=interpreter) as bad, running() as good:
        process = await bad.started()
        text = await bad.down()
        assert (
            f"the worker was ended by the gateway while it loaded the model: rubbish on the channel: {reason}" in text
        )
        await gone(process.pid)
        await good.ready()
        assert await ask(good.channel, floats(1.0)) == [1.0]
        assert good.replica.restarts == 0


async def test_a_child_that_closes_its_channel_and_goes_on_is_ended(tmp_path: Path) -> None:
    interpreter = impostor(tmp_path / "python", "channel.close()\ntime.sleep(1000)\n")
    async with running(interpreter=interpreter) as run:
        process = await run.started()
        assert "it closed its channel and went on" in await run.down()
        await gone(process.pid)


async def test_a_child_of_another_protocol_is_refused_with_the_mend(tmp_path: Path) -> None:
    hello = "header = b'\\x93\\x20\\x63\\x01'\nchannel.sendall(len(header).to_bytes(4, 'little') + bytes(8) + header)\n"
    async with running(interpreter=impostor(tmp_path / "python", f"{hello}time.sleep(1000)\n")) as run:
        ours = f"the gateway {PROTOCOL_VERSION}"
        assert await run.given_up() == f"the worker speaks protocol 99, {ours}: install one version"


async def test_a_worker_that_hears_rubbish_leaves_and_says_why() -> None:
    async with running() as run:
        await run.ready()
        transport = run.channel._transport
        assert transport is not None
        transport.write(b"\xff" * 64)
        reason = await run.down()
        assert "exited with code 5" in reason
        assert "rubbish on the channel: header of 4294967295 bytes" in reason
        await run.serves_again()
