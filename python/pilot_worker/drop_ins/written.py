"""When the function wrote what: an input that was read from its store before that is no answer."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Hashable, Iterable

# The worker is the function's, so this bounds only what a long life costs.
WRITES_MAX = 1000


class Written:
    """The last writes of a worker, of all its invocations. Times are of CLOCK_MONOTONIC, as the daemon's.

    The oldest writes are forgotten. Whatever was read before one of those counts as written."""

    def __init__(self) -> None:
        self._when: Dict[Hashable, int] = {}  # the newest is last
        self._forgotten_ns = -1

    def note(self, writes: Iterable[Hashable], now_ns: int) -> None:
        when = self._when
        for write in writes:
            when.pop(write, None)
            when[write] = now_ns
        while len(when) > WRITES_MAX:
            self._forgotten_ns = when.pop(next(iter(when)))

    def has_any_since(self, writes: Iterable[Hashable], asked_ns: int) -> bool:
        """Whether one of these writes was noted at this time or later."""
        if asked_ns <= self._forgotten_ns:
            return True
        return bool(self._when) and any(self._when.get(write, -1) >= asked_ns for write in writes)
