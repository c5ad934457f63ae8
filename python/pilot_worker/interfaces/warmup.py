"""The warm-up: a template runs a few invocations of a handler of our own before it forks.

CPython adapts itself as it runs: it specialises bytecode in place (PEP 659), fills method caches, interns strings, and creates
objects lazily. In the template, the result is shared; in a worker, each change copies a page during the first
invocation. A worker that waits runs one round itself, so that its first invocation does not copy what a round copies.
The user's code is not run, since it may have side effects.
"""

from __future__ import annotations

import _socket

from .. import output
from ..protocol import wire
from ..protocol.channel import Channel
from . import events, wsgi
from .handler import Function

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, List, Tuple

# Bytecode is specialised after about eight runs. Inlined calls in it are specialised after eight more.
ROUNDS = 32

_META = (
    b'{"id":"00000000-0000-0000-0000-000000000000",'
    b'"arn":"arn:aws:lambda:us-east-1:000000000000:function:f","version":"1","deadline_ms":0%s}'
)
_HTTP = (
    b',"method":"GET","path":"/","query":"","root_path":"/fn/f","headers":[["host","localhost"]],"client":["127.0.0.1",1],'
    b'"scheme":"http"'
)


def run(function: Function, rounds: int = ROUNDS) -> None:
    """Only for functions that are called directly. `inherited_loop.py` does it for asynchronous ones."""
    if function.is_async:
        return
    ours, theirs = pair()
    channel = Channel(theirs.detach())
    is_event = function.spec.interface == "event"
    kind, target = (events.EventCall, _handler) if is_event else (wsgi.WsgiCall, _wsgi_application)
    call = kind(Function(function.spec, target), channel)
    for _ in range(rounds):
        ours.sendall(request(is_event))
        frame = channel.read()
        assert frame is not None, "it was sent just now"
        call(*frame)
        ours.recv(4096)
    ours.close()
    channel.socket.close()
    output.request_id.set("")


def warm_up(send: Callable[[Channel], None]) -> None:
    """The same for a frame that a worker sends before its first invocation."""
    ours, theirs = pair()
    channel = Channel(theirs.detach())
    for _ in range(ROUNDS):
        send(channel)
        ours.recv(4096)
    ours.close()
    channel.socket.close()


def request(is_event: bool) -> bytes:
    """A frame that asks for an invocation of a function that takes events, or requests."""
    if is_event:
        return wire.encode(wire.INVOKE, 1, _META % b"", b"{}")
    return wire.encode(wire.HTTP, 1, _META % _HTTP, b"")


# The C function: user code may have replaced the one of `socket`, as gevent does.
def pair() -> Tuple[_socket.socket, _socket.socket]:
    return _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_STREAM)


def _handler(event: Any, context: Any) -> dict[str, bool]:
    return {"ok": True}


def _wsgi_application(environ: Any, start_response: Any) -> List[bytes]:
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", "2")])
    return [b"ok"]


async def async_handler(event: Any, context: Any) -> dict[str, bool]:
    return {"ok": True}


async def application(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "lifespan":
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await send({"type": "lifespan.shutdown.complete"})
        return
    await receive()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": b"ok"})
