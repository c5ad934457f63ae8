"""The warm-up: a template runs a few invocations of a handler of our own before it forks.

CPython adapts itself as it runs: it specialises bytecode in place (PEP 659), fills method caches, interns strings, and creates
objects lazily. In the template, the result is shared; in a worker, each change copies a page during the first
invocation. A worker that waits runs one round itself, so that its first invocation does not copy what a round copies.
The user's code is not run, since it may have side effects.
"""

from __future__ import annotations

import _socket

from . import events, output, wire
from .channel import Channel
from .handler import Function

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Tuple

# Bytecode is specialised after about eight runs. Inlined calls in it are specialised after eight more.
_ROUNDS = 32

_META = (
    b'{"id":"00000000-0000-0000-0000-000000000000",'
    b'"arn":"arn:aws:lambda:us-east-1:000000000000:function:f","version":"1","deadline_ms":0}'
)


def run(function: Function, rounds: int = _ROUNDS) -> None:
    """Only for functions that take events and are called directly. The loops of other functions are created in the worker."""
    if function.is_async or function.spec.interface != "event" or function.spec.concurrency > 1:
        return
    ours, theirs = _pair()
    channel = Channel(theirs.detach())
    call = events.EventCall(Function(function.spec, _handler), channel)
    for _ in range(rounds):
        ours.sendall(wire.encode(wire.INVOKE, 1, _META, b"{}"))
        frame = channel.read()
        assert frame is not None, "it was sent just now"
        call(*frame)
        ours.recv(4096)
    ours.close()
    channel.socket.close()
    output.request_id.set("")


def warm_up(send: Callable[[Channel], None]) -> None:
    """The same for a frame that a worker sends before its first invocation."""
    ours, theirs = _pair()
    channel = Channel(theirs.detach())
    for _ in range(_ROUNDS):
        send(channel)
        ours.recv(4096)
    ours.close()
    channel.socket.close()


# The C function: user code may have replaced the one of `socket`, as gevent does.
def _pair() -> Tuple[_socket.socket, _socket.socket]:
    return _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_STREAM)


def _handler(event: Any, context: Any) -> dict[str, bool]:
    return {"ok": True}
