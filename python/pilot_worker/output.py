"""The output of a function. Descriptors 1 and 2 are the log. All output must be written before the answer.

Streams are line buffered, so that a line is one write and is not lost in a crash. `flush` writes the rest at the end of an
invocation. As in Lambda, the root logger has a handler in Lambda's format before user code is imported. Therefore
`logging.basicConfig()` has no effect, and `logging.getLogger().setLevel(...)` is enough.
"""

from __future__ import annotations

import contextvars
import io
import logging
import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Optional, TypeVar

    T = TypeVar("T")

# Per thread and per task, so that it is also correct with concurrency above 1.
request_id: contextvars.ContextVar[str] = contextvars.ContextVar("request_id", default="")
# False: the worker runs several invocations at a time.
one_at_a_time = True


def prepare() -> None:
    """Sets up the streams and the root logger. Called once, in the first template."""
    sys.stdout = _stream(sys.stdout, 1)
    sys.stderr = _stream(sys.stderr, 2)
    handler = _LogHandler()
    handler.setFormatter(_Formatter("[%(levelname)s]\t%(asctime)s.%(msecs)03dZ\t%(aws_request_id)s\t%(message)s"))
    logging.getLogger().addHandler(handler)


def of_invocation(running: Mapping[str, T]) -> Optional[T]:
    """What the invocation has that this thread or task belongs to, of what running invocations have, by request id.

    A thread that a handler has started has no request id. It belongs to the invocation that runs, if there can be only one.
    """
    own = request_id.get()
    if own or not one_at_a_time:
        return running.get(own)
    return next(iter(running.values()), None)


def flush() -> None:
    """Writes what the streams still buffer. If user code replaced a stream, that object may fail; this is not our error."""
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except Exception:  # closed, replaced, set to None, or a full log: not an error of the invocation
        pass


def _stream(current: Optional[object], fd: int) -> io.TextIOWrapper:
    if not isinstance(current, io.TextIOWrapper):  # the descriptor was closed when the interpreter started
        current = io.TextIOWrapper(io.BufferedWriter(io.FileIO(fd, "w", closefd=False)))
    current.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)
    return current


class _LogHandler(logging.Handler):
    """One write per record, straight to the log."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            record.aws_request_id = request_id.get()
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
