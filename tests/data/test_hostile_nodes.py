"""What a node that is called can do to the one that calls: answers without end, answers that do not come, calls that are not taken."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from conftest import HERE, eventually
from hostile_node import DATA, END_HEADERS, GOAWAY, HEADERS, MAX, PING, HostileNode, Link, block, frame
from pilot_daemon import Daemon
from two_nodes import Authority

pytestmark = pytest.mark.timeout(120)
MIB = 1 << 20
SILENCE_S = 2


@dataclass
class World:
    daemon: Daemon
    node: HostileNode

    def call(self, **event: Any) -> Any:
        response = self.daemon.request("POST", "/2015-03-31/functions/hostile-caller/invocations", event, 60)
        return json.loads(response.read())

    def rss(self) -> int:
        pages = Path(f"/proc/{self.daemon.process.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def busy_threads(self) -> int:
        """The daemon's threads without those of its pool for blocking work that have none: they wait for some at the same futex."""
        waits = []
        for thread in Path(f"/proc/{self.daemon.process.pid}/task").iterdir():
            with suppress(OSError):
                waits.append(tuple(thread.joinpath("syscall").read_text().split()[:2]))
        return len(waits) - max(Counter(waits).values())

    def does(self, does: Callable[[Link, int], None]) -> None:
        self.node.reset()
        self.node.window, self.node.waits = 1 << 24, True
        self.node.does = does


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    home: Path = tmp_path_factory.mktemp("hostile-node")
    home.chmod(0o755)
    authority = Authority(home)
    node = HostileNode(*authority.issue("b"), authority.certificate)
    config = home / "pilotd.toml"
    config.write_text(
        f"""
[data]
memory_mb = 512
function_mb = 256
[nodes]
silence_s = {SILENCE_S}
{authority.keys("a")}
[nodes.b]
url = "https://127.0.0.1:{node.port}"
functions = ["next"]
"""
    )
    daemon = Daemon(home, "--config", str(config))
    try:
        done = daemon.up(HERE / "nodes-hostile")
        assert done.returncode == 0, f"{done.stdout}{done.stderr}"
        yield World(daemon, node)
    finally:
        daemon.stop()
        node.close()


@pytest.fixture(autouse=True)
def it_still_calls(world: World) -> Iterator[None]:
    yield
    world.does(lambda link, stream: link.answer(stream, b'"fine"'))
    # The link of what was before may end while the call is sent. Then the call is sent again.
    assert world.call(size=100_000)["said"] == ["fine"]


def refuse(link: Link, stream: int, **said: Any) -> None:
    link.refuse(stream, json.dumps(said).encode())


def test_a_refusal_comes_at_once_or_the_call_is_given_up(world: World) -> None:
    def trickles(link: Link, stream: int) -> None:
        link.head(stream, 503)
        link.forever(stream, frame(DATA, 0, stream, b" "), pause_s=0.2, seconds=20)

    for does in (lambda link, stream: link.head(stream, 503), trickles):
        world.does(does)
        said = world.call()
        # What trickles does so for 20 s.
        assert said["took_s"] < SILENCE_S + 12 and "its refusal did not come" in said["said"][0][2], said


def test_what_another_node_says_cannot_steer_a_terminal(world: World) -> None:
    problem = "\x1b[2Jno\r\nREPORT RequestId: forged \u202e" + "x" * 5000
    world.does(lambda link, stream: refuse(link, stream, reason="Unavailable", problem=problem, ran=False))
    (kind, reason, said), *_ = world.call()["said"]
    assert (kind, reason) == ("refused", "Unavailable") and "REPORT RequestId: forged" in said
    assert said.isprintable() and len(said) < 1000, said


def test_a_call_of_which_nothing_is_taken_is_given_up(world: World) -> None:
    """It holds no thread of the daemon, and little of its memory."""
    world.does(lambda link, stream: None)
    world.node.window = 0
    before, began = world.rss(), time.monotonic()
    with ThreadPoolExecutor(6) as pool:
        calls = [pool.submit(world.call, size=2 * MIB, calls=16) for _ in range(6)]
        eventually("the calls to be there", lambda: len(world.node.links) == 1)
        time.sleep(SILENCE_S)
        threads = world.busy_threads()
        grown = world.rss() - before
        said = [call.result() for call in calls]
    assert threads < 40, threads
    # The events and the data of the functions are not the daemon's.
    assert grown < 64 * MIB, grown
    assert time.monotonic() - began < 40
    for one in said:
        assert all(kind == "refused" and "taken nothing" in problem for kind, _, problem in one["said"]), one


def test_answers_that_wait_are_on_few_connections(world: World) -> None:
    """Each connection may have its window in the daemon's memory. A node that ends one for new calls has it as long as those that run."""
    held = threading.Event()

    def waits(link: Link, stream: int) -> None:
        # This connection takes no other call (RFC 9113, section 6.8), and goes on with this one.
        link.send(frame(GOAWAY, 0, 0, MAX.to_bytes(4) + bytes(4)))
        held.wait(30)
        link.answer(stream, b"1")

    world.does(waits)

    def arrived() -> int:
        return sum(link.calls for link in world.node.links)

    refused: list[Any] = []
    running: list[Future[Any]] = []
    with ThreadPoolExecutor(20) as pool:
        # A call may still go over a connection whose end the daemon has not read. It is held like the others.
        while not refused and len(running) < 20:
            before = arrived()
            call = pool.submit(world.call)
            eventually("the call to be there or refused", lambda before=before, call=call: arrived() > before or call.done())
            if call.done():
                refused += call.result()["said"]
            else:
                running.append(call)
        assert len([link for link in world.node.links if link.calls]) == 4
        for _ in range(2):
            refused += pool.submit(world.call).result()["said"]
        held.set()
        assert [call.result()["said"] for call in running] == [[1]] * len(running)
    assert len(refused) == 3 and all("closed for new ones" in problem for _, _, problem in refused), refused


@pytest.mark.parametrize(
    "frames",
    [
        [HEADERS, END_HEADERS, block(103)],
        [DATA, 0, b""],
        [PING, 0, b"x" * 8],
    ],
    ids=["heads", "empty", "pings"],
)
def test_an_answer_without_end_takes_no_memory(world: World, frames: list[Any]) -> None:
    kind, flags, payload = frames

    def floods(link: Link, stream: int) -> None:
        if kind == DATA:
            link.head(stream, pilot_end="done", content_length="6000000")
        target = 0 if kind == PING else stream
        link.forever(stream, *[frame(kind, flags, target, payload)] * 500, seconds=4)
        link.tls.shutdown(socket.SHUT_RDWR)

    before = world.rss()
    world.does(floods)
    said = world.call()
    assert said["said"][0][0] == "refused", said
    assert world.rss() - before < 32 * MIB
