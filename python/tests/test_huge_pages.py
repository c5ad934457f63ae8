"""The memory of templates in huge pages. Skipped where the kernel has no MADV_COLLAPSE (before Linux 6.1)."""

from __future__ import annotations

import ctypes
import errno
import mmap
import time
from pathlib import Path

import pytest
from conftest import Functions
from harness import PATIENCE_S, Template

from pilot_worker import kernel
from pilot_worker.forking import huge_pages

MB = 1 << 20

# More than may have a second copy while a worker lives. The test says when the import ends.
QUICK = """
import mmap, os, time
while not os.path.exists(os.path.join(os.path.dirname(__file__), "go")):
    time.sleep(0.002)
heap = mmap.mmap(-1, 256 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x8000)  # MAP_POPULATE
def handler(event, context):
    return os.getppid()
"""

HEAP = """
import os
heap = [bytearray(os.urandom(4096) * 256) for _ in range(SIZE)]
total = sum(map(sum, (part[:9] for part in heap)))
def handler(event, context):
    heap[0][0] ^= 1
    heap[0][0] ^= 1
    return [os.getppid(), total == sum(map(sum, (part[:9] for part in heap)))]
"""


def private(length: int) -> mmap.mmap:
    return mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def alone(length_mb: int) -> tuple[mmap.mmap, int, int]:
    """Memory that the kernel joins with no other: a mapping, and where whole huge pages begin in it, as offset and address."""
    memory = private((length_mb + 4) * MB)
    offset = -address_of(memory) % huge_pages.HUGE or huge_pages.HUGE
    behind = offset + length_mb * MB
    for begin, end in ((0, offset), (behind, len(memory))):
        closed = (ctypes.c_void_p(address_of(memory) + begin), ctypes.c_size_t(end - begin), 0)
        assert ctypes.CDLL(None).mprotect(*closed) == 0
    return memory, offset, address_of(memory) + offset


def spans_from(first: int) -> list[tuple[int, int]]:
    return [span for span in huge_pages.spans() if first <= span[0] < first + 16 * MB]


def address_of(memory: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def fill(memory: mmap.mmap, length: int) -> None:
    memory[:length] = b"x" * length


@pytest.fixture(scope="module", autouse=True)
def kernel_can() -> None:
    memory = private(2 * huge_pages.HUGE)
    fill(memory, len(memory))
    begin = -(-address_of(memory) // huge_pages.HUGE) * huge_pages.HUGE
    error = kernel.collapse(begin, huge_pages.HUGE)
    if error == errno.EINVAL:
        pytest.skip("this kernel has no MADV_COLLAPSE")


def huge_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("AnonHugePages:"):
            return int(line.split()[1]) * 1024
    return 0


def until_huge(pid: int, wanted: int) -> None:
    end = time.monotonic() + PATIENCE_S
    while huge_bytes(pid) < wanted:
        assert time.monotonic() < end, f"{huge_bytes(pid)} bytes are huge, not {wanted}"
        time.sleep(0.005)


def test_memory_that_is_full_is_worth_it_and_sparse_memory_is_not() -> None:
    memory, offset, first = alone(12)
    # Three full huge pages, one that is half full, one that is full, and nothing behind it.
    memory[offset : offset + 7 * MB] = b"x" * (7 * MB)
    memory[offset + 8 * MB : offset + 10 * MB] = b"x" * (2 * MB)
    assert spans_from(first) == [(first, 6 * MB), (first + 8 * MB, 2 * MB)]
    huge_pages.collapse(spans_from(first))
    assert memory[offset : offset + 11 * MB] == b"x" * (7 * MB) + bytes(MB) + b"x" * (2 * MB) + bytes(MB)


def test_what_the_template_above_has_mapped_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    memory, offset, first = alone(12)
    memory[offset : offset + 12 * MB] = b"x" * (12 * MB)
    assert spans_from(first) == [(first, 12 * MB)]
    # As if the kernel had joined memory of this template with memory of the one above.
    inherited = [(0, 4096), (first + 5 * MB, first + 6 * MB), (first + 9 * MB, first + 64 * MB)]
    monkeypatch.setattr(huge_pages, "_inherited", inherited)
    assert spans_from(first) == [(first, 4 * MB), (first + 6 * MB, 2 * MB)]
    huge_pages.note_inherited()
    assert spans_from(first) == []


def test_a_templates_heap_becomes_huge_and_its_workers_see_the_same(functions: Functions) -> None:
    template = functions.template(HEAP.replace("SIZE", "32"))
    worker = template.worker()
    worker.ready()
    pid, same = worker.result({})
    assert same
    until_huge(pid, 24 * MB)
    assert worker.result({}) == [pid, True]
    worker.close()
    template.message("exited")
    worker = template.worker()
    worker.ready()
    assert worker.result({}) == [pid, True]
    worker.close()


def test_the_rest_of_a_large_heap_waits_until_no_worker_has_its_old_pages(functions: Functions) -> None:
    functions.write(QUICK)
    _, sock = functions.root.fork("template", functions.spec())
    template = Template(sock)
    # The worker is asked for before its template is ready: a template of which nobody wants anything makes its memory huge.
    template.report = {"native": True}
    first = template.worker()
    (functions.directory / "go").touch()
    template.message("ready")
    first.ready()
    pid = first.result({})
    stays_at(pid, 64 * MB)
    # It is forked from memory of which one quarter is huge, and the first worker has the old pages of that quarter.
    second = template.worker()
    second.ready()
    stays_at(pid, 64 * MB)
    first.close()
    template.message("exited")
    stays_at(pid, 128 * MB)
    second.close()
    template.message("exited")
    until_huge(pid, 240 * MB)
    template.close()


def stays_at(pid: int, about: int) -> None:
    # The kernel may refuse some, and its allocator makes some of its own.
    until_huge(pid, about - 8 * MB)
    time.sleep(0.1)
    assert huge_bytes(pid) <= about + 8 * MB
