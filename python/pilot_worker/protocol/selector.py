"""The selector of asyncio's loop in a worker: an epoll that handles frames as soon as it sees them.

If the loop found a frame by itself, the frame would take three loop iterations: one for the callback that reads it, one for
the new task, and one for the callback at the end of the task. With this selector, a request that never waits takes none. A
request that waits leaves its task to the loop, and the loop runs as soon as it has something to do. The loop's own descriptors,
timers and callbacks are served as usual.
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
# How many descriptors one call reports. Further ready ones are found in the next iteration.
_EVENTS_MAX = 64


def _never() -> bool:
    return False


class FrameSelector(selectors.EpollSelector):
    """An EpollSelector with an additional socket that the loop does not know."""

    def __init__(self) -> None:
        super().__init__()
        self._epoll = select.epoll.fromfd(os.dup(self.fileno()))  # the same epoll instance; both descriptors are closed
        self._frames_fd = -1
        self._awaits_room = False
        self._is_idle: Callable[[], bool] = _never

    def descriptors(self) -> Tuple[int, int]:
        """Both of the epoll instance."""
        return self.fileno(), self._epoll.fileno()

    def watch(
        self,
        socket: Any,
        readable: Callable[[], None],
        writable: Callable[[], None],
        is_idle: Callable[[], bool],
        is_registered: bool = False,
    ) -> None:
        """From now on, `select` calls `readable`. It also calls `writable`, between `await_room` and `has_room`. `is_idle` says
        whether the loop would only wait in its next iteration. `is_registered`: the epoll instance knows the socket."""
        self._frames_fd = socket.fileno()
        self._readable = readable
        self._writable = writable
        self._is_idle = is_idle
        if not is_registered:
            self._epoll.register(self._frames_fd, _IN)

    def when_waiting(self, call: Callable[[], object], for_s: float = 0) -> None:
        """The next time that `select` would wait, and nothing has come after `for_s`, it calls this, and then begins again."""

        def select(timeout: Optional[float] = None) -> List[Tuple[selectors.SelectorKey, int]]:
            if timeout is not None:
                return FrameSelector.select(self, timeout)
            del self.select
            if not (for_s and self._epoll.poll(for_s, 1)):
                call()
            return self.select(None) if self._is_idle() else []

        self.select = select  # type: ignore[method-assign]

    def forget(self) -> None:
        try:
            self._epoll.unregister(self._frames_fd)
        except FileNotFoundError:
            pass  # in a process that user code forked: `Channel.leave` has replaced the socket, and the epoll is the worker's
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
            timeout = math.ceil(timeout * 1e3) * 1e-3 if timeout > 0 else 0  # epoll_wait(2) counts in ms, so round up
        while True:
            others = []
            for event in self._epoll.poll(timeout, _EVENTS_MAX):
                fd, mask = event
                if fd != self._frames_fd:
                    others.append(event)
                    continue
                if mask & ~_OUT:  # readable, an error, or the end
                    self._readable()
                if self._awaits_room and mask & ~_IN:
                    self._writable()
            # Look up keys after the application has run, because it may have unregistered some.
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
