"""The rule for operators that reach out of the process: a served graph computes, and does nothing else.

Loading a SavedModel runs no Python, but its graph may hold operators that call Python functions of this process, read
and write files, or open connections, and TensorFlow runs them like any other. What is looked at is the whole graph with
all its functions and not only the served signature, since TensorFlow evaluates some nodes as soon as it sees them.
"""

from __future__ import annotations

from typing import Any, Final

from backends.errors import LoadFailed
from backends.tf import graph

_PYTHON: Final = frozenset({"PyFunc", "PyFuncStateless", "EagerPyFunc"})

_REACH_OUT: Final[dict[str, str]] = {
    **dict.fromkeys(
        (
            "ReadFile", "MatchingFiles", "WholeFileReader", "WholeFileReaderV2", "TextLineReader", "TextLineReaderV2",
            "TFRecordReader", "TFRecordReaderV2", "FixedLengthRecordReader", "FixedLengthRecordReaderV2", "LMDBReader",
            "MatchingFilesDataset", "ExperimentalMatchingFilesDataset", "TextLineDataset", "TFRecordDataset",
            "TFRecordDatasetV2", "FixedLengthRecordDataset", "FixedLengthRecordDatasetV2", "CSVDataset", "CSVDatasetV2",
            "ExperimentalCSVDataset", "LMDBDataset", "ExperimentalLMDBDataset", "SqlDataset", "ExperimentalSqlDataset",
            "LoadDataset", "SnapshotDatasetReader", "SnapshotNestedDatasetReader", "SnapshotChunkDataset",
            "ListSnapshotChunksDataset", "RecordInput", "Skipgram", "GenerateVocabRemapping", "LoadAndRemapMatrix",
            "DTensorRestoreV2",
        ),
        "reads files",
    ),
    **dict.fromkeys(
        (
            "WriteFile", "CacheDataset", "CacheDatasetV2", "SnapshotDataset", "SnapshotDatasetV2", "SaveDataset",
            "SaveDatasetV2", "DistributedSave", "DatasetToTFRecord", "ExperimentalDatasetToTFRecord", "DumpTensor",
            "CreateSummaryFileWriter", "CreateSummaryDbWriter", "CalibrationStatisticsSaver", "DebugIdentity",
            "DebugIdentityV2", "DebugIdentityV3", "DebugNanCount", "DebugNumericSummary", "DebugNumericSummaryV2",
        ),
        "writes files",
    ),
    **dict.fromkeys(
        (
            "RpcServer", "RpcClient", "DataServiceDataset", "DataServiceDatasetV2", "DataServiceDatasetV3",
            "DataServiceDatasetV4", "RegisterDataset", "RegisterDatasetV2", "FileSystemSetConfiguration",
        ),
        "opens connections",
    ),
    "DatasetFromGraph": "runs a graph that cannot be looked into",
}  # fmt: skip

_SAVES: Final = frozenset({"Save", "SaveSlices", "SaveV2", "MergeV2Checkpoints"})
_RESTORES: Final = frozenset(
    {"Restore", "RestoreSlice", "RestoreV2", "InitializeTableFromTextFile", "InitializeTableFromTextFileV2"}
)
_ALLOW: Final = 'serve it only if you trust whoever made it, with the option allow_code = "true"'


def check(model: Any, loading: list[str], serving: list[str], allowed: bool) -> set[str]:
    """The operators that ``serving`` may run.

    ``model`` is a ``MetaGraphDef``; ``loading`` and ``serving`` are the names of what runs once and for every request.
    Every SavedModel holds operators that save and restore its variables: they may restore while loading, and no more.
    Raises ``LoadFailed`` that names the operator, where it is and what it does.
    """
    for function, node in graph.nodes(model.graph_def):
        what = "calls Python" if node.op in _PYTHON else "" if allowed else _does(node)
        if what:
            place = f"function {function!r}" if function else f"node {node.name!r}"
            mend = "export the model without it" if node.op in _PYTHON else f"export the model without it, or {_ALLOW}"
            raise LoadFailed(f"the graph has the operator {node.op} ({place}), which {what}: {mend}")
    reach = graph.Reach(model.graph_def)
    operators = reach.operators(serving)
    if not allowed:
        _check_checkpoints(reach.operators(loading) & _SAVES, "while loading")
        _check_checkpoints(operators & (_SAVES | _RESTORES), "for every request")
    return operators


def _check_checkpoints(found: set[str], when: str) -> None:
    for operator in sorted(found):
        what = "writes" if operator in _SAVES else "reads"
        raise LoadFailed(f"the graph runs the operator {operator}, which {what} files, {when}: {_ALLOW}")


def _does(node: Any) -> str:
    """What a node does outside of the process; "" for nothing."""
    if node.op in _REACH_OUT:
        return _REACH_OUT[node.op]
    if node.op == "PrintV2" and _text(node, "output_stream").startswith(b"file:"):
        return "writes files"
    if node.op == "FixedUnigramCandidateSampler" and _text(node, "vocab_file"):
        return "reads files"
    source = _text(node, "descriptor_source") if node.op in ("DecodeProtoV2", "EncodeProto") else b""
    return "reads files" if source and not source.startswith((b"local://", b"bytes://")) else ""


def _text(node: Any, attribute: str) -> bytes:
    # asking a protobuf map for what it lacks would add it
    return bytes(node.attr[attribute].s) if attribute in node.attr else b""
