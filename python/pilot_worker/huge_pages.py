"""Makes the memory of a template huge pages, so that a fork does not grow with its heap (MADV_COLLAPSE, Linux 6.1; madvise(2)).

A fork copies one page-table entry per page, about 27 us per MB. For a huge page it copies one per 2 MB. A child that writes to
a huge page splits its own mapping and copies 4 KB, as without huge pages.

Only memory that no other process maps is taken: what is shared with the template above would be copied.
"""

from __future__ import annotations

import math
import os
import time

from . import kernel

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Iterator, List, Tuple

# The daemon's configuration, `huge_pages`. It is not in the specification, because the first template has none.
ENABLED = os.environ.get("PILOT_HUGE_PAGES") != "off"

HUGE = 2 << 20
# With other pages, a huge page is larger than most heaps.
_PAGE = 4096
# The part of a mapping that must be there: the rest is filled with zeros, and counts as memory of the template.
_PRESENT_MIN = 0.75
# Mappings that a program has changed: a heap may have this name, other anonymous memory has none.
_HEAP = b"[heap]"


def spans() -> List[Tuple[int, int]]:
    """Address and length of the memory that is worth it, in multiples of 2 MB. Empty if the kernel does not say."""
    if not ENABLED or os.sysconf("SC_PAGE_SIZE") != _PAGE:
        return []
    try:
        with open("/proc/self/smaps", "rb") as file:
            return [span for line, sizes in _mappings(file) for span in _span(line, sizes)]
    except (OSError, ValueError):
        return []


def collapse(found: List[Tuple[int, int]], until: float = math.inf) -> List[Tuple[int, int]]:
    """Does it at once, and returns what is left at that time (`time.monotonic`). What the kernel refuses stays as it is."""
    left = list(found)
    while left and time.monotonic() < until:
        begin, length = left.pop()
        if length > HUGE:
            left.append((begin, length - HUGE))
        if kernel.collapse(begin + length - HUGE, HUGE) in kernel.NO_HUGE_PAGES:
            return []
    return left


def _span(line: List[bytes], sizes: Dict[bytes, int]) -> Iterator[Tuple[int, int]]:
    """The whole huge pages of a mapping without a file that only this process has. None if it is sparse, or huge already."""
    if line[1] != b"rw-p" or line[4] != b"0" or (len(line) > 5 and line[5] != _HEAP):
        return
    enough = sizes[b"Size:"] * _PRESENT_MIN
    if sizes[b"Private_Dirty:"] < enough or sizes[b"AnonHugePages:"] >= enough:
        return
    begin, end = (int(part, 16) for part in line[0].split(b"-"))
    begin, end = -(-begin // HUGE) * HUGE, end // HUGE * HUGE
    if begin < end:
        yield begin, end - begin


def _mappings(file: Iterator[bytes]) -> Iterator[Tuple[List[bytes], Dict[bytes, int]]]:
    """Each mapping's first line, and the sizes below it in KiB (proc_pid_smaps(5))."""
    head: List[bytes] = []
    sizes: Dict[bytes, int] = {}
    for line in file:
        words = line.split(None, 5)
        if not words[0].endswith(b":"):
            head, sizes = [word.strip() for word in words], {}
        elif words[0] == b"VmFlags:":
            yield head, sizes
        elif len(words) == 3:
            sizes[words[0]] = int(words[1])
