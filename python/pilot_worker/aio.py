"""The invocation channel on an asyncio loop: ASGI applications and `async def` handlers, one task per frame.

The loop is made in the worker, never in a template: an epoll descriptor would be shared across forks. asyncio itself is
imported by `handler.load`, in the template, and only for functions that need it.
"""

from __future__ import annotations

import asyncio
import selectors
import socket

from . import eager, wire
from .channel import Channel, ChannelClosed
from .selector import FrameSelector

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Awaitable, Callable, Coroutine, List, Optional, Set, Tuple

    Call = Callable[[int, int, bytes, bytes], Coroutine[Any, Any, None]]

# Kept: a new one per read would be mapped and unmapped by the C library each time.
_buffer = bytearray(128 * 1024)
_view = memoryview(_buffer)


def new_loop() -> Tuple[asyncio.AbstractEventLoop, Optional[FrameSelector]]:
    """The loop that the function's event loop policy makes. One of asyncio's kind, which waits with the default selector, gets
    ours in its place; to make a second loop just to hand it a selector would cost a cold start some 50 µs."""
    made: List[FrameSelector] = []

    def make() -> FrameSelector:
        made.append(FrameSelector())
        return made[-1]

    default = selectors.DefaultSelector
    selectors.DefaultSelector = make  # type: ignore[misc,assignment]
    try:
        loop = asyncio.new_event_loop()
    finally:
        selectors.DefaultSelector = default  # type: ignore[misc]
    is_ours = len(made) == 1 and isinstance(loop, asyncio.SelectorEventLoop)
    return loop, made[0] if is_ours else None


class AsyncChannel:
    """Reads and writes without blocking the loop. The socket itself stays blocking: MSG_DONTWAIT does it per call."""

    def __init__(self, channel: Channel, loop: asyncio.AbstractEventLoop, selector: Optional[FrameSelector] = None) -> None:
        self._socket = channel.socket
        self._loop = loop
        self._selector = selector
        self._decoder = wire.Decoder()
        self._tasks: Set[asyncio.Task[None]] = set()  # that have not ended with their first step
        self._closed: asyncio.Future[None] = loop.create_future()
        self._blocked: Optional[asyncio.Future[None]] = None  # while a frame is only partly sent
        self._rest = memoryview(b"")

    async def serve(self, call: Call) -> None:
        """One task per frame, until the daemon closes the channel; tasks that are left are then cancelled."""
        self._call = call
        if self._selector is None:
            self._loop.add_reader(self._socket, self._readable)
        else:
            self._selector.watch(self._socket, self._readable, self._writable, self._is_idle)
        try:
            await self._closed
        finally:
            if self._selector is None:
                self._loop.remove_reader(self._socket)
            else:
                self._selector.forget()
            for task in self._tasks:
                task.cancel()

    def send(self, frames: bytes) -> Optional[Awaitable[None]]:
        """None when the kernel has all of it; otherwise what to wait for: a slow reader thus slows the application down."""
        if self._blocked is not None:
            return self._send_later(frames)
        sent = self._send(frames)
        if sent == len(frames):
            return None
        self._rest = memoryview(frames)[sent:]
        self._blocked = self._loop.create_future()
        if self._selector is None:
            self._loop.add_writer(self._socket, self._writable)
        else:
            self._selector.await_room()
        return asyncio.shield(self._blocked)  # a cancelled task does not leave half a frame behind

    async def _send_later(self, frames: bytes) -> None:
        while self._blocked is not None:
            await asyncio.shield(self._blocked)
        rest = self.send(frames)
        if rest is not None:
            await rest

    def _readable(self) -> None:
        try:
            received = self._socket.recv_into(_buffer, 0, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except ConnectionError:
            received = 0
        decoder = self._decoder
        if received == 0:
            self._close(None if decoder.is_empty() else wire.ProtocolError("truncated"))
            return
        try:
            frame = wire.only_frame(_view[:received]) if decoder.is_empty() else None
            if frame is not None:
                self._start(frame)
                return
            decoder.feed(_view[:received])
            while True:
                frame = decoder.next()
                if frame is None:
                    return
                self._start(frame)
        except wire.ProtocolError as error:
            self._close(error)

    def _is_idle(self) -> bool:
        loop: Any = self._loop
        try:
            return not (loop._ready or loop._scheduled or loop._stopping)
        except AttributeError:  # not public, though of all Pythons so far: a loop without them has its turn
            return False

    def _start(self, frame: wire.Frame) -> None:
        begin = asyncio.Task if self._selector is None else eager.start
        task = begin(self._call(*frame), loop=self._loop)
        if task.done():
            self._ended(task)
        else:
            self._tasks.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
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
            if self._selector is None:
                self._loop.remove_writer(self._socket)
            else:
                self._selector.has_room()
            self._blocked = None
            blocked.set_result(None)
