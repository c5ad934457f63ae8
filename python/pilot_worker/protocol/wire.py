"""The frame codec of the invocation channel: bytes to frames and back (PROTOCOL.md, section 1).

It does no I/O and no JSON; `channel.py` and `aio.py` read and write the bytes. A frame is a plain tuple
(kind, stream, meta, body), because one is created for every invocation.
"""

from __future__ import annotations

import struct

from .. import inputs

TYPE_CHECKING = False  # `typing` is not imported at run time, because its import would add to cold starts
if TYPE_CHECKING:
    from typing import Optional, Tuple

    Frame = Tuple[int, int, bytes, bytes]

INVOKE = 1
HTTP = 2
SECRETS = 3
CANCEL = 4
WINDOW = 5
READY = 16
RESULT = 17
ERROR = 18
HEAD = 19
CHUNK = 20
END = 21
INIT_ERROR = 22


HEADER = struct.Struct("<IIIBBH")
HEADER_LEN = HEADER.size

META_LEN_MAX = 256 * 1024
SMALL_META_LEN_MAX = 4 * 1024
REQUEST_LEN_MAX = 8 * 1024 * 1024
RESULT_LEN_MAX = 6 * 1024 * 1024 + 100
PIECE_LEN_MAX = 64 * 1024
# How much of a response is sent before `WINDOW` must come, bytes, and what a frame takes of it at least.
WINDOW_LEN = 256 * 1024
WINDOW_COST_MIN = 256
# The longest meta and the longest body of a frame, by kind.
LEN_MAX = {
    INVOKE: (META_LEN_MAX, REQUEST_LEN_MAX),
    HTTP: (META_LEN_MAX, REQUEST_LEN_MAX),
    SECRETS: (META_LEN_MAX, 0),
    CANCEL: (0, 0),
    WINDOW: (0, 4),
    READY: (SMALL_META_LEN_MAX, 0),
    RESULT: (SMALL_META_LEN_MAX, RESULT_LEN_MAX),
    ERROR: (SMALL_META_LEN_MAX, RESULT_LEN_MAX),
    HEAD: (META_LEN_MAX, PIECE_LEN_MAX),
    CHUNK: (SMALL_META_LEN_MAX, PIECE_LEN_MAX),
    END: (SMALL_META_LEN_MAX, PIECE_LEN_MAX),
    INIT_ERROR: (SMALL_META_LEN_MAX, RESULT_LEN_MAX),
}


class ProtocolError(Exception):
    """The peer violated the protocol. `reason` is one of the words in vectors/README.md."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"invalid frame: {reason}")
        self.reason = reason


def encode(kind: int, stream: int, meta: bytes, body: bytes) -> bytes:
    """The frame as bytes. ProtocolError if a part is longer than the protocol allows."""
    meta_len_max, body_len_max = LEN_MAX[kind]
    if len(meta) > meta_len_max:
        raise ProtocolError("meta_too_long")
    if len(body) > body_len_max:
        raise ProtocolError("body_too_long")
    return HEADER.pack(len(meta), len(body), stream, kind, 0, 0) + meta + body


def check(meta_len: int, body_len: int, kind: int, flags: int, reserved: int) -> None:
    """Raises ProtocolError if a field of the header is invalid. Fields are checked in the order of vectors/README.md."""
    if kind not in LEN_MAX:
        raise ProtocolError("unknown_kind")
    meta_len_max, body_len_max = LEN_MAX[kind]
    if meta_len > meta_len_max:
        raise ProtocolError("meta_too_long")
    if body_len > body_len_max:
        raise ProtocolError("body_too_long")
    if flags > inputs.DESCRIPTORS_MAX:
        raise ProtocolError("too_many_descriptors")
    if reserved:
        raise ProtocolError("reserved_not_zero")


def claim(stream: int, flags: int) -> None:
    """Takes the descriptors of a whole frame that has `flags` of them."""
    if not inputs.claim(stream, flags):
        raise ProtocolError("descriptors_missing")


def only_frame(received: memoryview) -> Optional[Frame]:
    """The frame, if it arrived complete and alone: the usual case, without a decoder. ProtocolError as in the decoder."""
    if len(received) < HEADER_LEN:
        return None
    meta_len, body_len, stream, kind, flags, reserved = HEADER.unpack_from(received)
    check(meta_len, body_len, kind, flags, reserved)
    body_at = HEADER_LEN + meta_len
    if len(received) != body_at + body_len:
        return None
    if flags:
        claim(stream, flags)
    return kind, stream, bytes(received[HEADER_LEN:body_at]), bytes(received[body_at:])


class Decoder:
    """Collects received bytes and returns complete frames. It holds at most one frame and the bytes that came with it."""

    __slots__ = ("_bytes",)

    def __init__(self) -> None:
        self._bytes = bytearray()

    def feed(self, data: bytes | memoryview) -> None:
        self._bytes += data

    def next(self) -> Optional[Frame]:
        """The next complete frame, or None if more bytes are needed. An invalid header raises before its payload arrives."""
        held = self._bytes
        if len(held) < HEADER_LEN:
            return None
        meta_len, body_len, stream, kind, flags, reserved = HEADER.unpack_from(held)
        check(meta_len, body_len, kind, flags, reserved)
        body_at = HEADER_LEN + meta_len
        end = body_at + body_len
        if len(held) < end:
            return None
        if flags:
            claim(stream, flags)
        with memoryview(held) as view:
            frame = (kind, stream, bytes(view[HEADER_LEN:body_at]), bytes(view[body_at:end]))
        del held[:end]
        return frame

    def is_empty(self) -> bool:
        """False in the middle of a frame, where the end of the stream means that the frame is truncated."""
        return not self._bytes
