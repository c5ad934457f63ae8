"""The part of `numpy_generators.py` for the engines of `scipy.stats.qmc`.

A scrambled engine computes its scrambling from its generator when it is created, and keeps it. If the generator is one that a
worker seeds again, the worker scrambles the engine again, and goes to the position at which the import has left it. An engine
with a seed of the program, or without scrambling, keeps its sequence, which is the same in every process.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Set

_MODULE = "scipy.stats._qmc"
# Those that keep a scrambling. The others draw from their generator each time.
_NAMES = ("Halton", "Sobol")

_engines: List[Any] = []


def classes() -> Set[int]:
    """The ids of the classes whose instances have a scrambling. Empty if the module is not loaded."""
    module = sys.modules.get(_MODULE)
    found: Dict[int, Any] = {}
    open_ones = [getattr(module, name) for name in _NAMES if isinstance(getattr(module, name, None), type)]
    while open_ones:
        one = open_ones.pop()
        if id(one) not in found:
            found[id(one)] = one
            open_ones += type.__subclasses__(one)
    return set(found)


def collect(found: List[Any], bit_generators: List[Any]) -> None:
    """Keeps the engines of which a worker renews the generator."""
    renewed = {id(one) for one in bit_generators}
    known = {id(one) for one in _engines}
    for engine in found:
        if id(engine) not in known and id(_bit_generator(engine)) in renewed and _is_scrambled(engine):
            _engines.append(engine)


def renew() -> None:
    """In a worker, after the bit generators."""
    for engine in _engines:
        before = dict(vars(engine))
        try:
            _scramble(engine)
        except (AttributeError, TypeError, ValueError):
            # Another version of scipy, or a class of the program that lacks something: the engine stays as it is.
            vars(engine).update(before)


def _bit_generator(engine: Any) -> Any:
    """Of a Generator, or of a RandomState."""
    generator = getattr(engine, "rng", None)
    return getattr(generator, "bit_generator", getattr(generator, "_bit_generator", None))


def _is_scrambled(engine: Any) -> bool:
    shift = getattr(engine, "_shift", None)  # of a Sobol engine; old ones do not remember the argument
    return bool(getattr(engine, "scramble", shift is not None and shift.any()))


def _scramble(engine: Any) -> None:
    if not hasattr(engine, "_sv"):
        engine._initialize_permutations()  # its position is a number, which stays
        return
    plain = sys.modules[_MODULE].Sobol(engine.d, scramble=False, bits=engine.bits)
    engine._sv = plain._sv
    engine._scramble()
    engine._first_point = (engine._shift * plain._scale).reshape(1, -1).astype(plain._first_point.dtype)
    engine._quasi = engine._shift.copy()
    # Not by `fast_forward`, which fails in scipy 1.17 with more than 32 bits. A point is made of the bits of its Gray code.
    steps = max(engine.num_generated - 1, 0)
    gray = steps ^ (steps >> 1)
    for bit in range(gray.bit_length()):
        if gray >> bit & 1:
            engine._quasi ^= engine._sv[:, bit]
