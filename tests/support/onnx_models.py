"""Small ONNX models for tests. Every builder returns a ``ModelProto``; ``save`` writes it as a model folder."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from backends.contract import Backend
from backends.spec import Signature
from support.loading import Loading

#: Datatype of the protocol -> element type of ONNX.
ELEMENT_TYPE: Final[dict[str, int]] = {
    "BOOL": TensorProto.BOOL,
    "UINT8": TensorProto.UINT8, "UINT16": TensorProto.UINT16,
    "UINT32": TensorProto.UINT32, "UINT64": TensorProto.UINT64,
    "INT8": TensorProto.INT8, "INT16": TensorProto.INT16, "INT32": TensorProto.INT32, "INT64": TensorProto.INT64,
    "FP16": TensorProto.FLOAT16, "BF16": TensorProto.BFLOAT16, "FP32": TensorProto.FLOAT, "FP64": TensorProto.DOUBLE,
    "BYTES": TensorProto.STRING,
}  # fmt: skip

#: A shape as ONNX knows it: sizes, names of variable dimensions, or None for one without a name.
Shape = Sequence[int | str | None]

_OPSET: Final = 21
_IR_VERSION: Final = 10
_ROWS: Final[Shape] = ("batch", "n")


def save(model: ModelProto | bytes, folder: Path, name: str = "model.onnx") -> Path:
    """Write the model to ``folder/name``, making the folder; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    content = model if isinstance(model, bytes) else model.SerializeToString()
    (folder / name).write_bytes(content)
    return folder


def load(model: ModelProto | bytes, folder: Path, **fields: Any) -> tuple[Backend, Signature]:
    """Write the model, and load it with the ONNX backend; ``fields`` are those of a ``ModelSpec``."""
    return Loading("onnx").load(save(model, folder), **fields)


def value(name: str, datatype: str = "FP32", shape: Shape | None = _ROWS) -> ValueInfoProto:
    """An input or output; ``shape`` None leaves even the rank open."""
    return helper.make_tensor_value_info(name, ELEMENT_TYPE[datatype], shape)


def build(
    nodes: Iterable[NodeProto],
    inputs: Iterable[ValueInfoProto],
    outputs: Iterable[ValueInfoProto],
    initializers: Iterable[TensorProto] = (),
) -> ModelProto:
    """A model of these parts."""
    graph = helper.make_graph(list(nodes), "graph", list(inputs), list(outputs), list(initializers))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR_VERSION)


def constant(name: str, array: npt.ArrayLike, dtype: npt.DTypeLike = np.float32) -> TensorProto:
    """An initializer."""
    return numpy_helper.from_array(np.asarray(array, dtype), name)


# --- models that work ----------------------------------------------------------------------------------------------


def add_one(shape: Shape = _ROWS, datatype: str = "FP32") -> ModelProto:
    """``y = x + 1``; by default any number of rows of any length, and it batches."""
    one = helper.make_tensor("one", ELEMENT_TYPE[datatype], [1], [1])
    nodes = [helper.make_node("Add", ["x", "one"], ["y"])]
    return build(nodes, [value("x", datatype, shape)], [value("y", datatype, shape)], [one])


def identity(datatype: str = "FP32", shape: Shape = _ROWS) -> ModelProto:
    """``y = x`` of any datatype of the protocol. ``shape`` () is a scalar."""
    nodes = [helper.make_node("Identity", ["x"], ["y"])]
    return build(nodes, [value("x", datatype, shape)], [value("y", datatype, shape)])


def identities(datatypes: Sequence[str] = tuple(ELEMENT_TYPE), shape: Shape = _ROWS) -> ModelProto:
    """One input ``IN_<datatype>`` and output ``OUT_<datatype>`` for each; onnxruntime cannot join BYTES with BF16."""
    nodes = [helper.make_node("Identity", [f"IN_{datatype}"], [f"OUT_{datatype}"]) for datatype in datatypes]
    inputs = [value(f"IN_{datatype}", datatype, shape) for datatype in datatypes]
    return build(nodes, inputs, [value(f"OUT_{datatype}", datatype, shape) for datatype in datatypes])


def no_batch(length: int = 4) -> ModelProto:
    """``y = x + 1`` over exactly one vector: no batch dimension."""
    return add_one((length,))


def scalar() -> ModelProto:
    """``y = x + 1`` of one number, shape []."""
    return build(
        [helper.make_node("Add", ["x", "one"], ["y"])],
        [value("x", "FP32", ())],
        [value("y", "FP32", ())],
        [constant("one", 1.0)],
    )


def add_sub(datatype: str = "INT32", shape: Shape = ("batch", 16)) -> ModelProto:
    """Triton's "simple" model: OUTPUT0 = INPUT0 + INPUT1, OUTPUT1 = INPUT0 - INPUT1."""
    nodes = [
        helper.make_node("Add", ["INPUT0", "INPUT1"], ["OUTPUT0"]),
        helper.make_node("Sub", ["INPUT0", "INPUT1"], ["OUTPUT1"]),
    ]
    inputs = [value(name, datatype, shape) for name in ("INPUT0", "INPUT1")]
    return build(nodes, inputs, [value(name, datatype, shape) for name in ("OUTPUT0", "OUTPUT1")])


def join_strings() -> ModelProto:
    """BYTES ``x`` and ``suffix`` [batch, 1] -> BYTES ``y`` = x + suffix."""
    nodes = [helper.make_node("StringConcat", ["x", "suffix"], ["y"])]
    shape: Shape = ("batch", 1)
    return build(nodes, [value("x", "BYTES", shape), value("suffix", "BYTES", shape)], [value("y", "BYTES", shape)])


def with_default(shape: Shape = (4,)) -> ModelProto:
    """``y = x + offset``, where the input ``offset`` [1] may be left out and is 1 then."""
    nodes = [helper.make_node("Add", ["x", "offset"], ["y"])]
    inputs = [value("x", "FP32", shape), value("offset", "FP32", (1,))]
    return build(nodes, inputs, [value("y", "FP32", shape)], [constant("offset", [1.0])])


def slow(rounds: int, size: int = 64, shape: Shape = ("batch", "n")) -> ModelProto:
    """``y = x``, but only after ``rounds`` products of two ``size`` x ``size`` matrices, one after the other.

    A round of the default size takes some microseconds; the optimiser cannot remove it, because the
    result depends on the input.
    """
    body = helper.make_graph(
        [
            helper.make_node("MatMul", ["state", "matrix"], ["next"]),
            helper.make_node("Identity", ["keep"], ["keep_on"]),
        ],
        "body",
        [value("round", "INT64", ()), value("keep", "BOOL", ()), value("state", "FP32", (size, size))],
        [value("keep_on", "BOOL", ()), value("next", "FP32", (size, size))],
    )
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["sum"], keepdims=0),
        helper.make_node("Mul", ["sum", "zero"], ["nothing"]),
        helper.make_node("Add", ["matrix", "nothing"], ["start"]),
        helper.make_node("Loop", ["rounds", "", "start"], ["end"], body=body),
        helper.make_node("ReduceSum", ["end"], ["total"], keepdims=0),
        helper.make_node("Mul", ["total", "zero"], ["added"]),
        helper.make_node("Add", ["x", "added"], ["y"]),
    ]
    matrix = np.eye(size, dtype=np.float32)
    initializers = [constant("matrix", matrix), constant("zero", 0.0), constant("rounds", rounds, np.int64)]
    return build(nodes, [value("x", "FP32", shape)], [value("y", "FP32", shape)], initializers)


def masked_mean() -> ModelProto:
    """``mean`` [batch, 1] of those of FP32 ``x`` [batch, n] whose INT64 ``mask`` is 1, and ``twice`` [batch, n] of all.

    It fails while running where ``x`` and ``mask`` are not equally long.
    """
    nodes = [
        helper.make_node("Cast", ["mask"], ["weight"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["x", "weight"], ["real"]),
        helper.make_node("ReduceSum", ["real", "axes"], ["sum"]),
        helper.make_node("ReduceSum", ["weight", "axes"], ["count"]),
        helper.make_node("Div", ["sum", "count"], ["mean"]),
        helper.make_node("Add", ["x", "x"], ["twice"]),
    ]
    outputs = [value("mean", "FP32", ("batch", 1)), value("twice")]
    return build(nodes, [value("x"), value("mask", "INT64")], outputs, [constant("axes", [1], np.int64)])


# --- models that fail ----------------------------------------------------------------------------------------------


def picks_from_table(entries: int = 4, shape: Shape = ("batch", 1)) -> ModelProto:
    """``y = 10 * x`` for indices INT64 x below ``entries``; any other index fails while running."""
    nodes = [helper.make_node("Gather", ["table", "x"], ["y"])]
    table = constant("table", np.arange(entries) * 10.0)
    return build(nodes, [value("x", "INT64", shape)], [value("y", "FP32", shape)], [table])


def halves() -> ModelProto:
    """``y`` is FP32 x [n] in rows of two; an odd number of elements fails while running, as no fault of the shape."""
    nodes = [helper.make_node("Reshape", ["x", "pairs"], ["y"])]
    pairs = constant("pairs", [-1, 2], np.int64)
    return build(nodes, [value("x", "FP32", ("count",))], [value("y", "FP32", ("pairs", 2))], [pairs])


def mixes_rows() -> ModelProto:
    """Claims by the names of its dimensions that it batches, and gives two rows for every row."""
    nodes = [helper.make_node("Concat", ["x", "x"], ["y"], axis=0)]
    return build(nodes, [value("x")], [value("y")])


def gives_bad_strings() -> ModelProto:
    """Its output is a string that is not UTF-8."""
    bad = TensorProto(name="bad", data_type=TensorProto.STRING, dims=[1], string_data=[b"\xff\xfe"])
    nodes = [helper.make_node("Constant", [], ["y"], value=bad), helper.make_node("Identity", ["x"], ["z"])]
    return build(nodes, [value("x", "FP32", (1,))], [value("y", "BYTES", (1,)), value("z", "FP32", (1,))])


def gives_sequence() -> ModelProto:
    """Its output is a sequence of tensors, which the protocol cannot carry."""
    output = helper.make_tensor_sequence_value_info("y", TensorProto.FLOAT, None)
    return build([helper.make_node("SequenceConstruct", ["x"], ["y"])], [value("x")], [output])


def rubbish() -> bytes:
    """No ONNX model."""
    return b"hello, this is no model" * 20


# --- external data -------------------------------------------------------------------------------------------------

#: What the weights of ``with_external_data`` are.
EXTERNAL_WEIGHTS: Final = np.array([10, 20, 30, 40], np.float32)


def with_external_data(location: str, *, place: str = "initializer", **entries: Any) -> ModelProto:
    """``y = x + weights`` for FP32 x [batch, 4], the weights in the file ``location``; write that file yourself.

    ``place`` says where in the model the tensor hides: ``initializer``, ``constant`` (an attribute of a node) or
    ``branch`` (inside of a subgraph). ``entries`` (``offset``, ``length``) go to the tensor's external data.
    """
    shape: Shape = ("batch", 4)
    weights = TensorProto(
        name="weights", data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL
    )  # fmt: skip
    for key, text in {"location": location, **entries}.items():
        entry = weights.external_data.add()
        entry.key, entry.value = key, str(text)
    add = helper.make_node("Add", ["x", "w"], ["y"])
    inputs, outputs = [value("x", "FP32", shape)], [value("y", "FP32", shape)]
    if place == "initializer":
        weights.name = "w"
        return build([add], inputs, outputs, [weights])
    if place == "constant":
        return build([helper.make_node("Constant", [], ["w"], value=weights), add], inputs, outputs)
    return build([_branch(weights), add], inputs, outputs, [constant("yes", True, np.bool_)])


def _branch(weights: TensorProto) -> NodeProto:
    def graph(name: str, tensor: TensorProto) -> GraphProto:
        copy = helper.make_node("Identity", ["weights"], [name])
        return helper.make_graph([copy], name, [], [value(name, "FP32", (4,))], [tensor])

    node = helper.make_node("If", ["yes"], ["w"])
    node.attribute.append(helper.make_attribute("then_branch", graph("then", weights)))
    node.attribute.append(helper.make_attribute("else_branch", graph("else", constant("weights", np.zeros(4)))))
    return node


def external_data_layout(folder: Path, layout: str) -> Path:
    """A model folder with external data laid out in one way; returns the folder.

    Good: ``inside``, ``subfolder``, ``link_inside``. Bad: ``parent`` (``../``), ``absolute``, ``link`` (a symbolic link
    that leads out of the folder), ``missing``.
    """
    outside = folder.parent / f"{folder.name}-outside.bin"
    outside.write_bytes(EXTERNAL_WEIGHTS.tobytes())
    (folder / "data").mkdir(parents=True)
    for inside in (folder / "weights.bin", folder / "data" / "weights.bin"):
        inside.write_bytes(EXTERNAL_WEIGHTS.tobytes())
    (folder / "link_out.bin").symlink_to(outside)
    (folder / "link_in.bin").symlink_to("weights.bin")
    location = {
        "inside": "weights.bin",
        "subfolder": "data/weights.bin",
        "link_inside": "link_in.bin",
        "parent": f"../{outside.name}",
        "absolute": str(outside),
        "link": "link_out.bin",
        "missing": "nowhere.bin",
    }[layout]
    return save(with_external_data(location), folder)


def huge() -> ModelProto:
    """``y`` = ``x`` plus the sum of 2**42 ones, which no machine has the memory for: it loads, and cannot run."""
    nodes = [
        helper.make_node("ConstantOfShape", ["shape"], ["ones"], value=constant("value", [1.0])),
        helper.make_node("ReduceSum", ["ones"], ["sum"], keepdims=0),
        helper.make_node("Add", ["x", "sum"], ["y"]),
    ]
    shape = constant("shape", [1 << 42], np.int64)
    return build(nodes, [value("x", "FP32", ("n",))], [value("y", "FP32", ("n",))], [shape])
