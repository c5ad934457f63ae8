"""Memory and files that have no name, which the workers of one template would share: `mmap.mmap(-1, n)`, the values, arrays and
locks of `multiprocessing`, memfds, temporary files.

Separate processes would each have their own. So each worker gets a copy with the content of the end of the imports. It is
mapped shared again at the same address, because a worker's own children share it with the worker. What is large stays shared,
and is reported.

What has a name is in `/tmp` or `/dev/shm`, if it can be written: `numpy.memmap`, the index of SQLite's WAL, a segment of
`shared_memory`. A worker has its own copy of that file (`fresh.py`), and maps it in the place of the template's.
"""

from __future__ import annotations

import ctypes
import os
import posix
import stat

from .. import kernel
from ..importing import namesakes
from .fresh import ACCESS, OWN_FOLDERS, ROUNDS, STATUS, identity

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Dict, List, Set, Tuple

    from .fresh import Descriptor, Identity

    Say = Callable[[str, str, str], None]

EACH_MAX = 8 << 20
ALL_MAX = 32 << 20

_PAGE = 4096
_ZEROS = bytes(_PAGE)
_DELETED = " (deleted)"
_MAGIC_OF_LMDB = 0xBEEFC0DE.to_bytes(4, "little")
_F_GET_SEALS = 1034
_F_SEAL_WRITE = 8
_PROT_READ, _PROT_WRITE, _PROT_EXEC = 1, 2, 4


class _Mapping:
    """One line of /proc/self/maps."""

    __slots__ = ("address", "length", "protection", "offset", "file", "name")

    def __init__(self, line: str) -> None:
        area, permissions, offset, device, inode, *name = line.rstrip("\n").split(None, 5)
        start, end = (int(number, 16) for number in area.split("-"))
        major, minor = (int(number, 16) for number in device.split(":"))
        self.address, self.length, self.offset = start, end - start, int(offset, 16)
        self.protection = (
            _PROT_READ * (permissions[0] == "r") | _PROT_WRITE * (permissions[1] == "w") | _PROT_EXEC * (permissions[2] == "x")
        )
        self.file: Identity = (os.makedev(major, minor), int(inode))
        self.name = name[0] if name else ""


class _Copy:
    """What was a file or a segment: its content, where it is mapped, and its descriptors."""

    def __init__(self) -> None:
        self.size = 0
        self.pages: List[Tuple[int, bytes]] = []
        self.mappings: List[_Mapping] = []
        self.groups: List[Tuple[int, int, List[Tuple[int, bool, Identity]]]] = []  # flags, position, numbers

    def read(self, offset: int, text: bytes) -> None:
        """Pages of zeros are left out."""
        begin = -1
        for at in range(0, len(text), _PAGE):
            is_empty = text[at : at + _PAGE] == _ZEROS[: len(text) - at]
            if not is_empty and begin < 0:
                begin = at
            if is_empty and begin >= 0:
                self.pages.append((offset + begin, text[begin:at]))
                begin = -1
        if begin >= 0:
            self.pages.append((offset + begin, text[begin:]))

    def make(self) -> None:
        """In a worker. A failure ends it, because it would otherwise write into what its siblings read."""
        memory = os.memfd_create("import", os.MFD_CLOEXEC)
        os.ftruncate(memory, self.size)
        for offset, text in self.pages:
            os.pwrite(memory, text, offset)
        for one in self.mappings:
            kernel.map_shared(one.address, one.length, one.protection, memory, one.offset)
        for flags, position, numbers in self.groups:
            alive = [(number, is_inheritable) for number, is_inheritable, found in numbers if identity(number) == found]
            if alive:
                again = os.open(f"/proc/self/fd/{memory}", flags | os.O_CLOEXEC)
                os.lseek(again, position, os.SEEK_SET)
                for number, is_inheritable in alive:
                    os.dup2(again, number, is_inheritable)
                posix.close(again)
        posix.close(memory)


class _Named:
    """A file of the own folders, with where it is mapped."""

    def __init__(self, mappings: List[_Mapping]) -> None:
        self.path, self.mappings = mappings[0].name, mappings

    def make(self) -> None:
        """In a worker. A failure ends it, as above."""
        # Only an open for writing makes the overlay copy the file. A mapping made before would not see what is written later.
        number = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        for one in self.mappings:
            kernel.map_shared(one.address, one.length, one.protection, number, one.offset)
        posix.close(number)


class _State:
    def __init__(self) -> None:
        self.copies: List[_Copy] = []
        self.named: List[_Named] = []
        self.covered: Set[Identity] = set()


_state = _State()


def has_work() -> bool:
    return bool(_state.copies or _state.named)


def covers(file: Identity) -> bool:
    """Whether the descriptors of this file are made again here."""
    return file in _state.covered


def indexes_of_sqlite() -> List[str]:
    """The databases of the own folders whose connections have an index in shared memory, as those in WAL mode do."""
    end = "-shm"
    names = {one.name for one in _shared_mappings() if one.name.startswith(OWN_FOLDERS) and one.name.endswith(end)}
    return sorted(name[: -len(end)] for name in names if os.path.exists(name[: -len(end)]))


def locks_of_lmdb(rows: List[Descriptor]) -> List[str]:
    """The lock files of LMDB's environments that are open (`struct MDB_txninfo` in mdb.c)."""
    names = set()
    for row in rows:
        if row.link.endswith(("/lock.mdb", "-lock")) and stat.S_ISREG(row.mode):
            try:
                if os.pread(row.number, len(_MAGIC_OF_LMDB), 0) == _MAGIC_OF_LMDB:
                    names.add(row.link)
            except OSError:
                pass  # it cannot be read
    return sorted(names)


def settle(groups: List[List[Descriptor]], say: Say) -> None:
    """In a template, after the imports. `groups` are the descriptors of regular files. Those of a group share a position."""
    _state.copies, _state.named, _state.covered = [], [], set()
    mappings: Dict[Identity, List[_Mapping]] = {}
    named: Dict[Identity, List[_Mapping]] = {}
    for one in _shared_mappings():
        if one.name.startswith("/SYSV"):
            if one.protection & _PROT_WRITE:
                say("", f"mapped the shared memory {one.name} at import", "all workers share it")
        elif one.name.endswith(_DELETED):
            mappings.setdefault(one.file, []).append(one)
        elif one.name.startswith(OWN_FOLDERS):
            named.setdefault(one.file, []).append(one)
    files: Dict[Identity, List[List[Descriptor]]] = {}
    for group in groups:
        if group[0].links == 0 and not any("lock:" in row.details for row in group):
            files.setdefault(group[0].identity, []).append(group)
    room = ALL_MAX
    for file, mapped in named.items():
        if not _is_writable(mapped, [group for group in groups if group[0].identity == file]):
            continue  # nobody can change it, so the pages stay shared
        length = _length(mapped)
        if length < 0 or length > min(EACH_MAX, room):
            say("", f"mapped {mapped[0].name} at import", "all workers share this memory")
            continue
        room -= length
        _state.named.append(_Named(mapped))
    for file in {**mappings, **files}:
        mapped, opened = mappings.get(file, []), files.get(file, [])
        if not _is_writable(mapped, opened):
            continue
        copy = _Copy()
        ends = [one.offset + one.length for one in mapped]
        copy.size = opened[0][0].size if opened else max(ends)
        span = max([copy.size, *ends])
        if span > min(EACH_MAX, room) or not _take(copy, mapped, opened):
            size = f"{span >> 20} MiB" if span >> 20 else f"{span >> 10} KiB"
            say("", f"has {size} of shared memory without a name since its import", "all workers share it")
            continue
        room -= span
        _state.copies.append(copy)
        _state.covered.add(file)
    if _state.copies:
        _warm_up()


def in_child() -> None:
    for copy in _state.copies:
        copy.make()
    for named in _state.named:
        named.make()


def _warm_up() -> None:
    """In the template, as `Fresh.warm_up`: with a page of its own."""
    mmap = namesakes.standard("mmap")
    with mmap.mmap(-1, _PAGE) as page:
        copy = _Copy()
        copy.size = _PAGE
        copy.read(0, b"x")
        start = ctypes.addressof(ctypes.c_char.from_buffer(page))
        copy.mappings = [_Mapping(f"{start:x}-{start + _PAGE:x} rw-s 0 0:0 0")]
        for _ in range(ROUNDS):
            copy.make()


def _take(copy: _Copy, mapped: List[_Mapping], opened: List[List[Descriptor]]) -> bool:
    """Reads the content. False: it cannot be read, or contains code."""
    if any(one.protection & _PROT_EXEC or not one.protection & _PROT_READ for one in mapped):
        return False
    copy.mappings = mapped
    for group in opened:
        row = group[0]
        numbers = [(each.number, not each.flags & os.O_CLOEXEC, each.identity) for each in group]
        copy.groups.append((row.flags & (ACCESS | STATUS & ~(os.O_DIRECT | os.O_NOATIME)), row.position, numbers))
    if not opened:
        for one in mapped:
            copy.read(one.offset, ctypes.string_at(one.address, one.length))
        return True
    try:
        number = os.open(f"/proc/self/fd/{opened[0][0].number}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        at = 0
        while at < copy.size:
            text = os.pread(number, copy.size - at, at)
            if not text:
                break
            copy.read(at, text)
            at += len(text)
    except OSError:
        return False
    finally:
        posix.close(number)
    return True


def _length(mapped: List[_Mapping]) -> int:
    """The length of the file at the path of these mappings. -1: it is another file, or cannot be opened, or contains code."""
    path = mapped[0].name
    try:
        status = os.stat(path)
    except OSError:
        return -1
    if (status.st_dev, status.st_ino) != mapped[0].file or not os.access(path, os.R_OK | os.W_OK):
        return -1
    return -1 if any(one.protection & _PROT_EXEC for one in mapped) else status.st_size


def _is_writable(mapped: List[_Mapping], opened: List[List[Descriptor]]) -> bool:
    if any(one.protection & _PROT_WRITE for one in mapped):
        return True
    return any(group[0].flags & ACCESS != os.O_RDONLY and not _is_sealed(group[0].number) for group in opened)


def _is_sealed(number: int) -> bool:
    fcntl = namesakes.standard("fcntl")
    try:
        return bool(fcntl.fcntl(number, _F_GET_SEALS) & _F_SEAL_WRITE)
    except OSError:
        return False  # not a memfd


def _shared_mappings() -> List[_Mapping]:
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as file:
            return [_Mapping(line) for line in file if line.split(None, 2)[1][3] == "s"]
    except OSError:
        return []
