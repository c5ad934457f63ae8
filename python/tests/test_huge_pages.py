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

from pilot_worker import huge_pages, kernel

MB = 1 << 20

# Made faster than it can be made huge pages, so that most of it is left when the template is ready.
QUICK = """
import mmap, os
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


def within(spans: list[tuple[int, int]], address: int) -> bool:
    return any(begin <= address < begin + length for begin, length in spans)


def test_memory_that_is_full_is_worth_it_and_sparse_or_huge_memory_is_not() -> None:
    # Far from each other, so that the kernel does not join them.
    full, gap, sparse = private(16 * MB), private(16 * MB), private(16 * MB)
    gap_at = address_of(gap)
    fill(full, len(full))
    fill(sparse, len(sparse) // 2)
    ctypes.CDLL(None).mprotect(ctypes.c_void_p(gap_at), ctypes.c_size_t(len(gap)), 0)
    middle = 8 * MB
    spans = huge_pages.spans()
    assert within(spans, address_of(full) + middle)
    assert not within(spans, address_of(sparse) + 4 * MB)
    huge_pages.collapse([span for span in spans if within([span], address_of(full) + middle)])
    assert full[:] == b"x" * len(full)
    assert not within(huge_pages.spans(), address_of(full) + middle)


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


def test_the_rest_of_a_large_heap_waits_until_no_worker_has_its_pages(functions: Functions) -> None:
    functions.write(QUICK)
    _, sock = functions.root.fork("template", functions.spec())
    template = Template(sock)
    # The worker is asked for before its template is ready: a template of which nobody wants anything makes all of it huge.
    template.report = {"native": True}
    worker = template.worker()
    template.message("ready")
    worker.ready()
    pid = worker.result({})
    before = huge_bytes(pid)
    time.sleep(0.1)
    assert huge_bytes(pid) == before < 180 * MB
    worker.close()
    template.message("exited")
    until_huge(pid, 240 * MB)
    template.close()


def test_no_more_is_done_at_once_than_there_is_time_for() -> None:
    memory = private(16 * MB)
    fill(memory, len(memory))
    spans = [span for span in huge_pages.spans() if within([span], address_of(memory) + 8 * MB)]
    assert huge_pages.collapse(spans, time.monotonic()) == spans
    assert huge_pages.collapse(spans) == []
    assert memory[:] == b"x" * len(memory)
