"""The body of a large request, which the client still sends (PROTOCOL.md, section 1, "Inputs"). Imported only then."""

from __future__ import annotations

import asyncio
import io
import os
import socket
import struct
import threading

from . import errors

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Optional

    from ..inputs.received import Input

_LENGTH = struct.Struct("<I")
_READ_LEN = 64 * 1024


class ClientDisconnected(OSError):
    """The body broke off: the client has closed its connection, or sends nothing."""

    def __init__(self) -> None:
        super().__init__("the client disconnected in the middle of the request's body")


def take(inputs: Dict[str, Input]) -> Optional[Input]:
    """The input with the rest of the request's body. It is not one of the function's inputs."""
    for name, given in inputs.items():
        if given.kind == "body":
            return inputs.pop(name)
    return None


class Reader(io.RawIOBase):
    """`wsgi.input`: the beginning, and then the parts. Blocks until the client has sent something. Use it buffered."""

    def __init__(self, beginning: bytes, rest: Input) -> None:
        self._beginning = memoryview(beginning)
        self._rest = rest
        self._socket = socket.socket(fileno=rest.detach())
        self._socket.settimeout(None)  # whatever the function's default is
        self._left = 0  # of the current part
        self._is_over = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        with memoryview(buffer) as view, view.cast("B") as into:
            if self._beginning:
                count = min(len(into), len(self._beginning))
                into[:count] = self._beginning[:count]
                self._beginning = self._beginning[count:]
                return count
            if self._left == 0 and not self._is_over:
                header = self._socket.recv(_LENGTH.size, socket.MSG_WAITALL)
                if len(header) < _LENGTH.size:
                    raise ClientDisconnected
                (self._left,) = _LENGTH.unpack(header)
                self._is_over = self._left == 0
            if self._is_over:
                return 0
            count = self._socket.recv_into(into, min(len(into), self._left))
        if count == 0:
            raise ClientDisconnected
        self._left -= count
        return count

    def close(self) -> None:
        self._socket.close()
        super().close()


class Whole(io.FileIO):
    """A body of unknown length that was read to its end. It counts as the worker's memory until it is closed."""

    _all_len = 0  # of all that are open
    _lock = threading.RLock()  # guards it. The garbage collector may close another one meanwhile

    def __init__(self, source: Reader, all_len_max: int) -> None:
        """RequestTooLarge if this one and the others that are open would have more bytes."""
        self.size = 0
        super().__init__(os.memfd_create("body"), "r+")
        piece = memoryview(bytearray(_READ_LEN))
        try:
            count = source.readinto(piece)
            while count:
                self._grow(count, all_len_max)
                self.write(piece[:count])
                count = source.readinto(piece)
        except BaseException:
            self.close()
            raise
        self.seek(0)

    def _grow(self, count: int, all_len_max: int) -> None:
        with self._lock:
            if Whole._all_len + count > all_len_max:
                raise errors.RequestTooLarge(
                    "a body without Content-Length is read to its end before the application is called, and such bodies may "
                    f"have {all_len_max} bytes together, which is a third of memory_mb: send Content-Length"
                )
            Whole._all_len += count
        self.size += count

    def close(self) -> None:
        with self._lock:
            Whole._all_len -= self.size
            self.size = 0
        super().close()


class AsyncReader:
    """The parts for an ASGI application. A cancelled `read` loses nothing."""

    def __init__(self, rest: Input) -> None:
        self._socket = socket.socket(fileno=rest.detach())
        self._socket.setblocking(False)
        self._held = bytearray()
        self.is_over = False

    async def read(self) -> bytes:
        """At least one byte, or nothing at the end. ClientDisconnected if the body broke off."""
        loop = asyncio.get_running_loop()
        while True:
            data = self._whole_parts()
            if data or self.is_over:
                return data
            received = await loop.sock_recv(self._socket, _READ_LEN)
            if not received:
                raise ClientDisconnected
            self._held += received

    def _whole_parts(self) -> bytes:
        held, at, data = self._held, 0, []
        while len(held) - at >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(held, at)
            end = at + _LENGTH.size + length
            if length == 0:
                self.is_over = True
            elif len(held) < end:
                break
            data.append(held[at + _LENGTH.size : end])
            at = end
        del held[:at]
        return b"".join(data)

    def close(self) -> None:
        self._socket.close()
