"""Secrets come in the first frame of a worker, after the fork and before user code runs."""

from __future__ import annotations

import socket

import pytest
from conftest import Functions
from harness import Process, Stream

from pilot_worker.protocol import wire

READS = "import os\nSEEN = os.environ.get('DB')\n{}def handler(event, context):\n    return [SEEN, os.environ.get('DB')]\n"


def give(worker: Stream, value: str) -> None:
    worker.send(wire.SECRETS, 0, {"environment": {"DB": value}})


@pytest.mark.parametrize("more", ["", "async "])
@pytest.mark.parametrize("concurrency", [1, 3])
def test_each_worker_has_the_values_of_its_start_and_the_template_none(
    functions: Functions, more: str, concurrency: int
) -> None:
    template = functions.template(READS.format(more), secrets=True, concurrency=concurrency)
    for value in ("before", "grüße\n"):
        worker = template.worker()
        give(worker, value)
        worker.ready()
        assert worker.result({}) == [None, value]
        assert worker.result({}) == [None, value]


def test_hooks_see_them(functions: Functions) -> None:
    hook = "import snapshot_restore_py\n@snapshot_restore_py.register_after_restore\ndef read():\n    global SEEN\n    SEEN = os.environ['DB']\n"
    worker = functions.template(READS.format(hook), secrets=True).worker()
    give(worker, "hunter2")
    worker.ready()
    assert worker.result({}) == ["hunter2", "hunter2"]


def test_without_a_template_the_module_sees_them(functions: Functions) -> None:
    functions.write(READS.format(""))
    process = Process("worker", socket.SOCK_STREAM, functions.spec(secrets=True))
    worker = Stream(process.ours)
    give(worker, "hunter2")
    worker.ready()
    assert worker.result({}) == ["hunter2", "hunter2"]


def test_a_worker_from_the_level_above_has_them_before_it_imports(functions: Functions) -> None:
    functions.write(READS.format(""))
    _, sock = functions.root.fork("worker", functions.spec(secrets=True))
    worker = Stream(sock)
    give(worker, "hunter2")
    worker.ready()
    assert worker.result({}) == ["hunter2", "hunter2"]


def test_a_worker_that_gets_something_else_or_nothing_ends(functions: Functions) -> None:
    template = functions.template(READS.format(""), secrets=True)
    fork_id, sock = template.fork("worker")
    worker = Stream(sock)
    worker.ask({})
    kind, _, _, body = worker.frame()
    assert kind == wire.INIT_ERROR and b"secrets_missing" in body
    assert Functions.exit_of(template, fork_id) == {"code": 1}
    fork_id, sock = template.fork("worker")
    Stream(sock).close()
    assert Functions.exit_of(template, fork_id) == {"code": 0}
