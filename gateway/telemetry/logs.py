"""Structured logs: one line an event on stderr, as text for people or as JSON for machines.

Use the standard ``logging``; what belongs to an event besides its text goes into ``extra``:
``log.info("worker ready", extra={"model": "add", "pid": 12})``. The id of the request at hand is added by itself.
"""

from __future__ import annotations

import json
import logging
import sys
import traceback
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Final, TextIO

#: Id of the request that the current task works on; "" outside of requests.
request_id: ContextVar[str] = ContextVar("request_id", default="")

_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "color_message"}
#: Line breaks and other controls are escaped: one event stays one line, and a client's text cannot forge another.
_ESCAPES: Final = {code: f"\\u{code:04x}" for code in (*range(32), *range(127, 160), 0x2028, 0x2029)} | {
    ord("\n"): "\\n",
    ord("\r"): "\\r",
    ord("\t"): "\\t",
}


def configure(log_format: str = "text", level: str = "info", stream: TextIO | None = None) -> None:
    """Send every logger to ``stream`` (stderr) in ``log_format`` ``text`` or ``json``; replaces what was set before."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    handler.addFilter(_add_request_id)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # These tell of every request or of their own inner life; ours tell what matters.
    for noisy in ("httpx", "httpcore", "aiosqlite", "alembic", "asyncio", "uvicorn"):
        logging.getLogger(noisy).setLevel(max(logging.WARNING, logging.getLogger().level))
    logging.getLogger("grpc._cython.cygrpc").addFilter(_is_no_lost_client)


def _is_no_lost_client(record: logging.LogRecord) -> bool:
    """gRPC calls it an error, with a stack, when a client leaves just as its answer is sent."""
    return not (record.exc_info and getattr(record.exc_info[0], "__name__", "") == "ExecuteBatchError")


def _add_request_id(record: logging.LogRecord) -> bool:
    current = request_id.get()
    if current and "request_id" not in vars(record):
        record.request_id = current
    return True


def extras(record: logging.LogRecord) -> dict[str, Any]:
    """What ``extra`` gave to the event."""
    return {key: value for key, value in vars(record).items() if key not in _STANDARD}


class JsonFormatter(logging.Formatter):
    """``{"time", "level", "logger", "message", ...extra, "exception"?}``, the time in UTC."""

    def format(self, record: logging.LogRecord) -> str:
        """One JSON object without line breaks."""
        event = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **extras(record),
        }
        if record.exc_info:
            event["exception"] = self.formatException(record.exc_info)
        return json.dumps(event, default=str)  # ASCII: nothing in it can break a line


class TextFormatter(logging.Formatter):
    """``time LEVEL logger: message key=value``, local time; an exception follows with its call sites."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        time = datetime.fromtimestamp(record.created).astimezone().isoformat(sep=" ", timespec="milliseconds")
        line = f"{time} {record.levelname:<7} {record.name}: {record.getMessage()}"
        fields = "".join(f" {key}={_word(value)}" for key, value in extras(record).items())
        trouble = f" | {_trouble(record.exc_info)}" if record.exc_info and record.exc_info[0] else ""
        return (line + fields + trouble).translate(_ESCAPES)


def _word(value: object) -> str:
    text = str(value)
    return repr(text) if " " in text or not text else text


def _trouble(info: Any) -> str:
    """``ValueError: text (a.py:3 in f < b.py:9 in g)``, the innermost call first."""
    kind, error, trace = info
    frames = reversed(traceback.extract_tb(trace))
    sites = " < ".join(f"{frame.filename}:{frame.lineno} in {frame.name}" for frame in frames)
    return f"{kind.__name__}: {error} ({sites})"
