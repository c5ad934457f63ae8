"""Calls of functions, one by one or at a given rate, with what the daemon says about each."""

from __future__ import annotations

import http.client
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

from benchlib.daemon import Daemon, invoke_path


@dataclass(frozen=True)
class Seen:
    """`at_s`: since the first call. `total_ms`: at the client, to the whole answer. `phases_ms`: of the timeline, with `handler`."""

    at_s: float
    total_ms: float
    start: str
    phases_ms: dict[str, float]
    answer: Any

    @property
    def handler_ms(self) -> float:
        return self.phases_ms["handler"]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class RefusedError(RuntimeError):
    """The daemon could not serve it in time (429)."""


class Client:
    """One connection, which is kept open."""

    def __init__(self, daemon: Daemon, began: float | None = None) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=120)
        self.used = time.monotonic()
        self.began = self.used if began is None else began

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()

    def call(self, name: str, event: object = None) -> Seen:
        began = time.monotonic()
        if began - self.used > UNUSED_MAX_S:
            # The next request opens it again.
            self.connection.close()
        self.connection.request("POST", invoke_path(name), json.dumps(event).encode())
        response = self.connection.getresponse()
        body = response.read()
        self.used = time.monotonic()
        took = self.used - began
        if response.status == 429:
            raise RefusedError(f"{name}: {body[:300]!r}")
        if response.status != 200 or response.getheader("x-amz-function-error"):
            raise RuntimeError(f"{name}: {response.status} {body[:300]!r}")
        phases = {}
        for entry in (response.getheader("server-timing") or "").split(", "):
            phase, _, duration = entry.partition(";dur=")
            if duration:
                phases[phase] = float(duration.partition(";")[0])
        start = response.getheader("x-pilot-start") or ""
        return Seen(began - self.began, took * 1000, start, phases, json.loads(body) if body else None)


CLIENTS_MAX = 256
# The daemon closes connections that are not used: after 60 s at the latest. With 30 s here, a run with 256 clients still met a closed one.
UNUSED_MAX_S = 2.0


def at_rate(daemon: Daemon, name: str, rps: float, seconds: float, event: object) -> tuple[list[Seen], int]:
    """Calls at equal intervals, whether the earlier ones have been answered or not. Also returns how many were refused."""
    began = time.monotonic()
    of_thread = threading.local()

    def one() -> Seen | None:
        if not hasattr(of_thread, "client"):
            of_thread.client = Client(daemon, began)
        try:
            seen: Seen = of_thread.client.call(name, event)
        except RefusedError:
            return None
        return seen

    with ThreadPoolExecutor(CLIENTS_MAX) as pool:
        running = []
        for number in range(max(1, round(rps * seconds))):
            time.sleep(max(0.0, began + number / rps - time.monotonic()))
            running.append(pool.submit(one))
        answers = [done.result() for done in running]
    seen = [answer for answer in answers if answer is not None]
    return seen, len(answers) - len(seen)


class Watch:
    """How many workers a function has, over time."""

    def __init__(self, daemon: Daemon, name: str, every_s: float) -> None:
        self.daemon, self.name, self.every_s = daemon, name, every_s
        self.seen: list[tuple[float, int]] = []
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Watch:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopped.set()
        self.thread.join()

    def _run(self) -> None:
        began = time.monotonic()
        while True:
            workers = self.daemon.workers(self.name)
            self.seen.append((time.monotonic() - began, workers["idle"] + workers["busy"]))
            if self.stopped.wait(self.every_s):
                return

    @property
    def most(self) -> int:
        return max(count for _, count in self.seen)
