"""An HTTP response as frames: `HEAD`, `CHUNK`, `END`, or `ERROR`. Shared by `asgi.py` and `wsgi.py`.

This file does no I/O. Each method returns the bytes to send, so a small complete response needs one send.
"""

from __future__ import annotations

import time

from . import errors, wire
from .events import done_meta
from .results import encode_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List, Optional, Tuple

    Headers = List[Tuple[str, str]]


_WITHOUT_BODY = (204, 304)


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

    def head(self, status: int, headers: Headers) -> None:
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

    def body(self, data: bytes, is_last: bool) -> bytes:
        """Frames for these body bytes. Status and headers go out with the first."""
        self._sent += len(data)
        at = 0
        frames = []
        if not self.is_head_sent:
            if is_last and len(data) <= wire.PIECE_LEN_MAX:
                return self._whole(data)
            frames.append(wire.encode(wire.HEAD, self._stream, self._head_meta(b""), data[: wire.PIECE_LEN_MAX]))
            self.is_head_sent = True
            at = wire.PIECE_LEN_MAX
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
        self.is_head_sent = self.is_complete = True
        return wire.encode(wire.HEAD, self._stream, meta, data)

    def error(self, error: BaseException, request_id: str) -> bytes:
        """Frames that end the stream with an error. If the response is already complete, the error is only logged."""
        text = errors.body(error, request_id)
        if self.is_complete:
            return b""
        self.is_complete = True
        return wire.encode(wire.ERROR, self._stream, done_meta(self._started_ns, time.monotonic_ns()), text)

    def _head_meta(self, more: bytes) -> bytes:
        if self._head is None:
            raise RuntimeError("the application sent a body before the response's status and headers")
        status, headers = self._head
        return b'{"status":%d,"headers":%b,"started_ns":%d%b}' % (status, encode_json(headers), self._started_ns, more)
