"""The part of `generators.py` for numpy.

numpy takes every seed of its own from `numpy.random.bit_generator.randbits`, which is replaced by a function that notes the
numbers. A `SeedSequence` remembers its number, so each one, and each generator that was made with it, can be recognised
after the imports. Those with the same number get the same new one in a worker, so what was spawned from them still belongs
together.

`numpy.random.seed`, `RandomState(seed)` and `default_rng(seed)` with what comes from the system (`seeds.py`) count as well.
The two functions are replaced while a template imports. A `RandomState` does not remember its seed, but it is computed from
the state.
"""

from __future__ import annotations

import gc
import random
import struct
import sys

from . import drawn, quasi_random, seeds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, FrozenSet, List, Optional, Set, Tuple

SEEDS = "numpy.random.bit_generator"
_GLOBAL = "numpy.random.mtrand"
_GENERATORS = "numpy.random._generator"

_WORDS = 624
_WORD = 0xFFFFFFFF
_ROUNDS_MAX = 64  # of its words, in which the import may have set it back
_LEGACY_MAX = 50  # generators of which the seed is computed, which takes milliseconds
_USED_MAX = 8  # rounds of its words that a RandomState may have given when its seed is looked for
_DRAWN_MAX = 16 << 10
_SEED_BITS = 128  # as SeedSequence takes them

# What numpy took from the system, and what the program gave it from there.
_entropy: List[int] = []
# The state of numpy's global generator when numpy was loaded.
_first_state: List[Any] = []
# Words that were drawn from generators that the system seeded, with which the program may have seeded those of numpy.
_drawn: Set[int] = set()
# What a worker seeds again. None of them can be referred to weakly.
_sequences: List[Any] = []
_bit_generators: List[Any] = []
# The generators that keep a half-used pair of normal numbers beside their bit generator.
_with_pairs: List[Any] = []


class _State:
    # Whether the last call of numpy.random.seed was with what comes from the system. None: there was none.
    is_global_of_system: Optional[bool] = None


_state = _State()
_replaced: List[Tuple[Any, str, Any, Any]] = []


def loaded(name: str) -> None:
    """To be called after each import."""
    if name == _GLOBAL:
        legacy = getattr(sys.modules.get(name), "_rand", None)
        if legacy is not None and not _first_state and _words(legacy):
            _first_state.append(legacy.get_state(legacy=False))
    elif name == SEEDS:
        _note_randbits(sys.modules.get(name))


def watch(parents: Callable[[], List[random.Random]]) -> None:
    """Replaces the functions with which a program seeds. `parents`: the generators of `random` that the system has seeded."""
    public: Any = sys.modules.get("numpy.random")
    if _replaced or not hasattr(public, "seed") or not hasattr(public, "default_rng"):
        return

    def seed(seed: Any = None) -> None:
        if not seeds.is_watching():
            original_seed(seed)
            return
        numbers = _whole_numbers(seed)
        is_of_system = seed is None or any(seeds.is_of_the_system(one, parents()) for one in numbers)
        original_seed(seed)
        _state.is_global_of_system = is_of_system

    def default_rng(seed: Any = None) -> Any:
        if seeds.is_watching():
            _entropy.extend(one for one in _whole_numbers(seed) if seeds.is_of_the_system(one, parents()))
        return original_rng(seed)

    original_seed, original_rng = public.seed, public.default_rng
    seed.__doc__, default_rng.__doc__ = original_seed.__doc__, original_rng.__doc__
    for module in (public, sys.modules.get(_GLOBAL), sys.modules.get(_GENERATORS)):
        for name, original, ours in (("seed", original_seed, seed), ("default_rng", original_rng, default_rng)):
            if getattr(module, name, None) is original:
                _replaced.append((module, name, original, ours))
                setattr(module, name, ours)


def unwatch() -> None:
    while _replaced:
        module, name, original, ours = _replaced.pop()
        if getattr(module, name, None) is ours:
            setattr(module, name, original)


def note_drawn(parents: List[random.Random]) -> None:
    """Notes what was drawn last, before that is forgotten: numpy's generators are only seen after the imports."""
    if len(_drawn) < _DRAWN_MAX:
        for parent in parents:
            _drawn.update(drawn.last_words(parent))


def collect(parents: Callable[[], List[random.Random]]) -> None:
    """To be called after the imports, and before gc.freeze(), which hides objects from gc.get_objects()."""
    numpy_random: Any = sys.modules.get("numpy.random")
    bit_generator, seed_sequence = (getattr(numpy_random, name, None) for name in ("BitGenerator", "SeedSequence"))
    if bit_generator is None or seed_sequence is None:
        return
    note_drawn(parents())
    entropy, words = frozenset((*_entropy, *seeds.numbers())), frozenset(_drawn)
    _drawn.clear()
    known = {id(one) for one in (*_sequences, *_bit_generators, *_with_pairs)}
    legacy_global = getattr(sys.modules.get(_GLOBAL), "_rand", None)
    global_one = getattr(legacy_global, "_bit_generator", None)
    known.update(map(id, (legacy_global, global_one, _sequence_of(global_one))))  # `entropy.py` renews it
    legacy_count = 0
    engine_classes, engines = quasi_random.classes(), []
    for one in gc.get_objects():
        kind = type(one)  # isinstance() would ask `__class__`, which runs code of lazy objects
        if id(one) in known:
            continue
        if issubclass(kind, numpy_random.RandomState):
            legacy_count += 1
            if legacy_count <= _LEGACY_MAX:
                _collect_legacy(one, entropy, words)
        elif issubclass(kind, seed_sequence) and _is_unseeded(one, entropy, words):
            _sequences.append(one)
        elif issubclass(kind, bit_generator) and _is_unseeded(_sequence_of(one), entropy, words):
            _bit_generators.append(one)
        elif id(kind) in engine_classes:
            engines.append(one)
    quasi_random.collect(engines, _bit_generators)


def is_global_seeded(legacy: Any) -> bool:
    """Whether the program has called numpy.random.seed(something): then numpy forgets the sequence of its seed. If the state
    is one of the sequence that began when numpy was loaded, the program has set it back."""
    generator = getattr(legacy, "_bit_generator", None)
    is_seeded = generator is not None and _sequence_of(generator, generator) is None
    return is_seeded and not _state.is_global_of_system and not _is_of_the_first_sequence(legacy)


def has_work() -> bool:
    return bool(_sequences or _bit_generators)


def renew() -> None:
    """In a worker. The sequences first, because bit generators take their state from them."""
    made: Dict[Any, int] = {}
    for one in _sequences:
        again = made.setdefault(repr(one.entropy), random.SystemRandom().getrandbits(_SEED_BITS))
        spawned = one.n_children_spawned
        one.__init__(again, spawn_key=one.spawn_key, pool_size=one.pool_size, n_children_spawned=spawned)
    for one in _bit_generators:
        one.__init__(_sequence_of(one))
    for state in _with_pairs:
        whole = state.get_state(legacy=False)
        whole["has_gauss"] = 0
        state.set_state(whole)
    quasi_random.renew()


def _note_randbits(module: Any) -> None:
    randbits = getattr(module, "randbits", None)
    if randbits is None:
        return  # a numpy before 1.17 or after a change of its insides

    def noted(bits: int) -> int:
        number: int = randbits(bits)
        _entropy.append(number)
        return number

    module.randbits = noted


def _whole_numbers(seed: Any) -> List[int]:
    """A seed is a number, or a list or an array of them."""
    items = seed if isinstance(seed, (list, tuple)) else getattr(seed, "tolist", lambda: seed)()
    return [item for item in (items if isinstance(items, (list, tuple)) else [items]) if isinstance(item, int)][:_WORDS]


def _collect_legacy(state: Any, entropy: FrozenSet[int], words: FrozenSet[int]) -> None:
    generator = getattr(state, "_bit_generator", None)
    sequence = _sequence_of(generator, generator)
    if sequence is None:
        seed = _seed_of(_words(state))
        if seed is not None and (seed in entropy or seeds.is_known(seed) or (seeds.is_long(seed) and seed in words)):
            _bit_generators.append(generator)
            _with_pairs.append(state)
    elif _is_unseeded(sequence, entropy, words):
        _with_pairs.append(state)  # its bit generator is found by itself


def _is_of_the_first_sequence(legacy: Any) -> bool:
    words = _words(legacy)
    if not _first_state or not words:
        return False
    twin = sys.modules["numpy.random"].MT19937(0)
    twin.state = _first_state[0]
    for _ in range(_ROUNDS_MAX):
        if twin.state["state"]["key"].tobytes() == words:
            return True
        twin.random_raw(_WORDS, output=False)
    return False


def _seed_of(words: bytes) -> Optional[int]:
    """The number with which the legacy way has seeded a Mersenne Twister. Its first state follows from the number, and each
    state from the next one."""
    if len(words) != 4 * _WORDS:
        return None
    state = struct.unpack(f"={_WORDS}I", words)
    for _ in range(_USED_MAX):
        if all(state[at + 1] == (1812433253 * (state[at] ^ state[at] >> 30) + at + 1) & _WORD for at in range(1, _WORDS - 1)):
            return _before_first(state)
        state = drawn.previous(state)
    return None


def _before_first(state: Tuple[int, ...]) -> int:
    """The word before `state[1]`: of `state[0]`, a renewed state tells the highest bit only."""
    number = (state[1] - 1) * pow(1812433253, -1, 1 << 32) & _WORD
    return number ^ number >> 30


def _sequence_of(generator: Any, default: Any = None) -> Any:
    """numpy before 1.25 has another name for it."""
    return getattr(generator, "seed_seq", getattr(generator, "_seed_seq", default))


def _words(legacy: Any) -> bytes:
    """They change at every 624th number."""
    try:
        words: bytes = legacy.get_state(legacy=False)["state"]["key"].tobytes()
    except (AttributeError, KeyError, TypeError):
        return b""  # not numpy's original generator
    return words


def _is_unseeded(sequence: Any, entropy: FrozenSet[int], words: FrozenSet[int]) -> bool:
    numbers = _whole_numbers(getattr(sequence, "entropy", None))
    return any(seed in entropy or (seeds.is_long(seed) and seed & _WORD in words) for seed in numbers)
