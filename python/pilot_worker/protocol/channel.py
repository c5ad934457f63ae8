"""The invocation channel as a blocking socket: one poll, one recv and one send for an ordinary invocation.

One thread reads. Several threads may write; a lock keeps frames complete. `aio.py` is the asynchronous counterpart.
"""

from __future__ import annotations

import _socket
import _thread
import os
import select  # gevent and eventlet put another `select` into it
import threading
from select import POLLIN, poll  # theirs would run other green threads

from .. import inputs
from . import wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Optional

# Created at import, in the template. A worker copies only the pages that its events fill.
_buffer = bytearray(64 * 1024)
_buffers = (_buffer,)
_CLOEXEC = _socket.MSG_CMSG_CLOEXEC
_ANCILLARY_LEN = inputs.ANCILLARY_LEN
_DESCRIPTORS_MAX = inputs.DESCRIPTORS_MAX
_HEADER_LEN = wire.HEADER_LEN
_HTTP = wire.HTTP
_unpack_header = wire.HEADER.unpack_from
# Before user code replaces them, as gevent does.
_new_lock = threading.Lock
_start_thread = _thread.start_new_thread
# A worker without an invocation by then was started ahead, and uses the time.
_IDLE_AFTER_MS = 5


def threads_are_green() -> bool:
    """Whether user code has replaced threads, as gevent and eventlet do."""
    return _thread.start_new_thread is not _start_thread


class ChannelClosed(Exception):
    """The daemon closed the channel, so the worker must exit."""


class Channel:
    """Frames over a connected stream socket, which it owns."""

    def __init__(self, fd: int) -> None:
        # the C class: its wrapper in socket.py converts numbers to enumerations, which costs 30 page faults in a new child
        self.socket = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM, 0, fd)
        self.socket.settimeout(None)  # whatever the function's default is (socket.setdefaulttimeout)
        self._view = memoryview(_buffer)
        self._decoder = wire.Decoder()
        self._is_buffered = False
        self._writing = _new_lock()
        # A thread that sleeps in recvmsg(2) also wakes when the daemon has taken its last answer, for nothing (unix_write_space
        # in the kernel's net/unix/af_unix.c; decision 0077).
        poller = poll()
        poller.register(fd, POLLIN)
        self._wait = poller.poll
        self._patience_ms: Optional[int] = _IDLE_AFTER_MS
        self.when_idle: Optional[Callable[[], None]] = None
        self.is_left = False

    def wait_for_green_threads(self) -> None:
        """Lets green threads run until there is something to read. They run only while this one waits in their way, with what
        gevent or eventlet has put in place of `select`."""
        if not self._is_buffered:
            select.select([self.socket.fileno()], [], [])

    def read(self) -> Optional[wire.Frame]:
        """The next frame. None if the daemon has closed the channel between two frames.

        It calls nothing of ours for an ordinary frame: a new worker copies about two pages for each function that it calls."""
        if not self._is_buffered:
            if not self._wait(self._patience_ms):
                self._use_the_time()
            try:
                received, ancillary, _, _ = self.socket.recvmsg_into(_buffers, _ANCILLARY_LEN, _CLOEXEC)
                if ancillary:
                    inputs.arrived(ancillary)
            except ConnectionError:
                received = 0
            if received == 0:
                return None
            if received >= _HEADER_LEN:
                meta_len, body_len, stream, kind, flags, reserved = _unpack_header(_buffer)
                body_at = _HEADER_LEN + meta_len
                # Whatever is in the buffer as a whole is not too long.
                if received == body_at + body_len and 0 < kind <= _HTTP and flags <= _DESCRIPTORS_MAX and not reserved:
                    if flags:
                        wire.claim(stream, flags)
                    view = self._view
                    return kind, stream, bytes(view[_HEADER_LEN:body_at]), bytes(view[body_at:received])
            self._decoder.feed(self._view[:received])
        return self._read_in_pieces()

    def _read_in_pieces(self) -> Optional[wire.Frame]:
        """Reads a frame that arrived in pieces or together with others."""
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
            # a plain recv(2) would close descriptors that come along
            received, ancillary, _, _ = self.socket.recvmsg_into(_buffers, inputs.ANCILLARY_LEN, _CLOEXEC)
            if ancillary:
                inputs.arrived(ancillary)
            return received
        except ConnectionError:
            return 0

    def _use_the_time(self) -> None:
        """Runs `when_idle`, once, and waits without a limit."""
        self._patience_ms = None
        if self.when_idle is not None:
            self.when_idle()
        self._wait(None)

    def leave(self) -> None:
        """In a process that user code forks: its answer would be a second one, which the daemon reads during the next
        invocation. The descriptor stays valid and reads as closed by the daemon, so the process ends where it would answer."""
        self.is_left = True
        ended, peer = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_STREAM)
        peer.close()
        os.dup2(ended.fileno(), self.socket.fileno(), inheritable=False)
        ended.close()

    def write(self, kind: int, stream: int, meta: bytes, body: bytes) -> None:
        """Sends one frame."""
        self.send(wire.encode(kind, stream, meta, body))

    def send(self, frames: bytes) -> None:
        """Sends complete frames. Returns when the kernel has taken all of them."""
        try:
            with self._writing:
                self.socket.sendall(frames)
        except ConnectionError as error:
            raise ChannelClosed from error
