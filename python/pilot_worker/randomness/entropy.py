"""Gives every forked child its own randomness (PROTOCOL.md, section 3, step 5).

This covers only state that a fork really shares, and only in loaded modules:

- State that is created again on demand is removed in the template before it forks. That copies no page in the child.
- The native loop fills the state of `random` and of numpy's global generator in each child (`before_native_forks`). If Python
  forks, this file does it.
- Secrets are renewed in the child, because all children inherit the template's memory.
- Generators that user code created at import are in `generators.py`. What the program seeded itself keeps its state, here too.

Not covered, because they ask the kernel each time: `secrets`, `uuid.uuid4` and the like. Libraries with generators in machine
code (OpenSSL) notice the fork by the process id, which the daemon makes different from the template's.
"""

from __future__ import annotations

import ctypes
import os
import random
import struct
import sys

from ..importing import namesakes
from . import generators

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, List, Optional, Tuple

_RANDOM_NODE_BIT = 1 << 40  # uuid sets this bit in a random node, RFC 4122 section 4.5
_MT19937_WORDS = 624
_SQLITE_MODULES = ("_sqlite3", "pysqlite3._sqlite3")

# Set if the native loop cannot fill the state of `random`, so that a child must reseed it.
_is_random_reseeded_in_child = [False]


class _State:
    renew: Optional[Callable[[], None]] = None  # what a child calls; None spares it the pages of `generators.py`
    # `_ssl` and `multiprocessing.process`, if they are loaded. Looked up before a fork.
    ssl: Any = None
    process: Any = None


_state = _State()


def before_fork() -> None:
    """Called before a single fork."""
    before_forks()
    legacy = _numpy_global()
    if legacy is not None:
        _reseed_numpy(legacy)


def before_forks() -> None:
    """Called before any number of forks: removes state that is created again on demand."""
    _state.renew = generators.renew if generators.has_work() else None
    _state.ssl = namesakes.loaded("_ssl")
    _state.process = namesakes.loaded("multiprocessing.process")
    uuid = namesakes.loaded("uuid")
    if uuid is not None:
        _reseed_uuid(uuid)
    tempfile: Any = namesakes.loaded("tempfile")
    if tempfile is not None:
        tempfile._name_sequence = None  # it depends on the process id, which may be the same in two namespaces
    _reset_sqlite()
    _make_openssl_generators()


def before_native_forks() -> List[Tuple[int, int]]:
    """For forks of the native loop: the memory (address, length) that the loop must fill with random bytes in each child."""
    before_forks()
    regions = []
    for region in (_random_region(), _numpy_region()):
        if region is not None:
            regions.append(region)
    return regions


def _random_region() -> Optional[Tuple[int, int]]:
    """The state of `random`'s generator, set to its end so that the next number uses new words. The address is found by
    searching for the content. If it is not found (another implementation), the generator is reseeded in its usual way."""
    if generators.is_global_seeded():
        return None
    generator = random._inst
    version, words, _gauss = generator.getstate()
    generator.setstate((version, (*words[:-1], _MT19937_WORDS), None))
    state = struct.pack("=624I", *words[:-1])
    found = ctypes.string_at(id(generator), generator.__sizeof__()).find(state)
    if found < 0:
        _is_random_reseeded_in_child[0] = True
        return None
    return id(generator) + found, len(state)


def _numpy_region() -> Optional[Tuple[int, int]]:
    """The same for numpy's legacy global generator. numpy provides the address."""
    legacy = _numpy_global()
    if legacy is None:
        return None
    try:
        state = legacy.get_state(legacy=False)
        state["state"]["pos"] = _MT19937_WORDS
        state["has_gauss"] = 0  # one half of a pair of normal numbers, which all children would share
        legacy.set_state(state)
        return legacy._bit_generator.ctypes.state_address, 4 * _MT19937_WORDS
    except (AttributeError, KeyError, TypeError):
        return None  # not numpy's original generator: user code replaced it and must reseed it


def after_fork() -> None:
    """Called in the child of a single fork."""
    if not generators.is_global_seeded():
        random.seed()


def has_work() -> bool:
    """Whether `in_child` would do anything, in children of the native loop. Asked after `before_native_forks`."""
    has_state = _state.ssl is not None or _state.process is not None
    return has_state or _is_random_reseeded_in_child[0] or _state.renew is not None


def in_child() -> None:
    if _is_random_reseeded_in_child[0]:
        random.seed()
    if _state.ssl is not None:
        # OpenSSL detects a fork by a changed process id. With PID namespaces, parent and child can have the same id.
        _state.ssl.RAND_add(os.urandom(32), 0.0)
    if _state.process is not None:
        _state.process.current_process().authkey = os.urandom(32)
    if _state.renew is not None:
        _state.renew()


def _make_openssl_generators() -> None:
    """OpenSSL makes its generators, and looks for their algorithms, when they are first used. `in_child` uses them: in a child,
    it takes 2 ms and 170 pages. It seeds the first one anew; the others notice that before their next use (EVP_RAND(7))."""
    if _state.ssl is not None:
        try:
            _state.ssl.RAND_bytes(1)
        except Exception:  # this OpenSSL is set up in a way of its own; a child has the same error where it matters
            pass


def _leave_libuuid(uuid: Any, made: bytes) -> None:
    """libuuid keeps its node and its clock sequence until the process ends, so workers would differ only by the time. Python's
    own way takes a sequence for each UUID, and a node for each process if the machine has none."""
    uuid._generate_time_safe = None
    uuid._GETTERS = []  # they would start processes to find a node
    node = int.from_bytes(made[10:], "big")
    if uuid._node is None and not node & _RANDOM_NODE_BIT:
        uuid._node = node


def _reseed_uuid(uuid: Any) -> None:
    made = generators.uuid_of_libuuid()
    if made is not None:
        _leave_libuuid(uuid, made)
    for name in ("_last_timestamp", "_last_timestamp_v6", "_last_timestamp_v7"):
        if getattr(uuid, name, None) is not None:
            setattr(uuid, name, None)
    node = getattr(uuid, "_node", None)
    if node is not None and node & _RANDOM_NODE_BIT:
        uuid._node = None  # a real hardware address is kept, because looking it up starts processes


def _reset_sqlite() -> None:
    """SQLite has one generator per process: `random()`, `randomblob()`. It notices a new process id only when it opens a file.
    After a reset it takes a seed from the system for the next number (https://sqlite.org/c3ref/randomness.html)."""
    for name in _SQLITE_MODULES:
        file = getattr(sys.modules.get(name), "__file__", None)
        try:
            if file:
                reset = ctypes.CDLL(file).sqlite3_randomness  # of the library that the module is linked with
                reset.argtypes, reset.restype = (ctypes.c_int, ctypes.c_void_p), None
                reset(0, None)
        except (AttributeError, OSError):
            pass  # it is part of the module, which does not show it
    reset_apsw = getattr(sys.modules.get("apsw"), "randomness", None)
    if reset_apsw is not None:
        reset_apsw(0)


def _numpy_global() -> Any:
    """The generator behind `numpy.random.rand` and so on, unless there is none or the program has seeded it."""
    legacy = getattr(sys.modules.get("numpy.random.mtrand"), "_rand", None)
    return None if legacy is None or generators.is_numpy_global_seeded(legacy) else legacy


def _reseed_numpy(legacy: Any) -> None:
    """The key is set directly: numpy's seed() is slower."""
    frombuffer = getattr(sys.modules.get("numpy"), "frombuffer", None)
    if frombuffer is None:
        return
    legacy.set_state(("MT19937", frombuffer(os.urandom(4 * _MT19937_WORDS), "uint32"), _MT19937_WORDS, 0, 0.0))
