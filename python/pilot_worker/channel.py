"""The invocation channel as a blocking socket: one recv and one send for an ordinary invocation.

Reading belongs to one thread. Writing may be done by several: a lock keeps frames whole. The asynchronous counterpart is
in `aio.py`.
"""

from __future__ import annotations

import _socket
import threading

from . import wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Optional

# Made at import, that is in the template: a worker pays only for the pages that its events fill.
_buffer = bytearray(64 * 1024)


class ChannelClosed(Exception):
    """The daemon closed the channel: the worker has to exit."""


class Channel:
    """Frames over a connected stream socket, which it owns."""

    def __init__(self, fd: int) -> None:
        # the C class: the one around it in socket.py turns numbers into enumerations, at 30 page faults in a fresh child
        self.socket = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM, 0, fd)
        self._view = memoryview(_buffer)
        self._decoder = wire.Decoder()
        self._is_buffered = False
        self._writing = threading.Lock()
        self.when_idle: Optional[Callable[[], None]] = None

    def read(self) -> Optional[wire.Frame]:
        """The next frame, or None when the daemon has closed the channel between two frames."""
        if not self._is_buffered:
            received = self._receive()
            if received == 0:
                return None
            if received >= wire.HEADER_LEN:
                meta_len, body_len, stream, kind, _flags, reserved = wire.HEADER.unpack_from(_buffer)
                wire.check(meta_len, body_len, kind, reserved)
                body_at = wire.HEADER_LEN + meta_len
                end = body_at + body_len
                if received == end:
                    view = self._view
                    return kind, stream, bytes(view[wire.HEADER_LEN : body_at]), bytes(view[body_at:end])
            self._decoder.feed(self._view[:received])
        return self._read_in_pieces()

    def _read_in_pieces(self) -> Optional[wire.Frame]:
        """A frame that did not arrive alone and whole."""
        decoder = self._decoder
        while True:
            frame = decoder.next()
            if frame is not None:
                self._is_buffered = not decoder.is_empty()
                return frame
            received = self._receive()
            if received == 0:
                raise wire.ProtocolError("truncated")
            decoder.feed(self._view[:received])

    def _receive(self) -> int:
        try:
            return self.socket.recv_into(_buffer)
        except BlockingIOError:
            return self._receive_after_idling()
        except ConnectionError:
            return 0

    def _receive_after_idling(self) -> int:
        """The native loop gave the socket a time limit (SO_RCVTIMEO, socket(7)), which has passed. It is lifted: it was for the
        first wait."""
        self.socket.setsockopt(_socket.SOL_SOCKET, _socket.SO_RCVTIMEO, bytes(16))
        if self.when_idle is not None:
            self.when_idle()
        return self._receive()

    def write(self, kind: int, stream: int, meta: bytes, body: bytes) -> None:
        """Sends one frame."""
        self.send(wire.encode(kind, stream, meta, body))

    def send(self, frames: bytes) -> None:
        """Sends whole frames; returns when the kernel has them all."""
        try:
            with self._writing:
                self.socket.sendall(frames)
        except ConnectionError as error:
            raise ChannelClosed from error
