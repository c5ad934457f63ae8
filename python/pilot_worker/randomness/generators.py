"""Gives random number generators that were created at import a new state in every worker.

A module such as `rng = numpy.random.default_rng()` or `random.Random()` runs once, in the template. Without this file all
workers would produce the same numbers. A generator that took its seed from the system takes a new seed in each worker. One that
the program seeded itself (`random.Random(42)`, `random.seed(42)`) keeps its state, as it would in separate processes.

A template watches the seeding while it imports (`Watch`), because a generator does not remember where its seed came from:

- `random.Random.seed` is replaced by a function that notes the instances that are seeded without an argument, or with what
  comes from the system (`seeds.py`), or from a generator that the system seeded (`drawn.py`).
- `random.Random.getstate` notes the states of these instances. Who is given such a state (a copy, or the generator that a
  program seeds for a moment and sets back) is seeded by the system, too.
- `uuid._generate_time_safe` is replaced by a function that notes that libuuid has chosen the node and the sequence of `uuid1`.
- `numpy_generators.py` does the same for numpy.
- `uuid_utils` and `fastuuid` have the sequence of `uuid1` in machine code. If it was used at import, a worker draws some of it.
- torch's generator takes a seed from the system when torch is loaded, and remembers it.

A worker pays only for the generators that there are: about 20 us each.
"""

from __future__ import annotations

import random
import sys
from _weakref import ref  # in every CPython; `weakref` itself would import more

from ..importing import namesakes
from . import numpy_generators, origins, seeds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any, Dict, List, Optional, Set, Tuple, Type

_METHODS = ("seed", "getstate", "setstate")
# Modules with a clock sequence that nobody can set, and their functions that use it.
_SEQUENCES = {"fastuuid": ("uuid1",), "uuid_utils": ("uuid1", "uuid6")}
_SEQUENCE_BITS = 14  # RFC 4122, section 4.1.5

_seed = random.Random.seed
_get_state = random.Random.getstate
_set_state = random.Random.setstate

# Instances of `random.Random` that the system seeded, by their id.
_unseeded: Dict[int, ref[random.Random]] = {}
# Those of `_SEQUENCES` that the program has used.
_used: Set[str] = set()
# Hashes of the states that they had when somebody asked for them.
_states: Set[int] = set()
_PARENTS_MAX = 16  # generators in which a seed is looked for; the oldest, from which others were seeded


class _State:
    is_global_seeded = False  # the program has called random.seed(something) or random.setstate()
    uuid_of_libuuid: Optional[bytes] = None
    torch_seed: Optional[int] = None  # what torch has taken from the system
    is_torch_unseeded = False


_state = _State()


def is_global_seeded() -> bool:
    """Whether the program has chosen the state of the functions of `random`."""
    return _state.is_global_seeded


def is_numpy_global_seeded(legacy: Any) -> bool:
    return numpy_generators.is_global_seeded(legacy)


def uuid_of_libuuid() -> Optional[bytes]:
    """One that libuuid has made during the imports, if it has."""
    return _state.uuid_of_libuuid


def _note(generator: random.Random, is_unseeded: bool) -> None:
    if generator is getattr(random, "_inst", None):
        _state.is_global_seeded = not is_unseeded
    elif is_unseeded:
        key = id(generator)
        _unseeded[key] = ref(generator, lambda _: _unseeded.pop(key, None))
    else:
        _unseeded.pop(id(generator), None)


def _is_noted(generator: random.Random) -> bool:
    if generator is getattr(random, "_inst", None):
        return not _state.is_global_seeded
    return id(generator) in _unseeded


def _parents() -> List[random.Random]:
    inst = getattr(random, "_inst", None)
    found = [] if inst is None or _state.is_global_seeded else [inst]
    others = [reference() for reference in list(_unseeded.values())[:_PARENTS_MAX]]
    return found + [one for one in others if one is not None]


def _watch_libuuid() -> None:
    uuid: Any = namesakes.loaded("uuid")
    make = getattr(uuid, "_generate_time_safe", None)
    if make is None:
        return

    def generate_time_safe() -> Any:
        made = make()
        _state.uuid_of_libuuid = made[0]
        return made

    generate_time_safe.__wrapped__ = make  # type: ignore[attr-defined]
    uuid._generate_time_safe = generate_time_safe


def _unwatch_libuuid() -> None:
    uuid: Any = namesakes.loaded("uuid")
    make = getattr(getattr(uuid, "_generate_time_safe", None), "__wrapped__", None)
    if make is not None:
        uuid._generate_time_safe = make


def _watch_sequences() -> None:
    def noted(module: str, make: Any) -> Any:
        def made(*args: Any, **kwargs: Any) -> Any:
            _used.add(module)
            return make(*args, **kwargs)

        made.__name__, made.__doc__, made.__wrapped__ = make.__name__, make.__doc__, make  # type: ignore[attr-defined]
        return made

    for name, functions in _SEQUENCES.items():
        for function in functions:
            make = getattr(sys.modules.get(name), function, None)
            if make is not None and not hasattr(make, "__wrapped__"):
                setattr(sys.modules[name], function, noted(name, make))


def _unwatch_sequences() -> None:
    for name, functions in _SEQUENCES.items():
        for function in functions:
            make = getattr(getattr(sys.modules.get(name), function, None), "__wrapped__", None)
            if make is not None:
                setattr(sys.modules[name], function, make)


class Watch:
    """A context that notes which generators are seeded by the system."""

    def __enter__(self) -> Watch:
        def seed(self: random.Random, a: Any = None, version: int = 2) -> None:
            if not seeds.is_watching():
                return _seed(self, a, version)
            is_unseeded = seeds.is_of_the_system(a, _parents())
            if not is_unseeded and self is getattr(random, "_inst", None):
                numpy_generators.note_drawn(_parents())
            _seed(self, a, version)
            _note(self, is_unseeded)

        def getstate(self: random.Random) -> Any:
            state = _get_state(self)
            if _is_noted(self):
                _states.add(hash(state[1]))
            return state

        def setstate(self: random.Random, state: Any) -> None:
            _set_state(self, state)
            _note(self, hash(state[1]) in _states)

        seed.__doc__, getstate.__doc__, setstate.__doc__ = _seed.__doc__, _get_state.__doc__, _set_state.__doc__
        self._exchange(seed, getstate, setstate)
        seeds.watch()
        numpy_generators.watch(_parents)
        _watch_libuuid()
        _watch_sequences()
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self._exchange(_seed, _get_state, _set_state)
        numpy_generators.unwatch()
        seeds.unwatch()
        _unwatch_libuuid()
        _unwatch_sequences()

    def _exchange(self, *methods: Any) -> None:
        """Sets the methods, and the functions of the module, which are methods of one instance. What the program has replaced
        stays."""
        kept = [name for name in _METHODS if getattr(getattr(random, name), "__func__", None) is getattr(random.Random, name)]
        for name, method in zip(_METHODS, methods):
            setattr(random.Random, name, method)
        for name in kept:
            setattr(random, name, getattr(random._inst, name))


def loaded(name: str) -> None:
    """To be called after each import."""
    numpy_generators.loaded(name)
    if name == "numpy.random":
        numpy_generators.watch(_parents)
    elif name in _SEQUENCES:
        _watch_sequences()
    elif name == "torch":
        _state.torch_seed = _torch_seed()


def collect() -> None:
    """To be called after the imports, and before gc.freeze(), which hides objects from gc.get_objects()."""
    numpy_generators.collect(_parents)
    if _state.torch_seed is not None:
        now = _torch_seed()
        _state.is_torch_unseeded = now is not None and (now == _state.torch_seed or seeds.is_known(now))
    seeds.forget()


def said() -> List[Tuple[str, str, str]]:
    """For the report of the deployment: seeds that were recognised by the source only."""
    return [(where, f"took a seed from {what} at import", "each worker takes a new one") for where, what in origins.reported]


def has_work() -> bool:
    """Whether there is anything for a worker to renew."""
    return bool(_unseeded or _used or _state.is_torch_unseeded or numpy_generators.has_work())


def renew() -> None:
    """In a worker: seeds each of them again from the system."""
    for reference in list(_unseeded.values()):
        generator = reference()
        if generator is not None:
            _seed(generator)
    numpy_generators.renew()
    for name in _used:
        make = sys.modules[name].uuid1
        for _ in range(random.SystemRandom().getrandbits(_SEQUENCE_BITS)):  # each takes less than a microsecond
            make()
    if _state.is_torch_unseeded:
        sys.modules["torch"].default_generator.seed()


def _torch_seed() -> Optional[int]:
    generator = getattr(sys.modules.get("torch"), "default_generator", None)
    try:
        number: int = generator.initial_seed()  # type: ignore[union-attr]  # checked by the except
    except (AttributeError, RuntimeError):
        return None
    return number
