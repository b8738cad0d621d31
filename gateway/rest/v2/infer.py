"""Inference over HTTP: a request becomes a call, and the call's outcome an answer.

What is small is decoded and encoded at once. What is large takes its turns in the data plane's lane.
"""

from __future__ import annotations

import logging
import time
from functools import partial
from typing import Final

from gateway.errors import GatewayError, InvalidRequest
from gateway.inference.request import InferRequest, InferResponse
from gateway.inference.slices import Slices
from gateway.rest.answer import JSON, OCTETS, Answer, Headers, Reply, fault_answer, our_fault
from gateway.rest.v2.body import CODINGS, compress, decompress
from gateway.rest.v2.decode import Wanted, decode, decode_in_slices, decode_raw, header_length, is_large
from gateway.rest.v2.encode import encode, encode_in_slices
from gateway.rest.v2.encode import is_large as is_large_answer
from gateway.serving.call import Call, Outcome
from gateway.serving.dataplane import DataPlane
from gateway.serving.lane import Lane

log = logging.getLogger("tensorgate.rest")

_LENGTH: Final = b"inference-header-content-length"

_Decoded = tuple[InferRequest, Wanted]
_Encoded = tuple[bytes, int | None]


class Inferences:
    """Starts the calls."""

    def __init__(self, dataplane: DataPlane, max_json_bytes: int) -> None:
        self.dataplane = dataplane
        self._max_json_bytes = max_json_bytes

    def start(self, model: str, version: str, headers: Headers, body: bytes, reply: Reply) -> Call:
        """``reply`` gets the answer, later. Raises ``GatewayError``; ``reply`` is not called then."""
        length_value, encoding, coding = _read_headers(headers)
        if encoding is not None:
            work = self._decode_compressed(model, version, length_value, encoding, body)
        else:
            length = header_length(length_value, len(body)) if length_value is not None else None
            if not is_large(body, length):
                return self.call(reply, self._decode(model, version, length, body), headers, coding)
            work = decode_in_slices(model, version, body, length, self._max_json_bytes)
        try:
            next(work)
        except StopIteration as end:  # a small one that was compressed
            return self.call(reply, end.value, headers, coding)
        return _LargeRequest(self, reply, headers, coding, work, len(body))

    def call(self, reply: Reply, decoded: _Decoded, headers: Headers, coding: bytes | None) -> Call:
        """Start what was decoded. Raises as ``start`` does."""
        inference, wanted = decoded
        inference.headers = headers
        return self.dataplane.start(inference, partial(_reply, self.dataplane.lane, reply, wanted, coding))

    def _decode(self, model: str, version: str, length: int | None, body: bytes) -> _Decoded:
        if length == 0:
            return decode_raw(model, version, body, self.dataplane.signature(model, version))
        return decode(model, version, body, length, self._max_json_bytes)

    def _decode_compressed(
        self, model: str, version: str, length_value: bytes | None, encoding: bytes, body: bytes
    ) -> Slices[_Decoded]:
        body = yield from decompress(body, encoding, self._max_json_bytes)
        length = header_length(length_value, len(body))
        if not is_large(body, length):
            return self._decode(model, version, length, body)
        return (yield from decode_in_slices(model, version, body, length, self._max_json_bytes))


def _read_headers(headers: Headers) -> tuple[bytes | None, bytes | None, bytes | None]:
    """``Inference-Header-Content-Length``, the content's encoding, and the one that the answer is to have."""
    length_value = encoding = coding = None
    for key, value in headers:
        if key == _LENGTH:
            if length_value is not None:
                raise InvalidRequest("Inference-Header-Content-Length is given twice; send it once")
            length_value = value
        elif key == b"content-encoding" and value.lower() != b"identity":
            encoding = value
        elif key == b"accept-encoding" and value.lower() in CODINGS:
            coding = value.lower()
    return length_value, encoding, coding


class _LargeRequest:
    """Decoded in slices; then it is a call like any other."""

    def __init__(
        self,
        inferences: Inferences,
        reply: Reply,
        headers: Headers,
        coding: bytes | None,
        work: Slices[_Decoded],
        size: int,
    ) -> None:
        self._inferences = inferences
        self._reply = reply
        self._headers = headers
        self._coding = coding
        self._began = time.monotonic_ns()
        self._call: Call = inferences.dataplane.lane.enter(work, self._decoded, size)

    def cancel(self) -> None:
        """The client is gone."""
        self._call.cancel()

    def _decoded(self, outcome: _Decoded | GatewayError) -> None:
        if isinstance(outcome, GatewayError):
            self._reply(fault_answer(outcome))
            return
        request, _ = outcome
        if request.timeout_us:  # the client has waited for a while already; 0 would be no limit
            request.timeout_us = max(1, request.timeout_us - (time.monotonic_ns() - self._began) // 1000)
        try:
            self._call = self._inferences.call(self._reply, outcome, self._headers, self._coding)
        except GatewayError as error:
            self._reply(fault_answer(error))
        except Exception:  # as in V2App.answer
            log.exception("a large request for %s failed", request.model)
            self._reply(our_fault())


def _reply(lane: Lane, reply: Reply, wanted: Wanted, coding: bytes | None, outcome: Outcome) -> Call | None:
    """Encode the outcome of an inference; what is under way if that takes a while."""
    if isinstance(outcome, GatewayError):
        reply(fault_answer(outcome))
        return None
    if coding is not None or is_large_answer(outcome, wanted):
        return _SlicedAnswer(lane, reply, outcome, wanted, coding)
    try:
        answer = _answer(encode(outcome, wanted))
    except GatewayError as error:
        answer = fault_answer(error)
    except Exception:  # as in V2App.answer
        log.exception("the answer of %s cannot be encoded", outcome.model)
        answer = our_fault()
    finally:
        outcome.release()
    reply(answer)
    return None


class _SlicedAnswer:
    """Encoded in slices, and compressed; the response is released when that is done, or given up."""

    def __init__(self, lane: Lane, reply: Reply, response: InferResponse, wanted: Wanted, coding: bytes | None) -> None:
        self._reply = reply
        self._response = response
        self._work = lane.enter(_in_slices(response, wanted, coding), self._encoded)

    def cancel(self) -> None:
        """The client is gone."""
        self._work.cancel()
        self._response.release()

    def _encoded(self, outcome: Answer | GatewayError) -> None:
        self._response.release()
        self._reply(fault_answer(outcome) if isinstance(outcome, GatewayError) else outcome)


def _in_slices(response: InferResponse, wanted: Wanted, coding: bytes | None) -> Slices[Answer]:
    answer = _answer((yield from encode_in_slices(response, wanted)))
    if coding is None:
        return answer
    body = yield from compress(answer.body, coding)
    return Answer(answer.status, body, (*answer.headers, (b"content-encoding", coding)))


def _answer(encoded: _Encoded) -> Answer:
    content, length = encoded
    return Answer(200, content, (JSON,) if length is None else (OCTETS, (_LENGTH, b"%d" % length)))
