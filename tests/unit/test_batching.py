"""The rules of the batcher, one by one, with a clock that is a number."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from backends.batching import Batcher, Pending, batch_key, decide
from backends.errors import InferenceFailed, InvalidInput, LoadFailed
from backends.rows import join, split
from backends.spec import BatchingSpec, ModelSpec, TensorSpec
from backends.tensor import Tensor, from_numpy

US = 1000
ids = itertools.count()


def request(
    rows: int = 1, at: int = 0, key: str = "same", deadline: int = 0, tensors: list[Tensor] | None = None
) -> Pending:
    return Pending(
        id=next(ids), tensors=tensors or [], outputs=(), parameters={}, priority=0, arrived_ns=at, deadline_ns=deadline,
        rows=rows, key=key,
    )  # fmt: skip


def batcher(max_batch_size: int = 8, delay_us: int = 0, preferred: tuple[int, ...] = ()) -> Batcher:
    return Batcher(max_batch_size, BatchingSpec(preferred, delay_us))


def fill(queue: Batcher, *requests: Pending) -> list[Pending]:
    for each in requests:
        queue.add(each)
    return list(requests)


def rows(queue: Batcher, now: int = 0) -> list[list[int]]:
    """Everything that can be taken now, as rows."""
    batches = []
    while (batch := queue.take(now)) is not None:
        batches.append([each.rows for each in batch])
    return batches


# --- who runs together ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("queue", [Batcher(8, None), Batcher(0, None), Batcher(0, BatchingSpec()), batcher(1)])
def test_without_batching_each_request_runs_alone_in_order_of_arrival(queue: Batcher) -> None:
    given = fill(queue, request(1), request(5), request(0), request(2))
    assert [queue.take(0) for _ in range(5)] == [[each] for each in given] + [None]


def test_a_batch_takes_what_is_waiting_up_to_max_batch_size_rows() -> None:
    queue = batcher(8)
    fill(queue, request(3), request(3), request(2), request(1), request(8), request(5), request(4))
    assert rows(queue) == [[3, 3, 2], [1], [8], [5], [4]]


def test_a_request_over_the_limit_runs_alone_and_not_never() -> None:
    queue = batcher(4)
    fill(queue, request(1), request(9), request(1))
    assert rows(queue) == [[1], [9], [1]]


def test_requests_without_rows_join_and_stay_bounded() -> None:
    queue = batcher(4)
    fill(queue, *(request(0) for _ in range(6)))
    assert rows(queue) == [[0] * 4, [0] * 2]


def test_only_equal_keys_share_a_batch_and_the_oldest_goes_first() -> None:
    queue = batcher(8)
    a1, b1, a2, c1, b2 = fill(queue, *(request(key=key) for key in "abacb"))
    assert [queue.take(0) for _ in range(4)] == [[a1, a2], [b1, b2], [c1], None]


def test_a_request_with_another_key_is_not_overtaken_for_ever() -> None:
    """Two requests of the popular key arrive for every batch that leaves; the lonely one still gets its turn."""
    queue = batcher(2)
    fill(queue, request(key="popular"), lonely := request(key="lonely"))
    served = []
    for _ in range(3):
        fill(queue, request(key="popular"), request(key="popular"))
        served.append(queue.take(0))
    assert [lonely] in served[:2]


def test_an_id_that_waits_already_is_refused() -> None:
    queue = batcher()
    (given,) = fill(queue, request())
    with pytest.raises(ValueError, match=str(given.id)):
        queue.add(given)
    assert len(queue) == 1


# --- how long they wait --------------------------------------------------------------------------------------------


def test_without_a_delay_nothing_ever_waits() -> None:
    queue = batcher(8, delay_us=0, preferred=(4, 8))
    fill(queue, request(), request())
    assert queue.wake_at(7) == 7
    assert rows(queue, 7) == [[1, 1]]


def test_a_batch_that_is_not_full_waits_until_its_oldest_request_is_old_enough() -> None:
    queue = batcher(8, delay_us=100)
    fill(queue, request(at=5 * US), request(at=60 * US))
    assert queue.take(60 * US) is None
    assert queue.wake_at(60 * US) == 105 * US
    assert queue.take(105 * US - 1) is None
    assert rows(queue, 105 * US) == [[1, 1]]


def test_a_full_batch_does_not_wait() -> None:
    queue = batcher(4, delay_us=100)
    fill(queue, *(request() for _ in range(5)))
    assert queue.wake_at(0) == 0
    assert rows(queue) == [[1] * 4]
    assert len(queue) == 1


def test_a_batch_that_the_next_request_does_not_fit_does_not_wait() -> None:
    queue = batcher(4, delay_us=100)
    fill(queue, request(3), request(2))
    assert queue.wake_at(0) == 0
    assert rows(queue) == [[3]]


def test_a_batch_does_not_wait_while_other_keys_wait_behind() -> None:
    queue = batcher(8, delay_us=100)
    fill(queue, request(key="a"))
    assert queue.take(0) is None
    fill(queue, request(key="b"))
    assert queue.wake_at(0) == 0
    assert rows(queue) == [[1]]
    assert queue.wake_at(0) == 100 * US


def test_the_largest_preferred_size_is_sent_at_once() -> None:
    queue = batcher(8, delay_us=100, preferred=(2, 4))
    fill(queue, *(request() for _ in range(7)))
    assert rows(queue) == [[1] * 4, [1] * 2]
    assert len(queue) == 1
    assert rows(queue, 100 * US) == [[1]]


def test_a_batch_that_would_pass_every_preferred_size_is_sent_as_it_is() -> None:
    queue = batcher(8, delay_us=100, preferred=(4,))
    fill(queue, request(3), request(3))
    assert rows(queue) == [[3]]
    assert len(queue) == 1


def test_preferred_sizes_that_cannot_be_formed_do_not_count() -> None:
    queue = batcher(4, delay_us=100, preferred=(0, 16))
    fill(queue, request(2))
    assert queue.take(0) is None
    fill(queue, request(2))
    assert rows(queue) == [[2, 2]]


def test_an_empty_queue_has_nothing_to_wake_for() -> None:
    queue = batcher()
    assert (queue.take(0), queue.wake_at(0), queue.next_deadline(), queue.expired(0), len(queue)) == (
        None,
        None,
        None,
        [],
        0,
    )


# --- who leaves ----------------------------------------------------------------------------------------------------


def test_a_cancelled_request_is_gone_and_its_company_stays() -> None:
    queue = batcher(8, delay_us=100)
    first, second, third = fill(queue, request(at=0), request(at=10 * US), request(at=20 * US))
    assert queue.cancel(first.id)
    assert not queue.cancel(first.id)
    assert queue.wake_at(20 * US) == 110 * US
    assert queue.take(110 * US) == [second, third]
    assert not queue.cancel(second.id)


def test_deadlines_wake_and_remove_earliest_first() -> None:
    queue = batcher(8, delay_us=1000)
    late, never, early = fill(queue, request(deadline=500 * US), request(), request(deadline=300 * US))
    first, second = fill(queue, request(deadline=200 * US), request(deadline=100 * US))
    assert queue.wake_at(0) == 100 * US
    assert queue.expired(200 * US) == [second, first]
    assert queue.wake_at(0) == 300 * US
    assert queue.expired(300 * US - 1) == []
    assert queue.expired(300 * US) == [early]
    assert queue.expired(600 * US) == [late]
    assert queue.wake_at(600 * US) == 1000 * US
    assert queue.take(1000 * US) == [never]


def test_a_deadline_after_the_delay_does_not_put_the_batch_off() -> None:
    queue = batcher(8, delay_us=100)
    fill(queue, request(deadline=900 * US))
    assert queue.wake_at(0) == 100 * US


def test_deadlines_of_requests_that_left_are_forgotten() -> None:
    """The heap must not grow with the requests served: their deadlines may lie hours ahead."""
    queue = batcher(8)
    for _ in range(10_000):
        fill(queue, request(deadline=10**15))
        queue.take(0)
    assert len(queue._deadlines) <= 100
    assert queue.next_deadline() is None


# --- keys ----------------------------------------------------------------------------------------------------------


def tensor(name: str = "x", datatype: str = "FP32", shape: tuple[int, ...] = (1, 4)) -> Tensor:
    return Tensor(name, datatype, shape, b"")


def test_the_order_of_inputs_and_the_number_of_rows_do_not_matter() -> None:
    one, other = tensor("a", shape=(1, 4)), tensor("b", shape=(1, 2))
    many = [tensor("b", shape=(7, 2)), tensor("a", shape=(7, 4))]
    assert batch_key([one, other], None, batched=True) == batch_key(many, None, batched=True)


@pytest.mark.parametrize(
    "different", [[tensor("y")], [tensor(datatype="FP64")], [tensor(shape=(1, 5))], [tensor(shape=(1, 4, 1))],
                  [tensor(), tensor("y")], []],
)  # fmt: skip
def test_names_datatypes_and_other_dimensions_matter(different: list[Tensor]) -> None:
    assert batch_key([tensor()], None, batched=True) != batch_key(different, None, batched=True)


def test_without_a_batch_dimension_the_first_dimension_matters() -> None:
    assert batch_key([tensor(shape=(1, 4))], None, batched=False) != batch_key(
        [tensor(shape=(2, 4))], None, batched=False
    )


def test_parameters_matter_by_value_and_type_and_not_by_order() -> None:
    def key(parameters: dict[str, Any] | None) -> Any:
        return batch_key([tensor()], parameters, batched=True)

    assert key({"a": 1, "b": {"c": 1, "d": 2}}) == key({"b": {"d": 2, "c": 1}, "a": 1})
    distinct: list[dict[str, Any]] = [{"a": 1}, {"a": True}, {"a": 1.0}, {"a": "1"}, {"b": 1}, {"a": [1]}, {}]
    assert len({key(parameters) for parameters in distinct}) == len(distinct)
    assert key(None) == key({})


# --- joining and splitting -----------------------------------------------------------------------------------------


def holding(*arrays: Any, name: str = "x", datatype: str | None = None) -> list[Pending]:
    return [request(len(array), tensors=[from_numpy(name, array, datatype)]) for array in arrays]


def test_a_batch_of_one_passes_its_view_unchanged() -> None:
    data = np.arange(4, dtype=np.float32).tobytes()
    joined = join([request(tensors=[Tensor("x", "FP32", (1, 4), data)])])["x"]
    np.testing.assert_array_equal(joined, [[0, 1, 2, 3]])
    assert np.shares_memory(joined, np.frombuffer(data, np.float32))


def test_rows_are_joined_in_the_order_of_the_batch() -> None:
    joined = join(holding(np.array([[1], [2]]), np.array([[3]]), np.empty((0, 1), np.int64)))
    np.testing.assert_array_equal(joined["x"], [[1], [2], [3]])


def test_inputs_in_another_order_are_joined_by_name() -> None:
    a, b = from_numpy("a", np.array([[1]])), from_numpy("b", np.array([[2]]))
    joined = join([request(tensors=[a, b]), request(tensors=[b, a])])
    assert {name: array.tolist() for name, array in joined.items()} == {"a": [[1], [1]], "b": [[2], [2]]}


def test_bytes_and_bf16_are_joined_as_they_are() -> None:
    texts = join(holding(np.array([[b"a"]], object), np.array([[b""], [b"\xff"]], object)))["x"]
    assert texts.tolist() == [[b"a"], [b""], [b"\xff"]]
    halves = join(holding(np.array([1], np.uint16), np.array([2], np.uint16), datatype="BF16"))["x"]
    assert halves.dtype == np.uint16
    assert halves.tolist() == [1, 2]


@pytest.mark.parametrize(
    "bad",
    [
        Tensor("x", "FP32", (1, 4), b"short"),
        Tensor("x", "FP32", (1, 4), bytes(20)),
        Tensor("x", "FP33", (1, 4), bytes(16)),
        Tensor("x", "BYTES", (1, 1), b"\xff\xff\xff\xff"),
        Tensor("x", "BYTES", (1, 2), b"\0\0\0\0"),
    ],
)
def test_bytes_that_are_no_such_tensor_are_the_requests_fault(bad: Tensor) -> None:
    with pytest.raises(InvalidInput, match="'x'"):
        join([request(tensors=[bad])])


def test_outputs_are_split_into_views_in_the_order_of_the_batch() -> None:
    y, z = np.arange(12).reshape(6, 2), np.arange(6)
    shares = split({"y": y, "z": z}, [1, 3, 0, 2])
    assert [share["z"].tolist() for share in shares] == [[0], [1, 2, 3], [], [4, 5]]
    assert [share["y"].shape for share in shares] == [(1, 2), (3, 2), (0, 2), (2, 2)]
    assert np.shares_memory(shares[1]["y"], y)


@pytest.mark.parametrize("output", [np.zeros((2, 3)), np.zeros((4, 3)), np.zeros(())])
def test_outputs_without_a_row_for_each_row_are_refused_by_name(output: Any) -> None:
    with pytest.raises(InferenceFailed, match=r"output 'y'.*max_batch_size to 0"):
        split({"x": np.zeros(3), "y": output}, [1, 2])


# --- what a model batches ------------------------------------------------------------------------------------------


def model(max_batch_size: int | None, batching: BatchingSpec | None = None) -> ModelSpec:
    return ModelSpec("m", 1, "echo", "", max_batch_size=max_batch_size, batching=batching)


ROWS, FIXED, SCALAR = (
    TensorSpec("rows", "FP32", (-1, 4)),
    TensorSpec("fixed", "FP32", (4,)),
    TensorSpec("scalar", "FP32", ()),
)


def test_a_backend_decides_only_where_the_spec_says_nothing() -> None:
    asked = BatchingSpec((2,), 5)
    assert decide(model(None), [ROWS], rows_apart=True) == (32, BatchingSpec())
    assert decide(model(None, asked), [ROWS], rows_apart=True) == (32, asked)
    assert decide(model(None, asked), [ROWS], rows_apart=False) == (0, None)
    assert decide(model(None), [ROWS, FIXED], rows_apart=True) == (0, None)
    assert decide(model(6, asked), [ROWS], rows_apart=False) == (6, asked)
    assert decide(model(6), [ROWS], rows_apart=True) == (6, None)
    assert decide(model(0, asked), [ROWS], rows_apart=True) == (0, None)


@pytest.mark.parametrize("tensor_spec", [FIXED, SCALAR])
def test_a_demand_that_the_model_cannot_meet_is_refused_by_name(tensor_spec: TensorSpec) -> None:
    with pytest.raises(LoadFailed, match=tensor_spec.name):
        decide(model(2), [ROWS, tensor_spec], rows_apart=True)
    with pytest.raises(LoadFailed, match="-1"):
        decide(model(-1), [ROWS], rows_apart=True)
