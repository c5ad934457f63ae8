"""Gives every forked child its own randomness (PROTOCOL.md, section 3, step 5).

Only what a fork really shares, and only in modules that are loaded. What need not be secret is renewed in the template just
before it forks, where no page has to be copied for it; secrets are renewed in the child, because siblings inherit the
template's memory. Left out on purpose: `random` (it reseeds itself with os.register_at_fork), `secrets`, `uuid.uuid4` and
`numpy.random.default_rng()` (they ask the kernel each time). Generators that user code made at import are its own business:
that is what `register_after_restore` is for.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_RANDOM_NODE_BIT = 1 << 40  # uuid sets it in a node that it made up, RFC 4122 section 4.5
_MT19937_WORDS = 624


def before_fork() -> None:
    modules = sys.modules
    uuid = modules.get("uuid")
    if uuid is not None:
        _reseed_uuid(uuid)
    tempfile: Any = modules.get("tempfile")
    if tempfile is not None:
        tempfile._name_sequence = None  # it goes by the process id, which in namespaces may be the same
    mtrand = modules.get("numpy.random.mtrand")
    if mtrand is not None:
        _reseed_numpy(mtrand)


def in_child() -> None:
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
