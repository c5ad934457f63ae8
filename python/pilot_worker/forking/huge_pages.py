"""Makes the memory of a template huge pages, so that a fork does not grow with its heap (MADV_COLLAPSE, Linux 6.1; madvise(2)).

A fork copies one page-table entry per page, about 27 us per MB. For a huge page it copies one per 2 MB. A child that writes to
a huge page splits its own mapping and copies 4 KB, as without huge pages.

Only memory that the template itself has mapped is taken: what is shared with the template above would be copied. The kernel
says which pages a process shares (proc_pid_smaps(5)), but to read that takes longer than a fork, and a request may wait.
"""

from __future__ import annotations

import os

from .. import kernel

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterator, List, Tuple

    # Address and length.
    Span = Tuple[int, int]

# The daemon's configuration, `huge_pages`. It is not in the specification, because the first template has none.
ENABLED = os.environ.get("PILOT_HUGE_PAGES") != "off"

HUGE = 2 << 20
# With other pages, a huge page is larger than most heaps.
_PAGE = 4096
_PAGES_PER_HUGE = HUGE // _PAGE
# The part of a huge page that must be there: the rest is filled with zeros, and counts as memory of the template.
_PRESENT_MIN = 0.75
# Mappings that a program has changed: a heap may have this name, other anonymous memory has none.
_HEAP = b"[heap]"

# Begin and end of the mappings that the template above has, in the order of their addresses.
_inherited: List[Tuple[int, int]] = []


def note_inherited() -> None:
    """Called in a template that forks other templates, before it does: they do not take its memory."""
    if not ENABLED:
        return
    try:
        _inherited[:] = _anonymous()
    except (OSError, ValueError):
        pass  # the templates below may then copy memory of this one


def spans() -> List[Span]:
    """The memory that is worth it, in multiples of 2 MB. Empty if the kernel does not say."""
    if not ENABLED or os.sysconf("SC_PAGE_SIZE") != _PAGE:
        return []
    try:
        return [span for begin, end in _own() for span in _full(begin, end)]
    except (OSError, ValueError):
        return []


def collapse(found: List[Span]) -> None:
    """Does it at once. What the kernel refuses stays as it is."""
    for begin, length in found:
        for page in range(begin, begin + length, HUGE):
            if kernel.collapse(page, HUGE) in kernel.NO_HUGE_PAGES:
                return


def _anonymous() -> Iterator[Tuple[int, int]]:
    """Begin and end of each private mapping without a file that can be written to, in the order of their addresses
    (proc_pid_maps(5))."""
    with open("/proc/self/maps", "rb") as file:
        for line in file:
            words = line.split(None, 5)
            if words[1] == b"rw-p" and words[4] == b"0" and (len(words) == 5 or words[5].rstrip() == _HEAP):
                begin, end = words[0].split(b"-")
                yield int(begin, 16), int(end, 16)


def _own() -> Iterator[Tuple[int, int]]:
    """Begin and end of the whole huge pages that the template above has not mapped."""
    inherited = iter(_inherited)
    above = next(inherited, None)
    for begin, end in _anonymous():
        own = begin
        while above is not None and above[0] < end:
            yield from _whole(own, above[0])
            own = max(own, above[1])
            if above[1] > end:
                break
            above = next(inherited, None)
        yield from _whole(own, end)


def _whole(begin: int, end: int) -> Iterator[Tuple[int, int]]:
    begin, end = -(-begin // HUGE) * HUGE, end // HUGE * HUGE
    if begin < end:
        yield begin, end


def _full(begin: int, end: int) -> Iterator[Span]:
    """Those huge pages that are there for the most part, neighbours together."""
    present = kernel.present(begin, end - begin)
    at = begin
    for page in range(begin, end, HUGE):
        first = (page - begin) // _PAGE
        if present.count(1, first, first + _PAGES_PER_HUGE) < _PRESENT_MIN * _PAGES_PER_HUGE:
            if at < page:
                yield at, page - at
            at = page + HUGE
    if at < end:
        yield at, end - at
