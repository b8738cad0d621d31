"""Bad torch artifacts: none runs code of its author, none is half loaded, and each is refused with the mend.

Every attack plants a payload that would make a file. Where torch's own loader falls for it, the test shows that first:
an attack that harms nobody would prove nothing.
"""

from __future__ import annotations

import json
import pickle  # noqa: TID251 - what is refused has to be made first
import shutil
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
from backends.spec import ModelSpec
from backends.torch.backend import TorchBackend
from backends.torch.exported_check import is_expression, is_operator
from support import torch_models
from support.torch_models import tensors

FP32 = np.float32
X_TO_Y: dict[str, Any] = {"inputs": tensors(("x", "FP32", -1, 4)), "outputs": tensors(("y", "FP32", -1, 3))}


def load(path: Path, **fields: Any) -> TorchBackend:
    backend = TorchBackend()
    backend.load(ModelSpec("model", 1, "torch", str(path), **fields))
    return backend


def refusal(path: Path, **fields: Any) -> str:
    """The text with which loading fails."""
    with pytest.raises(LoadFailed) as failure:
        load(path, **fields)
    return str(failure.value)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return torch_models.rowwise(torch_models.Linear(), 4, folder=tmp_path_factory.mktemp("program"))


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return torch_models.scripted(torch_models.Linear(), tmp_path_factory.mktemp("script"))


@pytest.fixture
def planted(tmp_path: Path) -> Path:
    """The file that payloads make."""
    return tmp_path / "planted"


# --- finding the model ---------------------------------------------------------------------------------------------


def test_the_model_is_a_file_or_a_folder_with_one(tmp_path: Path, program: Path, script: Path) -> None:
    shutil.copytree(program.parent, tmp_path / "default")
    shutil.copytree(program.parent, tmp_path / "nested" / "model.pt2")
    for number, name in enumerate(("resnet.pt2", "resnet.bin", "resnet")):
        (tmp_path / str(number)).mkdir()
        shutil.copy(program, tmp_path / str(number) / name)
        (tmp_path / str(number) / "labels.txt").write_text("a")
    for path in (tmp_path / "default", tmp_path / "nested", tmp_path / "0", tmp_path / "1", tmp_path / "2", program):
        assert load(path).infer({"x": np.ones((1, 4), FP32)}, (), {})["OUTPUT__0"].shape == (1, 3)
    shutil.copy(script, tmp_path / "0" / "model.pt")
    load(tmp_path / "0", **X_TO_Y)


def test_several_candidates_are_listed(tmp_path: Path, program: Path, script: Path) -> None:
    shutil.copy(program, tmp_path / "b.pt2")
    shutil.copy(script, tmp_path / "a.pt")
    assert "several models (a.pt, b.pt2)" in refusal(tmp_path)
    shutil.copy(program, tmp_path / "model.pt2")
    shutil.copy(script, tmp_path / "model.pt")
    assert "several models (model.pt2, model.pt)" in refusal(tmp_path)
    torch_models.encoder(tmp_path / "encoder")
    shutil.copy(script, tmp_path / "encoder" / "a.pt")
    assert "a.pt, config.json with safetensors" in refusal(tmp_path / "encoder")


def test_a_folder_without_a_model_and_a_missing_path_are_refused(tmp_path: Path) -> None:
    assert "holds no model of torch" in refusal(tmp_path)
    assert "does not exist" in refusal(tmp_path / "nowhere")
    torch_models.python_class(tmp_path / "class")
    assert "class = module:Class and allow_code = true" in refusal(tmp_path / "class")
    (tmp_path / "class" / "model.py").unlink()
    assert "without an architecture" in refusal(tmp_path / "class")
    assert "without an architecture" in refusal(tmp_path / "class" / "weights.safetensors")


def test_kinds_are_told_by_content_and_not_by_name(tmp_path: Path, program: Path, script: Path) -> None:
    shutil.copy(script, tmp_path / "script.pt2")
    shutil.copy(program, tmp_path / "program.pt")
    load(tmp_path / "script.pt2", **X_TO_Y)
    load(tmp_path / "program.pt")


FOREIGN = {
    "empty": (b"", "is empty"),
    "text": (b"hello, this is no model" * 20, "in no format of torch"),
    "gguf": (b"GGUF\x03\x00\x00\x00", "GGUF"),
    "hdf5": (b"\x89HDF\r\n\x1a\n", "HDF5"),
    "zip head": (b"PK\x03\x04" + bytes(range(256)), "no whole torch archive"),
}


@pytest.mark.parametrize(("content", "words"), FOREIGN.values(), ids=FOREIGN.keys())
def test_a_file_of_another_format_is_refused(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "model.pt").write_bytes(content)
    assert words in refusal(tmp_path)


def test_a_zip_that_is_no_model_is_refused(tmp_path: Path) -> None:
    for number, names in enumerate((["root/text"], ["root/text", "root/version"], ["exported_program.json"])):
        with zipfile.ZipFile(tmp_path / f"{number}.pt", "w") as archive:
            for name in names:
                archive.writestr(name, "3")
    assert "no version of the format is in it" in refusal(tmp_path / "0.pt")
    assert "is a zip archive and no model of torch (it holds text" in refusal(tmp_path / "1.pt")
    assert "torch 2.7 or older" in refusal(tmp_path / "2.pt")


@pytest.mark.parametrize("kind", ["script", "program"])
@pytest.mark.parametrize("tenths", range(1, 10))
def test_an_archive_that_is_cut_short_anywhere_is_refused(
    tmp_path: Path, request: pytest.FixtureRequest, kind: str, tenths: int
) -> None:
    content = request.getfixturevalue(kind).read_bytes()
    (tmp_path / "model.pt").write_bytes(content[: len(content) * tenths // 10])
    assert "no whole torch archive" in refusal(tmp_path, **X_TO_Y)


@pytest.mark.parametrize("kind", ["script", "program"])
def test_an_archive_that_grows_out_of_proportion_is_refused_before_it_is_unpacked(
    tmp_path: Path, request: pytest.FixtureRequest, kind: str
) -> None:
    text = refusal(torch_models.bomb(request.getfixturevalue(kind), tmp_path / "model.pt"), **X_TO_Y)
    assert "would grow from" in text
    assert str(256 << 20)[:4] in text


def test_members_of_the_same_name_are_refused(tmp_path: Path, script: Path) -> None:
    """Two readers may take different ones of them."""
    shutil.copy(script, tmp_path / "model.pt")
    with zipfile.ZipFile(tmp_path / "model.pt", "a") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        archive.writestr("model/data.pkl", b"other")
    assert "members of the same name" in refusal(tmp_path, **X_TO_Y)


def test_an_archive_of_a_newer_format_names_both_versions(tmp_path: Path, script: Path, program: Path) -> None:
    for source, member in ((script, "version"), (program, ".data/version")):
        text = refusal(torch_models.rewrite(source, {member: b"99\n"}, tmp_path / source.name), **X_TO_Y)
        assert "newer torch (file format 99" in text
        assert torch.__version__ in text


def test_a_script_with_an_operator_of_the_future_names_it(tmp_path: Path, script: Path) -> None:
    def change(content: bytes) -> bytes:
        return content.replace(b"torch.linear(", b"torch.quantum_linear(")

    with zipfile.ZipFile(script) as archive:
        names = [name.partition("/")[2] for name in archive.namelist() if name.endswith(".py")]
    text = refusal(torch_models.rewrite(script, dict.fromkeys(names, change), tmp_path / "model.pt"), **X_TO_Y)
    assert "aten::quantum_linear" in text
    assert "newer torch" in text


# --- pickles -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["plain", "zip", "legacy"])
@pytest.mark.parametrize("name", ["model.pt", "weights.pkl", "pytorch_model.bin", "model.pth"])
def test_a_pickle_is_refused_unread_with_how_to_convert_it(tmp_path: Path, planted: Path, form: str, name: str) -> None:
    (tmp_path / "model").mkdir()
    file = torch_models.pickled(tmp_path / "model" / name, planted, form)
    if form == "plain":
        pickle.loads(file.read_bytes())  # noqa: S301 - the payload works
    else:
        torch.load(file, weights_only=False)
    planted.unlink()
    for path in (file, file.parent):
        text = refusal(path, **X_TO_Y)
        assert "is a pickle" in text
        assert "torch.export.save" in text
        assert "save_pretrained" in text
        assert not planted.exists()


@pytest.mark.parametrize("form", ["plain", "zip", "legacy"])
def test_weights_of_a_class_are_never_unpickled(tmp_path: Path, planted: Path, form: str) -> None:
    folder = torch_models.python_class(tmp_path / "class")
    (folder / "weights.safetensors").unlink()
    torch_models.pickled(folder / "weights.pt", planted, form)
    text = refusal(folder, options={"class": "model:Net", "allow_code": "true"}, **X_TO_Y)
    assert "weights.pt" in text
    assert "state_dict()" in text
    assert not planted.exists()


def test_pickles_beside_a_model_are_left_alone(tmp_path: Path, program: Path, planted: Path) -> None:
    shutil.copy(program, tmp_path / "resnet.pt2")
    torch_models.pickled(tmp_path / "optimizer.pt", planted, "zip")
    torch_models.pickled(tmp_path / "training.bin", planted, "plain")
    load(tmp_path)
    assert not planted.exists()


# --- programs of torch.export --------------------------------------------------------------------------------------


def code(planted: Path) -> str:
    return f"__import__('pathlib').Path({str(planted)!r}).touch()"


def in_size(planted: Path, data: Any) -> None:
    sizes = data["graph_module"]["graph"]["tensor_values"]["x"]["sizes"]
    sizes[0]["as_expr"]["expr_str"] = code(planted)


def in_names(planted: Path, data: Any) -> None:
    text = json.dumps(data).replace('"x"', json.dumps(f"x={code(planted)}"))
    data.update(json.loads(text))


def in_guards(planted: Path, data: Any) -> None:
    data["guards_code"] = [code(planted)]


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
            "data/constants/opaque_obj_0": pickle.dumps(torch_models.Payload(planted)),
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
        answer = load(file).infer({"x": np.ones((1, 4), FP32)}, (), {})["OUTPUT__0"]
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
        assert load(file).infer({"x": np.ones((1, 4), FP32)}, (), {})["OUTPUT__0"].shape == (1, 3)
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
        answer = load(path).infer({"x": np.ones((1, 4), FP32)}, (), {})["OUTPUT__0"]
        np.testing.assert_allclose(answer, [[1.6, 4.2, 6.8]], rtol=1e-5)


# --- TorchScript ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (torch_models.WritesFile, "operator aten.save"),
        (torch_models.ReadsFile, "operator aten.from_file"),
        (torch_models.WritesFileInside, "operator aten.save"),
        (torch_models.WritesFileWhenLoaded, "the word 'save'"),
    ],
)
def test_a_script_that_reaches_for_files_is_refused_before_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: type[torch.nn.Module], words: str
) -> None:
    """``torch.save`` and ``torch.from_file`` are part of the language, and a method may run while it is loaded."""
    file = torch_models.scripted(module(), tmp_path / "model")
    (tmp_path / "run").mkdir()
    monkeypatch.chdir(tmp_path / "run")
    assert words in refusal(file, **X_TO_Y)
    assert list(Path().iterdir()) == []
    if module is torch_models.WritesFileWhenLoaded:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            load_script: Any = torch.jit.load
            load_script(file)
        assert Path("planted").exists(), "the payload harms nobody"


@pytest.mark.parametrize(
    "disguise", ['getattr(torch, "save")', 'getattr(torch, "sa" "ve")', 'getattr(torch, "\\x73ave")', "ops.aten.save"]
)
def test_a_disguise_does_not_help_a_script_that_runs_while_it_is_loaded(tmp_path: Path, disguise: str) -> None:
    file = torch_models.scripted(torch_models.WritesFileWhenLoaded(), tmp_path)

    def change(content: bytes) -> bytes:
        assert b"torch.save(" in content
        return content.replace(b"torch.save(", f"{disguise}(".encode())

    with zipfile.ZipFile(file) as archive:
        (member,) = (name.partition("/")[2] for name in archive.namelist() if name.endswith(".py"))
    text = refusal(torch_models.rewrite(file, {member: change}, tmp_path / "disguised.pt"), **X_TO_Y)
    assert "which files or the network are reached with" in text


def test_the_pickles_of_a_script_hold_no_code(tmp_path: Path, script: Path, planted: Path) -> None:
    """TorchScript reads them with a reader of its own, which knows tensors and the program's classes."""
    for member in ("data.pkl", "constants.pkl"):
        payload = pickle.dumps(torch_models.Payload(planted))
        assert "model.pt" in refusal(torch_models.rewrite(script, {member: payload}, tmp_path / "model.pt"), **X_TO_Y)
        assert not planted.exists()


# --- packages of machine code, transformers ------------------------------------------------------------------------


def test_machine_code_is_refused_before_it_is_touched(tmp_path: Path, program: Path) -> None:
    """Whatever else the archive holds, torch would load the shared objects in it."""
    changes = {"data/aotinductor/model/model.so": b"\x7fELF rubbish"}
    text = refusal(torch_models.rewrite(program, changes, tmp_path / "model.pt2"))
    assert "allow_code = true, which the operator sets" in text
    text = refusal(tmp_path / "model.pt2", options={"allow_code": "true"})
    assert "model.pt2" in text
    changes = {f"data/aotinductor/{name}/model.so": b"" for name in ("a", "b")}
    text = refusal(torch_models.rewrite(program, changes, tmp_path / "two.pt2"), options={"allow_code": "true"})
    assert "2 models (a, b)" in text


CONFIGS: list[tuple[dict[str, Any], str]] = [
    ({"architectures": ["Mine"], "auto_map": {"AutoModel": "mine.Mine"}}, "which is never run"),
    ({"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2"}, "'GPT2LMHeadModel' of type 'gpt2' is none"),
    ({"architectures": ["BertModel"], "is_decoder": True}, "none that this backend serves"),
    ({"architectures": []}, "it serves BertFor"),
    ({"architectures": "BertModel"}, "none that this backend serves"),
    ({"model_type": None}, "no model_type"),
    ({"model_type": "mine"}, "knows no encoder of this type"),
    ({"quantization_config": {"quant_method": "mine"}}, "quantization_config"),
    ({"hidden_size": 9}, "cannot be loaded"),
]


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return torch_models.encoder(tmp_path_factory.mktemp("bert"))


@pytest.mark.parametrize(("changes", "words"), CONFIGS)
def test_a_configuration_that_is_not_served_is_refused(
    tmp_path: Path, bert: Path, planted: Path, changes: dict[str, Any], words: str
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(bert, folder)
    data = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**data, **changes}))
    (folder / "mine.py").write_text(code(planted))
    assert words in refusal(folder)
    assert not planted.exists()


def test_code_beside_a_known_architecture_is_left_alone(tmp_path: Path, bert: Path, planted: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(bert, folder)
    data = json.loads((folder / "config.json").read_text())
    choices = {"auto_map": {"AutoModel": "mine.Mine"}, "attn_implementation": "someone/kernels"}
    (folder / "config.json").write_text(json.dumps({**data, **choices, "_attn_implementation": "someone/kernels"}))
    (folder / "mine.py").write_text(code(planted))
    load(folder)
    assert not planted.exists()


def test_damaged_parts_of_a_transformers_model_are_refused(tmp_path: Path, bert: Path) -> None:
    def copy(name: str) -> Path:
        shutil.copytree(bert, tmp_path / name)
        return tmp_path / name

    folder = copy("config")
    (folder / "config.json").write_text("{")
    assert "config.json cannot be read as JSON" in refusal(folder)
    folder = copy("weights")
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[: len(content) // 2])
    assert "cannot be loaded" in refusal(folder)
    folder = copy("adapter")
    (folder / "adapter_config.json").write_text("{}")
    assert "merge_and_unload" in refusal(folder)
