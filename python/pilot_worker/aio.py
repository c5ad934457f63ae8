"""The invocation channel on an asyncio loop: ASGI applications and `async def` handlers, one task per frame.

The loop is made in the worker, never in a template: an epoll descriptor would be shared across forks. asyncio itself is
imported by `handler.load`, in the template, and only for functions that need it.
"""

from __future__ import annotations

import socket
import sys

from . import wire
from .channel import Channel, ChannelClosed

TYPE_CHECKING = False
if TYPE_CHECKING:
    import asyncio
    from typing import Any, Awaitable, Callable, Optional, Set

# Kept: a new one per read would be mapped and unmapped by the C library each time.
_buffer = bytearray(128 * 1024)


class AsyncChannel:
    """Reads and writes without blocking the loop. The socket itself stays blocking: MSG_DONTWAIT does it per call."""

    def __init__(self, channel: Channel, loop: asyncio.AbstractEventLoop) -> None:
        self._socket = channel.socket
        self._loop = loop
        self._decoder = wire.Decoder()
        self._tasks: Set[asyncio.Task[None]] = set()
        self._closed: asyncio.Future[None] = loop.create_future()
        self._blocked: Optional[asyncio.Future[None]] = None  # while a frame is only partly sent
        self._rest = memoryview(b"")

    async def serve(self, call: Callable[[int, int, bytes, bytes], Awaitable[None]]) -> None:
        """One task per frame, until the daemon closes the channel; tasks that are left are then cancelled."""
        self._loop.add_reader(self._socket, self._readable, call)
        try:
            await self._closed
        finally:
            self._loop.remove_reader(self._socket)
            for task in self._tasks:
                task.cancel()

    async def send(self, frames: bytes) -> None:
        """Returns when the kernel has all of it; a slow reader thus slows the application down."""
        import asyncio

        while self._blocked is not None:
            await asyncio.shield(self._blocked)
        sent = self._send(frames)
        if sent < len(frames):
            self._rest = memoryview(frames)[sent:]
            self._blocked = self._loop.create_future()
            self._loop.add_writer(self._socket, self._writable)
            await asyncio.shield(self._blocked)  # a cancelled task does not leave half a frame behind

    def _readable(self, call: Callable[[int, int, bytes, bytes], Awaitable[None]]) -> None:
        try:
            received = self._socket.recv_into(_buffer, 0, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except ConnectionError:
            received = 0
        if received == 0:
            self._close(None if self._decoder.is_empty() else wire.ProtocolError("truncated"))
            return
        self._decoder.feed(memoryview(_buffer)[:received])
        try:
            while True:
                frame = self._decoder.next()
                if frame is None:
                    return
                task = self._start(call(*frame))
                self._tasks.add(task)
                task.add_done_callback(self._done)
        except wire.ProtocolError as error:
            self._close(error)

    def _start(self, work: Any) -> asyncio.Task[None]:
        """As a task that begins at once, where Python has it (3.12): most calls then end without another turn of the loop."""
        import asyncio

        if sys.version_info >= (3, 12):
            return asyncio.Task(work, loop=self._loop, eager_start=True)
        return asyncio.Task(work, loop=self._loop)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._close(task.exception())  # a call reports its function's errors itself: this is the channel's or ours

    def _close(self, error: Optional[BaseException]) -> None:
        if self._closed.done():
            return
        if error is None or isinstance(error, ChannelClosed):
            self._closed.set_result(None)
        else:
            self._closed.set_exception(error)

    def _send(self, data: bytes | memoryview) -> int:
        try:
            return self._socket.send(data, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0
        except ConnectionError as error:
            raise ChannelClosed from error

    def _writable(self) -> None:
        blocked = self._blocked
        assert blocked is not None, "the writer is registered only while a frame waits"
        try:
            self._rest = self._rest[self._send(self._rest) :]
        except ChannelClosed as error:
            self._rest = memoryview(b"")
            self._close(error)
        if not self._rest:
            self._loop.remove_writer(self._socket)
            self._blocked = None
            blocked.set_result(None)
