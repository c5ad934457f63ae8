"""One row of /proc/self/fd, and how a worker makes something new in its place. `descriptors.py` decides which rows need it."""

from __future__ import annotations

import os
import posix
import re
import select
import struct

from .. import kernel
from ..importing import namesakes
from . import sockets

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, List, Optional, Tuple

    Identity = Tuple[int, int]
    Numbers = List[Tuple[int, bool, Identity]]

ACCESS = os.O_RDONLY | os.O_WRONLY | os.O_RDWR
STATUS = os.O_APPEND | os.O_NONBLOCK | os.O_SYNC | os.O_DSYNC | os.O_DIRECT | os.O_NOATIME

_REGISTRATION = re.compile(r"tfd:\s*(\d+)\s+events:\s*([0-9a-f]+)\s+data:\s*([0-9a-f]+)(?:\s+pos:\S+\s+ino:([0-9a-f]+))?")

# What a worker sees there is an overlay over the template's files (crates/path/sandbox/src/init/folders.rs).
OWN_FOLDERS = ("/tmp/", "/dev/shm/")

# Of /proc/PID/fdinfo, from `lock_get_status` in the kernel's fs/locks.c.
_LOCK = re.compile(r"^lock:\s*\d+: (POSIX|OFDLCK|FLOCK)\s+\S+\s+(READ|WRITE)\s+\S+\s+\S+\s+(\d+) (\d+|EOF)$", re.MULTILINE)
_F_OFD_SETLK = 37

# eventlet and gevent take it out of the module at import.
_new_epoll = select.epoll

# CPython specialises bytecode after about eight runs, and inlined calls in it after eight more.
ROUNDS = 32


class Descriptor:
    """One row of /proc/self/fd."""

    __slots__ = ("number", "link", "mode", "size", "links", "identity", "flags", "position", "details")

    def __init__(self, number: int) -> None:
        self.number = number
        self.link = os.readlink(f"/proc/self/fd/{number}")
        status = os.fstat(number)
        self.mode, self.size, self.links = status.st_mode, status.st_size, status.st_nlink
        self.identity: Identity = (status.st_dev, status.st_ino)
        self.flags = self.position = 0
        self.details = ""
        with open(f"/proc/self/fdinfo/{number}", encoding="utf-8", errors="replace") as file:
            for line in file:
                key, _, value = line.partition(":")
                if key == "flags":
                    self.flags = int(value, 8)
                elif key == "pos":
                    self.position = int(value)
                else:
                    self.details += line

    def is_inheritable(self) -> bool:
        return not self.flags & os.O_CLOEXEC

    def own_path(self) -> str:
        """Where a worker finds its own copy of this file. Empty: it has none, or the file has no name."""
        return self.link if self.link.startswith(OWN_FOLDERS) and self.links else ""

    def detail(self, key: str, base: int = 10) -> int:
        found = re.search(rf"^{re.escape(key)}:\s*([0-9a-fA-F]+)", self.details, re.MULTILINE)
        return int(found.group(1), base) if found else 0


class Fresh:
    """Something that each worker makes for itself. `make` returns one descriptor for each group; the numbers of a group were
    duplicates of each other, and are so again. If it fails, the inherited ones stay, or become dead ones."""

    __slots__ = ("kind", "groups", "make", "is_kept", "is_pair", "has_effects")

    def __init__(self, kind: str, groups: List[List[Descriptor]], make: Callable[[], List[int]]) -> None:
        self.kind = kind
        self.groups = [[(one.number, one.is_inheritable(), one.identity) for one in group] for group in groups]
        self.make = make
        self.is_kept = False
        self.is_pair = False
        self.has_effects = False  # others would notice that it is made, or closed

    def carry_out(self) -> None:
        self._make_in_place_of(self.groups)

    def warm_up(self) -> None:
        """In the template: does the same with duplicates. A worker then copies fewer pages (`interfaces/warmup.py`)."""
        spare = [[(os.dup(number), False, found) for number, _, found in group[:1]] for group in self.groups]
        for _ in range(ROUNDS):
            self._make_in_place_of(spare)
            spare = [[(number, False, identity(number) or found) for number, _, found in group] for group in spare]
        for group in spare:
            for number, _, _ in group:
                posix.close(number)

    def _make_in_place_of(self, numbers: List[Numbers]) -> None:
        # The program's own functions after a fork have run. What they have closed or replaced is theirs.
        groups = [[one for one in group if identity(one[0]) == one[2]] for group in numbers]
        if not any(groups):
            return
        try:
            made = self.make()
        except OSError:
            if self.is_kept:
                return
            made = [sockets.dead(0) for _ in groups]
        for number, group in zip(made, groups):
            for old, is_inheritable, _ in group:
                os.dup2(number, old, is_inheritable)
            posix.close(number)


class Epoll:
    """An epoll(7) with what is registered in it. A child makes all of them before it registers, because one may wait for
    another."""

    __slots__ = ("number", "is_inheritable", "identity", "registered")

    def __init__(self, row: Descriptor) -> None:
        self.number, self.is_inheritable, self.identity = row.number, row.is_inheritable(), row.identity
        self.registered: List[Tuple[int, int, Optional[int]]] = []
        for number, events, data, inode in _REGISTRATION.findall(row.details):
            # If the descriptor is closed, or now another, it cannot be registered again.
            status = identity(int(number))
            if status is not None and (not inode or status[1] == int(inode, 16)):
                value = int(data, 16)
                is_plain = value & 0xFFFFFFFF == int(number)  # as Python and libuv do; what is above it is not used
                self.registered.append((int(number), int(events, 16), None if is_plain else value))


class Locks:
    """The locks that the import has taken with a descriptor of a file. A worker takes them of its own copy of that file."""

    __slots__ = ("number", "identity", "locks")

    def __init__(self, row: Descriptor) -> None:
        fcntl = namesakes.standard("fcntl")

        self.number, self.identity = row.number, row.identity
        self.locks = [
            (
                kind,
                fcntl.F_WRLCK if how == "WRITE" else fcntl.F_RDLCK,
                int(first),
                0 if last == "EOF" else int(last) - int(first) + 1,
            )
            for kind, how, first, last in _LOCK.findall(row.details)
        ]

    def take(self) -> None:
        """In a child, after all its descriptors were made: a close of one of them would release a lock of fcntl(2)."""
        fcntl = namesakes.standard("fcntl")

        if identity(self.number) == self.identity:
            return  # no copy: the file is the template's, which has the lock
        for kind, how, start, length in self.locks:
            try:
                if kind == "FLOCK":
                    fcntl.flock(self.number, (fcntl.LOCK_EX if how == fcntl.F_WRLCK else fcntl.LOCK_SH) | fcntl.LOCK_NB)
                else:
                    command = fcntl.F_SETLK if kind == "POSIX" else _F_OFD_SETLK
                    fcntl.fcntl(self.number, command, struct.pack("hhqqi4x", how, os.SEEK_SET, start, length, 0))
            except OSError:
                pass  # the program's own function after the fork has closed it


def make_epolls(epolls: List[Epoll]) -> None:
    """In a child, after everything that may be registered has been made."""
    made = []
    for one in epolls:
        if identity(one.number) == one.identity:
            epoll = _new_epoll()
            os.dup2(epoll.fileno(), one.number, one.is_inheritable)
            made.append((epoll, one))
    for epoll, one in made:
        for number, events, data in one.registered:
            try:
                if data is None:
                    epoll.register(number, events)
                else:
                    kernel.epoll_add(epoll.fileno(), number, events, data)
            except OSError:
                pass  # the program's own function after the fork has closed it
        epoll.close()


def warm_up_epolls(epolls: List[Epoll]) -> None:
    """As `Fresh.warm_up`."""
    if epolls:
        one = epolls[0]
        number = one.number
        one.number = os.dup(number)
        for _ in range(ROUNDS):
            make_epolls(epolls[:1])
        posix.close(one.number)
        one.number = number


def warm_up(plan: List[Fresh]) -> None:
    """Warms up one of each kind."""
    kinds = {fresh.kind: fresh for fresh in plan if not fresh.has_effects}
    for fresh in kinds.values():
        try:
            fresh.warm_up()
        except OSError:
            pass  # the limit of open files


def numbers() -> List[int]:
    try:
        return sorted(int(name) for name in os.listdir("/proc/self/fd"))
    except OSError:
        return []  # no /proc: nothing can be known


def identity(number: int) -> Optional[Identity]:
    try:
        status = os.fstat(number)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def duplicates(rows: List[Descriptor]) -> List[List[Descriptor]]:
    """Groups the numbers that dup(2) made: they share their position, and must continue to."""
    groups: List[List[Descriptor]] = []
    for row in rows:
        for group in groups:
            if group[0].identity == row.identity and _is_duplicate(group[0], row):
                group.append(row)
                break
        else:
            groups.append([row])
    return groups


def _is_duplicate(first: Descriptor, second: Descriptor) -> bool:
    """Whether a flag of the open file description that is changed through one number is seen through the other."""
    if (first.flags ^ second.flags) & ~os.O_CLOEXEC or first.position != second.position:
        return False
    was_blocking = os.get_blocking(first.number)
    os.set_blocking(first.number, not was_blocking)
    is_duplicate = os.get_blocking(second.number) != was_blocking
    os.set_blocking(first.number, was_blocking)
    return is_duplicate


def file_maker(row: Descriptor) -> Callable[[], List[int]]:
    path = f"/proc/self/fd/{row.number}"
    # A worker has a copy of what the template wrote there. The inherited descriptor belongs to the original.
    own_path = row.own_path()
    flags = row.flags & (ACCESS | STATUS) | os.O_CLOEXEC | os.O_NOCTTY
    position = row.position

    def make() -> List[int]:
        try:
            number = os.open(own_path or path, flags)
        except OSError:
            if not own_path:
                raise
            number = os.open(path, flags)
        if position:
            os.lseek(number, position, os.SEEK_SET)
        return [number]

    return make


def pair_maker(
    pair: Callable[[], Tuple[int, int]], to_first: bytes, to_second: bytes, blocking: List[bool]
) -> Callable[[], List[int]]:
    """Both ends, with what waited in them."""

    def make() -> List[int]:
        first, second = pair()
        os.set_blocking(first, False)
        os.set_blocking(second, False)
        if to_first:
            os.write(second, to_first)
        if to_second:
            os.write(first, to_second)
        os.set_blocking(first, blocking[0])
        os.set_blocking(second, blocking[1])
        return [first, second]

    return make


def one_maker(make: Callable[[], int]) -> Callable[[], List[int]]:
    return lambda: [make()]
