"""Bad programs of ``torch.export``: none runs code of its author, none is half loaded.

Every attack plants a payload that would make a file. Where torch's own loader falls for it, the test shows that first:
an attack that harms nobody would prove nothing.
"""

from __future__ import annotations

import json
import pickle  # noqa: TID251 - what is refused has to be made first
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="pip install 'tensorgate[torch]'")

import torch

from backends.errors import LoadFailed
from backends.torch.exported_check import is_expression, is_operator
from support import payloads, torch_models
from support.loading import Loading

FP32 = np.float32
_TORCH = Loading("torch")
load, refusal = _TORCH.load, _TORCH.refusal


def in_size(planted: Path, data: Any) -> None:
    sizes = data["graph_module"]["graph"]["tensor_values"]["x"]["sizes"]
    sizes[0]["as_expr"]["expr_str"] = payloads.touching(planted)


def in_names(planted: Path, data: Any) -> None:
    text = json.dumps(data).replace('"x"', json.dumps(f"x={payloads.touching(planted)}"))
    data.update(json.loads(text))


def in_guards(planted: Path, data: Any) -> None:
    data["guards_code"] = [payloads.touching(planted)]


#: Attacks for which torch.export.load, or the module that it gives, runs the payload.
EDITS: dict[str, Callable[[Path, Any], None]] = {"size": in_size, "names": in_names, "guards": in_guards}


def pickled_weight(content: bytes) -> bytes:
    data = json.loads(content)
    data["config"]["layer.weight"]["use_pickle"] = True
    return json.dumps(data).encode()


def opaque_constant(_: bytes) -> bytes:
    item = {"path_name": "opaque_obj_0", "is_param": False, "use_pickle": True, "tensor_meta": None}
    return json.dumps({"config": {"secret": item}}).encode()


def poisoned(program: Path, attack: str, planted: Path, to: Path) -> Path:
    """A copy of the program with a payload in one of the places where torch looks."""
    payload = torch_models.payload_bytes(planted)
    members: dict[str, dict[str, Any]] = {
        "sample inputs": {"data/sample_inputs/model.pt": payload},
        "weight": {"data/weights/model_weights_config.json": pickled_weight, "data/weights/weight_0": payload},
        "old weights": {"data/weights/model.pt": payload},
        "constant": {
            "data/constants/model_constants_config.json": opaque_constant,
            "data/constants/opaque_obj_0": pickle.dumps(payloads.Payload(planted)),
        },
    }
    if attack in EDITS:
        return torch_models.edited_program(program, lambda data: EDITS[attack](planted, data), to)
    return torch_models.rewrite(program, members[attack], to)


ATTACKS = [*EDITS, "sample inputs", "weight", "old weights", "constant"]


@pytest.mark.parametrize("attack", ATTACKS)
def test_code_in_an_exported_program_is_not_run(tmp_path: Path, program: Path, planted: Path, attack: str) -> None:
    file = poisoned(program, attack, planted, tmp_path / "model.pt2")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            torch.export.load(file).module()(torch.ones(2, 4))
        except Exception as error:  # noqa: BLE001 - it may fail after the payload ran
            print("torch:", error)
    assert planted.exists(), "the payload harms nobody"
    planted.unlink()
    try:
        answer = load(file)[0].infer({"x": np.ones((1, 4), FP32)}, (), {})["OUTPUT__0"]
        np.testing.assert_allclose(answer, [[1.6, 4.2, 6.8]], rtol=1e-5)
    except LoadFailed as refused:
        assert file.name in str(refused)
    assert not planted.exists()


REFUSED_TARGETS = [
    "torch.os.system", "torch.ops.load_library", "torch.load", "torch.hub.load", "_operator.methodcaller",
    "_operator.attrgetter", "math.__loader__", "torch.ops.aten.from_file.default", "torch.ops.aten.save.default",
    "torch.ops.debugprims.load_tensor.default", "torch.ops.higher_order.triton_kernel_wrapper_functional",
    "torch.ops.aten.add.__class__", "torch.ops.aten.add", "torch.ops.aten.nothing.default", "builtins.eval", "#x:y", "",
]  # fmt: skip


@pytest.mark.parametrize("target", REFUSED_TARGETS)
def test_a_program_calls_nothing_but_operators_that_compute(tmp_path: Path, program: Path, target: str) -> None:
    assert not is_operator(target)

    def edit(data: Any) -> None:
        data["graph_module"]["graph"]["nodes"][0]["target"] = target

    text = refusal(torch_models.edited_program(program, edit, tmp_path / "model.pt2"))
    assert f"{target!r} as target" in text


@pytest.mark.parametrize(
    "target",
    ["torch.ops.aten.linear.default", "torch.ops.aten.__and__.Tensor", "_operator.mul", "_operator.getitem",
     "torch.sym_max", "math.trunc", "torch.ops.higher_order.cond", "torch.ops.prims.add.default"],
)  # fmt: skip
def test_operators_that_compute_are_let_through(target: str) -> None:
    assert is_operator(target)


@pytest.mark.parametrize(
    "text",
    ["s77", "Symbol('s77', positive=True, integer=True)", "Add(Symbol('s0', integer=True), Integer(-1))",
     "2*s0 + 1", "s0**2", "Pow(Symbol('s0'), Integer(2))", "Max(1, s0//2)", "Float('0.5', precision=53)", "u0 < 3"],
)  # fmt: skip
def test_sizes_are_expressions_over_symbols(text: str) -> None:
    assert is_expression(text)


@pytest.mark.parametrize(
    "text",
    ["__import__('os')", "s0.__class__", "().__class__", "open('x')", "Symbol('s0').__class__", "lambda: 1", "[s0]",
     "Symbol(open('x'))", "Integer('open(1)')", "'open(1)'", "f'{s0}'", "9**9**9", "Pow(9, 999999999)",
     "LShift(1, 99999999)", "1 << 999999999", "s0; s1", "", "(" * 500, "s0 " * 5000, "x", "os", "eval(s0)",
     "Symbol(*[1])", "Add(*s0)", "Symbol", "(s0 := 1)", "s0 if s1 else s2"],
)  # fmt: skip
def test_sizes_are_nothing_else(text: str) -> None:
    assert not is_expression(text)


def damaged(data: Any, path: list[Any], value: Any) -> None:
    for key in path[:-1]:
        data = data[key]
    data[path[-1]] = value


GRAPH = ["graph_module", "graph"]
DAMAGES: list[tuple[list[Any], Any]] = [
    ([*GRAPH, "nodes", 0, "target"], ["torch.os.system"]),
    ([*GRAPH, "nodes", 0, "target"], {"torch": "os"}),
    ([*GRAPH, "tensor_values", "x", "sizes"], [{"as_expr": {"expr_str": ["open('x')"]}}]),
    ([*GRAPH, "tensor_values", "x", "sizes"], [{"as_nothing": 1}]),
    ([*GRAPH, "tensor_values", "x", "device"], {"type": "cpu; x", "index": None}),
    ([*GRAPH, "tensor_values"], {}),
    ([*GRAPH, "tensor_values", "a b"], None),
    ([*GRAPH, "inputs"], [{"as_string": "x"}]),
    ([*GRAPH, "outputs"], [{"as_tensor": {"name": "nowhere"}}]),
    ([*GRAPH, "custom_obj_values"], {"x": {"name": "x", "class_fqn": "a.b"}}),
    (["graph_module", "signature", "input_specs", 0, "parameter", "parameter_name"], "__class__.x"),
    (["graph_module", "module_call_graph"], []),
    (["graph_module"], None),
    (["range_constraints"], {"u99999999999": {"min_val": 0, "max_val": 1}}),
    (["range_constraints"], {"s0); open('x'": {"min_val": 0, "max_val": 1}}),
    (["schema_version"], None),
    (["opset_version"], {"aten": "x"}),
]


@pytest.mark.parametrize(("path", "value"), DAMAGES, ids=str)
def test_a_program_that_contradicts_itself_is_refused_or_runs_as_before(
    tmp_path: Path, program: Path, path: list[Any], value: Any
) -> None:
    file = torch_models.edited_program(program, lambda data: damaged(data, path, value), tmp_path / "model.pt2")
    if path[-1] == "module_call_graph":  # of use for names only
        assert load(file)[0].infer({"x": np.ones((1, 4), FP32)}, (), {})["OUTPUT__0"].shape == (1, 3)
    else:
        assert "model.pt2" in refusal(file)


def test_versions_of_the_program_and_of_the_archive_are_told(tmp_path: Path, program: Path) -> None:
    def newer(data: Any) -> None:
        data["schema_version"]["major"] = 99
        data["torch_version"] = "9.9.0"

    text = refusal(torch_models.edited_program(program, newer, tmp_path / "a.pt2"))
    assert "exported by torch 9.9.0 in version 99 of the format" in text
    text = refusal(torch_models.rewrite(program, {"archive_version": b"7"}, tmp_path / "b.pt2"))
    assert "version '7' of the .pt2 format" in text
    assert "no JSON" in refusal(torch_models.rewrite(program, {"models/model.json": b"{" * 9}, tmp_path / "c.pt2"))
    deep = b"[" * 250_000
    assert "no JSON" in refusal(torch_models.rewrite(program, {"models/model.json": deep}, tmp_path / "d.pt2"))
    two = {"models/other.json": program.read_bytes()}
    assert "2 programs (model, other)" in refusal(torch_models.rewrite(program, two, tmp_path / "e.pt2"))
    assert "big-endian" in refusal(torch_models.rewrite(program, {"byteorder": b"big"}, tmp_path / "f.pt2"))


@pytest.mark.parametrize("member", ["data/weights/weight_0", "data/weights/model_weights_config.json"])
def test_weights_that_are_missing_or_too_short_are_refused(tmp_path: Path, program: Path, member: str) -> None:
    assert "missing.pt2" in refusal(torch_models.rewrite(program, {member: None}, tmp_path / "missing.pt2"))
    assert "short.pt2" in refusal(torch_models.rewrite(program, {member: b"{}"}, tmp_path / "short.pt2"))


def test_weights_that_are_compressed_or_not_aligned_are_read_all_the_same(tmp_path: Path, program: Path) -> None:
    file = torch_models.rewrite(program, {"aaa": b"1"}, tmp_path / "shifted.pt2")
    with (
        zipfile.ZipFile(program) as source,
        zipfile.ZipFile(tmp_path / "small.pt2", "w", zipfile.ZIP_DEFLATED) as target,
    ):
        for name in source.namelist():
            target.writestr(name, source.read(name))
    for path in (file, tmp_path / "small.pt2"):
        answer = load(path)[0].infer({"x": np.ones((1, 4), FP32)}, (), {})["OUTPUT__0"]
        np.testing.assert_allclose(answer, [[1.6, 4.2, 6.8]], rtol=1e-5)
