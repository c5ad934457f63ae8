"""Gives every forked child its own randomness (PROTOCOL.md, section 3, step 5).

Only what a fork really shares, and only in modules that are loaded. What is made afresh on demand is taken away in the
template before it forks, where no page has to be copied for it; the state of `random` and of numpy's global generator is filled
by the native loop in each child (`before_native_forks`), or here when the fork is Python's; secrets are renewed in the child,
because siblings inherit the template's memory. Left out on purpose: `secrets`, `uuid.uuid4` and `numpy.random.default_rng()`
(they ask the kernel each time). Generators that user code made at import are its own business: that is what
`register_after_restore` is for.
"""

from __future__ import annotations

import ctypes
import os
import random
import struct
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, List, Optional, Tuple

_RANDOM_NODE_BIT = 1 << 40  # uuid sets it in a node that it made up, RFC 4122 section 4.5
_MT19937_WORDS = 624

# Set where a child must not rely on its template for `random`.
_is_random_reseeded_in_child = [False]


def before_fork() -> None:
    """For a single fork."""
    before_forks()
    mtrand = sys.modules.get("numpy.random.mtrand")
    if mtrand is not None:
        _reseed_numpy(mtrand)


def before_forks() -> None:
    """For any number of forks: what is made afresh on demand is taken away."""
    modules = sys.modules
    uuid = modules.get("uuid")
    if uuid is not None:
        _reseed_uuid(uuid)
    tempfile: Any = modules.get("tempfile")
    if tempfile is not None:
        tempfile._name_sequence = None  # it goes by the process id, which in namespaces may be the same


def before_native_forks() -> List[Tuple[int, int]]:
    """For forks that a child leaves without Python: memory (address, length) to be filled with randomness in each child."""
    before_forks()
    regions = []
    for region in (_random_region(), _numpy_region()):
        if region is not None:
            regions.append(region)
    return regions


def _random_region() -> Optional[Tuple[int, int]]:
    """The state of `random`'s generator, at its end so that the next number is made from new words. Where it lies is looked up
    by its content; when it is not found there (another implementation), it is reseeded as it does by itself."""
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
    """The same of numpy's legacy global generator; numpy says where it lies."""
    legacy: Any = getattr(sys.modules.get("numpy.random.mtrand"), "_rand", None)
    if legacy is None:
        return None
    try:
        state = legacy.get_state(legacy=False)
        state["state"]["pos"] = _MT19937_WORDS
        state["has_gauss"] = 0  # half of a pair of normal numbers, which siblings would share
        legacy.set_state(state)
        return legacy._bit_generator.ctypes.state_address, 4 * _MT19937_WORDS
    except (AttributeError, KeyError, TypeError):
        return None  # not the generator that numpy begins with: the user's business


def after_fork() -> None:
    """In the child of a single fork."""
    random.seed()


def in_child() -> None:
    if _is_random_reseeded_in_child[0]:
        random.seed()
    ssl = sys.modules.get("_ssl")
    if ssl is not None:
        # OpenSSL notices a fork by a changed process id. In process id namespaces parent and child can have the same one.
        ssl.RAND_add(os.urandom(32), 0.0)
    process = sys.modules.get("multiprocessing.process")
    if process is not None:
        process.current_process().authkey = os.urandom(32)


def _reseed_uuid(uuid: Any) -> None:
    for name in ("_last_timestamp", "_last_timestamp_v6", "_last_timestamp_v7"):
        if getattr(uuid, name, None) is not None:
            setattr(uuid, name, None)
    node = getattr(uuid, "_node", None)
    if node is not None and node & _RANDOM_NODE_BIT:
        uuid._node = None  # a real hardware address stays: looking it up starts processes


def _reseed_numpy(mtrand: object) -> None:
    """The legacy global generator (`numpy.random.rand` and so on). The key is set directly: numpy's own seed() costs more."""
    legacy = getattr(mtrand, "_rand", None)
    frombuffer = getattr(sys.modules.get("numpy"), "frombuffer", None)
    if legacy is None or frombuffer is None:
        return
    legacy.set_state(("MT19937", frombuffer(os.urandom(4 * _MT19937_WORDS), "uint32"), _MT19937_WORDS, 0, 0.0))
