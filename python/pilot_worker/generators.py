"""Gives random number generators that were created at import a new state in every worker.

A module such as `rng = numpy.random.default_rng()` or `random.Random()` runs once, in the template. Without this file all
workers would produce the same numbers. A generator that took its seed from the system takes a new seed in each worker. One that
the program seeded itself (`random.Random(42)`, `random.seed(42)`) keeps its state, as it would in separate processes.

A template watches the seeding while it imports (`Watch`), because a generator does not remember where its seed came from:

- `random.Random.seed` is replaced by a function that notes the instances that are seeded without an argument.
- numpy takes every seed of its own from `numpy.random.bit_generator.randbits`. It is replaced by a function that notes the
  numbers. A `SeedSequence` remembers its number, so each generator can be recognised later.

A worker pays only for the generators that there are: about 20 us each.
"""

from __future__ import annotations

import gc
import random
import sys
from _weakref import ref  # in every CPython; `weakref` itself would import more

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any, Dict, List, Optional, Type

NUMPY_SEEDS = "numpy.random.bit_generator"

_seed = random.Random.seed
_set_state = random.Random.setstate

# Instances of `random.Random` that the system seeded, by their id.
_unseeded: Dict[int, ref[random.Random]] = {}
# What numpy took from the system.
_numpy_entropy: List[int] = []
# Bit generators of numpy with such a seed. They cannot be referred to weakly.
_bit_generators: List[Any] = []
# The generators of numpy that keep a half-used pair of normal numbers beside their bit generator.
_with_pairs: List[Any] = []


class _State:
    is_global_seeded = False  # the program has called random.seed(something) or random.setstate()


_state = _State()


def is_global_seeded() -> bool:
    """Whether the program has chosen the state of the functions of `random`."""
    return _state.is_global_seeded


def _note(generator: random.Random, is_unseeded: bool) -> None:
    if generator is getattr(random, "_inst", None):
        _state.is_global_seeded = not is_unseeded
    elif is_unseeded:
        key = id(generator)
        _unseeded[key] = ref(generator, lambda _: _unseeded.pop(key, None))
    else:
        _unseeded.pop(id(generator), None)


class Watch:
    """A context that notes which generators are seeded by the system."""

    def __enter__(self) -> Watch:
        def seed(self: random.Random, a: Any = None, version: int = 2) -> None:
            _seed(self, a, version)
            _note(self, a is None)

        def setstate(self: random.Random, state: Any) -> None:
            _set_state(self, state)
            _note(self, False)

        seed.__doc__, setstate.__doc__ = _seed.__doc__, _set_state.__doc__
        self._exchange(seed, setstate)
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self._exchange(_seed, _set_state)

    def _exchange(self, seed: Any, setstate: Any) -> None:
        """Sets the methods, and the functions of the module, which are methods of one instance. What the program has replaced
        stays."""
        kept = [
            name
            for name, method in (("seed", random.Random.seed), ("setstate", random.Random.setstate))
            if getattr(getattr(random, name), "__func__", None) is method
        ]
        random.Random.seed = seed  # type: ignore[method-assign]
        random.Random.setstate = setstate  # type: ignore[method-assign]
        for name in kept:
            setattr(random, name, getattr(random._inst, name))


def loaded(name: str) -> None:
    """To be called after each import."""
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
    numpy_random: Any = sys.modules.get("numpy.random")
    bit_generator = getattr(numpy_random, "BitGenerator", None)
    if bit_generator is None or not _numpy_entropy:
        return
    entropy = frozenset(_numpy_entropy)
    known = {id(one) for one in _bit_generators}
    legacy_global = getattr(sys.modules.get("numpy.random.mtrand"), "_rand", None)
    for one in gc.get_objects():
        kind = type(one)  # isinstance() would ask `__class__`, which runs code of lazy objects
        if issubclass(kind, numpy_random.RandomState) and one is not legacy_global and id(one) not in known:
            known.add(id(one))
            if _is_unseeded(one._bit_generator, entropy):
                _with_pairs.append(one)
        is_global = legacy_global is not None and one is legacy_global._bit_generator  # `entropy.py` renews it
        if issubclass(kind, bit_generator) and not is_global and id(one) not in known and _is_unseeded(one, entropy):
            _bit_generators.append(one)


def is_numpy_global_seeded(legacy: Any) -> bool:
    """Whether the program has called numpy.random.seed(something): then numpy forgets the sequence of its own seed."""
    generator = getattr(legacy, "_bit_generator", None)
    return generator is not None and getattr(generator, "seed_seq", generator) is None


def _is_unseeded(bit_generator: Any, entropy: Any) -> bool:
    seed = getattr(getattr(bit_generator, "seed_seq", None), "entropy", None)
    return isinstance(seed, int) and seed in entropy


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
