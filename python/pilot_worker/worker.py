"""A worker: sends `READY`, serves one function until the daemon closes the channel, and exits.

This file chooses the loop (blocking, threads, asyncio). `interfaces/events.py`, `interfaces/asgi.py` and
`interfaces/wsgi.py` answer a frame.
"""

from __future__ import annotations

import atexit
import os
import threading
import time

from . import kernel, output
from .forking import atfork, descriptors, fork
from .importing import imports, namesakes
from .interfaces import asgi, errors, events, handler, warmup, wsgi
from .protocol import secret_values, wire
from .protocol.channel import Channel, ChannelClosed, threads_are_green
from .randomness import entropy
from .sdk import hooks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, NoReturn, Optional, Tuple

    from .interfaces.inherited_loop import InheritedLoop
    from .spec import TemplateSpec


# The atexit functions of logging and similar modules. They flush buffers that do not exist here.
_OWN_ATEXIT_FUNCTIONS = atexit._ncallbacks()
_EXIT_INTERRUPTED = 130  # as a shell says that SIGINT has ended a program


class Stamps:
    """The times at which the phases of the start ended, for `ReadyMeta`."""

    __slots__ = ("forked_ns", "sandboxed_ns")

    def __init__(self, forked_ns: int, sandboxed_ns: int) -> None:
        self.forked_ns = forked_ns
        self.sandboxed_ns = sandboxed_ns


class Prepared:
    """Objects that a template creates for its workers, because each object that a worker creates can copy a page."""

    __slots__ = ("channel", "function", "has_said_ready", "loop", "event_loop", "stamps")

    def __init__(self, channel: Channel, function: handler.Function) -> None:
        self.channel = channel
        self.function = function
        self.has_said_ready = False
        self.loop: Optional[Callable[[], None]] = None
        self.event_loop: Optional[InheritedLoop] = None
        self.stamps = Stamps(0, 0)
        if function.is_async:
            from .interfaces import inherited_loop

            self.event_loop = inherited_loop.make(function, channel)
        if not function.is_async:
            self.loop = _loop(function, channel)
            # No request waits at this time. So the pages of the first invocation are copied in advance.
            channel.when_idle = lambda: warmup.run(function, 1)

    def loops(self) -> Tuple[Callable[[], None], Callable[[], None]]:
        """What a worker runs of which the native loop has said READY, in place of `run`: without `entropy.in_child`, and after
        it."""
        channel, loop = self.channel, self.loop
        assert loop is not None, "the caller has looked"

        def after_entropy() -> None:
            try:
                entropy.in_child()
            except SystemExit as error:
                _end_with(error)
            except BaseException as error:
                fail(channel, error)
            loop()

        return loop, after_entropy

    def can_say_ready_at_once(self) -> bool:
        """Whether a worker is initialised as soon as it is forked: it has no hooks, no lifespan and no descriptors to make."""
        if self.loop is None and (self.event_loop is None or self.function.spec.interface != "event"):
            return False
        return not self.function.spec.secrets and not hooks.has_after_restore() and not descriptors.has_work()

    def run_event_loop(self, serve_forks: Callable[[], object]) -> Any:
        """In a template that has an event loop: calls `serve_forks` on it, and returns what that returns. A worker calls
        `go_on` there, serves, and ends."""
        event_loop = self.event_loop
        assert event_loop is not None, "the caller has looked"
        try:
            returned = event_loop.run(serve_forks, self._ready, lambda error: fail(self.channel, error))
        except BaseException as error:  # errors of functions are answered where they are called; errors here end the worker
            _end_with(error)
        if event_loop.is_in_worker:
            end(0)
        return returned

    def go_on(self, forked_ns: int, sandboxed_ns: int, problem: str) -> None:
        """Runs in a worker that has inherited an event loop, in place of `run`, and returns to the loop. Without
        `entropy.in_child`."""
        assert self.event_loop is not None, "only then it is called"
        self.stamps = Stamps(forked_ns, sandboxed_ns)
        if problem or not self.has_said_ready:
            self._initialise(problem)
        self.event_loop.go_on()

    def go_on_after_entropy(self, forked_ns: int, sandboxed_ns: int, problem: str) -> None:
        """The same with it."""
        try:
            if not problem:
                entropy.in_child()
        except SystemExit as error:
            _end_with(error)
        except BaseException as error:
            fail(self.channel, error)
        self.go_on(forked_ns, sandboxed_ns, problem)

    def _initialise(self, problem: str) -> None:
        channel, function = self.channel, self.function
        try:
            if problem:
                raise fork.SandboxError(problem)
            if function.spec.secrets:
                secret_values.receive(channel)
            if descriptors.has_work():
                descriptors.in_child()
            if hooks.has_after_restore():
                assert self.event_loop is not None, "the caller has looked"
                self.event_loop.run_beside(hooks.run_after_restore)
        except ChannelClosed:
            end(0)
        except SystemExit as error:
            _end_with(error)
        except BaseException as error:  # user code in a hook; a system call failed; or the daemon sent something else
            fail(channel, error)
        if function.spec.interface == "event":
            self._ready()

    def _ready(self) -> None:
        ready(self.channel, self.stamps)

    def run_with_secrets(self, forked_ns: int, sandboxed_ns: int, problem: str) -> NoReturn:
        """Instead of `run`, if the function has secrets. It is a method of its own for the same reason as the next one."""
        try:
            if not problem:
                secret_values.receive(self.channel)
        except ChannelClosed:
            end(0)
        except BaseException as error:  # the daemon sent something else
            fail(self.channel, error)
        if descriptors.has_work():
            self.run_with_descriptors(forked_ns, sandboxed_ns, problem)
        self.run(forked_ns, sandboxed_ns, problem)

    def run_with_descriptors(self, forked_ns: int, sandboxed_ns: int, problem: str) -> NoReturn:
        """Instead of `run`, if there are descriptors to make. It is a method of its own, because even a test in `run` costs the
        workers that have none a few page faults."""
        try:
            if not problem:
                descriptors.in_child()
        except BaseException as error:  # a system call failed: reported instead of READY
            fail(self.channel, error)
        self.run(forked_ns, sandboxed_ns, problem)

    def run(self, forked_ns: int, sandboxed_ns: int, problem: str) -> NoReturn:
        """Runs in a worker: serves, and ends the process. `problem` says why the isolation failed, if it did."""
        channel = self.channel
        try:
            if problem:
                raise fork.SandboxError(problem)
            atfork.now_a_worker(channel)
            entropy.in_child()
            hooks.run_after_restore()
        except SystemExit as error:
            _end_with(error)
        except BaseException as error:  # user code in a hook: reported instead of READY
            fail(channel, error)
        try:
            if self.loop is None:
                _serve(channel, self.function, Stamps(forked_ns, sandboxed_ns))
            else:
                if not self.has_said_ready:
                    ready(channel, Stamps(forked_ns, sandboxed_ns))
                self.loop()
        except BaseException as error:  # errors of functions are answered where they are called; errors here end the worker
            _end_with(error)
        end(0)


def run(channel: Channel, function: Optional[handler.Function], spec: Optional[TemplateSpec], stamps: Stamps) -> NoReturn:
    """Serves `function`. If it is None, loads the function that `spec` names. Ends the process."""
    try:
        atfork.now_a_worker(channel)
        entropy.in_child()
        if descriptors.has_work():
            descriptors.in_child()
        if function is None:
            assert spec is not None, "checked when the request was read"
            imports.apply(spec)
        if spec is not None and spec.secrets:
            secret_values.receive(channel)
        if function is None:
            assert spec is not None, "checked above"
            namesakes.give_way(spec)
            imports.import_declared(spec.imports)
            function = handler.load(spec)
        hooks.run_after_restore()
    except ChannelClosed:
        end(0)
    except SystemExit as error:
        _end_with(error)
    except BaseException as error:  # user code at import or in a hook: reported instead of READY
        fail(channel, error)
    try:
        _serve(channel, function, stamps)
    except BaseException as error:  # errors of functions are answered where they are called; errors here end the worker
        _end_with(error)
    end(0)


def fail(channel: Channel, error: BaseException) -> NoReturn:
    """Sends `INIT_ERROR` and ends the process."""
    body = errors.body(error)
    output.flush()
    try:
        channel.write(wire.INIT_ERROR, 0, b"", body)
    except ChannelClosed:
        pass
    end(1)


def end(status: int) -> NoReturn:
    """Does for user code what the interpreter does at its end: it stops pools, waits for threads that are no daemons, and runs
    atexit functions. Then it exits. The interpreter is not finalised: that would copy every shared page."""
    if _has_threads():
        try:
            _stop_threads()
        except BaseException as error:  # user code; the interpreter goes on, too
            errors.body(error)
    try:
        atexit._run_exitfuncs()
    except BaseException as error:  # user code; the exit status stays that of the handler
        errors.body(error)
    output.flush()
    kernel.flush_lines()
    os._exit(status)


def _has_threads() -> bool:
    """Whether user code has threads, or has imported pools. concurrent.futures registers there what stops its pools. Without
    that, an atexit function of multiprocessing would wait for the processes of a pool for ever."""
    return threading.active_count() > 1 or bool(getattr(threading, "_threading_atexits", True))


def _stop_threads() -> None:
    """Stops pools, and waits for threads that are no daemons. Only for the main thread."""
    module: Any = threading
    if not threads_are_green():
        module._shutdown()  # what the interpreter itself calls
        return
    # The same for green threads. gevent has made another main thread at the fork, and `_shutdown` would wait for that.
    for stop in reversed(module._threading_atexits):
        stop()
    for thread in threading.enumerate():
        if not thread.daemon and thread not in (threading.main_thread(), threading.current_thread()):
            thread.join()


def _end_between_invocations() -> NoReturn:
    """Called when the daemon closes the channel. Output is already flushed. `end` runs only if it has something to do for user
    code."""
    if atexit._ncallbacks() == _OWN_ATEXIT_FUNCTIONS and not _has_threads():
        kernel.flush_lines()
        os._exit(0)
    output.end_if_unread()
    end(0)


def _serve(channel: Channel, function: handler.Function, stamps: Stamps) -> None:
    """Sends READY and serves. Coroutines need asyncio, concurrency needs threads, everything else is called directly."""
    if function.is_async:
        _serve_async(channel, function, stamps)
        return
    loop = _loop(function, channel)
    ready(channel, stamps)
    loop()


def _loop(function: handler.Function, channel: Channel) -> Callable[[], None]:
    """A function that serves, and ends the process. It is made in the template, and looks up nothing: a new worker copies each
    page with an object to which it refers."""
    kind = wsgi.WsgiCall if function.spec.interface == "wsgi" else events.EventCall
    call, read = kind(function, channel), channel.read
    output.call = call
    if function.spec.concurrency > 1:
        from .protocol import threads

        told = call.told if isinstance(call, wsgi.WsgiCall) else None
        pool = threads.Pool(function.spec.concurrency, call, told, _end_with)

        def serve_with_threads() -> None:
            try:
                pool.serve(channel)
            except BaseException as error:  # as below
                _end_with(error)
            output.end_if_unread()
            end(0)

        return serve_with_threads

    def serve() -> None:
        try:
            while True:
                frame = read()
                if frame is None:
                    _end_between_invocations()
                call(*frame)
        except BaseException as error:  # errors of functions are answered where they are called; errors here end the worker
            _end_with(error)

    return serve


def _serve_async(channel: Channel, function: handler.Function, stamps: Stamps) -> None:
    """In a worker that has not inherited an event loop."""
    from .protocol import aio

    loop, selector = aio.new_loop()
    namesakes.standard("asyncio").set_event_loop(loop)

    async def serve() -> None:
        frames = aio.AsyncChannel(channel, loop, selector)
        if function.spec.interface == "event":
            output.call = event_call = events.AsyncEventCall(function, frames)
            ready(channel, stamps)
            await frames.serve(event_call)
            output.end_if_unread()
            return
        lifespan = asgi.Lifespan(function.target)
        output.call = call = asgi.AsgiCall(function, frames, lifespan.state)

        async def serve_requests() -> None:
            await frames.serve(call)
            output.end_if_unread()

        await lifespan.around(serve_requests, lambda: ready(channel, stamps), lambda error: fail(channel, error))

    aio.run(loop, serve())


def ready(channel: Channel, stamps: Stamps) -> None:
    meta = b'{"forked_ns":%d,"sandboxed_ns":%d,"initialised_ns":%d,"inputs_max":64,"window":%d}'
    channel.write(wire.READY, 0, meta % (stamps.forked_ns, stamps.sandboxed_ns, time.monotonic_ns(), wire.WINDOW_LEN), b"")


def _end_with(error: BaseException) -> NoReturn:
    """Handles SystemExit as the interpreter does: None is 0, an integer is the status, anything else is printed and means 1."""
    if isinstance(error, ChannelClosed):
        end(0)
    if isinstance(error, KeyboardInterrupt):  # SIGINT between two invocations: a traceback would not help
        end(_EXIT_INTERRUPTED)
    if not isinstance(error, SystemExit):
        errors.body(error)  # written to the log; the daemon gets the status
        end(1)
    if error.code is None:
        end(0)
    if isinstance(error.code, int):
        end(error.code & 0xFF)
    output.flush()
    os.write(2, f"{error.code}\n".encode("utf-8", "backslashreplace"))
    end(1)
