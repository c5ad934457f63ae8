"""Files that a library knows by their number (device and inode), and of which a worker has a copy with another number.

SQLite keeps the locks of a process by this number, because a process does not see its own locks of fcntl(2)
(https://sqlite.org/src/file/src/os_unix.c, "Posix Advisory Locking"). It would not know that a connection of the import and one
of the worker have the same file: both could write at a time, and one would remove what the other has committed. HDF5 looks in
the same way for files that it has opened already, and would keep what it knows of the file twice.

A hook cannot change this without closing what the import opened, and nobody can see whether it does. So the template is not
forked, unless the program closes the file before the end of its imports.
"""

from __future__ import annotations

import gc
import os
import stat
import sys

from .fresh import ACCESS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, List, Tuple

    from .fresh import Descriptor

_KINDS = ((b"SQLite format 3\0", "SQLite"), (b"\x89HDF\r\n\x1a\n", "HDF5"))
_MAGIC_LEN = max(len(magic) for magic, _ in _KINDS)

# A file is empty, or consists of zeros, until the first transaction or flush. By module: the class of what has opened it.
_CONNECTIONS = {
    "_sqlite3": ("Connection", "SQLite"),
    "pysqlite3._sqlite3": ("Connection", "SQLite"),
    "apsw": ("Connection", "SQLite"),
    "h5py.h5f": ("FileID", "HDF5"),
}
_HAS_GC = 1 << 14  # Py_TPFLAGS_HAVE_GC


def opened(rows: List[Descriptor]) -> List[Tuple[str, str]]:
    """The path and the kind of each such file that is open for writing, and of which a worker has a copy."""
    found = set()
    for row in rows:
        if row.own_path() and stat.S_ISREG(row.mode) and row.flags & ACCESS == os.O_RDWR:
            kind = _kind(row)
            if kind:
                found.add((row.link, kind))
    return sorted(found)


def _kind(row: Descriptor) -> str:
    # Not with a descriptor of its own, whose close would release the locks of fcntl(2) that this process has on the file.
    try:
        begin = os.pread(row.number, _MAGIC_LEN, 0)
    except OSError:
        return ""  # it cannot be read
    if not begin.strip(b"\0"):
        return _kind_of_connections()
    return next((kind for magic, kind in _KINDS if begin.startswith(magic)), "")


def _kind_of_connections() -> str:
    """What may have opened an empty file."""
    for name, (attribute, kind) in _CONNECTIONS.items():
        connection: Any = getattr(sys.modules.get(name), attribute, None)
        if not isinstance(connection, type):
            continue
        # Before Python 3.10, the garbage collector does not know connections of SQLite. Then there may be one.
        if not connection.__flags__ & _HAS_GC or any(issubclass(type(one), connection) for one in gc.get_objects()):
            return kind
    return ""
