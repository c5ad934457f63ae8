"""Processes that user code forks in a worker, and signals among them."""

from __future__ import annotations

import signal

import pytest
from conftest import Functions

GROUPS = """
import os, signal, subprocess, sys
def handler(event, context):
    if event == "end the helpers":  # and not this process
        helper = subprocess.Popen(["sleep", "1000"])
        before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.kill(0, signal.SIGTERM)
        signal.signal(signal.SIGTERM, before)
        return helper.wait()
    return [os.getpid(), os.getpgrp(), os.getsid(0)]
"""


@pytest.mark.parametrize("has_own_spec", [False, True])
def test_a_worker_leads_a_session_of_its_own(functions: Functions, has_own_spec: bool) -> None:
    """So a signal to its process group does not reach its template and the other workers."""
    template = functions.template(GROUPS)
    workers = []
    for _ in range(2):
        worker = template.worker(functions.spec() if has_own_spec else None, log=functions.log.write_fd)
        worker.ready()
        workers.append(worker)
    assert workers[0].result("end the helpers") == -signal.SIGTERM
    for worker in workers:
        pid, group, session = worker.result("ids")
        assert group == session == pid


def test_a_template_leads_a_session_of_its_own(functions: Functions) -> None:
    worker = functions.worker("import os\nIDS = [os.getpid(), os.getpgrp(), os.getsid(0)]\ndef handler(e, c): return IDS\n")
    pid, group, session = worker.result({})
    assert group == session == pid
