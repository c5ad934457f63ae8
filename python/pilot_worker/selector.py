"""What asyncio's loop waits with in a worker: an epoll that hands frames over as soon as it sees them.

A frame that the loop had to find by itself would take three of its turns: one for the callback that reads it, one for the task
which that begins, and one for what the task's end calls. Here a request that never waits takes none; one that waits leaves its
task to the loop, which is given its turn as soon as it has anything to do. Its descriptors, timers and callbacks are served
as ever.
"""

from __future__ import annotations

import math
import os
import select
import selectors

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, List, Optional, Tuple

_IN, _OUT = select.EPOLLIN, select.EPOLLOUT
# Descriptors that one call reports. More that are ready are found in the next turn.
_EVENTS_MAX = 64


def _never() -> bool:
    return False


class FrameSelector(selectors.EpollSelector):
    """An EpollSelector with a socket of its own, of which the loop does not know."""

    def __init__(self) -> None:
        super().__init__()
        self._epoll = select.epoll.fromfd(os.dup(self.fileno()))  # the same one; both descriptors are closed
        self._frames_fd = -1
        self._awaits_room = False
        self._is_idle: Callable[[], bool] = _never

    def watch(
        self, socket: Any, readable: Callable[[], None], writable: Callable[[], None], is_idle: Callable[[], bool]
    ) -> None:
        """`readable` is called within `select` from now on; `writable` as well, between `await_room` and `has_room`. `is_idle`:
        whether the loop would do nothing but wait if it were given a turn."""
        self._frames_fd = socket.fileno()
        self._readable = readable
        self._writable = writable
        self._is_idle = is_idle
        self._epoll.register(self._frames_fd, _IN)

    def forget(self) -> None:
        self._epoll.unregister(self._frames_fd)
        self._frames_fd = -1
        self._awaits_room = False

    def await_room(self) -> None:
        self._awaits_room = True
        self._epoll.modify(self._frames_fd, _IN | _OUT)

    def has_room(self) -> None:
        self._awaits_room = False
        self._epoll.modify(self._frames_fd, _IN)

    def select(self, timeout: Optional[float] = None) -> List[Tuple[selectors.SelectorKey, int]]:
        if timeout is not None:
            timeout = math.ceil(timeout * 1e3) * 1e-3 if timeout > 0 else 0  # epoll_wait(2) counts in ms: at least so long
        while True:
            others = []
            for event in self._epoll.poll(timeout, _EVENTS_MAX):
                fd, mask = event
                if fd != self._frames_fd:
                    others.append(event)
                    continue
                if mask & ~_OUT:  # or an error, or the end
                    self._readable()
                if self._awaits_room and mask & ~_IN:
                    self._writable()
            # Keys are looked up when the application has run: it may have unregistered some.
            if others or timeout is not None or not self._is_idle():
                return self._keys(others)

    def _keys(self, events: List[Tuple[int, int]]) -> List[Tuple[selectors.SelectorKey, int]]:
        ready = []
        for fd, mask in events:
            key = self.get_map().get(fd)
            if key is not None:
                kinds = (mask & ~_IN and selectors.EVENT_WRITE) | (mask & ~_OUT and selectors.EVENT_READ)
                ready.append((key, kinds & key.events))
        return ready

    def close(self) -> None:
        self._epoll.close()
        super().close()
