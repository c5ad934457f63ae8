"""Recognises a seed that a program has taken from the system: `os.urandom`, `secrets`, `uuid.uuid4`, the time.

What the system gives is noted while a template imports. A seed is known by its value, also if it is a part of what was
given, or a text of it. A short number (`secrets.randbelow(1000)`) would agree with one of the program's own by chance, so
if the program names it, as a constant of the code that is running or in an environment variable, the line of the code must
say that it is from the system (`origins.py`). What the program has computed has no such value. Then that line may say it, too.
"""

from __future__ import annotations

import os
import random
import sys
import time

from ..forking import opened
from ..importing import namesakes
from . import drawn, origins

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any, FrozenSet, Iterator, List, Optional, Set

LENGTH_MIN = 4  # bytes; a shorter seed is not known by its value alone
_LENGTH_MAX = 4096  # a longer one is data and no seed: the largest state has 2500 bytes
_TOTAL_MAX = 64 << 10  # bytes; during the import, what is noted of them takes up to 65 times as much memory
_UUID_LENGTH = 16
_UNNAMED_MIN = 256  # of a short seed if nobody can see whether the program names it
_SHORT_MAX = 64  # of short numbers; among more of them, there would be each number that a program chooses

# How long ago a program may have asked for the time with which it seeds.
_NOW_NS = 5_000_000_000
_SECOND_NS, _MILLISECOND_NS, _MICROSECOND_NS = 1_000_000_000, 1_000_000, 1_000
_RANGE = 1 << 32  # numpy's seeds are less

_SYSTEM_BITS = random.SystemRandom.getrandbits.__code__
_CHOOSE = frozenset(("choice", "choices", "sample", "shuffle"))
_FRACTION = 53  # bits of what `SystemRandom.random` gives
_SMALL_INTS = range(-5, 256) if sys.version_info >= (3, 14) else range(0)  # those that no code object has as constants

_urandom = os.urandom

# What was taken: bytes, their texts, and numbers.
_taken: Set[object] = set()
# Those that are too short to be known by their value alone.
_short: Set[object] = set()


class _State:
    is_watching = False
    total = 0  # bytes in `_taken`
    began_ns = 0  # when the imports began
    variables: FrozenSet[str] = frozenset()  # the values of the environment variables


_state = _State()


def urandom(size: int) -> bytes:
    text = _urandom(size)
    if _state.is_watching:
        _note(text, sys._getframe(1))
    return text


urandom.__doc__ = _urandom.__doc__


def _exchange_urandom(function: Any) -> None:
    """`secrets` and `random.SystemRandom` have a name of their own for it. What the program has replaced stays."""
    for module, name in ((os, "urandom"), (random, "_urandom")):
        now = getattr(module, name, None)
        if now is _urandom or now is urandom:
            setattr(module, name, function)


def watch() -> None:
    """Before the imports of a template, and before anything notes who asks for variables."""
    _state.is_watching = True
    _state.began_ns = time.time_ns()
    _state.variables = frozenset(os.environ.values())
    _exchange_urandom(urandom)


def unwatch() -> None:
    _state.is_watching = False
    _exchange_urandom(_urandom)


def is_watching() -> bool:
    """Whether a template imports. A module may keep a function that is replaced meanwhile, and call it in a worker."""
    return _state.is_watching


def numbers() -> Set[int]:
    """What was taken, as numbers that are long enough to be known."""
    return {one for one in _taken if isinstance(one, int) and is_long(one)}


def forget() -> None:
    """After the imports."""
    _taken.clear()
    _short.clear()
    _state.total = 0
    origins.forget()


def is_long(number: int) -> bool:
    return number.bit_length() > 8 * (LENGTH_MIN - 1)


def is_of_the_system(seed: Any, parents: List[random.Random]) -> bool:
    """Whether a program has this seed from the system. `parents` are generators that the system has seeded, from which it may
    have drawn the seed. To be called when the program seeds: its frames are looked at."""
    if seed is None or _is_taken(seed) or _is_drawn(seed, parents) or is_now(seed):
        return True
    is_short, is_chosen = _is_short(seed), _is_chosen(seed)
    if is_chosen and not is_short:
        return False
    is_doubtful = is_chosen or (isinstance(seed, int) and seed in _SMALL_INTS)
    return (is_short and not is_doubtful) or origins.is_of_the_system(getattr(random, "_inst", None) in parents)


def is_known(seed: int) -> bool:
    """The same for a number of which only the value is known, after the imports."""
    if (seed >= _UNNAMED_MIN and seed in _short) or (is_long(seed) and _is_part(seed)):
        return True
    first, last = _state.began_ns - _SECOND_NS, time.time_ns()
    if first <= seed * _SECOND_NS <= last:
        return True
    return (seed - first // _MILLISECOND_NS) % _RANGE <= (last - first) // _MILLISECOND_NS


def _note(text: bytes, frame: FrameType) -> None:
    if len(text) > _LENGTH_MAX:
        return
    number = int.from_bytes(text, "big")
    if frame.f_code is _SYSTEM_BITS:
        asked = _asked_number(text, number, frame)
        if asked is not None:
            _note_asked(asked)
    elif len(text) <= LENGTH_MIN:
        # Four bytes may be a short number, too.
        texts = [text] if len(text) < LENGTH_MIN else []
        for one in (*texts, number, int.from_bytes(text, "little")):
            _note_asked(one)
    if len(text) <= _TOTAL_MAX - _state.total:
        _state.total += len(text)
        # `secrets.randbits` shifts out the bits that nobody asked for.
        _taken.update([text, text.hex(), int.from_bytes(text, "little"), *(number >> shift for shift in range(8))])
        if len(text) == _UUID_LENGTH:
            _taken.add(_of_uuid4(text))


def _note_asked(value: object) -> None:
    if isinstance(value, int) and is_long(value):
        _taken.add(value)
    elif len(_short) < _SHORT_MAX:
        _short.add(value)


def _of_uuid4(text: bytes) -> bytes:
    """RFC 4122, section 4.4: six bits say the version and the variant."""
    return text[:6] + bytes((text[6] & 0x0F | 0x40, text[7], text[8] & 0x3F | 0x80)) + text[9:]


def _asked_number(text: bytes, number: int, frame: FrameType) -> Optional[int]:
    """What `SystemRandom.getrandbits` makes of these bytes, and `randrange` and `randint` of that. None: it is the place of
    something that is chosen."""
    bits = frame.f_locals.get("k")
    if not isinstance(bits, int):
        return None
    number >>= 8 * len(text) - bits
    outer = frame.f_back
    for _ in range(2):
        if outer is None or outer.f_code.co_filename != frame.f_code.co_filename:
            break
        if outer.f_code.co_name in _CHOOSE:
            return None
        values = outer.f_locals
        if values.get("stop") is not None and "istart" in values:
            return int(values["istart"] + number * values.get("istep", 1))
        outer = outer.f_back
    return number


def _is_taken(seed: Any) -> bool:
    if isinstance(seed, (bytes, bytearray)):
        return len(seed) >= LENGTH_MIN and bytes(seed) in _taken
    if isinstance(seed, str):
        return (len(seed) >= LENGTH_MIN and seed in _taken) or any(_is_taken(one) for one in _numbers_of(seed))
    if isinstance(seed, float):
        return 0.0 < seed < 1.0 and int(seed * (1 << _FRACTION)) in _taken
    number = getattr(seed, "int", seed)  # a UUID, until Python 3.10
    return isinstance(number, int) and is_long(number) and (number in _taken or _is_part(number))


def _is_part(number: int) -> bool:
    """Whether a number is among the bytes: `uuid4().int % 2**32`, `int.from_bytes(os.urandom(16)[:8])`."""
    if number < 0 or number.bit_length() > 8 * _LENGTH_MAX:
        return False
    length = (number.bit_length() + 7) // 8
    ways = number.to_bytes(length, "big"), number.to_bytes(length, "little")
    return any(way in one for one in _taken if isinstance(one, bytes) for way in ways)


def _is_short(seed: Any) -> bool:
    if isinstance(seed, str):
        return any(one in _short for one in _numbers_of(seed) if isinstance(one, int))
    return isinstance(seed, (int, bytes)) and seed in _short


def _is_drawn(seed: Any, parents: List[random.Random]) -> bool:
    if isinstance(seed, str):
        return any(_is_drawn(one, parents) for one in _numbers_of(seed))
    if isinstance(seed, (bytes, bytearray)):
        seed = int.from_bytes(seed, "little") if len(seed) <= _LENGTH_MAX else 0  # as `randbytes` makes them
    if not isinstance(seed, float) and not (isinstance(seed, int) and seed > 0 and is_long(seed)):
        return False
    return any(drawn.is_among(seed, drawn.last_words(parent)) for parent in parents)


def is_now(seed: Any) -> bool:
    """Whether it is the present time in seconds or a part of them, also as a text or within numpy's range."""
    if isinstance(seed, str):
        return any(is_now(one) for one in _numbers_of(seed)) or _is_date_of_now(seed)
    if not isinstance(seed, (int, float)):
        stamp = getattr(seed, "timestamp", None)  # a datetime, until Python 3.10
        return callable(stamp) and type(seed).__module__ == "datetime" and is_now(stamp())
    now_ns = time.time_ns()
    units = (1, _MICROSECOND_NS, _MILLISECOND_NS, _SECOND_NS)
    if any(abs(seed * unit_ns - now_ns) < _NOW_NS for unit_ns in units):
        return True
    clocks = time.monotonic_ns(), time.perf_counter_ns()
    if isinstance(seed, float):
        return not seed.is_integer() and any(abs(seed * _SECOND_NS - clock) < _NOW_NS for clock in clocks)
    if is_long(seed) and any(abs(seed - clock) < _NOW_NS for clock in clocks):
        return True
    return seed < _RANGE and (now_ns // _MILLISECOND_NS - seed) % _RANGE < _NOW_NS // _MILLISECOND_NS


def _is_date_of_now(text: str) -> bool:
    """As `str(datetime.now())` and `isoformat()` have it. A day or an hour is not the present time: all processes have it."""
    module = namesakes.loaded("datetime")
    if module is None or len(text) < len("2026-01-01T00:00:00"):
        return False
    try:
        return is_now(module.datetime.fromisoformat(text).timestamp())
    except (ValueError, OverflowError):
        return False


def _numbers_of(text: str) -> Iterator[Any]:
    """The number that a text is, or ends with: `"123"`, `"job-0.25"`, `str(uuid4())`."""
    if len(text) > 2 * _LENGTH_MAX:
        return
    plain = text.replace("-", "")
    if len(plain) == 2 * _UUID_LENGTH:
        try:
            yield int(plain, 16)
        except ValueError:
            pass
    end = text
    for sign in "-_: /":
        end = end.rpartition(sign)[2]
    try:
        yield int(end) if end.isdecimal() else float(end)
    except ValueError:
        pass


def _is_chosen(seed: Any) -> bool:
    """Whether the program names it."""
    constants = (one for frame in opened.program_frames() for one in frame.f_code.co_consts)
    return str(seed) in _state.variables or any(_is_constant(seed, one) for one in constants)


def _is_constant(seed: Any, constant: Any) -> bool:
    if isinstance(constant, (tuple, frozenset)):
        return any(_is_constant(seed, one) for one in constant)
    return type(constant) is type(seed) and bool(constant == seed)
