"""Errors in AWS Lambda's form: `ErrorBody` for the caller, and the same information as text for the log.

Stack traces leave out the frames of this package, and those of the import machinery with which it loads the handler. An import
by user code keeps its frames, as with awslambdaric.
"""

from __future__ import annotations

import importlib
import itertools
import os
import sys
import traceback

from .. import FOLDER, output
from ..protocol import wire
from .results import encode_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import List, Optional

_OWN = FOLDER + os.sep
_HIDDEN = (_OWN, "<frozen importlib.", importlib.__file__)
TYPE_LEN_MAX = 1_000
MESSAGE_LEN_MAX = 200_000  # people read an ErrorBody; a longer text is probably a result by mistake


class Fault(Exception):
    """An error that the runtime itself detects, with Lambda's name (`Runtime.ImportModuleError` and so on)."""

    def __init__(self, kind: str, message: str, trace: Optional[List[str]] = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.trace = trace or []


class RequestTooLarge(Fault):
    """The request cannot be passed to the function. The client gets status 413."""

    def __init__(self, message: str) -> None:
        super().__init__("RequestTooLargeException", message)


def stack(trace: Optional[TracebackType]) -> List[str]:
    """The user's frames in Lambda's format, without the markers that newer Pythons draw under a line."""
    try:
        frames = [(frame.filename, frame.lineno or 0, frame.name, frame.line) for frame in traceback.extract_tb(trace)]
    except (
        Exception
    ):  # since Python 3.13, this imports `tokenize` to read a line, and the code may have another module `tokenize`
        walked = traceback.walk_tb(trace)
        frames = [(frame.f_code.co_filename, number or 0, frame.f_code.co_name, "") for frame, number in walked]
    after = itertools.dropwhile(lambda frame: frame[0].startswith(_HIDDEN), frames)
    return traceback.format_list([frame for frame in after if not frame[0].startswith(_OWN)])


def body(error: BaseException, request_id: str = "") -> bytes:
    """`ErrorBody` as JSON. It is also written to the log, as in Lambda."""
    if isinstance(error, Fault):
        kind, trace = error.kind, error.trace
    else:
        kind, trace = type(error).__name__, stack(error.__traceback__)
    message = _message(error)[:MESSAGE_LEN_MAX]
    document = {"errorMessage": message, "errorType": kind, "requestId": request_id, "stackTrace": trace}
    _write_log(output.error_object(document) if output.is_json() else _as_text(kind, message, trace))
    encoded = encode_json(document)
    if len(encoded) <= wire.RESULT_LEN_MAX:
        return encoded
    # a very long line of source in each frame, or a type with a very long name
    return encode_json({**document, "errorType": kind[:TYPE_LEN_MAX], "stackTrace": []})


def warn(message: str) -> None:
    """Writes a line about the function to its log."""
    _write_log(output.error_object({"level": "WARNING", "message": message}) if output.is_json() else f"[WARNING] {message}")


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as failure:  # a user's __str__ may raise anything
        return f"<{type(error).__name__}.__str__ failed: {type(failure).__name__}>"


def _as_text(kind: str, message: str, trace: List[str]) -> str:
    lines = [f"[ERROR] {kind}: {message}" if message else f"[ERROR] {kind}"]
    if trace:
        lines.append("Traceback (most recent call last):")
        lines.extend(entry.rstrip("\n") for entry in trace)
    return "\n".join(lines)


def _write_log(text: str) -> None:
    try:
        sys.stdout.flush()
        os.write(2, (text + "\n").encode("utf-8", "backslashreplace"))
    except (OSError, ValueError, AttributeError):
        pass  # no log, or a closed or replaced stdout: the caller still gets the error
