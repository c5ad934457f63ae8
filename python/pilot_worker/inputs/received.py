"""One input that an invocation has received. `__init__.py` makes it; `growing.py` and `decoded.py` have other kinds of it."""

from __future__ import annotations

import os
import posix
import socket

from ..importing import namesakes

TYPE_CHECKING = False
if TYPE_CHECKING:
    import mmap
    from typing import Any, Dict, Optional

MESSAGE_PREFIX = "init."  # no input that a user declares has a dot in its name (PROTOCOL.md)

# Learns which inputs with a store begin and end, if the function has drop-ins (`drop_ins/__init__.py`).
watcher: Any = None


class Input:
    """One input. It closes its descriptor when nobody refers to it any more."""

    __slots__ = ("name", "kind", "size", "store", "invocation", "mapped", "_descriptor", "_view")

    is_whole = True  # False: it is a `growing.Growing`, also when all of it is there
    by = ""  # its decoder: then it is a `decoded.Decoded`

    def __init__(self, name: str, kind: str, size: int, descriptor: int, store: Optional[Dict[str, Any]] = None) -> None:
        self.name = name
        self.kind = kind  # "memory", "socket" or "body"
        self.size = size  # of memory, bytes; otherwise 0
        self.store: Any = store  # where it is, as clients of its store name it (PROTOCOL.md), or None
        self.invocation = ""  # the id of the request that has it, for drop-ins
        self.mapped: Optional[mmap.mmap] = None  # by the last `map`
        self._descriptor = descriptor
        self._view: Optional[memoryview] = None

    def map(self) -> mmap.mmap:
        """The memory, read-only and without a copy. Memory of size 0 cannot be mapped: ValueError."""
        if self.kind != "memory":
            raise TypeError(f"input {self.name!r} is a {self.kind}: use socket()")
        memory = namesakes.standard("mmap")
        mapped: mmap.mmap = memory.mmap(self._descriptor, self.size, prot=memory.PROT_READ)
        self.mapped = mapped
        return mapped

    def view(self) -> memoryview:
        """The memory as a view, always the same one."""
        if self._view is None:
            self._view = memoryview(self.map() if self.size else b"")
        return self._view

    def whole(self) -> None:
        """Waits until all of it is there (`growing.py`)."""

    def piece(self, start: int, end: int) -> bytes:
        """A copy of these bytes of the memory. Fewer if it has fewer."""
        return bytes(self.view()[start:end])

    def socket(self) -> socket.socket:
        """A socket object of its own, to be closed by the caller."""
        if self.kind != "socket":
            raise TypeError(f"input {self.name!r} is {self.kind}: use map()")
        return socket.socket(fileno=os.dup(self._descriptor))

    def fileno(self) -> int:
        """The descriptor. It stays this object's."""
        return self._descriptor

    def detach(self) -> int:
        """The descriptor, which is the caller's from now on."""
        descriptor, self._descriptor = self._descriptor, -1
        return descriptor

    def __del__(self) -> None:
        if self._descriptor >= 0:
            posix.close(self._descriptor)

    def __repr__(self) -> str:
        return f"Input(name={self.name!r}, kind={self.kind!r}, size={self.size})"


class InputError(LookupError):
    """An optional input that could not be fetched. The text says why."""
