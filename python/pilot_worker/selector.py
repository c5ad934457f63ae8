"""What asyncio's loop waits with in a worker: an epoll that hands frames over as soon as it sees them.

A frame that the loop had to find by itself would take three of its turns: one for the callback that reads it, one for the task
which that begins, and one for what the task's end calls. Here the task is made before the turn's callbacks are run, and is
one of them. The loop's own descriptors, timers and callbacks are served as ever.
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


class FrameSelector(selectors.EpollSelector):
    """An EpollSelector with a socket of its own, of which the loop does not know."""

    def __init__(self) -> None:
        super().__init__()
        self._epoll = select.epoll.fromfd(os.dup(self.fileno()))  # the same one; both descriptors are closed
        self._frames_fd = -1
        self._awaits_room = False

    def watch(self, socket: Any, readable: Callable[[], None], writable: Callable[[], None]) -> None:
        """`readable` is called within `select` from now on; `writable` as well, between `await_room` and `has_room`."""
        self._frames_fd = socket.fileno()
        self._readable = readable
        self._writable = writable
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
        ready = []
        for fd, mask in self._epoll.poll(timeout, _EVENTS_MAX):
            if fd != self._frames_fd:
                key = self.get_map().get(fd)
                if key is not None:
                    events = (mask & ~_IN and selectors.EVENT_WRITE) | (mask & ~_OUT and selectors.EVENT_READ)
                    ready.append((key, events & key.events))
                continue
            if mask & ~_OUT:  # or an error, or the end
                self._readable()
            if self._awaits_room and mask & ~_IN:
                self._writable()
        return ready

    def close(self) -> None:
        self._epoll.close()
        super().close()
