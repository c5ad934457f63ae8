"""Lets a fork copy the page table of the interpreter's code (docs/decisions/0070-a-fork-copies-the-page-table-of-code.md).

A fork leaves out the page-table entries of a private mapping of a file that the process has never written to, because page
faults fill them again (`vma_needs_copy` in the kernel's mm/memory.c). So a child takes a page fault for each 64 KB of code that
it runs. After one write to the mapping, a fork copies its entries, which takes less time.

The byte that is written is the one that is there, by `/proc/self/mem` (proc_pid_mem(5)): the mapping stays read-only.
"""

from __future__ import annotations

import ctypes
import os

from .. import kernel

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterator, Tuple


def share() -> None:
    """For all children of this process, and their children. Does nothing if the kernel does not allow it."""
    inside = (kernel.address_of(ctypes.pythonapi.Py_IsInitialized), kernel.address_of_c_library())
    try:
        with open("/proc/self/mem", "r+b", buffering=0) as memory:
            for begin, end in code():
                if any(begin <= address < end for address in inside):
                    os.pwrite(memory.fileno(), os.pread(memory.fileno(), 1, end - 1), end - 1)
    except (OSError, ValueError):
        pass


def code() -> Iterator[Tuple[int, int]]:
    """Begin and end of each mapping of code."""
    with open("/proc/self/maps", "rb") as file:
        for line in file:
            area, permissions = line.split(None, 2)[:2]
            if permissions == b"r-xp":
                begin, end = area.split(b"-")
                yield int(begin, 16), int(end, 16)
