"""The output of a function. Descriptors 1 and 2 are the log. All output must be written before the answer.

Streams are line buffered, so that a line is one write and is not lost in a crash: Python's, and that of C code (`printf`).
`flush` writes the rest at the end of an invocation. What C code has begun of a line is written at the end of the worker, since
`fflush` through ctypes would cost a new worker page faults, and each answer a microsecond.

As in Lambda, the root logger has a handler in Lambda's format before user code is imported. Therefore `logging.basicConfig()`
has no effect, and `logging.getLogger().setLevel(...)` is enough. With AWS_LAMBDA_LOG_FORMAT=JSON, each record is an object on a
line of its own.
"""

from __future__ import annotations

import contextvars
import io
import json
import logging
import os
import sys
import time
import traceback
from select import POLLERR, poll  # gevent and eventlet put another `poll` into it

from . import kernel

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, Dict, Optional, Protocol, TypeVar

    T = TypeVar("T")

    class Call(Protocol):
        """What serves the frames of the worker."""

        request_id: str


# Per thread and per task, so that it is also correct with concurrency above 1.
request_id: contextvars.ContextVar[str] = contextvars.ContextVar("request_id", default="")
# False: the worker runs several invocations at a time.
one_at_a_time = True
# It has the id of the last invocation, for threads that a handler has started. A variable of this module would be one more
# object that each worker changes, and whose page it copies. It changes this one anyway.
call: Optional[Call] = None

# The level of the root logger with JSON, if the function names none. Lambda itself sets the variable to it.
_JSON_LEVEL = "INFO"
_CLOSING_MS = 10
# What is not `extra`: the attributes that every record has, and those that handlers and formatters add.
_RESERVED = frozenset((*vars(logging.makeLogRecord({})), "message", "asctime", "aws_request_id"))


def prepare() -> None:
    """Sets up the streams and the root logger. Called once, in the first template."""
    sys.stdout = _stream(sys.stdout, 1)
    sys.stderr = _stream(sys.stderr, 2)
    kernel.buffer_lines()
    logging.Formatter.converter = time.gmtime  # for all formatters, as awslambdaric does
    _handler.setFormatter(_TEXT)
    logging.getLogger().addHandler(_handler)


def configure(environment: Mapping[str, str]) -> None:
    """Sets the format of the log and the level of the root logger from a function's variables. The level is also for text."""
    _set_encoding(environment.get("PYTHONIOENCODING", ""))
    is_json = environment.get("AWS_LAMBDA_LOG_FORMAT", "").upper() == "JSON"
    if is_json != _handler.is_json:
        _handler.is_json = is_json
        _handler.setFormatter(_JSON if is_json else _TEXT)
    level = environment.get("AWS_LAMBDA_LOG_LEVEL", "").upper()
    if level == "TRACE":  # logging has no such level
        level = "DEBUG"
    if isinstance(logging.getLevelName(level), int):
        logging.getLogger().setLevel(level)
    elif is_json:
        logging.getLogger().setLevel(_JSON_LEVEL)


def _set_encoding(given: str) -> None:
    """`ENCODING:ERRORS`, both optional, as the interpreter reads it when it starts."""
    encoding, _, handling = given.partition(":")
    if not given:
        return
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            own = handling or None
            if stream is sys.stderr:
                own = "backslashreplace"
            try:
                stream.reconfigure(encoding=encoding or None, errors=own)
            except (LookupError, ValueError):
                return  # there is no such encoding


def is_json() -> bool:
    """Whether the log consists of JSON objects."""
    return _handler.is_json


def error_object(document: Dict[str, Any]) -> str:
    """The line for an error that ends an invocation or the worker: `ErrorBody`, with a time and a level."""
    return _encode({"timestamp": time.strftime(_JSON_TIME, time.gmtime()), "level": "ERROR", **document})


def of_invocation(running: Mapping[str, T]) -> Optional[T]:
    """What the invocation has that this thread or task belongs to, of what running invocations have, by request id.

    A thread that a handler has started has no request id. It belongs to the invocation that runs, if there can be only one.
    """
    own = request_id.get()
    if own or not one_at_a_time:
        return running.get(own)
    return next(iter(running.values()), None)


def _request_id() -> str:
    """That of this thread or task, else that of the last invocation if there is one at a time, as with Lambda."""
    own = request_id.get()
    return call.request_id if not own and one_at_a_time and call is not None else own


def flush() -> None:
    """Writes what the streams still buffer. If user code replaced a stream, that object may fail; this is not our error."""
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except Exception:  # closed, replaced, set to None, or a full log: not an error of the invocation
        pass


def end_if_unread() -> None:
    """To be called when the daemon has closed the channel. It then reads no log either, and `print` in what still runs would
    raise BrokenPipeError. So what is written from now on is dropped."""
    poller = poll()
    poller.register(1, POLLERR)
    if poller.poll(_CLOSING_MS):
        nothing = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        os.dup2(nothing, 1)
        os.dup2(nothing, 2)
        os.close(nothing)


def _stream(current: Optional[object], fd: int) -> io.TextIOWrapper:
    if not isinstance(current, io.TextIOWrapper):  # the descriptor was closed when the interpreter started
        current = io.TextIOWrapper(io.BufferedWriter(io.FileIO(fd, "w", closefd=False)))
    current.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)
    return current


class _LogHandler(logging.Handler):
    """One write per record, straight to the log."""

    is_json = False

    def emit(self, record: logging.LogRecord) -> None:
        try:
            record.aws_request_id = _request_id()
            text = self.format(record) + "\n"
            sys.stdout.flush()
            os.write(1, text.encode("utf-8", "backslashreplace"))
        except Exception:  # as in every logging handler: a bad record is reported and not raised
            self.handleError(record)


class _Formatter(logging.Formatter):
    converter = staticmethod(time.gmtime)
    default_time_format = "%Y-%m-%dT%H:%M:%S"

    def formatTime(self, record: logging.LogRecord, datefmt: Optional[str] = None) -> str:
        return time.strftime(datefmt or self.default_time_format, self.converter(record.created))


class _JsonFormatter(logging.Formatter):
    """awslambdaric's object: fields without a value are left out, and `extra` is added."""

    def format(self, record: logging.LogRecord) -> str:
        kind, error, trace = record.exc_info or (None, None, None)
        has_error = kind is not None
        level = min(logging.CRITICAL, max(logging.NOTSET, record.levelno)) // 10 * 10
        fields: Dict[str, Any] = {
            "timestamp": self.formatTime(record, _JSON_TIME),
            "level": logging.getLevelName(level),
            "message": record.msg if isinstance(record.msg, dict) and not record.args else record.getMessage(),
            "logger": record.name,
            "stackTrace": traceback.format_tb(trace) if has_error else None,
            "errorType": kind.__name__ if kind is not None else None,
            "errorMessage": str(error) if has_error else None,
            "requestId": getattr(record, "aws_request_id", None),
            "location": f"{record.pathname}:{record.funcName}:{record.lineno}" if has_error else None,
        }
        extra = {name: value for name, value in vars(record).items() if name not in _RESERVED and name not in fields}
        return _encode({name: value for name, value in {**fields, **extra}.items() if value is not None})


_JSON_TIME = "%Y-%m-%dT%H:%M:%SZ"
# What JSON does not know is written as its str(), so that no record is lost.
_encode = json.JSONEncoder(ensure_ascii=False, default=str).encode
_TEXT = _Formatter("[%(levelname)s]\t%(asctime)s.%(msecs)03dZ\t%(aws_request_id)s\t%(message)s")
_JSON = _JsonFormatter()
_handler = _LogHandler()
