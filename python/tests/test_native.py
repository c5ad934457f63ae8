"""Tests that only concern the native loop. The rest of the suite uses it, too (harness.py uses the short form)."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest
from conftest import Functions
from harness import Stream

Start = Callable[..., Stream]

RANDOM = """
import random
def handler(event, context):
    return [random.random() for _ in range(3)]
"""

NUMPY = """
import os, sys
try:
    import numpy
    numpy.random.seed(1)
    numpy.random.randn()
except ImportError:
    numpy = None
def handler(event, context):
    return None if numpy is None else numpy.random.randn(3).tolist()
"""

# Root's processes have no limit.
NO_MORE_PROCESSES = """
import os, resource
resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
if os.getuid() == 0:
    os.setuid(65534)
def handler(event, context):
    return None
"""

FORKS = """
import logging, os, threading
def handler(event, context):
    threading.Thread(target=lambda: None).start()
    logging.getLogger().warning("before")
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        logging.getLogger().warning("in the child")
        os.write(write, str(len(threading.enumerate())).encode())
        os._exit(0)
    os.waitpid(child, 0)
    return os.read(read, 9).decode()
"""


def answers(functions: Functions, source: str, count: int) -> list[Any]:
    template = functions.template(source)
    assert template.report["native"]
    results = []
    for _ in range(count):
        worker = template.worker()
        worker.ready()
        results.append(worker.result({}))
        worker.close()
    return results


def test_siblings_draw_different_numbers_from_random(functions: Functions) -> None:
    first, second, third = answers(functions, RANDOM, 3)
    assert first != second != third != first
    assert all(0 <= number < 1 for number in first)


def test_siblings_draw_different_numbers_from_numpy(functions: Functions) -> None:
    first, second = answers(functions, NUMPY, 2)
    assert first is None or first != second


def test_a_fork_in_a_worker_is_as_everywhere(functions: Functions) -> None:
    assert answers(functions, FORKS, 1) == ["1"]


def test_a_short_request_that_does_not_fit_its_descriptors_is_refused(functions: Functions) -> None:
    template = functions.template(RANDOM)
    template.send(b"FORK" + struct.pack("<IQ", 2, 7) + bytes([0, 1]))
    assert "fork_failed" in template.message("fork_failed")["op"]
    worker = template.worker()
    worker.ready()
    assert len(worker.result({})) == 3


def test_a_short_request_without_a_channel_is_refused(functions: Functions) -> None:
    template = functions.template(RANDOM)
    template.send(b"FORK" + struct.pack("<IQ", 0, 7))
    assert template.message("fork_failed", 7)["error"].startswith("no channel")


def test_a_fork_that_the_kernel_refuses_is_said(functions: Functions) -> None:
    template = functions.template(NO_MORE_PROCESSES)
    assert template.report["native"]
    template.worker()
    assert template.message("fork_failed")["error"] == "fork: errno 11"


FEW_FILES = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
{}def handler(event, context):
    return [event, resource.getrlimit(resource.RLIMIT_NOFILE)]
"""


@pytest.mark.parametrize("keyword", ["", "async "])
def test_a_program_may_lower_the_limit_of_open_files(functions: Functions, keyword: str) -> None:
    """The native loop has the channel of a child at a higher number."""
    template = functions.template(FEW_FILES.format(keyword))
    assert not template.report["native"]
    for event in range(3):
        worker = template.worker()
        worker.ready()
        assert worker.result(event) == [event, [64, 64]]
        worker.close()


FAULTS = """
{}
import resource
{}def handler(event, context):
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
"""


def faults(functions: Functions, imports: str, keyword: str = "") -> int:
    """The fewest page faults of a worker until its first handler runs."""
    seen: list[int] = answers(functions, FAULTS.format(imports, keyword), 5)
    return min(seen)


def test_a_worker_takes_few_page_faults_for_openssl_and_for_an_event_loop(functions: Functions) -> None:
    """Each took some hundreds where a worker made it (docs/decisions/0072-workers-continue-the-event-loop-of-their-template.md)."""
    plain = faults(functions, "")
    assert faults(functions, "import ssl") < plain + 120
    assert faults(functions, "import ssl", "async ") < plain + 350
