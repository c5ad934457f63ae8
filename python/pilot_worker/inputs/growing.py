"""Inputs that still arrive: a buffer that is read as far as it is filled, and a socket that says how far.

See PROTOCOL.md, section 1, "Inputs that still arrive". Imported only if there is one. `view()`, `map()` and paths wait for the
whole input, so that they are never short. `Reader` is the file that does not wait for more than it is asked for.
"""

from __future__ import annotations

import io
import os
import posix
import struct
import threading

from .received import Input, InputError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import mmap
    from typing import Any, Dict, Optional

_MESSAGE = struct.Struct("<BQ")
_THERE, _WHOLE, _FAILED = range(3)
_READ_LEN = 4096


class BrokenInput(InputError, OSError):
    """An input that the worker could read while it arrived, and that did not arrive as a whole. The text says why."""


class Growing(Input):
    """An input that still arrives. Threads may use it at the same time."""

    __slots__ = ("_length", "_progress", "_there", "_has_all", "_problem", "_unread", "_news", "_is_listening", "_process")

    is_whole = False

    def __init__(self, name: str, length: Optional[int], descriptor: int, store: Optional[Dict[str, Any]] = None) -> None:
        self._progress = -1  # before anything that may fail: `__del__` needs both
        self._descriptor = descriptor
        self.name = name
        self.kind = "memory"
        self.store = store
        self.invocation = ""
        self.mapped = None
        self._view = None
        self._length = length  # as announced
        self._there = 0
        self._has_all = False
        self._problem = ""
        self._unread = bytearray()  # a part of a message
        self._news = threading.Condition()
        self._is_listening = False  # one thread listens for all
        self._process = os.getpid()

    def follow(self, progress: int) -> None:
        """From now on this descriptor says how much is there. It is this object's."""
        self._progress = progress

    @property
    def size(self) -> int:  # type: ignore[override]  # an attribute of inputs that are whole
        """Its length, bytes. If the store has not announced it: waits for the whole."""
        return self.wait() if self._length is None else self._length

    def wait(self, count: Optional[int] = None) -> int:
        """Waits until so many bytes are there, or all; without a number, for all. Returns how many are there.

        BrokenInput: they will not be."""
        if self._has_all or (count is not None and self._there >= count):
            return self._there
        with self._news:
            while not self._has_all and (count is None or self._there < count):
                if self._problem:
                    raise BrokenInput(f"input {self.name!r}: {self._problem}")
                if os.getpid() != self._process:
                    # It would take messages away from the one that was invoked.
                    problem = "a forked process cannot wait for it: wait before the fork, with context.inputs.path()"
                    raise BrokenInput(f"input {self.name!r}: {problem}")
                if self._is_listening:
                    self._news.wait()
                    continue
                self._is_listening = True
                self._news.release()
                try:
                    self._listen()
                finally:
                    self._news.acquire()
                    self._is_listening = False
                    self._news.notify_all()
        return self._there

    def _listen(self) -> None:
        news = os.read(self._progress, _READ_LEN)
        self._unread += news
        if not news:
            self._problem = "it was still on its way when the invocation ended"
        at = 0
        while len(self._unread) - at >= _MESSAGE.size:
            kind, value = _MESSAGE.unpack_from(self._unread, at)
            if kind == _FAILED:
                text = self._unread[at + _MESSAGE.size :]
                if len(text) >= value:
                    self._problem = text[:value].decode(errors="replace")
                break
            self._there = max(self._there, value)
            self._has_all = kind == _WHOLE
            at += _MESSAGE.size
        del self._unread[:at]

    def whole(self) -> None:
        self.wait()

    def map(self) -> mmap.mmap:
        self.wait()
        return super().map()

    def piece(self, start: int, end: int) -> bytes:
        self.wait(end)
        return os.pread(self._descriptor, max(min(end, self._there) - start, 0), start)

    def __del__(self) -> None:
        if self._progress >= 0:
            posix.close(self._progress)
        super().__del__()

    def __repr__(self) -> str:
        length = "unknown" if self._length is None else self._length
        return f"Input(name={self.name!r}, kind='memory', size={length}, there={self._there})"


class Reader(io.RawIOBase):
    """A file over an input that still arrives. It waits for the bytes that are asked for, and no longer. Use it buffered."""

    def __init__(self, given: Growing) -> None:
        self._given = given
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._check()
        with memoryview(buffer) as view, view.cast("B") as into:
            if not into:
                return 0
            there = self._given.wait(self._at + 1)
            count = max(min(len(into), there - self._at), 0)
            with into[:count] as part:
                count = os.preadv(self._given.fileno(), [part], self._at) if count else 0
        self._at += count
        return count

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._check()
        if whence == os.SEEK_CUR:
            offset += self._at
        elif whence == os.SEEK_END:
            offset += self._given.size
        elif whence != os.SEEK_SET:
            raise ValueError(f"whence is {whence}, must be 0, 1 or 2")
        if offset < 0:
            raise ValueError(f"the position would be {offset}")
        self._at = offset
        return offset

    def tell(self) -> int:
        self._check()
        return self._at

    def _check(self) -> None:
        if self.closed:
            raise ValueError("I/O operation on closed file")
