"""What the function's initscripts have sent: `pilotlight.init`. A script runs while the worker starts. It ends before the
handler is called, unless it says `during = "invocation"`.

    weights = pilotlight.init.recv_msg(0)   # a read-only memoryview, without a copy
    database = pilotlight.init.get_conn(1, "tcp://db:5432")   # a connected socket
    pilotlight.init.send_msg(2, b"next")   # to a script that runs beside the handler

Its messages belong to the invocation that waited for the start. Others have none: `recv_msg` raises NoMessage, and the
handler gets the data by itself. The messages of a shared initscript are there in every invocation.
"""

from __future__ import annotations

import socket
import types

from .. import inputs as _inputs
from .. import output as _output
from ..inputs import received as _received

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, List, Optional

NAME = "pilotlight.init"


class NoMessage(LookupError):
    """The initscript has not sent this message. The text says why, if that is known."""


class NoConnection(LookupError):
    """The initscript has not handed this connection over. The text says why, if that is known."""


class NotSent(RuntimeError):
    """The message was not sent to the initscript. The text says why."""


def recv_msg(id: int) -> memoryview:
    """The message that the script sent as `id`: a read-only view, without a copy. NoMessage if there is none.

    If the script still runs, this waits for the message, or for the script's end. In a coroutine, wait in a thread:
    `await asyncio.to_thread(recv_msg, id)`."""
    sent = _sent()
    if sent is None:
        raise NoMessage(f"message {id}: {_NO_SCRIPT}")
    name = f"{_received.MESSAGE_PREFIX}{id}"
    found = sent.given.get(name)
    problem = ""
    if found is None and sent.arriving is not None:
        found, problem = sent.arriving.message(name)
    if found is not None:
        return found.view()
    raise NoMessage(f"message {id}: {problem or _why(sent, name) or 'the initscript did not send it'}")


def send_msg(id: int, data: Any) -> None:
    """Sends bytes, or another object with contiguous memory, to the script as message `id`. The script may be waiting for it.
    A message has at most 1 MiB. A script gets at most 16, of 4 MiB in all, each with an id of its own. NotSent if it cannot get
    this one, also if no script runs beside the handler (`during = "invocation"`).

    This does not wait for the script, so a script that ends may not have received the message. While the daemon has no memory
    for messages, it waits, at most until the script ends. In a coroutine, send long messages from a thread."""
    if not 0 <= id <= _ID_MAX:
        raise ValueError(f"an id is a number from 0 to {_ID_MAX}, and not {id}")
    view = memoryview(data).cast("B")
    sent = _sent()
    if sent is None or sent.arriving is None:
        raise NotSent(f"message {id}: {_NO_SCRIPT_NOW}")
    problem = sent.arriving.send(id, view)
    if problem:
        raise NotSent(f"message {id}: {problem}")


def get_conn(id: int, addr: str) -> socket.socket:
    """The connection to `addr`, `tcp://HOST:PORT`, that the script handed over as `id`: a connected stream socket, once.
    NoConnection if there is none. Waits as `recv_msg` does.

    It is the function's, and stays open after the invocation. The daemon passes its bytes on, so it is no TCP socket itself.
    """
    sent = _sent()
    if sent is None:
        raise NoConnection(f"connection {id}: {_NO_SCRIPT}")
    address, descriptor = sent.arriving.connection(id) if sent.arriving is not None else ("", None)
    if descriptor is None:
        raise NoConnection(f"connection {id}: {address or _why(sent) or 'the initscript did not hand it over'}")
    if address != addr:
        sent.arriving.put_back(id, address, descriptor)
        raise NoConnection(f"connection {id}: it leads to {address}, and not to {addr}")
    return socket.socket(fileno=descriptor)


def id_of(*arguments: str) -> int:
    """An id that follows from the arguments of a call, so that a library and a script name its result in the same way:
    `recv_msg(id_of("download", bucket, key))`. FNV-1a of 64 bits, of each argument's length and UTF-8."""
    total = _FNV_OFFSET
    for argument in arguments:
        text = argument.encode()
        for byte in len(text).to_bytes(8, "little") + text:
            total = (total ^ byte) * _FNV_PRIME & _ID_MAX
    return total


def messages() -> List[int]:
    """The ids of the messages of this invocation. If the script still runs: of those that were received so far."""
    sent = _sent()
    if sent is None:
        return []
    names = [*sent.given, *(sent.arriving.names() if sent.arriving is not None else ())]
    return sorted({int(name[len(_received.MESSAGE_PREFIX) :]) for name in names})


def module() -> types.ModuleType:
    """This module under the name by which functions import it."""
    made = types.ModuleType(NAME, __doc__)
    made.__all__ = _PUBLIC  # type: ignore[attr-defined]
    made.__dict__.update((name, globals()[name]) for name in _PUBLIC)
    return made


def _sent() -> Optional[_inputs.Messages]:
    """The messages of the invocation that this thread or task belongs to."""
    return _output.of_invocation(_inputs.messages)


def _why(sent: _inputs.Messages, *names: str) -> Optional[str]:
    """Why something is not there."""
    reasons = (*names, f"{_received.MESSAGE_PREFIX}script", f"{_received.MESSAGE_PREFIX}shared")
    return next((sent.problems[reason] for reason in reasons if reason in sent.problems), None)


_NO_SCRIPT = "no initscript ran for this invocation, because it did not wait for a worker to start"
_NO_SCRIPT_NOW = (
    "no initscript runs beside the handler: one does if the invocation waited for a worker to start, "
    'and initscript.during is "invocation" in pilot.toml'
)
_FNV_OFFSET, _FNV_PRIME, _ID_MAX = 0xCBF29CE484222325, 0x100000001B3, (1 << 64) - 1
_PUBLIC = ["NoConnection", "NoMessage", "NotSent", "get_conn", "id_of", "messages", "recv_msg", "send_msg"]
