"""What the function's initscripts have sent: `pilotlight.init`. A script runs while the worker starts, and ends before
the handler is called.

    weights = pilotlight.init.recv_msg(0)   # a read-only memoryview, without a copy

Its messages belong to the invocation that waited for the start. Others have none: `recv_msg` raises NoMessage, and the
handler gets the data by itself. The messages of a shared initscript are there in every invocation.
"""

from __future__ import annotations

from . import inputs as _inputs
from . import output as _output

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import List, Optional

NAME = "pilotlight.init"


class NoMessage(LookupError):
    """The initscript has not sent this message. The text says why, if that is known."""


def recv_msg(id: int) -> memoryview:
    """The message that the script sent as `id`: a read-only view, without a copy. NoMessage if there is none."""
    sent = _sent()
    if sent is None:
        raise NoMessage(f"message {id}: no initscript ran for this invocation, because it did not wait for a worker to start")
    name = f"{_inputs.MESSAGE_PREFIX}{id}"
    found = sent.given.get(name)
    if found is not None:
        return found.view()
    reasons = (name, f"{_inputs.MESSAGE_PREFIX}script", f"{_inputs.MESSAGE_PREFIX}shared")
    problem = next((sent.problems[reason] for reason in reasons if reason in sent.problems), None)
    raise NoMessage(f"message {id}: {problem or 'the initscript did not send it'}")


def messages() -> List[int]:
    """The ids of the messages of this invocation."""
    sent = _sent()
    return [] if sent is None else sorted(int(name[len(_inputs.MESSAGE_PREFIX) :]) for name in sent.given)


def module() -> ModuleType:
    """This module under the name by which functions import it."""
    import types

    made = types.ModuleType(NAME, __doc__)
    made.__all__ = _PUBLIC  # type: ignore[attr-defined]
    made.__dict__.update((name, globals()[name]) for name in _PUBLIC)
    return made


def _sent() -> Optional[_inputs.Messages]:
    """The messages of the invocation that this thread or task belongs to."""
    sent = _inputs.messages.get(_output.request_id.get())
    if sent is None and len(_inputs.messages) == 1:  # a thread that the handler has started
        sent = next(iter(_inputs.messages.values()), None)
    return sent


_PUBLIC = ["NoMessage", "messages", "recv_msg"]
