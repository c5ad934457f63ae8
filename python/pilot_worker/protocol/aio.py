"""The invocation channel on an asyncio loop: ASGI applications and `async def` handlers, one task per request.

The loop is created in the worker, or in a template as `interfaces/inherited_loop.py` describes. `handler.load` imports
asyncio itself, in the template, and only for functions that need it.
"""

from __future__ import annotations

import asyncio
import selectors
import socket

from .. import inputs, output
from ..interfaces import errors
from . import eager, wire
from .channel import Channel, ChannelClosed

# gevent.monkey.patch_all() removes epoll from the standard library.
_has_epoll = hasattr(selectors, "EpollSelector")
if _has_epoll:
    from .selector import FrameSelector

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Awaitable, Callable, Coroutine, Dict, List, Optional, Protocol, Set, Tuple

    Call = Callable[[int, int, bytes, bytes], Coroutine[Any, Any, None]]

    class Told(Protocol):
        """A response."""

        def told(self, kind: int, body: bytes) -> None: ...


# Reused: the C library would map and unmap a new one for each read.
_buffer = bytearray(128 * 1024)
_view = memoryview(_buffer)
_buffers = (_buffer,)
_ABOUT_RESPONSES = (wire.CANCEL, wire.WINDOW)
# A worker that is told to end has 2 s. The rest is for the shutdown of the application and of the interpreter.
_BACKGROUND_S_MAX = 1.4
_CANCEL_S_MAX = 0.1
_FLAGS = socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC


def new_loop() -> Tuple[asyncio.AbstractEventLoop, Optional[FrameSelector]]:
    """Creates the loop of the function's event loop policy. A loop of asyncio's own classes uses the default selector, which is
    replaced with ours. Creating a second loop only to pass a selector would add about 50 µs to a cold start."""
    if not _has_epoll:
        return asyncio.new_event_loop(), None
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


def run(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, None]) -> None:
    """As `loop.run_until_complete`. If user code ends the process, `work` is cancelled first, as `asyncio.run` does: threads of
    anyio end with this task, and the end of the process waits for them. Other tasks are not cancelled, because their callers
    would get an answer that says so."""
    task = loop.create_task(work)
    try:
        loop.run_until_complete(task)
    except (SystemExit, KeyboardInterrupt):
        task.cancel()
        try:
            loop.run_until_complete(task)
        except BaseException:  # CancelledError, or another task ends the process, too
            pass
        raise


class AsyncChannel:
    """Reads and writes without blocking the loop. The socket itself stays blocking; each call uses MSG_DONTWAIT."""

    def __init__(self, channel: Channel, loop: asyncio.AbstractEventLoop, selector: Optional[FrameSelector] = None) -> None:
        self._socket = channel.socket
        self._loop = loop
        self._selector = selector
        self._decoder = wire.Decoder()
        self._tasks: Set[asyncio.Task[None]] = set()  # tasks that did not end in their first step
        self._closed: asyncio.Future[None] = loop.create_future()
        self._blocked: Optional[asyncio.Future[None]] = None  # set while a frame is only partly sent
        self._rest = memoryview(b"")
        # Of responses that can be told something while they are sent, by stream.
        self.told: Dict[int, Told] = {}

    async def serve(self, call: Call, is_registered: bool = False) -> None:
        """Serves each frame in a task until the daemon closes the channel, and waits for the tasks that still run then.
        `is_registered`: the selector's epoll instance knows the channel."""
        self._call = call
        if self._selector is None:
            self._loop.add_reader(self._socket, self._readable)
        else:
            self._selector.watch(self._socket, self._readable, self._writable, self._is_idle, is_registered)
        try:
            await self._closed
        finally:
            if self._selector is None:
                self._loop.remove_reader(self._socket)
            else:
                self._selector.forget()
        if self._tasks:
            await self._finish()

    async def _finish(self) -> None:
        """Waits for what an application does after its responses, and cancels what takes too long."""
        output.end_if_unread()
        _, late = await asyncio.wait(set(self._tasks), timeout=_BACKGROUND_S_MAX)
        if not late:
            return
        tasks = "a background task was" if len(late) == 1 else f"{len(late)} background tasks were"
        errors.warn(f"{tasks} cut off: the worker ended, and waited {_BACKGROUND_S_MAX} s")
        for task in late:
            task.cancel()
        await asyncio.wait(late, timeout=_CANCEL_S_MAX)

    def serve_once(self, call: Call) -> None:
        """Begins a task for each frame that has arrived."""
        self._call = call
        self._readable()

    def send(self, frames: bytes) -> Optional[Awaitable[None]]:
        """None if the kernel has taken all bytes; else a future to wait for. So a slow reader slows down the application."""
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
        return asyncio.shield(self._blocked)  # so that a cancelled task does not leave half a frame

    async def _send_later(self, frames: bytes) -> None:
        while self._blocked is not None:
            await asyncio.shield(self._blocked)
        rest = self.send(frames)
        if rest is not None:
            await rest

    def _readable(self) -> None:
        try:
            received, ancillary, _, _ = self._socket.recvmsg_into(_buffers, inputs.ANCILLARY_LEN, _FLAGS)
            if ancillary:
                inputs.arrived(ancillary)
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
        except AttributeError:  # private, but in all Pythons so far. A loop without them gets an extra iteration
            return False

    def _start(self, frame: wire.Frame) -> None:
        if frame[0] in _ABOUT_RESPONSES:
            kind, stream, _, body = frame
            response = self.told.get(stream)
            if response is not None:  # otherwise it is over
                response.told(kind, body)
            return
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
            self._close(task.exception())  # a call reports its function's errors; this is an error of the channel or ours

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
