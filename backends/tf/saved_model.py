"""SavedModels, run as one graph in one session.

That is how TensorFlow's own servers load them, in C++: the graph, the variables and the initialiser come straight from
the files, and none of the Python objects behind them are made again. So it takes models of TensorFlow 1 and 2 and of
any Keras alike (``tf.saved_model.load`` cannot load many models of Keras 2 any more), and a call costs a few
microseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from backends.errors import LoadFailed
from backends.spec import TensorSpec
from backends.tf import operators
from backends.tf.graph import Reach, node_name
from backends.tf.library import failure, load_failure
from backends.tf.meta_graph import Signed, assets, choose_graph, initialiser, read
from backends.tf.model import Facts, Model, Run
from backends.tf.options import Options
from backends.tf.tensors import Array, share_memory

#: As Triton calls it; clients show it.
_PLATFORM: Final = "tensorflow_savedmodel"
_VARIABLES: Final = ("variables", "variables")
_VARIABLE_OPERATORS: Final = frozenset({"VarHandleOp", "Variable", "VariableV2"})
#: The thread of the request runs the graph.
_OWN_THREAD: Final = -1


class SavedModel(Model):
    """One signature of a SavedModel."""

    def __init__(self, tensorflow: Any, folder: Path, chosen: Options) -> None:
        """Raises ``LoadFailed``: half a model, no such signature, operators that are not allowed, no such device."""
        self._tensorflow = tensorflow
        self.runtime = f"tensorflow {tensorflow.__version__}"
        self.bfloat16 = tensorflow.bfloat16.as_numpy_dtype
        model = choose_graph(read(folder), chosen.tags)
        self._signed = Signed(model, chosen.signature, lambda number: tensorflow.as_dtype(number).name)
        start = initialiser(model)
        loading = [name for name in (start, model.saver_def.restore_op_name) if name]
        used = operators.check(model, loading, list(self._signed.fetches.values()), chosen.allow_code)
        self.facts = Facts(_PLATFORM, self._signed.inputs, self._signed.outputs, self._signed.unranked, used)
        if chosen.xla:
            _compile(model.graph_def, self._signed)
        feeds = assets(model, folder)
        self._session = tensorflow.compat.v1.Session(
            graph=self._graph(model, folder), config=session_config(tensorflow, chosen)
        )
        self._restore(model, folder)
        if start:
            self._execute(start, feeds, f"{folder.name} cannot be initialised")

    def prepare(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> Run:
        """Compiles the part of the graph that these outputs need."""
        feeds = [self._signed.feeds[tensor.name] for tensor in inputs]
        call = self._callable(feed=feeds, fetch=[self._signed.fetches[tensor.name] for tensor in outputs])
        let_go = self._callable(target=[self._nothing])

        def run(arrays: Sequence[Array]) -> list[Array]:
            try:
                values = [np.asarray(value) for value in call(*arrays)]
            except self._tensorflow.errors.OpError as error:
                raise failure(self._tensorflow, error) from error
            if share_memory(values, arrays):
                values = [value.copy() for value in values]
                # TensorFlow has just let go of the arrays, but counts them down only when it is called the next time
                let_go()
            return values

        return run

    def close(self) -> None:
        """Close the session."""
        self._session.close()

    def _callable(self, **wanted: list[str]) -> Any:
        from tensorflow.core.protobuf.config_pb2 import CallableOptions

        try:
            # ``Session.run`` does the same in ten times the time, and ``Session.make_callable`` calls that as soon as
            # there are inputs. TensorFlow's own Keras and estimators have been built on this method for years
            return self._session._make_callable_from_options(CallableOptions(**wanted))
        except Exception as error:  # TensorFlow raises its own errors and Python's here
            raise load_failure(self._tensorflow, error, "the signature cannot be prepared") from error

    def _graph(self, model: Any, folder: Path) -> Any:
        graph = self._tensorflow.Graph()
        try:
            with graph.as_default():
                self._tensorflow.compat.v1.import_graph_def(
                    model.graph_def, name="", producer_op_list=model.meta_info_def.stripped_op_list
                )
                self._nothing = self._tensorflow.no_op().name
            self._signed.check(graph)
        except LoadFailed:
            raise
        except Exception as error:  # TensorFlow raises its own errors and Python's here
            raise load_failure(self._tensorflow, error, f"{folder.name} cannot be loaded") from error
        return graph

    def _restore(self, model: Any, folder: Path) -> None:
        saver, prefix = model.saver_def, folder.joinpath(*_VARIABLES)
        if not prefix.with_suffix(".index").is_file():
            if any(node.op in _VARIABLE_OPERATORS for node in model.graph_def.node):
                raise LoadFailed(
                    f"{folder.name} has variables and no file {'/'.join(_VARIABLES)}.index: copy the whole folder"
                )
        elif saver.restore_op_name:
            what = (
                f"the variables of {folder.name} cannot be read; copy the whole folder, with all files of "
                f"{_VARIABLES[0]}/"
            )
            self._execute(saver.restore_op_name, {saver.filename_tensor_name: str(prefix)}, what)

    def _execute(self, operation: str, feeds: dict[str, str], what: str) -> None:
        try:
            self._session.run(self._session.graph.get_operation_by_name(node_name(operation)), feeds)
        except Exception as error:  # TensorFlow raises its own errors and Python's here
            raise load_failure(self._tensorflow, error, what) from error


def session_config(tensorflow: Any, chosen: Options) -> Any:
    """The ``ConfigProto`` of a session: its threads and, on a GPU, its memory."""
    config = tensorflow.compat.v1.ConfigProto(
        intra_op_parallelism_threads=chosen.intra_op_threads,
        inter_op_parallelism_threads=chosen.inter_op_threads or _OWN_THREAD,
        allow_soft_placement=True,  # a graph may name devices of the machine that it was made on
    )
    if not chosen.gpu:
        config.device_count["GPU"] = 0
    elif chosen.memory_limit_mb:
        config.gpu_options.experimental.virtual_devices.add(memory_limit_mb=[chosen.memory_limit_mb])
    else:
        config.gpu_options.allow_growth = chosen.memory_growth
    return config


def _compile(graph: Any, signed: Signed) -> None:
    """Mark the function that computes the signature for XLA, which then compiles it for every new shape."""
    strings = [tensor.name for tensor in (*signed.inputs, *signed.outputs) if tensor.datatype == "BYTES"]
    if strings:
        raise LoadFailed(f'option xla is "true", and XLA takes no BYTES, as tensor {strings[0]!r} is: leave it out')
    calls = Reach(graph).calls(signed.fetches.values())
    if not calls:
        raise LoadFailed(
            'option xla is "true", and the signature calls no function that could be compiled: leave it out'
        )
    for node in graph.node:
        if node.name in calls:
            node.attr["_XlaMustCompile"].b = True
