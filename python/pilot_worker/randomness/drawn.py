"""Recognises what a program has just drawn from a generator, with which it may seed another one.

`random.Random(random.getrandbits(64))` has a seed that is different in every process. The last words that a Mersenne Twister
gave are found in its state, so nothing has to watch the drawing.
"""

from __future__ import annotations

import random
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, List, Sequence, Tuple

_WORDS, _MIDDLE = 624, 397
_MATRIX, _TOP, _WORD = 0x9908B0DF, 0x80000000, 0xFFFFFFFF
_EARLIER = 16  # words from before the last renewal of the state
_PARTS = 8  # words of which a seed may be the highest bits only

_get_state = random.Random.getstate
_set_state = random.Random.setstate


def last_words(generator: random.Random) -> List[int]:
    """The 32-bit words that a generator gave last, at most 16 + 624, the latest at the end."""
    state: Tuple[int, ...] = _get_state(generator)[1]
    position = state[-1]
    earlier = tuple(_before(state, index) for index in range(_WORDS - _EARLIER, _WORDS))
    return _given((0,) * (_WORDS - _EARLIER) + earlier, _WORDS - _EARLIER, _EARLIER) + _given(state[:-1], 0, position)


def is_among(seed: Any, words: List[int]) -> bool:
    """Whether a seed is what `getrandbits`, `random`, or `randint` from 0 or 1 gave. The caller has excluded short numbers,
    which would agree by chance."""
    if isinstance(seed, float):
        number = int(seed * (1 << 53)) if 0.0 < seed < 1.0 else 0
        pair = number >> 26, number & ((1 << 26) - 1)
        return number > 0 and any((a >> 5, b >> 6) == pair for a, b in zip(words, words[1:]))
    known = set(words)
    for number in (seed, seed - 1):
        if number & _WORD in known:
            return True
        length = number.bit_length()
        if length < 32 and any(word >> 32 - bits == number for word in words[-_PARTS:] for bits in range(length, 32)):
            return True
    return False


def previous(state: Tuple[int, ...]) -> Tuple[int, ...]:
    """The state before this one, without the lower bits of its first word, which are lost."""
    words = list(state)
    later = _mixed(words, _WORDS - 1)
    words[0] = words[0] & _TOP | later & ~_TOP  # as it was, or what the caller does not know
    for index in range(_WORDS - 2, -1, -1):
        mixed = _mixed(words, index)
        words[index + 1] = later & _TOP | mixed & ~_TOP
        later = mixed
    words[0] = later & _TOP
    return tuple(words)


def _given(state: Tuple[int, ...], position: int, count: int) -> List[int]:
    if not count:
        return []
    twin = random.Random.__new__(random.Random)
    _set_state(twin, (3, (*state, position), None))
    return list(struct.unpack(f"<{count}I", twin.getrandbits(32 * count).to_bytes(4 * count, "little")))


def _before(state: Tuple[int, ...], index: int) -> int:
    """A word of the state before it was renewed, from those after it."""
    return _mixed(state, index) & _TOP | _mixed(state, index - 1) & ~_TOP


def _mixed(state: Sequence[int], index: int) -> int:
    word = state[index] ^ state[index + _MIDDLE - _WORDS]
    return (word ^ _MATRIX) << 1 & _WORD | 1 if word & _TOP else word << 1
