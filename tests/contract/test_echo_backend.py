"""The echo backend's own: what it fills in, and the faults that it injects when it is allowed to."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from backends.echo import EchoBackend
from backends.errors import InferenceFailed, InvalidInput, LoadFailed
from backends.spec import BatchingSpec, ModelSpec, TensorSpec

ALLOWED = {"fault_injection": "true"}
X = {"INPUT0": np.ones((1, 2), np.float32)}


def spec(**fields: Any) -> ModelSpec:
    return ModelSpec("model", 1, "echo", "", **fields)


def loaded(**options: str) -> EchoBackend:
    backend = EchoBackend()
    backend.load(spec(options=options))
    return backend


def test_without_a_declaration_it_echoes_fp32_rows() -> None:
    signature = EchoBackend().load(spec())
    assert signature.inputs == (TensorSpec("INPUT0", "FP32", (-1, -1)),)
    assert signature.outputs == (TensorSpec("OUTPUT0", "FP32", (-1, -1)),)
    assert (signature.max_batch_size, signature.batching) == (32, BatchingSpec())


def test_what_is_left_out_of_a_declaration_is_filled_in() -> None:
    texts, numbers = TensorSpec("texts", "BYTES", (-1,)), TensorSpec("numbers", "INT8", (-1, 2))
    assert [each.name for each in EchoBackend().load(spec(inputs=(texts, numbers))).outputs] == ["OUTPUT0", "OUTPUT1"]
    signature = EchoBackend().load(spec(outputs=(texts, numbers)))
    assert signature.inputs == (TensorSpec("INPUT0", "BYTES", (-1,)), TensorSpec("INPUT1", "INT8", (-1, 2)))


def test_inputs_and_outputs_have_to_pair_up() -> None:
    one, other = TensorSpec("one", "FP32", (-1,)), TensorSpec("other", "INT8", (-1,))
    with pytest.raises(LoadFailed, match="1 and 2"):
        EchoBackend().load(spec(inputs=(one,), outputs=(one, other)))
    with pytest.raises(LoadFailed, match="'other'.*FP32"):
        EchoBackend().load(spec(inputs=(one,), outputs=(other,)))


@pytest.mark.parametrize("name", ["delay_ms", "fail", "invalid", "crash", "hang", "print_bytes"])
def test_no_request_can_inject_a_fault_unless_the_model_allows_it(name: str) -> None:
    with pytest.raises(InvalidInput, match=f"{name}.*fault_injection"):
        loaded().infer(X, ("OUTPUT0",), {name: 1})
    assert loaded().infer(X, ("OUTPUT0",), {"of_someone_else": 1}).keys() == {"OUTPUT0"}


@pytest.mark.parametrize("name", ["load_delay_ms", "load_fail", "load_crash", "load_hang"])
def test_no_option_can_inject_a_fault_unless_another_allows_it(name: str) -> None:
    with pytest.raises(LoadFailed, match=f"{name}.*fault_injection"):
        loaded(**{name: "1"})


def test_the_switch_is_true_or_false() -> None:
    with pytest.raises(LoadFailed, match="'yes'"):
        loaded(fault_injection="yes")
    assert loaded(fault_injection="false").infer(X, ("OUTPUT0",), {}).keys() == {"OUTPUT0"}


def test_a_request_can_ask_for_failures() -> None:
    backend = loaded(**ALLOWED)
    with pytest.raises(InferenceFailed, match="^boom$"):
        backend.infer(X, ("OUTPUT0",), {"fail": "boom"})
    with pytest.raises(InvalidInput, match="^your fault$"):
        backend.infer(X, ("OUTPUT0",), {"invalid": "your fault"})
    np.testing.assert_array_equal(backend.infer(X, ("OUTPUT0",), {"fail": False})["OUTPUT0"], X["INPUT0"])


def test_loading_can_be_made_to_fail() -> None:
    with pytest.raises(LoadFailed, match="^boom$"):
        loaded(**ALLOWED, load_fail="boom")
    assert loaded(**ALLOWED, load_delay_ms="1").runtime == "echo"


@pytest.mark.parametrize(
    ("name", "value"),
    [("delay_ms", "soon"), ("delay_ms", -1), ("print_bytes", "all"), ("crash", "SIGNOTHING"), ("hang", "up")],
)
def test_values_without_sense_are_refused_and_not_carried_out(name: str, value: Any) -> None:
    with pytest.raises(InvalidInput, match=name):
        loaded(**ALLOWED).infer(X, ("OUTPUT0",), {name: value})
    if name != "print_bytes":
        with pytest.raises(LoadFailed, match=name):
            loaded(**ALLOWED, **{f"load_{name}": str(value)})


@pytest.mark.parametrize("count", [0, 1, 79, 80, 81, 1000])
def test_it_prints_exactly_so_many_bytes(count: int, capfd: pytest.CaptureFixture[str]) -> None:
    loaded(**ALLOWED).infer(X, ("OUTPUT0",), {"print_bytes": count})
    assert len(capfd.readouterr().out) == count


CODE = """
import sys
import numpy as np
from backends.echo import EchoBackend
from backends.spec import ModelSpec
where, name, value = sys.argv[1:]
options = {"fault_injection": "true"}
backend = EchoBackend()
if where == "load":
    backend.load(ModelSpec("model", 1, "echo", "", options=options | {"load_" + name: value}))
else:
    backend.load(ModelSpec("model", 1, "echo", "", options=options))
    backend.infer({"INPUT0": np.ones((1, 1), np.float32)}, (), {name: value})
"""


@pytest.mark.parametrize("where", ["load", "infer"])
@pytest.mark.parametrize(
    ("value", "code"), [("3", 3), ("0", 0), ("SIGKILL", -signal.SIGKILL), ("SIGSEGV", -signal.SIGSEGV)]
)
def test_it_can_end_the_process(where: str, value: str, code: int) -> None:
    done = subprocess.run([sys.executable, "-P", "-c", CODE, where, "crash", value], capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (code, b"")


HANGING_CODE = """
import sys
import threading
import numpy as np
from backends.echo import EchoBackend
from backends.spec import ModelSpec
backend = EchoBackend()
backend.load(ModelSpec("model", 1, "echo", "", options={"fault_injection": "true"}))
inputs = {"INPUT0": np.ones((1, 1), np.float32)}
threading.Thread(target=backend.infer, args=(inputs, (), {"hang": sys.argv[1]}), daemon=True).start()
backend.infer(inputs, (), {"delay_ms": 200})
print("the other thread went on", flush=True)
threading.Event().wait()
"""


def test_a_hang_leaves_the_other_threads_running() -> None:
    command = [sys.executable, "-P", "-c", HANGING_CODE, "true"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "the other thread went on\n"
        assert process.poll() is None
        process.kill()


def test_a_hang_with_the_interpreter_lock_stops_every_thread() -> None:
    """A watchdog that needs no Python ends the process, and tells what it was doing."""
    code = f"import faulthandler; faulthandler.dump_traceback_later(2, exit=True){HANGING_CODE}"
    done = subprocess.run([sys.executable, "-P", "-c", code, "gil"], capture_output=True, text=True, check=False)
    assert done.stdout == ""
    assert "in _hang" in done.stderr
