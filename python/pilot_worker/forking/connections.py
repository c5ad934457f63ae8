"""Which connections of the import a forked worker can do without.

Two processes must not use one connection, so a worker cannot inherit it. It can do without if the library connects again before
it sends the next request, and shows no error (`RECONNECT`, checked by tests/fidelity/test_connections.py). Every other
connection would stay dead in a worker. `lost` finds those. A template that has one is not forked: each worker imports the
module itself, and then has its own connections, as in a new process.

An `after_restore` hook says that the program expects to lose its connections. Then nothing counts as lost.
"""

from __future__ import annotations

import gc
import sys

from ..sdk import hooks
from . import opened, sockets

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Tuple

    from .fresh import Descriptor

    Lost = Tuple[Descriptor, str, str]

# The modules that call `connect` for libraries that connect again by themselves. `descriptors.py` closes the connections of
# http.client; the others look whether a connection has ended before they use it.
RECONNECT = frozenset(
    (
        "http.client",
        "httpcore._backends.sync",  # httpx
        "redis.connection",
        "urllib3.util.connection",  # requests, botocore
    )
)


def lost(rows: List[Descriptor]) -> List[Lost]:
    """The sockets among `rows` whose connection a forked worker would miss: what was opened, and why it would be missed."""
    connected = _connected(rows)
    if not connected or hooks.has_after_restore():
        return []
    in_use = _in_use()
    links_in_use = {row.link for row in rows if row.number in in_use}
    found: List[Lost] = []
    for row, one in connected:
        module = opened.libraries.get(row.link, "")
        library = module if module == "http.client" else module.partition(".")[0]
        what = f"opened {one.described()} at import"
        if library and not opened.descriptors.get(row.link, "").startswith((f"{library}.py:", f"{library}/")):
            what += f" with {library}"
        if module not in RECONNECT:
            found.append((row, what, "not known to reconnect by itself"))
        elif row.link in links_in_use or library in in_use:
            found.append((row, what, "its client keeps it" if library == "redis" else "a response was not read to its end"))
    return found


def _connected(rows: List[Descriptor]) -> List[Tuple[Descriptor, sockets.Socket]]:
    """One row for each connection."""
    found: Dict[str, Tuple[Descriptor, sockets.Socket]] = {}
    for row in rows:
        if row.link.startswith("socket:") and row.link not in found:
            try:
                one = sockets.Socket(row.number, row.identity[1])
            except OSError:
                continue
            if one.kind == sockets.CONNECTED:
                found[row.link] = (row, one)
    return list(found.values())


def _in_use() -> List[object]:
    """The numbers of the sockets on which a response is awaited or was not read to its end, or which a client keeps for itself.
    For httpx, whose connections do not tell their number: the name of the library."""
    checks: Dict[type, Callable[[Any], object]] = {}
    for (module, name), check in _EXCHANGES.items():
        kind = getattr(sys.modules.get(module), name, None)
        if kind is not None:
            checks[kind] = check
    found: List[object] = []
    for one in gc.get_objects() if checks else ():
        for kind, check in checks.items():
            try:
                # isinstance() would ask `__class__`, which runs code of lazy objects.
                use = check(one) if issubclass(type(one), kind) else None
            except Exception:  # an object with surprises: it has no response that could be read
                continue
            if isinstance(use, list):
                found.extend(use)
            elif use is not None:
                found.append(use)
    return found


def _number_of_request(connection: Any) -> object:
    is_idle = connection.sock is None or connection._HTTPConnection__state == "Idle"
    return None if is_idle else connection.sock.fileno()


def _number_of_response(response: Any) -> object:
    return None if response.isclosed() else response.fileno()


def _library_of_exchange(connection: Any) -> object:
    return None if connection.is_idle() or connection.is_closed() else "httpcore"


def _numbers_of_pool(pool: Any) -> object:
    """redis: a subscription or a client with `single_connection_client` keeps its connection, and does not look at it before it
    sends."""
    if hasattr(pool, "_connections"):  # of a BlockingConnectionPool, which notes only what it has at present
        kept = [one for one in pool._connections if not any(one is other for other in pool.pool.queue)]
    else:
        kept = list(pool._in_use_connections)
    return [one._sock.fileno() for one in kept if one._sock is not None]


_EXCHANGES: Dict[Tuple[str, str], Callable[[Any], object]] = {
    ("http.client", "HTTPConnection"): _number_of_request,
    ("http.client", "HTTPResponse"): _number_of_response,
    ("httpcore", "HTTP11Connection"): _library_of_exchange,
    ("httpcore", "HTTP2Connection"): _library_of_exchange,
    ("redis.connection", "ConnectionPool"): _numbers_of_pool,
}
