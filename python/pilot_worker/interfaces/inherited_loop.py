"""The event loop of an asynchronous function, which its template starts and its workers continue.

A new loop and its first tasks would cost each worker 500 page faults, which are 2 ms. So the template runs the loop, with a
few invocations of an application of ours (`warmup.py` says why), until it would only wait. There the template serves its
requests to fork, and a worker goes on in the middle of the loop.

Processes cannot share what the kernel has of a loop. So the native loop gives each worker an epoll instance and a pair of
sockets of its own, with the numbers of the template's. No user code runs on the loop in a template.
"""

from __future__ import annotations

import asyncio

from .. import output
from ..protocol import aio
from ..protocol.channel import Channel
from . import asgi, events, warmup
from .handler import Function

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, NoReturn, Optional, Tuple

    from ..protocol.selector import FrameSelector

    Call = Callable[[int, int, bytes, bytes], Any]

# As for plain functions (`fork_server.c`).
_IDLE_S = 0.005


class _Stopped(BaseException):
    """Leaves the loop in a template, with what `serve_forks` has returned."""

    def __init__(self, returned: Any) -> None:
        self.returned = returned


def make(function: Function, channel: Channel) -> Optional[InheritedLoop]:
    """None if the function's loops are not asyncio's own, as with uvloop, or if they are different from those that are known
    here: user code may have replaced any part of asyncio."""
    try:
        # Since Python 3.14 the public name warns.
        policy: Any = getattr(asyncio.events, "_get_event_loop_policy", asyncio.get_event_loop_policy)()
        if type(policy).__module__.partition(".")[0] != "asyncio":
            return None
        loop, selector = aio.new_loop()
        if selector is not None:
            return InheritedLoop(function, channel, loop, selector, policy._local)
        loop.close()
    except Exception:
        pass  # a worker's attempt has an error that is reported
    return None


class InheritedLoop:
    """The loop of a template of this function. `channel` is the one that each worker will have."""

    def __init__(
        self,
        function: Function,
        channel: Channel,
        loop: Any,
        selector: FrameSelector,
        current: Any,
    ) -> None:
        self._function = function
        self._is_event = function.spec.interface == "event"
        self._channel = channel
        self._loop = loop
        self._selector = selector
        # What get_event_loop() returns, and what it returned after the imports.
        self._current = current
        self._current_of_imports = vars(current).copy()
        self.is_in_worker = False
        self.descriptors = (*selector.descriptors(), loop._ssock.fileno(), loop._csock.fileno())
        self._warm_up()
        self._forked: asyncio.Future[None] = loop.create_future()

    def run(
        self,
        serve_forks: Callable[[], object],
        ready: Callable[[], None],
        fail: Callable[[BaseException], NoReturn],
    ) -> Any:
        """In a template: calls `serve_forks`, and returns what it returns. In a worker, `serve_forks` has called `go_on`, and
        this returns None when the daemon has closed the channel. An application's worker calls `ready` once it has started, or
        `fail`. Raises what ends a worker."""

        def instead_of_waiting() -> None:
            returned = serve_forks()
            if not self.is_in_worker:
                raise _Stopped(returned)

        asyncio.set_event_loop(self._loop)
        self._selector.when_waiting(instead_of_waiting)
        try:
            aio.run(self._loop, self._serve(ready, fail))
        except _Stopped as stopped:
            return stopped.returned
        return None

    def run_beside(self, code: Callable[[], None]) -> None:
        """In a worker, before `go_on`: runs user code which does not notice this loop, and may run others. Since Python 3.12,
        asyncio forgets the current loop in a child by itself."""
        current = vars(self._current)
        current.clear()
        current.update(self._current_of_imports)
        code()
        asyncio.set_event_loop(self._loop)

    def go_on(self) -> None:
        """In a worker: the loop runs in this process, too."""
        self.is_in_worker = True
        # asyncio notices a fork: get_running_loop() finds none.
        asyncio._set_running_loop(self._loop)
        if self._is_event:
            self._selector.when_waiting(self._warm_up_again, _IDLE_S)
        else:
            self._forked.set_result(None)

    async def _serve(self, ready: Callable[[], None], fail: Callable[[BaseException], NoReturn]) -> None:
        frames = aio.AsyncChannel(self._channel, self._loop, self._selector)
        if self._is_event:
            output.call = event_call = events.AsyncEventCall(self._function, frames)
            await frames.serve(event_call, is_registered=True)
            output.end_if_unread()
            return
        lifespan = asgi.Lifespan(self._function.target)
        output.call = call = asgi.AsgiCall(self._function, frames, lifespan.state)

        async def serve() -> None:
            self._selector.when_waiting(self._warm_up_again, _IDLE_S)
            await frames.serve(call, is_registered=True)
            output.end_if_unread()

        await self._forked
        await lifespan.around(serve, ready, fail)

    def _warm_up(self) -> None:
        """A few invocations on this loop. Each one ends with the request for the next, so that the loop need not wait."""
        ours, channel = _pair()
        frames = aio.AsyncChannel(channel, self._loop, self._selector)
        requests = iter([warmup.request(self._is_event)] * warmup.ROUNDS)

        def ask() -> None:
            frame = next(requests, None)
            if frame is None:
                ours.close()
            else:
                ours.sendall(frame)

        async def serve(call: Call) -> None:
            async def call_and_ask(*frame: Any) -> None:
                try:
                    await call(*frame)
                finally:
                    ask()

            ask()
            await frames.serve(call_and_ask)

        async def run() -> None:
            lifespan = asgi.Lifespan(warmup.application)
            call = self._warm_up_call(frames, lifespan)
            if self._is_event:
                await serve(call)
            else:
                await lifespan.around(lambda: serve(call), lambda: None, lambda error: None)

        self._loop.run_until_complete(run())
        channel.socket.close()
        ours.close()
        output.request_id.set("")

    def _warm_up_again(self) -> None:
        """Once, in a worker that was started ahead: it copies the pages that its first invocation would copy."""
        ours, channel = _pair()
        frames = aio.AsyncChannel(channel, self._loop, self._selector)
        ours.sendall(warmup.request(self._is_event))
        frames.serve_once(self._warm_up_call(frames, asgi.Lifespan(warmup.application)))
        channel.socket.close()
        ours.close()

    def _warm_up_call(self, frames: aio.AsyncChannel, lifespan: asgi.Lifespan) -> Call:
        spec = self._function.spec
        if self._is_event:
            return events.AsyncEventCall(Function(spec, warmup.async_handler), frames)
        return asgi.AsgiCall(Function(spec, warmup.application), frames, lifespan.state)


def _pair() -> Tuple[Any, Channel]:
    ours, theirs = warmup.pair()
    return ours, Channel(theirs.detach())
