"""What the daemon says about a response while it is sent: how much more its client has room for, and that its client has gone
(PROTOCOL.md, section 1, "Windows"). Only with concurrency above 1, where one response must not hold up the others.

ASGI and WSGI share this. `interfaces/asgi.py` waits on an event loop; `Flows` waits with threads.
"""

from __future__ import annotations

import threading

from . import wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Optional


WRITTEN_TOO_LATE = "the application called write() after its response was complete"


class ClientGone(ConnectionError):
    """The client of a response that is still sent has hung up."""

    def __init__(self) -> None:
        super().__init__("the client has hung up")


class Flow:
    """One response."""

    __slots__ = ("is_gone", "is_over", "room")

    def __init__(self) -> None:
        self.is_gone = False
        self.is_over = False  # all of it is sent, or its handler has failed
        self.room = wire.WINDOW_LEN  # bytes

    def told(self, kind: int, body: bytes) -> None:
        """A frame about this response."""
        if kind == wire.CANCEL:
            self.is_gone = True
        elif kind == wire.WINDOW:
            self.room += int.from_bytes(body, "little")

    def sent(self, length: int) -> None:
        """A frame with so much of the body is about to be sent."""
        self.room -= max(length, wire.WINDOW_COST_MIN)


class Flows:
    """The responses of a worker whose threads send them, by stream."""

    def __init__(self) -> None:
        self._open: Dict[int, Flow] = {}
        self._changed = threading.Condition()

    def begin(self, stream: int) -> Flow:
        flow = self._open[stream] = Flow()
        return flow

    def end(self, stream: int) -> None:
        flow = self._open.pop(stream)
        with self._changed:
            flow.is_over = True
            self._changed.notify_all()

    def told(self, kind: int, stream: int, body: bytes) -> None:
        """A frame about a response, which may be over. Called by the thread that reads."""
        flow: Optional[Flow] = self._open.get(stream)
        if flow is not None:
            with self._changed:
                flow.told(kind, body)
                self._changed.notify_all()

    def send(self, flow: Flow, length: int) -> None:
        """Waits until there is room for a frame with so much of the body. ClientGone if nobody would read it. RuntimeError if
        another thread has ended the response meanwhile."""
        with self._changed:
            while flow.room <= 0 and not flow.is_gone and not flow.is_over:
                self._changed.wait()
            if flow.is_gone:
                raise ClientGone
            if flow.is_over:
                raise RuntimeError(WRITTEN_TOO_LATE)
            flow.sent(length)


def pieces(data: bytes) -> List[bytes]:
    """The bytes for one frame each. At least one."""
    longest = wire.PIECE_LEN_MAX
    return [data[at : at + longest] for at in range(0, len(data), longest)] or [data]


def is_from_gone_client(error: Optional[BaseException]) -> bool:
    """Whether a ClientGone has led to this error: it may be its cause, or one of a group. Perhaps that of another response."""
    seen = 0
    waiting = [error]
    while waiting and seen < 100:
        one = waiting.pop()
        seen += 1
        if isinstance(one, ClientGone):
            return True
        if one is not None:
            waiting += [one.__cause__, one.__context__, *getattr(one, "exceptions", ())]
    return False
