"""Requests that share a batch: each client gets exactly its own rows, and only those at fault fail."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from support.clients import PROTOCOLS, Refused, infer
from support.server import Server
from support.together import batches, protocol_of, statistics, together

CLIENTS = 32

pytestmark = pytest.mark.usefixtures("unharmed")


def test_32_clients_share_batches_and_get_their_own_rows(server: Server) -> None:
    before = statistics(server, "ragged")

    def ask(index: int) -> tuple[str, Any]:
        rows = np.arange(index % 3 + 1, dtype=np.float32)[:, None] * 1000 + np.array([index, index + 0.5], np.float32)
        answer = infer(protocol_of(index), server, "ragged", {"x": rows}, id=f"client {index}")
        assert np.array_equal(answer.outputs["y"], rows + 1)
        return answer.id, rows.shape[0]

    answers = together(CLIENTS, ask)
    assert [answer[0] for answer in answers] == [f"client {index}" for index in range(CLIENTS)]  # type: ignore[index]
    after = statistics(server, "ragged")
    rows = sum(index % 3 + 1 for index in range(CLIENTS))
    assert after["inference_count"] - before["inference_count"] == rows
    assert after["execution_count"] - before["execution_count"] < CLIENTS
    assert max(batches(server, "ragged")) > 1


def test_batches_are_as_large_as_the_limit_and_no_larger(server: Server) -> None:
    def ask(index: int) -> bool:
        value = index % 4
        answer = infer(protocol_of(index), server, "table", {"x": np.array([[value]], np.int64)})
        return bool(answer.outputs["y"].tolist() == [[10 * value]])

    before = batches(server, "table")
    assert together(2 * CLIENTS, ask) == [True] * (2 * CLIENTS)
    after = batches(server, "table")
    formed = {size: count - before.get(size, 0) for size, count in after.items() if count > before.get(size, 0)}
    assert sum(size * count for size, count in formed.items()) == 2 * CLIENTS
    assert 1 < max(formed) <= 32


@pytest.mark.parametrize("bad", [0, 15, 31])
def test_one_bad_request_in_a_batch_fails_alone(server: Server, bad: int) -> None:
    """onnxruntime refuses the whole batch for one index that is out of the table."""
    alone = batches(server, "table").get(2, 0)

    def ask(index: int) -> Any:
        value = 99 if index == bad else index % 4
        answer = infer(protocol_of(index), server, "table", {"x": np.array([[value], [index % 4]], np.int64)})
        return answer.outputs["y"].tolist()

    answers = together(CLIENTS, ask)
    refused = answers.pop(bad)
    assert isinstance(refused, Refused)
    assert refused.meaning == "invalid"
    assert "99" in refused.text
    values = [index % 4 for index in range(CLIENTS) if index != bad]
    assert answers == [[[10 * value], [10 * value]] for value in values]
    assert batches(server, "table")[2] > alone, "those that were in the batch of the bad one run again, alone"


def test_several_bad_requests_fail_with_their_own_text(server: Server) -> None:
    def ask(index: int) -> Any:
        value = 100 + index if index % 5 == 0 else index % 4
        return infer(protocol_of(index), server, "table", {"x": np.array([[value]], np.int64)}).outputs["y"].tolist()

    for index, answer in enumerate(together(CLIENTS, ask)):
        if index % 5:
            assert answer == [[10 * (index % 4)]]
        else:
            assert isinstance(answer, Refused)
            assert str(100 + index) in answer.text


def test_different_shapes_do_not_mix(server: Server) -> None:
    def ask(index: int) -> bool:
        rows = np.full((1, index % 4 + 1), index, np.float32)
        answer = infer(protocol_of(index), server, "ragged", {"x": rows})
        return np.array_equal(answer.outputs["y"], rows + 1)

    assert together(CLIENTS, ask) == [True] * CLIENTS


def test_clients_that_want_different_outputs_share_a_batch(server: Server) -> None:
    wishes = [("OUTPUT0",), ("OUTPUT1",), ("OUTPUT1", "OUTPUT0"), ()]

    def ask(index: int) -> bool:
        given = {"INPUT0": np.full((1, 16), index, np.int32), "INPUT1": np.full((1, 16), 1000, np.int32)}
        wish = wishes[index % 4]
        answer = infer(protocol_of(index), server, "simple", given, outputs=wish)
        right = {"OUTPUT0": index + 1000, "OUTPUT1": index - 1000}
        return list(answer.outputs) == list(wish or right) and all(
            (found == right[name]).all() for name, found in answer.outputs.items()
        )

    assert together(CLIENTS, ask) == [True] * CLIENTS


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("rows", [1, 32])
def test_a_request_may_have_as_many_rows_as_the_limit(server: Server, protocol: str, rows: int) -> None:
    given = np.arange(rows, dtype=np.int64)[:, None] % 4
    assert np.array_equal(infer(protocol, server, "table", {"x": given}).outputs["y"], given * 10)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_request_with_more_rows_is_refused_and_names_the_limit(server: Server, protocol: str) -> None:
    with pytest.raises(Refused) as refused:
        infer(protocol, server, "table", {"x": np.zeros((33, 1), np.int64)})
    assert refused.value.meaning == "invalid"
    for word in ("32", "33", "'x'"):
        assert word in refused.value.text


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_request_of_no_rows_is_answered_with_none(server: Server, protocol: str) -> None:
    answer = infer(protocol, server, "ragged", {"x": np.empty((0, 3), np.float32)})
    assert answer.outputs["y"].shape == (0, 3)
