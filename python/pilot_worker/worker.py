"""A worker: says `READY`, serves one function until the daemon closes the channel, and ends.

It decides which of the loops serves (blocking, threads, asyncio). How a frame is answered is in `events.py`, `asgi.py` and
`wsgi.py`.
"""

from __future__ import annotations

import atexit
import os
import time

from . import asgi, atfork, entropy, errors, events, fork, handler, hooks, imports, output, threads, warmup, wire, wsgi
from .channel import Channel, ChannelClosed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, NoReturn, Optional

    from .spec import TemplateSpec


# Those of logging and the like: they flush what is not buffered here.
_OWN_ATEXIT_FUNCTIONS = atexit._ncallbacks()


class Stamps:
    """When the start's phases ended, for `ReadyMeta`."""

    __slots__ = ("forked_ns", "sandboxed_ns")

    def __init__(self, forked_ns: int, sandboxed_ns: int) -> None:
        self.forked_ns = forked_ns
        self.sandboxed_ns = sandboxed_ns


class Prepared:
    """What a template lays out for its workers, so that they need not make it: every object made is a page copied."""

    __slots__ = ("channel", "function", "has_said_ready", "call")

    def __init__(self, channel: Channel, function: handler.Function) -> None:
        self.channel = channel
        self.function = function
        self.has_said_ready = False
        self.call: Optional[Callable[[int, int, bytes, bytes], None]] = None
        if not function.is_async and function.spec.concurrency == 1:
            self.call = _call(function, channel)
            # Nobody waits then: the pages of the first invocation are copied beforehand.
            channel.when_idle = lambda: warmup.run(function, 1)

    def can_say_ready_at_once(self) -> bool:
        """Whether a worker is as good as initialised when it is forked: no hooks, no lifespan."""
        return self.call is not None and not hooks.has_after_restore()

    def run(self, forked_ns: int, sandboxed_ns: int, problem: str) -> NoReturn:
        """In a worker: serves, and ends the process. `problem`: what kept it from being isolated."""
        channel = self.channel
        try:
            if problem:
                raise fork.SandboxError(problem)
            atfork.now_a_worker()
            entropy.in_child()
            hooks.run_after_restore()
        except SystemExit as error:
            _end_with(error)
        except BaseException as error:  # user code in a hook: reported in place of READY
            fail(channel, error)
        try:
            if self.call is None:
                _serve(channel, self.function, Stamps(forked_ns, sandboxed_ns))
            else:
                if not self.has_said_ready:
                    ready(channel, Stamps(forked_ns, sandboxed_ns))
                _serve_one_by_one(channel, self.call)
        except BaseException as error:  # functions' errors are answered where they are called: these end the worker
            _end_with(error)
        end(0)


def run(channel: Channel, function: Optional[handler.Function], spec: Optional[TemplateSpec], stamps: Stamps) -> NoReturn:
    """Serves `function`; when it is None, it is loaded as `spec` says. Ends the process."""
    try:
        atfork.now_a_worker()
        entropy.in_child()
        if function is None:
            assert spec is not None, "checked when the request was read"
            imports.apply(spec)
            imports.import_declared(spec.imports)
            function = handler.load(spec)
        hooks.run_after_restore()
    except SystemExit as error:
        _end_with(error)
    except BaseException as error:  # user code at import or in a hook: reported in place of READY
        fail(channel, error)
    try:
        _serve(channel, function, stamps)
    except BaseException as error:  # functions' errors are answered where they are called: these end the worker
        _end_with(error)
    end(0)


def fail(channel: Channel, error: BaseException) -> NoReturn:
    """`INIT_ERROR`, and the end."""
    body = errors.body(error)
    output.flush()
    try:
        channel.write(wire.INIT_ERROR, 0, b"", body)
    except ChannelClosed:
        pass
    end(1)


def end(status: int) -> NoReturn:
    """Runs the user's atexit functions and ends. The interpreter is not torn down: that would copy every shared page."""
    try:
        atexit._run_exitfuncs()
    except BaseException as error:  # user code; the status stays that of the handler
        errors.body(error)
    output.flush()
    os._exit(status)


def _end_between_invocations() -> NoReturn:
    """When the daemon closes the channel: everything is flushed, and what only user code could have asked for is looked for
    before it is done."""
    if atexit._ncallbacks() == _OWN_ATEXIT_FUNCTIONS:
        os._exit(0)
    end(0)


def _serve(channel: Channel, function: handler.Function, stamps: Stamps) -> None:
    """Says READY and serves. Which loop: coroutines need asyncio, concurrency needs threads, all else is served in place."""
    if function.is_async:
        _serve_async(channel, function, stamps)
        return
    call = _call(function, channel)
    ready(channel, stamps)
    if function.spec.concurrency > 1:
        threads.Pool(function.spec.concurrency, call, _end_with).serve(channel)
        return
    _serve_one_by_one(channel, call)


def _call(function: handler.Function, channel: Channel) -> Callable[[int, int, bytes, bytes], None]:
    kind = wsgi.WsgiCall if function.spec.interface == "wsgi" else events.EventCall
    return kind(function, channel)


def _serve_one_by_one(channel: Channel, call: Callable[[int, int, bytes, bytes], None]) -> None:
    while True:
        frame = channel.read()
        if frame is None:
            _end_between_invocations()
        call(*frame)


def _serve_async(channel: Channel, function: handler.Function, stamps: Stamps) -> None:
    import asyncio

    from . import aio

    loop, selector = aio.new_loop()
    asyncio.set_event_loop(loop)

    async def serve() -> None:
        frames = aio.AsyncChannel(channel, loop, selector)
        if function.spec.interface == "event":
            ready(channel, stamps)
            await frames.serve(events.AsyncEventCall(function, frames))
            return
        lifespan = asgi.Lifespan(function.target)
        try:
            await lifespan.start()
        except errors.Fault as error:
            fail(channel, error)
        ready(channel, stamps)
        await frames.serve(asgi.AsgiCall(function, frames, lifespan.state))
        await lifespan.stop()

    loop.run_until_complete(serve())


def ready(channel: Channel, stamps: Stamps) -> None:
    meta = b'{"forked_ns":%d,"sandboxed_ns":%d,"initialised_ns":%d}'
    channel.write(wire.READY, 0, meta % (stamps.forked_ns, stamps.sandboxed_ns, time.monotonic_ns()), b"")


def _end_with(error: BaseException) -> NoReturn:
    """SystemExit as the interpreter would: None is 0, an integer is the status, anything else is printed and means 1."""
    if isinstance(error, ChannelClosed):
        end(0)
    if not isinstance(error, SystemExit):
        errors.body(error)  # into the log; the daemon sees the status
        end(1)
    if error.code is None:
        end(0)
    if isinstance(error.code, int):
        end(error.code & 0xFF)
    output.flush()
    os.write(2, f"{error.code}\n".encode("utf-8", "backslashreplace"))
    end(1)
