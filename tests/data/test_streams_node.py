"""Inputs with `stream` in Node.js: a stream reads while the rest arrives, and everything else waits for the whole."""

from __future__ import annotations

import hashlib
import http.client
import os
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from conftest import HERE, Bucket
from pilot_daemon import Daemon
from test_inputs import MIB, invoke, timing
from test_streams import Answer, Origin, described, last, started

BODY = os.urandom(3 * MIB)


@pytest.fixture(scope="module")
def origin() -> Iterator[Origin]:
    origin = Origin()
    yield origin
    origin.server.shutdown()


@pytest.fixture(scope="module")
def node(home: Path, origin: Origin, bucket: Bucket) -> Iterator[Daemon]:
    with started(home, "node", origin, bucket, "memory_mb = 64\nfunction_mb = 32\ninput_mb = 24") as daemon:
        done = daemon.up(HERE / "streams-node")
        assert done.returncode == 0, f"{done.stdout}{done.stderr}\n{daemon.log.read_text()}"
        yield daemon


def test_node_reads_what_is_there_and_leaves(node: Daemon, origin: Origin) -> None:
    rest = threading.Event()
    answer = Answer([BODY[:MIB], rest], len(BODY), is_endless=True)
    origin.put("slow", answer)
    # It answers, and the rest has not come.
    assert 0 < invoke(node, "node-first", {"key": "slow"})[1]["bytes"] <= MIB
    (transfer,) = last(node, "node-first")["transfers"]
    assert transfer["streamed"]["whole"] is False
    rest.set()
    assert answer.left.wait(30), "the transfer ends with the invocation"


def called_before(rest: threading.Event, daemon: Daemon, event: dict[str, Any]) -> Any:
    """The answer of `node-use`, whose input goes on only when its handler runs."""
    with socket.create_server(("127.0.0.1", 0)) as ear, ThreadPoolExecutor(1) as pool:
        ear.settimeout(20)
        asked = pool.submit(invoke, daemon, "node-use", {**event, "tell": ear.getsockname()[1]})
        try:
            ear.accept()[0].close()
        finally:
            rest.set()
        return asked.result()


@pytest.mark.parametrize("how", ["stream", "whole", "buffer", "path"])
@pytest.mark.parametrize("announced", [True, False], ids=["length", "no length"])
def test_every_way_of_reading_has_the_whole(node: Daemon, origin: Origin, how: str, announced: bool) -> None:
    rest = threading.Event()
    origin.put("parts", Answer([BODY[:10], rest, BODY[10:MIB], BODY[MIB:]], len(BODY) if announced else None))
    response, answer = called_before(rest, node, {"key": "parts", "how": how})
    assert answer["sha256"] == hashlib.sha256(BODY).hexdigest()
    assert "streamed" in timing(response)["fetch.video"]


def test_node_reads_from_s3_while_it_arrives(node: Daemon, bucket: Bucket) -> None:
    bucket.put("node-stream", BODY)
    assert invoke(node, "node-use-s3", {"key": "node-stream", "how": "stream"})[1] == described(BODY)


@pytest.mark.parametrize("how", ["stream", "whole", "buffer", "path"])
def test_a_transfer_that_fails_is_an_error_in_node(node: Daemon, origin: Origin, how: str) -> None:
    rest = threading.Event()
    origin.put("cut", Answer([BODY[:10], rest, BODY[10:MIB]], len(BODY), is_cut=True))
    # A transfer that failed before the handler was called would have failed the invocation.
    _, (name, message) = called_before(rest, node, {"key": "cut", "how": how})
    assert name == "BrokenInput" and message.startswith("input 'video': "), message


def test_node_cannot_write_to_what_it_reads(node: Daemon, origin: Origin) -> None:
    origin.put("slow", Answer([BODY[:MIB]], len(BODY), is_endless=True))
    tried = invoke(node, "node-hostile", {"key": "slow"})[1]
    assert len(tried) == 2 and set(tried) == {"EACCES"}, "the memory, and the pipe that says how much is there"


def test_clients_that_leave_take_no_memory_of_inputs(node: Daemon, origin: Origin) -> None:
    def respond(path: str, number: int) -> http.client.HTTPResponse:
        key = f"responds-{number}"
        origin.put(key, Answer([BODY], len(BODY)))
        return node.request("GET", f"/fn/node-responds/{path}", **{"x-key": key})

    # Together, they have more than all functions may.
    for number in range(30):
        response = respond("long", number)
        assert response.read(5) == b"more\n"
        response.close()
    response = respond("short", 30)
    assert (response.status, response.read()) == (200, b"more\n")
