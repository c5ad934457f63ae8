"""An HTTP response as frames: `HEAD`, `CHUNK`, `END`, or `ERROR`. Shared by `asgi.py` and `wsgi.py`.

This file does no I/O. Each method returns the bytes to send, so a small complete response needs one send.

The daemon ends a worker that sends an invalid frame. So a response that cannot be a frame raises, and only its request fails.
`is_head_sent` and `is_complete` are set after the frame was made, so that the error can still be sent.
"""

from __future__ import annotations

import time

from ..protocol import flow, wire
from . import errors
from .events import done_meta
from .results import encode_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, List, Optional, Set, Tuple

    Headers = List[Tuple[str, str]]


_WITHOUT_BODY = (204, 304)
_SWITCHING_PROTOCOLS = 101  # to a WebSocket

_WITHOUT_TOKEN_CHARACTERS = {
    ord(character): None for character in "!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
}
_CONTROL_CHARACTERS = bytes(code for code in (*range(32), 127) if code != 9)

# Names of headers that were checked. An application uses the same ones again and again.
_known_names: Set[str] = set()
_KNOWN_NAMES_MAX = 1000


class HttpAnswer:
    """The response of one stream. It begins when the first body bytes are known, or when it is known that there are none."""

    __slots__ = ("is_complete", "is_head_sent", "_stream", "_method", "_head", "_sent", "_started_ns")

    def __init__(self, stream: int, method: str) -> None:
        self.is_complete = False
        self.is_head_sent = False
        self._stream = stream
        self._method = method
        self._head: Optional[Tuple[int, Headers]] = None
        self._sent = 0  # bytes of the body
        self._started_ns = time.monotonic_ns()

    @property
    def is_begun(self) -> bool:
        """True when status and headers are known. They may not have been sent yet."""
        return self._head is not None

    @property
    def is_gone(self) -> bool:
        """The client has hung up. Who is told overrides this."""
        return False

    def head(self, status: Any, headers: Headers) -> None:
        """Fault if the status or a header's name is invalid. The caller has checked that the headers are pairs of strings."""
        if type(status) is not int or not 200 <= status <= 599:
            status = _status(status)
        for name, _ in headers:
            if name not in _known_names:
                _check_name(name)
        self._head = (status, headers)

    def content_length(self) -> Optional[int]:
        for name, value in self._head[1] if self._head else ():
            if name.lower() == "content-length" and value.isdigit():
                return int(value)
        return None

    def check_end(self, last: bytes) -> None:
        """To be called before the last bytes of the body are sent. Raises Fault if the response would be shorter than its
        Content-Length, as the response to HEAD may be, and one without a body (RFC 9110, section 8.6)."""
        length, sent = self.content_length(), self._sent + len(last)
        if length is None or sent >= length or self._method == "HEAD" or (self._head and self._head[0] in _WITHOUT_BODY):
            return
        raise errors.Fault(
            "Runtime.IncompleteResponse", f"the body of the response has {sent} bytes, and its Content-Length is {length}"
        )

    def is_one_frame(self, data: bytes, is_last: bool) -> bool:
        """Whether these body bytes, and all that is left of the response with them, are one frame."""
        return is_last and not self.is_head_sent and len(data) <= wire.PIECE_LEN_MAX

    def end_unread(self) -> bytes:
        """Frames that end the response. Nobody reads it any more."""
        if self.is_complete:
            return b""
        frame = wire.encode(wire.END, self._stream, done_meta(self._started_ns, time.monotonic_ns()), b"")
        self.is_complete = True
        return frame

    def body(self, data: bytes, is_last: bool) -> bytes:
        """Frames for these body bytes. Status and headers go out with the first."""
        at = 0
        frames = []
        if not self.is_head_sent:
            if self.is_one_frame(data, is_last):
                return self._whole(data)
            frames.append(wire.encode(wire.HEAD, self._stream, self._head_meta(b""), data[: wire.PIECE_LEN_MAX]))
            self.is_head_sent = True
            at = wire.PIECE_LEN_MAX
        self._sent += len(data)
        while at < len(data) or (is_last and not self.is_complete):
            piece = data[at : at + wire.PIECE_LEN_MAX]
            at += wire.PIECE_LEN_MAX
            if is_last and at >= len(data):
                frames.append(wire.encode(wire.END, self._stream, done_meta(self._started_ns, time.monotonic_ns()), piece))
                self.is_complete = True
            else:
                frames.append(wire.encode(wire.CHUNK, self._stream, b"", piece))
        return b"".join(frames)

    def _whole(self, data: bytes) -> bytes:
        """One frame with the complete response."""
        meta = self._head_meta(b',"finished_ns":%d' % time.monotonic_ns())
        frame = wire.encode(wire.HEAD, self._stream, meta, data)
        self.is_head_sent = self.is_complete = True
        return frame

    def failed(self, error: BaseException, request_id: str) -> bytes:
        """Frames that end the stream after an error of the application. The error may come from another response whose client
        has gone, as that of a subscriber. Then this one's client still reads, and must not take its beginning for all of it."""
        if self.is_gone and flow.is_from_gone_client(error):
            return self.end_unread()
        return self.error(error, request_id)

    def error(self, error: BaseException, request_id: str) -> bytes:
        """Frames that end the stream with an error. If the response is already complete, the error is only logged."""
        text = errors.body(error, request_id)
        if self.is_complete:
            return b""
        frame = wire.encode(wire.ERROR, self._stream, done_meta(self._started_ns, time.monotonic_ns()), text)
        self.is_complete = True
        return frame

    def _head_meta(self, more: bytes) -> bytes:
        if self._head is None:
            raise RuntimeError("the application sent a body before the response's status and headers")
        status, headers = self._head
        encoded = encode_json(headers)
        if b"\\" in encoded:  # perhaps a lone surrogate, which is no JSON for the daemon, or a control character
            _check_values(headers)
        meta = b'{"status":%d,"headers":%b,"started_ns":%d%b}' % (status, encoded, self._started_ns, more)
        if len(meta) > wire.META_LEN_MAX:
            raise _invalid(f"its headers have {len(encoded)} bytes as JSON, at most about {wire.META_LEN_MAX} are sent")
        return meta


def _status(status: Any) -> int:
    """The number of an IntEnum such as http.HTTPStatus. Fault for everything that is not a status."""
    if isinstance(status, int) and not isinstance(status, bool):
        number = int.__index__(status)
        if 200 <= number <= 599 or number == _SWITCHING_PROTOCOLS:
            return number
    raise _invalid(f"its status is {status!r:.100}, must be a whole number from 200 to 599")


def _check_name(name: str) -> None:
    """Fault unless it is a token (RFC 9110, section 5.6.2)."""
    if not name or not name.isascii() or name.translate(_WITHOUT_TOKEN_CHARACTERS):
        raise _invalid(f"{name!r:.100} is not a valid name of a header")
    if len(_known_names) < _KNOWN_NAMES_MAX:
        _known_names.add(name)


def _check_values(headers: Headers) -> None:
    """Fault if one has a lone surrogate, or a control character other than a tab (RFC 9110, section 5.5)."""
    for name, value in headers:
        try:
            text = value.encode()
        except UnicodeEncodeError:
            raise _invalid(f"the header {name!r:.100} has a lone surrogate") from None
        if len(text.translate(None, _CONTROL_CHARACTERS)) != len(text):
            raise _invalid(f"the header {name!r:.100} has a line break or another control character in its value")


def check_header(name: Any, value: Any) -> None:
    """Fault unless both are strings, perhaps of a class derived from str."""
    if not isinstance(name, str) or not isinstance(value, str):
        kinds = f"{type(name).__name__} and {type(value).__name__}"
        raise _invalid(f"the name and the value of the header {name!r:.100} are {kinds}, must be strings")


def as_bytes(data: Any) -> bytes:
    """A part of a body, which may be a bytearray, a memoryview and so on. TypeError for a string and everything else."""
    return data if type(data) is bytes else memoryview(data).tobytes()


def _invalid(problem: str) -> errors.Fault:
    return errors.Fault("Function.InvalidResponse", f"the application's response is invalid: {problem}")
