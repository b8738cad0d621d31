"""``model_warmup`` of a configuration, and the arrays that a worker makes of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from backends.spec import ITEM_SIZE, Warmup, WarmupInput
from backends.tensor import NUMPY_DTYPE
from backends.warmup import arrays
from gateway.modelconfig.parse import ConfigError, parse
from gateway.modelconfig.warmup import warmups

INPUT = 'inputs { key: "x" value { data_type: TYPE_FP32 dims: [ 2, 3 ] %s } }'


def read(sample: str, max_batch_size: int | None = 8) -> tuple[Warmup, ...]:
    return warmups(parse(f"model_warmup {{ {sample} }}", "pbtxt"), max_batch_size)


@pytest.mark.parametrize(
    ("sample", "max_batch_size", "shape", "count"),
    [
        ("", 8, (1, 2, 3), 1),
        ("batch_size: 4 count: 5", 8, (4, 2, 3), 5),
        ("", 0, (2, 3), 1),
        ("", None, (2, 3), 1),
        ("batch_size: 4", None, (4, 2, 3), 1),
    ],
)
def test_a_sample_has_the_batch_dimension_of_its_model(
    sample: str, max_batch_size: int | None, shape: tuple[int, ...], count: int
) -> None:
    found = read(f'name: "s" {sample} {INPUT % "zero_data: true"}', max_batch_size)
    assert found == (Warmup("s", (WarmupInput("x", "FP32", shape),), count),)


def test_the_kinds_of_data() -> None:
    (random,) = read(INPUT % "random_data: true")
    (file,) = read(INPUT % 'input_data_file: "x.bin"')
    assert (random.inputs[0].random, random.inputs[0].file) == (True, "")
    assert (file.inputs[0].random, file.inputs[0].file) == (False, "x.bin")


@pytest.mark.parametrize(
    ("sample", "complaint"),
    [
        ("", "inputs is empty"),
        (INPUT % "", "say zero_data: true"),
        (INPUT % "zero_data: false", "say zero_data: true"),
        (f"batch_size: 9 {INPUT % 'zero_data: true'}", "batch_size is 9; it is at most max_batch_size, 8"),
        (f"count: 1001 {INPUT % 'zero_data: true'}", "count is 1001; it is at most 1000"),
        ('inputs { key: "x" value { dims: 1 zero_data: true } }', "input 'x': data_type is missing"),
        ('inputs { key: "x" value { data_type: TYPE_FP32 dims: -1 zero_data: true } }', "dims is [-1]"),
        ('inputs { key: "x" value { data_type: TYPE_FP32 dims: 999999999999 zero_data: true } }', "are the most"),
        *((INPUT % f'input_data_file: "{name}"', "has to be a plain name") for name in ("", "..", "a/b", "../../x")),
    ],
)
def test_what_cannot_be_is_named(sample: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match="^model_warmup '0'") as caught:
        read(sample)
    assert complaint in str(caught.value)


def test_two_samples_of_one_name_are_refused() -> None:
    sample = f'model_warmup {{ name: "a" {INPUT % "zero_data: true"} }}'
    with pytest.raises(ConfigError, match="two samples of name 'a'"):
        warmups(parse(sample * 2, "pbtxt"), 8)


@pytest.mark.parametrize("random", [False, True])
@pytest.mark.parametrize("datatype", sorted(ITEM_SIZE))
def test_every_datatype_has_zeros_and_random_data(datatype: str, random: bool) -> None:
    sample = Warmup("s", (WarmupInput("x", datatype, (3, 5), random=random),))
    array = arrays(sample, Path("model"))["x"]
    assert (array.dtype, array.shape) == (NUMPY_DTYPE[datatype], (3, 5))
    if datatype == "BYTES":
        assert set(array.flat) == {b"warmup" if random else b""}
    else:
        assert bool((array != 0).any()) is random
        assert np.isfinite(array.astype(np.float64)).all()


@pytest.mark.parametrize("place", ["beside the file", "beside the folder of the version"])
def test_data_from_a_file(tmp_path: Path, place: str) -> None:
    artifact = tmp_path / "m" / "1" / "model.onnx"
    folder = (artifact.parent if place == "beside the file" else artifact.parent.parent) / "warmup"
    folder.mkdir(parents=True)
    (folder / "x.bin").write_bytes(np.arange(6, dtype="<f4").tobytes())
    sample = Warmup("s", (WarmupInput("x", "FP32", (2, 3), file="x.bin"),))
    assert arrays(sample, artifact)["x"].tolist() == [[0, 1, 2], [3, 4, 5]]
    short = Warmup("s", (WarmupInput("x", "FP32", (2, 4), file="x.bin"),))
    with pytest.raises(ValueError, match=r"has 24 bytes; input 'x' of FP32 and shape \[2, 4\] takes 32"):
        arrays(short, artifact)
    absent = Warmup("s", (WarmupInput("x", "FP32", (2, 3), file="y.bin"),))
    with pytest.raises(FileNotFoundError, match=r"warmup/y\.bin"):
        arrays(absent, artifact)
