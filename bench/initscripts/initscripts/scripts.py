"""The scripts themselves: how soon they send their first request, what a reply of 100 MB costs, and what the relay adds."""

from __future__ import annotations

import os
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from statistics import median

from benchlib.daemon import Daemon
from benchlib.report import Bar, Report
from benchlib.stats import percentile

from .world import BUCKET, Relay, Seen, World

FIRST_MS_MAX, BURST_MS_MAX, MAP_MS_MAX = 0.2, 10.0, 3.0
REPLY_LEN, BURST = 100 << 20, 100


def first_request(seen: Seen) -> float:
    """From the request to the script's first request, ms."""
    begin: float = seen.phases["fetch.init.0"]["begin"]
    return begin


def starts(world: World) -> Report:
    """From admission to the first host call. What is seen is a little more: from the request's head to the request of the script, which
    is its third call.
    """
    daemon = world.daemon()
    world.distance(0)
    world.store.put("in/small", b"small")
    many = 10 if world.is_smoke else 100
    for name in ("one", "burst"):
        world.deploy(daemon, name, "nothing", "objects", [f"s3://{BUCKET}"], memory_mb=128)
    event = {"object": {"key": "in/small"}}
    alone = [first_request(world.cold(daemon, "one", event)) for _ in range(many)]
    bursts = [burst(world, daemon, event, many if world.is_smoke else BURST) for _ in range(world.turns)]
    together = [one for burst in bursts for one in burst]
    size = f"{min(map(len, bursts))} to {max(map(len, bursts))} at once"
    report = Report(
        "starts", "from the request to the first request of its script", ["", "n", "p50, ms", "p99, ms", "last, ms"]
    )
    for name, values in [("one at a time", alone), (size, together)]:
        numbers = [percentile(values, 50), percentile(values, 99), max(values)]
        report.rows.append([name, str(len(values)), *(f"{number:.3f}" for number in numbers)])
    p50, last = percentile(alone, 50), median([max(one) for one in bursts])
    report.bars = [
        Bar("one script", f"p50 ≤ {FIRST_MS_MAX} ms", f"{p50:.3f}", p50 <= FIRST_MS_MAX),
        Bar(f"{size}, the last of each burst, median", f"≤ {BURST_MS_MAX} ms", f"{last:.1f}", last <= BURST_MS_MAX),
    ]
    report.notes.append("at once: as many cold invocations, whose workers are forked on the same CPUs")
    report.data = {"alone_ms": alone, "together_ms": together, "bursts_ms": bursts}
    return report


def burst(world: World, daemon: Daemon, event: object, many: int) -> list[float]:
    """Those of cold invocations that come at the same time. Each counts from its own head."""
    ready = threading.Barrier(many)

    def one(_: int) -> Seen:
        ready.wait()
        return world.ask(daemon, "burst", event)

    world.retire(daemon, "burst")
    with ThreadPoolExecutor(many) as pool:
        seen = list(pool.map(one, range(many)))
    # Those that found a worker which had become free have no script.
    return [first_request(one) for one in seen if "fetch.init.0" in one.phases]


def reply(world: World) -> Report:
    """The worker's part: mapping the message, and touching both ends of it."""
    daemon = world.daemon()
    world.distance(0)
    size = (1 << 20) if world.is_smoke else REPLY_LEN
    world.store.put("in/reply", os.urandom(size))
    world.deploy(daemon, "reply", "reply", "objects", [f"s3://{BUCKET}"])
    times = []
    for _ in range(world.turns):
        answer = world.cold(daemon, "reply", {"object": {"key": "in/reply"}}).answer
        if answer["bytes"] != size:
            raise RuntimeError(f"the message has {answer['bytes']} bytes")
        times.append(answer["measurement"]["map_time"] / 1000)
    report = Report("reply", f"a reply of {size >> 20} MiB, mapped by the function", ["", "n", "median, ms", "longest, ms"])
    report.rows = [["recv_msg and both ends", str(len(times)), f"{median(times):.3f}", f"{max(times):.3f}"]]
    report.bars = [Bar("recv_msg", f"≤ {MAP_MS_MAX} ms", f"{median(times):.3f}", median(times) <= MAP_MS_MAX)]
    report.data = {"bytes": size, "map_ms": times}
    return report


def relay(world: World) -> Report:
    """A byte and back: to an echo directly, and through the relay at each distance."""
    with socket.create_server(("127.0.0.1", 0)) as echo:
        threading.Thread(target=echoes, args=(echo,), daemon=True).start()
        port: int = echo.getsockname()[1]
        measured: dict[str, list[float]] = {"direct": pings(port)}
        with Relay(port) as between:
            for round_trip_ms in (0.0, 0.5, 10.0):
                between.set(round_trip_ms)
                measured[f"relay, {round_trip_ms:g} ms"] = pings(between.port)
    report = Report("relay", "what the relay adds by itself", ["way", "n", "p50, ms", "p99, ms"])
    for way, values in measured.items():
        report.rows.append([way, str(len(values)), f"{percentile(values, 50):.3f}", f"{percentile(values, 99):.3f}"])
    report.data = measured
    return report


def echoes(listener: socket.socket) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        with connection:
            while part := connection.recv(16):
                connection.sendall(part)


def pings(port: int) -> list[float]:
    times = []
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(101):
            began = time.perf_counter()
            connection.sendall(b"x")
            connection.recv(1)
            times.append((time.perf_counter() - began) * 1000)
    # The first one waited for the connection's handshake, too.
    return times[1:]
