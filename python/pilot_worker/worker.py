"""A worker: says `READY`, serves one function until the daemon closes the channel, and ends.

It decides which of the loops serves (blocking, threads, asyncio). How a frame is answered is in `events.py`, `asgi.py` and
`wsgi.py`.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
import time

from . import entropy, errors, events, handler, hooks, imports, output, wire
from .channel import Channel, ChannelClosed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn, Optional

    from .spec import TemplateSpec


class Stamps:
    """When the start's phases ended, for `ReadyMeta`."""

    __slots__ = ("forked_ns", "sandboxed_ns")

    def __init__(self, forked_ns: int, sandboxed_ns: int) -> None:
        self.forked_ns = forked_ns
        self.sandboxed_ns = sandboxed_ns


def run(channel: Channel, function: Optional[handler.Function], spec: Optional[TemplateSpec], stamps: Stamps) -> NoReturn:
    """Serves `function`; when it is None, it is loaded as `spec` says. Ends the process."""
    try:
        entropy.reseed()
        if function is None:
            assert spec is not None, "checked when the request was read"
            imports.apply(spec)
            imports.import_declared(spec.imports)
            function = handler.load(spec)
        hooks.run_after_restore()
    except SystemExit as error:
        _exit(error)
    except BaseException as error:  # user code at import or in a hook: reported in place of READY
        fail(channel, error)
    try:
        _serve(channel, function, stamps)
    except SystemExit as error:
        _exit(error)
    except ChannelClosed:
        pass
    except wire.ProtocolError as error:
        _print(f"pilotlight: {error}")
        end(1)
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
    except BaseException as error:  # user code; atexit itself has printed it
        status = status or 1
        del error
    output.flush()
    os._exit(status)


def _serve(channel: Channel, function: handler.Function, stamps: Stamps) -> None:
    call = events.EventCall(function, channel)
    ready(channel, stamps)
    gc.enable()
    while True:
        frame = channel.read()
        if frame is None:
            return
        call(*frame)


def ready(channel: Channel, stamps: Stamps) -> None:
    meta = b'{"forked_ns":%d,"sandboxed_ns":%d,"initialised_ns":%d}'
    channel.write(wire.READY, 0, meta % (stamps.forked_ns, stamps.sandboxed_ns, time.monotonic_ns()), b"")


def _exit(request: SystemExit) -> NoReturn:
    """As the interpreter would: None is 0, an integer is the status, anything else is printed and means 1."""
    code = request.code
    if code is None:
        end(0)
    if isinstance(code, int):
        end(code & 0xFF)
    output.flush()
    _print(str(code))
    end(1)


def _print(text: str) -> None:
    try:
        os.write(2, (text + "\n").encode("utf-8", "backslashreplace"))
    except OSError:
        pass
    sys.stderr = sys.__stderr__
