"""The inputs from which the drop-ins of one kind of store answer, and what the function has written there."""

from __future__ import annotations

import threading
import time

from .. import output
from .written import Written

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Collection, Dict, FrozenSet, Hashable, Iterable, List, Optional

    from ..inputs.received import Input

_now = time.monotonic_ns


class Given:
    """The inputs of the running invocations, by where they are in their store. One kind of store has one of these.

    A client is answered from the inputs of the invocation that calls it, and of no other one. What an invocation of this worker
    writes is no answer for any of them, until the daemon has read it again.

    Threads use it at the same time. Changes are made one after the other; a look-up is one operation of a dictionary, and needs
    no lock.
    """

    def __init__(
        self,
        places: Callable[[Dict[str, Any]], Iterable[Hashable]],
        writes: Callable[[Any], Iterable[Hashable]],
    ) -> None:
        self._places = places  # all names of an object, from `InvokeMeta.inputs[].store`
        self._writes = writes  # of a place: all writes that change what is there
        # Several invocations may have the same object. The newest is last.
        self.by_place: Dict[Hashable, List[Input]] = {}
        self._changed_by: Dict[Hashable, FrozenSet[Hashable]] = {}  # the writes of these places
        self._written = Written()
        self._note = self._written.note  # each look-up counts in `wrote`
        self._changing = threading.Lock()

    def add(self, given: Input) -> None:
        places = list(self._places(given.store))
        asked_ns = given.store.get("asked_ns")
        with self._changing:
            if asked_ns is not None and any(self._written.has_any_since(self._writes(place), asked_ns) for place in places):
                return
            for place in places:
                self.by_place[place] = [*self.by_place.get(place, ()), given]
                self._changed_by[place] = frozenset(self._writes(place))

    def remove(self, given: Input) -> None:
        with self._changing:
            self._remove(given)

    def newest(self, place: Hashable) -> Optional[Input]:
        found = self._own(place)
        return found[-1] if found else None

    def take(self, place: Hashable, fits: Callable[[Input], bool]) -> Optional[Input]:
        """The oldest that fits, which is no answer from then on."""
        with self._changing:
            found = next(filter(fits, self._own(place)), None)
            if found is not None:
                self._remove(found)
        return found

    def writing(self, writes: Collection[Hashable]) -> Writing:
        """While the function writes: `with given.writing(…)`. From its begin on, the store answers."""
        return Writing(self, writes)

    def call(self, writes: Collection[Hashable], send: Callable[..., Any], *arguments: Any) -> Any:
        """The same around `send`, also if what it returns must be awaited."""
        writing = self.writing(writes)
        with writing:
            response = send(*arguments)
        return _awaited(response, writing) if hasattr(response, "__await__") else response

    def wrote(self, writes: Collection[Hashable]) -> None:
        """The function writes now: what was read before is no answer any more."""
        if not writes:
            return
        with self._changing:
            self._note(writes, _now())
            for by in self._changed_by.values():
                if not by.isdisjoint(writes):
                    break
            else:
                return  # as most writes
            changed = [place for place, by in self._changed_by.items() if not by.isdisjoint(writes)]
            for given in [given for place in changed for given in self.by_place[place]]:
                self._remove(given)

    def _own(self, place: Hashable) -> List[Input]:
        """Those of the invocation that this thread or task belongs to. Of none, if that is not known and several may run."""
        found = self.by_place.get(place, [])
        if output.one_at_a_time or not found:
            return found
        own = output.request_id.get()
        return [one for one in found if one.invocation == own]

    def _remove(self, given: Input) -> None:
        """From all its places. Only with the lock."""
        for place in self._places(given.store):
            others = [other for other in self.by_place.get(place, ()) if other is not given]
            if others:
                self.by_place[place] = others
            else:
                self.by_place.pop(place, None)
                self._changed_by.pop(place, None)


class Writing:
    """A write that runs. Its end is noted too: the daemon may have read the object before the store had changed it."""

    __slots__ = ("_given", "_writes")

    def __init__(self, given: Given, writes: Collection[Hashable]) -> None:
        self._given = given
        self._writes = writes

    def __enter__(self) -> None:
        self._given.wrote(self._writes)

    def __exit__(self, *_: object) -> None:
        self._given.wrote(self._writes)


async def _awaited(response: Any, writing: Writing) -> Any:
    with writing:
        return await response
