"""Processes that user code forks in a worker: functions of `os.register_at_fork`, and signals to process groups."""

from __future__ import annotations

import signal
import threading

import pytest
from conftest import Functions
from harness import Stream

from pilot_worker.protocol import wire
from pilot_worker.protocol.channel import ChannelClosed
from pilot_worker.protocol.threads import Pool

# What a library registers runs after a fork of what the standard library has registered, and before it before a fork. The child
# reports through a pipe what the library's function has seen.
LIBRARY = """
import itertools, json, logging, os, random, threading, time
seen = {}
def again():
    seen["threads"] = threading.active_count()
    seen["number"] = random.getrandbits(48)
    logging.getLogger().warning("in the child")
    seen["thread"] = threading.Thread(target=time.sleep, args=(0.01,))
    seen["thread"].start()
numbers = itertools.count()
def rest():  # as libraries that let their thread come to rest: it takes the lock of logging
    thread = threading.Thread(target=lambda: logging.getLogger(f"library.{next(numbers)}"))
    thread.start()
    thread.join()
os.register_at_fork(before=rest, after_in_child=again)

def child():
    thread = seen.pop("thread")
    seen["enumerated"] = thread in threading.enumerate() or not thread.is_alive()
    thread.join()
    seen["ended"] = not thread.is_alive()
    return seen

def forked():
    read, write = os.pipe()
    other = threading.Event()
    thread = threading.Thread(target=other.wait)
    thread.start()
    if os.fork() == 0:
        os.write(write, json.dumps(child()).encode())
        os._exit(0)
    os.close(write)
    with open(read) as file:
        said = file.read()
    os.wait()
    other.set()
    thread.join()
    return json.loads(said)

{}def handler(event, context):
    return [forked(), forked(), forked()]
"""


@pytest.mark.parametrize(
    ("keyword", "concurrency", "has_template"), [("", 1, True), ("", 2, True), ("async ", 1, True), ("", 1, False)]
)
def test_functions_of_libraries_run_after_those_of_the_standard_library(
    functions: Functions, keyword: str, concurrency: int, has_template: bool
) -> None:
    source = LIBRARY.replace("{}def", f"{keyword}def")
    if has_template:
        worker = functions.worker(source, concurrency=concurrency)
    else:
        functions.write(source)
        worker = Stream(functions.root.fork("worker", functions.spec(), log=functions.log.write_fd)[1])
        worker.ready()
    children = worker.result({})
    assert len({each.pop("number") for each in children}) == 3, "each has its own"
    assert children == [{"threads": 1, "enumerated": True, "ended": True}] * 3


GROUPS = """
import os, signal, subprocess, sys
def handler(event, context):
    if event == "end the helpers":  # and not this process
        helper = subprocess.Popen(["sleep", "1000"])
        before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.kill(0, signal.SIGTERM)
        signal.signal(signal.SIGTERM, before)
        return helper.wait()
    return [os.getpid(), os.getpgrp()]
"""


@pytest.mark.parametrize("has_own_spec", [False, True])
def test_a_worker_leads_a_process_group_of_its_own(functions: Functions, has_own_spec: bool) -> None:
    """So a signal to its process group does not reach its template and the other workers."""
    template = functions.template(GROUPS)
    workers = []
    for _ in range(2):
        worker = template.worker(functions.spec() if has_own_spec else None, log=functions.log.write_fd)
        worker.ready()
        workers.append(worker)
    assert workers[0].result("end the helpers") == -signal.SIGTERM
    for worker in workers:
        pid, group = worker.result("ids")
        assert group == pid


def test_a_template_leads_a_process_group_of_its_own(functions: Functions) -> None:
    worker = functions.worker("import os\nIDS = [os.getpid(), os.getpgrp()]\ndef handler(e, c): return IDS\n")
    pid, group = worker.result({})
    assert group == pid


class LeftChannel:
    """What the copy of the main green thread reads in a process that user code has forked while a call runs."""

    def __init__(self) -> None:
        self.is_left = False

    def read(self) -> wire.Frame | None:
        if self.is_left:
            return None
        self.is_left = True
        return wire.INVOKE, 1, b"", b""


@pytest.mark.parametrize("raises", [False, True])
def test_with_green_threads_a_forked_process_does_not_end_before_its_calls(raises: bool) -> None:
    """The green threads of a fork are all there in the child, whose channel reads as closed."""
    served = threading.Event()
    too_early: list[bool] = []

    def call(kind: int, stream: int, meta: bytes, body: bytes) -> None:
        too_early.append(served.wait(0.2))
        if raises:  # it would answer
            raise ChannelClosed

    pool = Pool(2, call, None, lambda error: None)
    pool.serve(LeftChannel())  # type: ignore[arg-type]  # what it needs of a channel
    served.set()
    assert too_early == [False]
