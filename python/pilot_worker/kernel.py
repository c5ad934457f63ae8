"""System calls that the standard library of some Python since 3.9 does not have: setns, prctl, capset, seccomp, eventfd and
others.

One function per call. A function raises OSError if the call fails. `forking/fork.py` decides which calls are made, and in
which order.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, List, Tuple

CLONE_NEWPID = 0x20000000

# linux/prctl.h
PR_SET_DUMPABLE = 4
PR_SET_KEEPCAPS = 8
PR_CAPBSET_READ = 23
PR_CAPBSET_DROP = 24
PR_SET_NO_NEW_PRIVS = 38
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_RAISE = 2
PR_CAP_AMBIENT_CLEAR_ALL = 4

# linux/capability.h
CAP_SETGID = 6
CAP_SETUID = 7
CAP_SETPCAP = 8
CAP_SYS_CHROOT = 18
CAP_SYS_ADMIN = 21
CAP_LAST_POSSIBLE = 63
_CAPABILITY_VERSION_3 = 0x20080522

SECCOMP_SET_MODE_FILTER = 1
_SECCOMP_NUMBER = {"x86_64": 317, "aarch64": 277, "riscv64": 277, "armv7l": 383, "armv6l": 383, "i686": 354, "s390x": 348}
_SOCK_FILTER_LEN = 8


# asm-generic/mman-common.h
_MADV_COLLAPSE = 25
# No memory for them, or the limit of the cgroup is near.
NO_HUGE_PAGES = (errno.ENOMEM, errno.EBUSY)


class _CapHeader(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]


class _CapWord(ctypes.Structure):
    _fields_ = [("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32)]


class _SockFprog(ctypes.Structure):
    _fields_ = [("len", ctypes.c_ushort), ("filter", ctypes.c_void_p)]


_libc = ctypes.CDLL(None, use_errno=True)
_libc.setns.argtypes = (ctypes.c_int, ctypes.c_int)
_libc.prctl.argtypes = (ctypes.c_int, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong)
_libc.capget.argtypes = _libc.capset.argtypes = (ctypes.POINTER(_CapHeader), ctypes.POINTER(_CapWord))
_libc.syscall.argtypes = (ctypes.c_long, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_void_p)
_libc.syscall.restype = ctypes.c_long

_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
_libc.mmap.restype = ctypes.c_void_p
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p)

_libc.setvbuf.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_size_t)
_libc.fflush.argtypes = (ctypes.c_void_p,)

_LINE_BUFFERED = 1  # _IOLBF, setvbuf(3)
_EPOLL_CTL_ADD = 1
_MAP_SHARED = 1
_MAP_FIXED = 16

# Created once, in the first template, so that nothing has to be created after a fork.
_cap_header = _CapHeader(_CAPABILITY_VERSION_3, 0)
_cap_words = (_CapWord * 2)()


class SeccompProgram:
    """A seccomp filter in the form that the kernel reads, built before the fork that installs it."""

    def __init__(self, instructions: bytes) -> None:
        if not instructions or len(instructions) % _SOCK_FILTER_LEN:
            raise ValueError(f"filter is not an array of struct sock_filter: {len(instructions)} bytes")
        number = _SECCOMP_NUMBER.get(os.uname().machine)
        if number is None:
            raise ValueError(f"seccomp's system call number is not known for {os.uname().machine}")
        self._number = number
        self._instructions = ctypes.create_string_buffer(instructions, len(instructions))
        self._program = _SockFprog(len(instructions) // _SOCK_FILTER_LEN, ctypes.addressof(self._instructions))
        self._address = ctypes.addressof(self._program)

    def instructions(self) -> Tuple[int, int]:
        """Address and number of the instructions, for the native loop, which installs them without Python."""
        return ctypes.addressof(self._instructions), self._program.len

    def install(self) -> None:
        """seccomp(2); needs CAP_SYS_ADMIN or no_new_privs."""
        _checked(_libc.syscall(self._number, SECCOMP_SET_MODE_FILTER, 0, self._address), "seccomp")


def setns(fd: int, kind: int) -> None:
    _checked(_libc.setns(fd, kind), "setns")


def prctl(option: int, value: int = 0, third: int = 0) -> int:
    return _checked(_libc.prctl(option, value, third, 0, 0), "prctl")


def release_free_memory() -> None:
    """malloc_trim(3), if the C library has it. A child that needs memory then gets empty pages instead of copied ones."""
    trim = getattr(_libc, "malloc_trim", None)
    if trim is not None:
        trim(0)


def buffer_lines() -> None:
    """What C code prints (`printf`) is written at the end of each line, not when a buffer is full."""
    _libc.setvbuf(_c_stdout(), None, _LINE_BUFFERED, 0)


def flush_lines() -> None:
    """Writes the line that C code has begun. Not other streams: a thread that reads from one has it locked (flockfile(3))."""
    _libc.fflush(_c_stdout())


def _c_stdout() -> ctypes.c_void_p:
    return ctypes.c_void_p.in_dll(_libc, "stdout")


def address_of(function: Any) -> int:
    """Where the code of a C function is."""
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def address_of_c_library() -> int:
    """An address in its code."""
    return address_of(_libc.madvise)


def collapse(address: int, length: int) -> int:
    """Makes this memory huge pages (MADV_COLLAPSE). 0, or the error's number."""
    return 0 if _libc.madvise(address, length, _MADV_COLLAPSE) == 0 else ctypes.get_errno()


def present(address: int, length: int) -> bytes:
    """One byte per page of this anonymous memory: 1 if it is there, 0 if it was never written to (mincore(2)).

    Raises OSError."""
    vector = ctypes.create_string_buffer(length // os.sysconf("SC_PAGE_SIZE"))
    _checked(_libc.mincore(address, length, vector), "mincore")
    return vector.raw


def permitted_capabilities() -> int:
    """The permitted set as a bit mask."""
    _checked(_libc.capget(_cap_header, _cap_words), "capget")
    low, high = _cap_words[0].permitted, _cap_words[1].permitted
    return int(low) | int(high) << 32


def set_capabilities(mask: int) -> None:
    """Makes `mask` the effective, permitted and inheritable set."""
    for index in (0, 1):
        word = _cap_words[index]
        word.effective = word.permitted = word.inheritable = mask >> 32 * index & 0xFFFFFFFF
    _checked(_libc.capset(_cap_header, _cap_words), "capset")


def bounding_capabilities() -> List[int]:
    """The capabilities in the bounding set. prctl returns EINVAL for numbers above this kernel's last capability."""
    held = []
    for capability in range(CAP_LAST_POSSIBLE + 1):
        try:
            if prctl(PR_CAPBSET_READ, capability):
                held.append(capability)
        except OSError:
            break
    return held


# `struct epoll_event`, which is packed on x86-64 only.
_EPOLL_EVENT = struct.Struct("=IQ" if os.uname().machine == "x86_64" else "IQ")


def epoll_add(epoll: int, fd: int, events: int, data: int) -> None:
    """Unlike `select.epoll.register`, with any data."""
    event = ctypes.create_string_buffer(_EPOLL_EVENT.pack(events, data))
    _checked(_libc.epoll_ctl(epoll, _EPOLL_CTL_ADD, fd, event), "epoll_ctl")


def eventfd_maker(count: int, flags: int) -> Callable[[], int]:
    text = count.to_bytes(8, sys.byteorder)

    def make() -> int:
        fd = _checked(_libc.eventfd(0, flags), "eventfd")
        if count:
            os.write(fd, text)
        return fd

    return make


def timerfd_maker(clock: int, flags: int, value: Tuple[int, int], interval: Tuple[int, int]) -> Callable[[], int]:
    """The times are (s, ns), the first one from now; (0, 0) is a timer that is not set."""
    setting = ctypes.create_string_buffer(struct.pack("=4q", *interval, *value))

    def make() -> int:
        fd = _checked(_libc.timerfd_create(clock, flags), "timerfd_create")
        if value != (0, 0):
            _checked(_libc.timerfd_settime(fd, 0, setting, None), "timerfd_settime")
        return fd

    return make


def signalfd_maker(mask: int, flags: int) -> Callable[[], int]:
    text = ctypes.create_string_buffer(mask.to_bytes(8, sys.byteorder), 128)  # the C library's sigset_t
    return lambda: _checked(_libc.signalfd(-1, text, flags), "signalfd")


def inotify_maker(flags: int) -> Callable[[], int]:
    return lambda: _checked(_libc.inotify_init1(flags), "inotify_init1")


def map_shared(address: int, length: int, protection: int, fd: int, offset: int) -> None:
    """mmap(2) in the place of what is mapped at this address."""
    mapped = _libc.mmap(address, length, protection, _MAP_SHARED | _MAP_FIXED, fd, offset)
    if mapped != address:
        _checked(-1, "mmap")


def checked_errno(result: int, call: str) -> int:
    """Returns `result` of a function that returns -errno when it fails, or raises the OSError."""
    if result < 0:
        raise OSError(-result, f"{call}: {os.strerror(-result)}")
    return result


def _checked(result: int, call: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")
    return result
