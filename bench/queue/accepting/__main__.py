"""Measures how many asynchronous invocations are accepted per second, and how long a client waits for its 202.

Connections send events of 1 KB, each after the answer to the one before. The client is one process with epoll; it shares the CPUs with the
daemon, which runs the accepted events at the same time. A turn ends when all its events have run: the handler does nothing, so what is
measured is the store. Beside it stands the floor of the disk: how long a write of the same size with fdatasync takes there.
"""

from __future__ import annotations

import json
import os
import select
import socket
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from benchlib.command import Run, options_of
from benchlib.daemon import Daemon, invoke_path
from benchlib.report import Bar, Report
from benchlib.stats import percentile

HANDLER = "def handler(event, context):\n    return None\n"
RATE_MIN, P99_MS_MAX = 5000.0, 20.0
TURN_LIMIT_S = 300.0


@dataclass(frozen=True)
class Effort:
    turns: int
    connections: tuple[int, ...]
    events: int


FULL = Effort(turns=5, connections=(1, 16, 64, 128), events=20_000)
SMOKE = Effort(turns=1, connections=(8,), events=200)


@dataclass
class Turn:
    """One turn: the times of its answers in ms, in the order of their arrival, and the durations in seconds."""

    connections: int
    latencies_ms: list[float]
    accepting_s: float
    draining_s: float

    @property
    def per_second(self) -> float:
        return len(self.latencies_ms) / self.accepting_s


def request(bytes_: int) -> bytes:
    body = json.dumps({"x": "x" * (bytes_ - 9)}).encode()
    head = f"POST {invoke_path('noop')} HTTP/1.1\r\nhost: localhost\r\nx-amz-invocation-type: Event\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


class Clients:
    """Connections that send one request after another."""

    def __init__(self, port: int, count: int) -> None:
        self.message = request(1024)
        self.poll = select.epoll()
        self.sockets: dict[int, socket.socket] = {}
        for _ in range(count):
            connection = socket.create_connection(("127.0.0.1", port))
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.sockets[connection.fileno()] = connection
            self.poll.register(connection.fileno(), select.EPOLLIN)

    def close(self) -> None:
        for connection in self.sockets.values():
            connection.close()
        self.poll.close()

    def send(self, events: int) -> tuple[list[float], float]:
        """The latencies of so many accepted events, ms, and the time of all together, s."""
        latencies: list[float] = []
        sent: dict[int, float] = {}
        left = events
        began = time.perf_counter()
        for number, connection in self.sockets.items():
            if left > 0:
                left -= 1
                sent[number] = time.perf_counter()
                connection.sendall(self.message)
        while len(latencies) < events:
            ready = self.poll.poll(30)
            if not ready:
                raise RuntimeError(f"no answer for 30 s after {len(latencies)} of {events}")
            for number, _ in ready:
                # An answer without a body fits into one segment on loopback.
                answer = self.sockets[number].recv(4096)
                now = time.perf_counter()
                if not answer.startswith(b"HTTP/1.1 202 ") or not answer.endswith(b"\r\n\r\n"):
                    raise RuntimeError(f"not accepted: {answer[:500]!r}")
                latencies.append((now - sent.pop(number)) * 1000)
                if left > 0:
                    left -= 1
                    sent[number] = time.perf_counter()
                    self.sockets[number].sendall(self.message)
        return latencies, time.perf_counter() - began


def drain(daemon: Daemon) -> float:
    """Waits until all events have run."""
    began = time.perf_counter()
    while json.loads(daemon.call("GET", "/_pilot/v1/async?limit=1")[1]):
        if time.perf_counter() - began > TURN_LIMIT_S:
            raise RuntimeError(f"events are left after {TURN_LIMIT_S:.0f} s")
        time.sleep(0.02)
    return time.perf_counter() - began


def floor_ms(folder: Path) -> float:
    """The median time of a write of 4 KB with fdatasync."""
    times = []
    with (folder / "floor").open("wb", buffering=0) as file:
        for _ in range(50):
            began = time.perf_counter()
            file.write(bytes(4096))
            os.fdatasync(file.fileno())
            times.append((time.perf_counter() - began) * 1000)
    return percentile(times, 50)


def measure(run: Run, effort: Effort) -> tuple[list[Turn], float]:
    turns = []
    with tempfile.TemporaryDirectory(dir=run.options.folder) as home:
        floor = floor_ms(Path(home))
        with Daemon(run.binary, Path(home)) as daemon:
            daemon.deploy("noop", HANDLER)
            daemon.invoke("noop", {})
            for number in range(effort.turns):
                for count in effort.connections:
                    clients = Clients(daemon.port, count)
                    try:
                        latencies, seconds = clients.send(effort.events)
                    finally:
                        clients.close()
                    turns.append(Turn(count, latencies, seconds, drain(daemon)))
                print(f"… turn {number + 1} of {effort.turns}", file=sys.stderr, flush=True)
            dead = json.loads(daemon.call("GET", "/_pilot/v1/dlq?limit=1")[1])
            if dead:
                raise RuntimeError(f"an event failed: {dead}")
    return turns, floor


def judged(turns: list[Turn], floor: float, effort: Effort) -> Report:
    header = ["connections", "accepted/s", "p50", "p99", "all ran after"]
    report = Report("accept", "asynchronous invocations of 1 KB, each on the disk before its 202", header)
    best: tuple[float, float] = (0.0, 0.0)
    for count in effort.connections:
        those = [turn for turn in turns if turn.connections == count]
        latencies = [latency for turn in those for latency in turn.latencies_ms]
        rate = percentile([turn.per_second for turn in those], 50)
        p99 = percentile(latencies, 99)
        if p99 <= P99_MS_MAX:
            best = max(best, (rate, p99))
        drained = percentile([turn.draining_s for turn in those], 50)
        report.rows.append(
            [str(count), f"{rate:,.0f}", f"{percentile(latencies, 50):.1f} ms", f"{p99:.1f} ms", f"{drained:.1f} s"]
        )
    rate, p99 = best
    what = f"accepted per second with a p99 of at most {P99_MS_MAX:.0f} ms"
    report.bars.append(Bar(what, f"≥ {RATE_MIN:,.0f}", f"{rate:,.0f} ({p99:.1f} ms)", rate >= RATE_MIN))
    report.notes.append(
        f"{effort.events} events per turn, {effort.turns} turns, medians; a synchronised write of 4 KB here: {floor:.2f} ms"
    )
    report.data = {"turns": [asdict(turn) for turn in turns], "floor_ms": floor}
    return report


def main() -> int:
    parser = options_of("queue", __doc__, "200 events of 8 connections, once")
    parser.add_argument(
        "--folder", metavar="DIR", type=Path, help="where the store lies (default: the system's folder for temporary files)"
    )
    run = Run.begin(parser)
    effort = SMOKE if run.options.smoke else FULL
    try:
        report = judged(*measure(run, effort), effort)
    except (OSError, RuntimeError) as error:
        report = Report("accept", "asynchronous invocations", error=str(error))
    print(report.text())
    return run.finish([report])


if __name__ == "__main__":
    sys.exit(main())
