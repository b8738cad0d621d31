"""One server with a repository of small models, for all tests that leave its models as they are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support import onnx_models
from support.clients import TRANSPORTS, floats, infer
from support.repository import add_echo, add_onnx
from support.server import Server, running
from support.shell import Shell

#: Takes all who ask at about the same time into one batch.
PATIENT_BATCHER = "dynamic_batching { preferred_batch_size: [ 32 ] max_queue_delay_microseconds: 300000 }"


def build_repository(repository: Path) -> Path:
    """The models, by name:

    ``identity_<datatype>``      ``y`` = ``x``, ONNX, any matrix, no batching; ``scalar_<datatype>`` for shape []
    ``simple``                   ``OUTPUT0`` = ``INPUT0`` + ``INPUT1``, ``OUTPUT1`` their difference, INT32 [batch, 16]
    ``versions``                 version 1 is ``y`` = ``x``, version 2 is ``y`` = ``x`` + 1, FP32 vectors
    ``a name+ü%41``              the same as version 1 there
    ``table``                    ``y`` = 10 ``x`` for INT64 below 4, which fails for others, [batch, 1], batches of 32
    ``ragged``                   ``y`` = ``x`` + 1, FP32 [batch, n], batches of 32
    ``echo``, ``echo_strings``   ``y`` = ``x``, vectors of FP32 and BYTES, with faults on request
    ``one_string``, ``cube``     ``y`` = ``x``, BYTES [1] and FP32 of three dimensions
    ``stats``                    as ``echo``, with the name of a route
    """
    for datatype in onnx_models.ELEMENT_TYPE:
        model = onnx_models.identity(datatype, ("rows", "columns"))
        add_onnx(repository, f"identity_{datatype.lower()}", model)
    for datatype in ("FP32", "INT64", "BYTES"):
        add_onnx(repository, f"scalar_{datatype.lower()}", onnx_models.identity(datatype, ()))
    add_onnx(repository, "simple", onnx_models.add_sub(), config="max_batch_size: 8")
    add_onnx(repository, "versions", onnx_models.identity("FP32", ("length",)), config="version_policy { all {} }")
    add_onnx(repository, "versions", onnx_models.add_one(("length",)), version=2)
    add_onnx(repository, "a name+ü%41", onnx_models.identity("FP32", ("length",)))
    batching = f"max_batch_size: 32 {PATIENT_BATCHER}"
    add_onnx(repository, "table", onnx_models.picks_from_table(), config=batching)
    add_onnx(repository, "ragged", onnx_models.add_one(), config=batching)
    add_echo(repository, "echo")
    add_echo(repository, "echo_strings", datatype="BYTES")
    add_echo(repository, "one_string", datatype="BYTES", dims=(1,))
    add_echo(repository, "cube", dims=(-1, -1, -1))
    add_echo(repository, "stats")
    return repository


@pytest.fixture
def unharmed(server: Server) -> Iterator[None]:
    """Whatever the test did to it: the server lives, answers the next request, and found no fault in itself."""
    faults = len(server.faults())
    yield
    assert server.is_alive()
    assert server.is_ready()
    for protocol in TRANSPORTS:
        assert infer(protocol, server, "echo", floats(1, 2)).outputs["y"].tolist() == [1, 2]
    assert server.faults()[faults:] == []


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The server; it has to stop in order, with a clean log, when the last test is through."""
    repository = build_repository(tmp_path_factory.mktemp("repository"))
    with running(tmp_path_factory.mktemp("server"), repository) as started:
        started.wait_ready("versions/versions/2")
        yield started


@pytest.fixture(scope="session")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """A user of the command line, with a server that has no models yet."""
    data, home = tmp_path_factory.mktemp("cli-data"), tmp_path_factory.mktemp("home")
    with running(data) as started:
        yield Shell(started, home, data)
