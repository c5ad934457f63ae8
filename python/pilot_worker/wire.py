"""The frame codec of the invocation channel: bytes to frames and back (PROTOCOL.md, section 1).

It does no I/O and knows no JSON; `channel.py` and `aio.py` move the bytes. A frame is the plain tuple
(kind, stream, meta, body), because one is made for every invocation.
"""

from __future__ import annotations

import struct

TYPE_CHECKING = False  # `typing` is not imported at run time: its import is cold-start time
if TYPE_CHECKING:
    from typing import Optional, Tuple

    Frame = Tuple[int, int, bytes, bytes]

INVOKE = 1
HTTP = 2
READY = 16
RESULT = 17
ERROR = 18
HEAD = 19
CHUNK = 20
END = 21
INIT_ERROR = 22

KINDS = frozenset((INVOKE, HTTP, READY, RESULT, ERROR, HEAD, CHUNK, END, INIT_ERROR))

HEADER = struct.Struct("<IIIBBH")
HEADER_LEN = HEADER.size
META_LEN_MAX = 256 * 1024
BODY_LEN_MAX = 64 * 1024 * 1024


class ProtocolError(Exception):
    """The peer broke the protocol; `reason` is one of the words in vectors/README.md."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"invalid frame: {reason}")
        self.reason = reason


def encode(kind: int, stream: int, meta: bytes, body: bytes) -> bytes:
    """The whole frame in one piece; ProtocolError when a part is longer than the protocol allows."""
    if len(meta) > META_LEN_MAX:
        raise ProtocolError("meta_too_long")
    if len(body) > BODY_LEN_MAX:
        raise ProtocolError("body_too_long")
    return HEADER.pack(len(meta), len(body), stream, kind, 0, 0) + meta + body


def check(meta_len: int, body_len: int, kind: int, reserved: int) -> None:
    """Raises ProtocolError when a header's fields cannot be; the order is that of vectors/README.md."""
    if kind not in KINDS:
        raise ProtocolError("unknown_kind")
    if meta_len > META_LEN_MAX:
        raise ProtocolError("meta_too_long")
    if body_len > BODY_LEN_MAX:
        raise ProtocolError("body_too_long")
    if reserved:
        raise ProtocolError("reserved_not_zero")


def only_frame(received: memoryview) -> Optional[Frame]:
    """The frame, when it came alone and whole, which is the rule: then nothing is collected. ProtocolError as the decoder's."""
    if len(received) < HEADER_LEN:
        return None
    meta_len, body_len, stream, kind, _flags, reserved = HEADER.unpack_from(received)
    check(meta_len, body_len, kind, reserved)
    body_at = HEADER_LEN + meta_len
    if len(received) != body_at + body_len:
        return None
    return kind, stream, bytes(received[HEADER_LEN:body_at]), bytes(received[body_at:])


class Decoder:
    """Collects received bytes and gives back whole frames. It holds at most one frame and what came with it."""

    __slots__ = ("_bytes",)

    def __init__(self) -> None:
        self._bytes = bytearray()

    def feed(self, data: bytes | memoryview) -> None:
        self._bytes += data

    def next(self) -> Optional[Frame]:
        """The next whole frame, or None when more bytes are needed. A bad header raises before its payload arrives."""
        held = self._bytes
        if len(held) < HEADER_LEN:
            return None
        meta_len, body_len, stream, kind, _flags, reserved = HEADER.unpack_from(held)
        check(meta_len, body_len, kind, reserved)
        body_at = HEADER_LEN + meta_len
        end = body_at + body_len
        if len(held) < end:
            return None
        with memoryview(held) as view:
            frame = (kind, stream, bytes(view[HEADER_LEN:body_at]), bytes(view[body_at:end]))
        del held[:end]
        return frame

    def is_empty(self) -> bool:
        """False in the midst of a frame: then an end of the stream is a truncation."""
        return not self._bytes
