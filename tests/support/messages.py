"""Messages of the channel and tensors of every kind, as hypothesis makes them."""

from __future__ import annotations

import struct
from typing import Any, get_args

import msgspec
from hypothesis import strategies as st

from backends.messages import Answer, Answers, Infer, TensorHead, ToGateway, ToWorker
from backends.spec import ITEM_SIZE, BatchingSpec, ModelSpec, PaddingSpec, QueuePolicy, TensorSpec
from backends.tensor import Tensor, element_count

#: What a parameter of a request may be; infinities and NaN are left out, since NaN differs from itself.
_scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats(allow_nan=False), st.text(max_size=8)
)
parameters: st.SearchStrategy[dict[str, Any]] = st.dictionaries(
    st.text(max_size=8), st.one_of(_scalars, st.lists(_scalars, max_size=3)), max_size=3
)


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    """A tensor whose bytes fit its shape; most are small, and some are larger than the smallest block of an arena."""
    datatype = draw(st.sampled_from(sorted(ITEM_SIZE)))
    shape = tuple(draw(st.lists(st.integers(0, 5), max_size=3))) + draw(st.sampled_from([(), (), (0,), (64,), (700,)]))
    count = element_count(shape)
    if ITEM_SIZE[datatype]:
        data = _filled(draw, count * ITEM_SIZE[datatype])
    else:
        length = draw(st.integers(0, 9))
        data = b"".join(struct.pack("<I", length) + _filled(draw, length) for _ in range(count))
    kind = draw(st.sampled_from([bytes, bytearray, memoryview]))
    return Tensor(draw(st.text(max_size=5)), datatype, shape, kind(data))


def _filled(draw: st.DrawFn, size: int) -> bytes:
    pattern = draw(st.binary(min_size=1, max_size=7))
    return (pattern * (size // len(pattern) + 1))[:size]


integers = st.integers(0, 2**63 - 1)
_names = st.dictionaries(st.text(max_size=4), st.text(max_size=4), max_size=2)

# The defaults of a msgspec struct are no values that hypothesis could use (``<factory>``), so all is given.
st.register_type_strategy(
    BatchingSpec,
    st.builds(
        BatchingSpec,
        preferred_batch_sizes=st.lists(integers, max_size=3).map(tuple),
        max_queue_delay_us=integers,
        preserve_ordering=st.booleans(),
        priority_levels=integers,
        default_priority=integers,
        ageing_us=integers,
        policy=st.from_type(QueuePolicy),
        policies=st.dictionaries(integers, st.from_type(QueuePolicy), max_size=2),
        padding=st.none()
        | st.builds(
            PaddingSpec,
            values=st.dictionaries(st.text(max_size=4), integers | st.floats(allow_nan=False), max_size=2),
            masks=_names,
            crops=_names,
            max_ratio=st.floats(allow_nan=False),
        ),
    ),
)
st.register_type_strategy(
    ModelSpec,
    st.builds(
        ModelSpec,
        name=st.text(max_size=8),
        version=st.integers(0, 2**63 - 1),
        framework=st.text(max_size=4),
        path=st.text(max_size=8),
        max_batch_size=st.none() | st.integers(0, 2**31),
        batching=st.none() | st.from_type(BatchingSpec),
        inputs=st.lists(st.from_type(TensorSpec), max_size=2).map(tuple),
        outputs=st.lists(st.from_type(TensorSpec), max_size=2).map(tuple),
        instances=st.integers(1, 64),
        device=st.text(max_size=6),
        options=_names,
    ),
)


def _any_of(union: Any) -> st.SearchStrategy[Any]:
    kinds = [kind for kind in get_args(union) if kind not in (Infer, Answers)]
    return st.one_of([st.builds(kind, **_fields(kind)) for kind in kinds]).filter(_fits_msgpack)


def _fits_msgpack(message: msgspec.Struct) -> bool:
    try:
        msgspec.msgpack.encode(message)
    except OverflowError:  # an integer over 64 bits somewhere inside
        return False
    return True


def _fields(kind: type[msgspec.Struct]) -> dict[str, st.SearchStrategy[Any]]:
    """Numbers that msgpack can hold; the rest hypothesis derives from the types."""
    numbers = {int: st.integers(0, 2**63 - 1), float: st.floats(allow_nan=False)}
    return {field.name: numbers[field.type] for field in msgspec.structs.fields(kind) if field.type in numbers}


#: Every message without tensors.
to_worker: st.SearchStrategy[ToWorker] = st.deferred(lambda: _any_of(ToWorker))
to_gateway: st.SearchStrategy[ToGateway] = st.deferred(lambda: _any_of(ToGateway))

_count = st.integers(0, 2**63 - 1)
infers = st.builds(
    Infer,
    id=_count,
    tensors=st.just([]),
    outputs=st.lists(st.text(max_size=5), max_size=3).map(tuple),
    timeout_us=_count,
    priority=st.integers(-(2**31), 2**31),
    parameters=parameters,
    trace=st.text(max_size=8),
)


def answers(heads: list[list[TensorHead]]) -> st.SearchStrategy[Answers]:
    """A batch's answers, one for each list of tensors."""
    each = [st.builds(Answer, id=_count, tensors=st.just(mine), queue_ns=_count) for mine in heads]
    return st.builds(
        Answers,
        answers=st.tuples(*each).map(list),
        batch_size=_count,
        input_ns=_count,
        infer_ns=_count,
        output_ns=_count,
    )
