"""What a ``saved_model.pb`` says: its graphs, their signatures, assets and initialiser.

Reads protobuf messages. TensorFlow has to be imported already, because they come with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from backends.errors import LoadFailed
from backends.spec import TensorSpec
from backends.tf.artifact import GRAPH_FILE
from backends.tf.graph import node_name
from backends.tf.tensors import DATATYPE, tensor_spec

_DEFAULT_TAGS: Final = frozenset({"serve"})
_DEFAULT_SIGNATURE: Final = "serving_default"
#: Signatures of TensorFlow's own, which say what to run once, or to train.
_INITIALISER: Final = "__saved_model_init_op"
_INTERNAL: Final = frozenset({_INITIALISER, "__saved_model_train_op"})
#: Where TensorFlow 1 says it.
_INITIALISER_COLLECTIONS: Final = ("saved_model_main_op", "legacy_init_op")
_ASSETS_COLLECTION: Final = "saved_model_assets"


def read(folder: Path) -> Any:
    """The ``SavedModel`` message of a folder. Raises ``LoadFailed`` if it cannot be read."""
    from google.protobuf.message import DecodeError
    from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

    file = folder / GRAPH_FILE
    try:
        model = SavedModel.FromString(file.read_bytes())
    except OSError as error:
        raise LoadFailed(f"{file} cannot be read: {error.strerror}") from error
    except DecodeError as error:
        raise LoadFailed(_no_model(file)) from error
    if not model.meta_graphs:
        raise LoadFailed(_no_model(file))
    return model


def choose_graph(model: Any, tags: frozenset[str]) -> Any:
    """The ``MetaGraphDef`` with exactly these tags; without any, the one for serving or the only one.

    Raises ``LoadFailed`` that lists what there is.
    """
    graphs = {frozenset(graph.meta_info_def.tags): graph for graph in model.meta_graphs}
    chosen = graphs.get(tags or _DEFAULT_TAGS)
    if chosen is None and not tags and len(graphs) == 1:
        chosen = next(iter(graphs.values()))
    if chosen is None:
        known = "; ".join(sorted(",".join(sorted(each)) or "(none)" for each in graphs))
        wanted = ",".join(sorted(tags or _DEFAULT_TAGS))
        raise LoadFailed(f"the SavedModel has no graph with the tags {wanted}; it has: {known} (option tags)")
    return chosen


def initialiser(model: Any) -> str:
    """The node of a ``MetaGraphDef`` that has to run once after its variables are restored; "" for none."""
    if _INITIALISER in model.signature_def:
        return node_name(model.signature_def[_INITIALISER].outputs[_INITIALISER].name)
    for name in _INITIALISER_COLLECTIONS:
        if name in model.collection_def and model.collection_def[name].node_list.value:
            return node_name(model.collection_def[name].node_list.value[0])
    return ""


def assets(model: Any, folder: Path) -> dict[str, str]:
    """What to feed to the initialiser: tensor -> path of the asset file (a vocabulary).

    Raises ``LoadFailed`` for a file that is not inside of the folder of assets: TensorFlow would read any.
    """
    home = (folder / "assets").resolve()
    feeds = {}
    for asset in model.asset_file_def or _old_assets(model):
        file = (home / asset.filename).resolve()
        if not file.is_relative_to(home):
            raise LoadFailed(f"asset {asset.filename!r} lies outside of the folder assets: export the model again")
        if not file.is_file():
            raise LoadFailed(f"asset {asset.filename!r} does not exist in the folder assets: copy the whole SavedModel")
        feeds[asset.tensor_info.name] = str(file)
    return feeds


def _old_assets(model: Any) -> Iterator[Any]:
    """Where the first releases of TensorFlow kept them."""
    from tensorflow.core.protobuf.meta_graph_pb2 import AssetFileDef

    if _ASSETS_COLLECTION in model.collection_def:
        for packed in model.collection_def[_ASSETS_COLLECTION].any_list.value:
            asset = AssetFileDef()
            packed.Unpack(asset)
            yield asset


class Signed:
    """One signature of a ``MetaGraphDef``: its inputs and outputs, in the order in which the graph has them.

    ``feeds`` and ``fetches`` map their names to those of the graph's tensors. ``unranked``: inputs and outputs whose
    shape is left open.
    """

    def __init__(self, model: Any, name: str, type_name: Callable[[int], str]) -> None:
        """Raises ``LoadFailed`` if there is no such signature, or for a tensor that cannot be served."""
        signature = _choose_signature(model, name)
        places = {node.name: place for place, node in enumerate(model.graph_def.node)}
        self._type_name = type_name
        self.inputs, self.feeds = self._specs("input", signature.inputs, places)
        self.outputs, self.fetches = self._specs("output", signature.outputs, places)
        tensors = (*signature.inputs.items(), *signature.outputs.items())
        self.unranked = {key for key, info in tensors if info.tensor_shape.unknown_rank}

    def check(self, graph: Any) -> None:
        """Raises ``LoadFailed`` unless the imported graph has these tensors, of these types."""
        self._check(graph, self.inputs, self.feeds)
        self._check(graph, self.outputs, self.fetches)

    @staticmethod
    def _check(graph: Any, specs: Iterable[TensorSpec], names: dict[str, str]) -> None:
        for spec in specs:
            try:
                found = graph.get_tensor_by_name(names[spec.name]).dtype.base_dtype.name
            except (KeyError, ValueError) as error:
                raise LoadFailed(f"the graph has no tensor for {spec.name!r} of the signature: {error}") from error
            if DATATYPE.get(found) != spec.datatype:
                raise LoadFailed(
                    f"the signature says that {spec.name!r} is {spec.datatype}, in the graph it is {found}: export the "
                    "model again"
                )

    def _specs(self, what: str, tensors: Any, places: dict[str, int]) -> tuple[list[TensorSpec], dict[str, str]]:
        def place(item: tuple[str, Any]) -> tuple[int, int]:
            node, _, index = item[1].name.partition(":")
            return places.get(node, len(places)), int(index) if index.isdecimal() else 0

        # a protobuf map keeps no order, and the answer to "what are your inputs" must not change from start to start
        ordered = sorted(sorted(tensors.items()), key=place)
        return [self._spec(what, name, info) for name, info in ordered], {name: info.name for name, info in ordered}

    def _spec(self, what: str, name: str, info: Any) -> TensorSpec:
        if info.WhichOneof("encoding") != "name":
            raise LoadFailed(
                f"{what} {name!r} is a sparse or ragged tensor, which the Open Inference Protocol does not have; "
                "export the model with dense ones (tf.sparse.to_dense, RaggedTensor.to_tensor)"
            )
        shape = info.tensor_shape
        sizes = None if shape.unknown_rank else [size.size for size in shape.dim]
        return tensor_spec(what, name, self._type_name(info.dtype), sizes)


def _choose_signature(model: Any, name: str) -> Any:
    offered = {key: value for key, value in model.signature_def.items() if key not in _INTERNAL}
    wanted = name or _DEFAULT_SIGNATURE
    if wanted not in offered and not name and len(offered) == 1:
        return next(iter(offered.values()))
    if wanted in offered:
        return offered[wanted]
    if not offered:
        raise LoadFailed(
            "the SavedModel has no signature: save it with tf.saved_model.save(model, path, signatures=...), or "
            "with model.export(path)"
        )
    known = "; ".join(
        f"{key} ({_list(value.inputs)} -> {_list(value.outputs)})" for key, value in sorted(offered.items())
    )
    raise LoadFailed(f"the SavedModel has no signature {wanted!r}; it has: {known} (option signature)")


def _list(tensors: Iterable[str]) -> str:
    return ", ".join(sorted(tensors)) or "nothing"


def _no_model(file: Path) -> str:
    return f"{file.name} is no SavedModel, or only a part of one; copy the whole folder, or export the model again"
