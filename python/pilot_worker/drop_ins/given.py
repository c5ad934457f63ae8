"""The inputs from which the drop-ins of one kind of store answer."""

from __future__ import annotations

import threading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Hashable, Iterable, List, Optional

    from ..inputs.received import Input


class Given:
    """The inputs of the running invocations, by where they are in their store. One kind of store has one of these.

    Threads use it at the same time. Changes are made one after the other; a look-up is one operation of a dictionary, and needs
    no lock.
    """

    def __init__(self, places: Callable[[Dict[str, Any]], Iterable[Hashable]]) -> None:
        self._places = places  # all names of an object, from `InvokeMeta.inputs[].store`
        # Several invocations may have the same object. The newest is last.
        self.by_place: Dict[Hashable, List[Input]] = {}
        self._changing = threading.Lock()

    def add(self, given: Input) -> None:
        with self._changing:
            for place in self._places(given.store):
                self.by_place[place] = [*self.by_place.get(place, ()), given]

    def remove(self, given: Input) -> None:
        with self._changing:
            for place in self._places(given.store):
                others = [other for other in self.by_place.get(place, ()) if other is not given]
                if others:
                    self.by_place[place] = others
                else:
                    self.by_place.pop(place, None)

    def newest(self, place: Hashable) -> Optional[Input]:
        found = self.by_place.get(place)
        return found[-1] if found else None

    def take(self, place: Hashable, fits: Callable[[Input], bool]) -> Optional[Input]:
        """The oldest that fits, which is no answer from then on."""
        with self._changing:
            there = self.by_place.get(place, [])
            found = next(filter(fits, there), None)
            others = [other for other in there if other is not found]
            if others:
                self.by_place[place] = others
            else:
                self.by_place.pop(place, None)
        return found

    def forget(self, is_written: Callable[[Any], bool]) -> None:
        """The function writes to these places: from now on, the store answers."""
        with self._changing:
            for place in [place for place in self.by_place if is_written(place)]:
                del self.by_place[place]
