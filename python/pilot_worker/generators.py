"""Gives random number generators that were created at import a new state in every worker.

A module such as `rng = numpy.random.default_rng()` or `random.Random()` runs once, in the template. Without this file all
workers would produce the same numbers. A generator that took its seed from the system takes a new seed in each worker. One that
the program seeded itself (`random.Random(42)`, `random.seed(42)`) keeps its state, as it would in separate processes.

A template watches the seeding while it imports (`Watch`), because a generator does not remember where its seed came from:

- `random.Random.seed` is replaced by a function that notes the instances that are seeded without an argument, or with what
  comes from the system: from `os.urandom`, from `secrets`, the time, or a generator that the system seeded (`drawn.py`).
- `random.Random.getstate` notes the states of these instances. Who is given such a state (a copy, or the generator that a
  program seeds for a moment and sets back) is seeded by the system, too.
- `uuid._generate_time_safe` is replaced by a function that notes that libuuid has chosen the node and the sequence of `uuid1`.
- numpy takes every seed of its own from `numpy.random.bit_generator.randbits`. It is replaced by a function that notes the
  numbers. A `SeedSequence` remembers its number, so each generator can be recognised later.

A worker pays only for the generators that there are: about 20 us each.
"""

from __future__ import annotations

import gc
import os
import random
import sys
import time
from _weakref import ref  # in every CPython; `weakref` itself would import more

from . import drawn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any, Dict, List, Optional, Set, Type

NUMPY_SEEDS = "numpy.random.bit_generator"

_METHODS = ("seed", "getstate", "setstate")

_seed = random.Random.seed
_get_state = random.Random.getstate
_set_state = random.Random.setstate
_urandom = os.urandom

# Instances of `random.Random` that the system seeded, by their id.
_unseeded: Dict[int, ref[random.Random]] = {}
# Hashes of the states that they had when somebody asked for them.
_states: Set[int] = set()
# What the program took from the system, with which it may seed a generator: bytes, and as numbers.
_taken: Set[object] = set()
_TAKEN_LENGTH_MIN = 4  # a shorter one would equal what a program chooses
_TAKEN_LENGTH_MAX = 4096  # a longer one is data and no seed: the largest state has 2500 bytes
_TAKEN_TOTAL_MAX = 64 << 10  # bytes; during the import, what is noted of them takes up to 65 times as much memory
# How long ago a program may have asked for the time with which it seeds.
_NOW_NS = 5_000_000_000
# What numpy took from the system.
_numpy_entropy: List[int] = []
# The state of numpy's global generator when numpy was loaded.
_numpy_state: List[Any] = []
_WORDS = 624
_PARENTS_MAX = 16  # generators in which a seed is looked for; the oldest, from which others were seeded
# Words that were drawn from such generators, with which the program may have seeded those of numpy.
_drawn: Set[int] = set()
_DRAWN_MAX = 16 << 10
_ROUNDS_MAX = 64  # of its words, in which the import may have set it back
# Bit generators of numpy with such a seed. They cannot be referred to weakly.
_bit_generators: List[Any] = []
# The generators of numpy that keep a half-used pair of normal numbers beside their bit generator.
_with_pairs: List[Any] = []


class _State:
    is_global_seeded = False  # the program has called random.seed(something) or random.setstate()
    uuid_of_libuuid: Optional[bytes] = None
    taken_total = 0  # bytes in `_taken`


_state = _State()


def is_global_seeded() -> bool:
    """Whether the program has chosen the state of the functions of `random`."""
    return _state.is_global_seeded


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


def _note_taken(text: bytes) -> None:
    """`secrets.randbits` shifts out the bits that nobody asked for."""
    if len(text) <= min(_TAKEN_LENGTH_MAX, _TAKEN_TOTAL_MAX - _state.taken_total):
        _state.taken_total += len(text)
        number = int.from_bytes(text, "big")
        _taken.update([text, text.hex(), int.from_bytes(text, "little"), *(number >> shift for shift in range(8))])


def _is_of_the_system(seed: Any) -> bool:
    """Whether a seed is what the system has given to this process, or the present time in seconds or a part of them."""
    if isinstance(seed, (bytes, str)):
        return len(seed) >= _TAKEN_LENGTH_MIN and seed in _taken
    if isinstance(seed, bytearray):
        return _is_of_the_system(bytes(seed))
    if isinstance(seed, int) and _is_long(seed) and seed in _taken:
        return True
    if isinstance(seed, (int, float)):
        now_ns = time.time_ns()
        return any(abs(seed * unit_ns - now_ns) < _NOW_NS for unit_ns in (1, 1_000, 1_000_000, 1_000_000_000))
    return False


def _is_drawn(seed: Any) -> bool:
    """Whether a seed was drawn from a generator that the system seeded."""
    if isinstance(seed, (bytes, bytearray)):
        seed = int.from_bytes(seed, "little") if len(seed) <= _TAKEN_LENGTH_MAX else 0  # as `randbytes` makes them
    if not isinstance(seed, float) and not (isinstance(seed, int) and seed > 0 and _is_long(seed)):
        return False
    return any(drawn.is_among(seed, drawn.last_words(parent)) for parent in _parents())


def _parents() -> List[random.Random]:
    inst = getattr(random, "_inst", None)
    found = [] if inst is None or _state.is_global_seeded else [inst]
    others = [reference() for reference in list(_unseeded.values())[:_PARENTS_MAX]]
    return found + [one for one in others if one is not None]


def _note_drawn() -> None:
    """Notes what was drawn last, before that is forgotten: numpy's generators are only seen after the imports."""
    if len(_drawn) < _DRAWN_MAX:
        for parent in _parents():
            _drawn.update(drawn.last_words(parent))


def _is_long(number: int) -> bool:
    return number.bit_length() > 8 * (_TAKEN_LENGTH_MIN - 1)


def _exchange_urandom(function: Any) -> None:
    """`secrets` and `random.SystemRandom` have a name of their own for it. What the program has replaced stays."""
    for module, name in ((os, "urandom"), (random, "_urandom")):
        now = getattr(module, name, None)
        if now is _urandom or getattr(now, "__module__", None) == __name__:
            setattr(module, name, function)


def _watch_libuuid() -> None:
    uuid: Any = sys.modules.get("uuid")
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
    uuid: Any = sys.modules.get("uuid")
    make = getattr(getattr(uuid, "_generate_time_safe", None), "__wrapped__", None)
    if make is not None:
        uuid._generate_time_safe = make


class Watch:
    """A context that notes which generators are seeded by the system."""

    def __enter__(self) -> Watch:
        def seed(self: random.Random, a: Any = None, version: int = 2) -> None:
            is_unseeded = a is None or _is_of_the_system(a) or _is_drawn(a)
            if not is_unseeded and self is getattr(random, "_inst", None):
                _note_drawn()
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

        def urandom(size: int) -> bytes:
            text = _urandom(size)
            _note_taken(text)
            return text

        seed.__doc__, getstate.__doc__, setstate.__doc__ = _seed.__doc__, _get_state.__doc__, _set_state.__doc__
        urandom.__doc__ = _urandom.__doc__
        self._exchange(seed, getstate, setstate)
        _exchange_urandom(urandom)
        _watch_libuuid()
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self._exchange(_seed, _get_state, _set_state)
        _exchange_urandom(_urandom)
        _unwatch_libuuid()

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
    if name == "numpy.random.mtrand":
        legacy = getattr(sys.modules.get(name), "_rand", None)
        if legacy is not None and not _numpy_state and _words(legacy):
            _numpy_state.append(legacy.get_state(legacy=False))
    if name != NUMPY_SEEDS:
        return
    module: Any = sys.modules.get(name)
    randbits = getattr(module, "randbits", None)
    if randbits is None:
        return  # a numpy before 1.17 or after a change of its insides

    def noted(bits: int) -> int:
        number: int = randbits(bits)
        _numpy_entropy.append(number)
        return number

    module.randbits = noted


def collect() -> None:
    """To be called after the imports, and before gc.freeze(), which hides objects from gc.get_objects()."""
    taken = [one for one in _taken if isinstance(one, int) and _is_long(one)]
    _taken.clear()
    numpy_random: Any = sys.modules.get("numpy.random")
    bit_generator = getattr(numpy_random, "BitGenerator", None)
    if bit_generator is not None:
        _note_drawn()
    words = frozenset(_drawn)
    _drawn.clear()
    if bit_generator is None or not (_numpy_entropy or taken or words):
        return
    entropy = frozenset((*_numpy_entropy, *taken))
    known = {id(one) for one in _bit_generators}
    legacy_global = getattr(sys.modules.get("numpy.random.mtrand"), "_rand", None)
    for one in gc.get_objects():
        kind = type(one)  # isinstance() would ask `__class__`, which runs code of lazy objects
        if issubclass(kind, numpy_random.RandomState) and one is not legacy_global and id(one) not in known:
            known.add(id(one))
            if _is_unseeded(one._bit_generator, entropy, words):
                _with_pairs.append(one)
        is_global = legacy_global is not None and one is legacy_global._bit_generator  # `entropy.py` renews it
        if issubclass(kind, bit_generator) and not is_global and id(one) not in known and _is_unseeded(one, entropy, words):
            _bit_generators.append(one)


def is_numpy_global_seeded(legacy: Any) -> bool:
    """Whether the program has called numpy.random.seed(something): then numpy forgets the sequence of its seed. If the state
    is one of the sequence that began when numpy was loaded, the program has set it back."""
    generator = getattr(legacy, "_bit_generator", None)
    is_seeded = generator is not None and getattr(generator, "seed_seq", generator) is None
    return is_seeded and not _is_of_the_first_sequence(legacy)


def _is_of_the_first_sequence(legacy: Any) -> bool:
    words = _words(legacy)
    if not _numpy_state or not words:
        return False
    twin = sys.modules["numpy.random"].MT19937(0)
    twin.state = _numpy_state[0]
    for _ in range(_ROUNDS_MAX):
        if twin.state["state"]["key"].tobytes() == words:
            return True
        twin.random_raw(_WORDS, output=False)
    return False


def _words(legacy: Any) -> bytes:
    """They change at every 624th number."""
    try:
        words: bytes = legacy.get_state(legacy=False)["state"]["key"].tobytes()
    except (AttributeError, KeyError, TypeError):
        return b""  # not numpy's original generator
    return words


def _is_unseeded(bit_generator: Any, entropy: Any, words: Any) -> bool:
    seed = getattr(getattr(bit_generator, "seed_seq", None), "entropy", None)
    return isinstance(seed, int) and (seed in entropy or (_is_long(seed) and seed & 0xFFFFFFFF in words))


def has_work() -> bool:
    """Whether there is anything for a worker to renew."""
    return bool(_unseeded or _bit_generators)


def renew() -> None:
    """In a worker: seeds each of them again from the system."""
    for reference in list(_unseeded.values()):
        generator = reference()
        if generator is not None:
            _seed(generator)
    for bit_generator in _bit_generators:
        bit_generator.__init__()
    for state in _with_pairs:
        whole = state.get_state(legacy=False)
        whole["has_gauss"] = 0
        state.set_state(whole)
