"""Offers five times as many requests as a function can serve, and measures what is served meanwhile and afterwards.

The capacity is what a closed loop with one connection per worker reaches; its p99 is the time without a wait. Then an open loop offers
five times that. The client is one process with epoll; it shares the CPUs with the daemon and the workers in both parts. Beside it, another
function is called ten times a second, and the control API is asked over its socket.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchlib.command import Run, options_of
from benchlib.daemon import Daemon
from benchlib.proc import memory
from benchlib.report import Bar, Report
from benchlib.stats import percentile

from .client import Answers, Clients

GOODPUT_MIN, P99_RATIO_MAX, CONTROL_S_MAX, MORE_MB_MAX, RECOVERY_S = 0.9, 2.0, 1.0, 64.0, 2.0
FACTOR = 5.0
CONNECTIONS = 400

WAITS = "import time\ndef handler(event, context):\n    time.sleep(0.04)\n"
COMPUTES = """import time
def handler(event, context):
    end = time.thread_time() + 0.01
    while time.thread_time() < end:
        pass
"""


@dataclass(frozen=True)
class Load:
    """A function, its workers, and how long its requests may wait: half of what an invocation takes."""

    name: str
    code: str
    workers: int
    max_wait_s: float


LOADS = (Load("waits", WAITS, 4, 0.02), Load("computes", COMPUTES, 2, 0.005))


@dataclass(frozen=True)
class Effort:
    capacity_s: float
    overload_s: float
    after_s: float


FULL = Effort(capacity_s=15, overload_s=60, after_s=8)
SMOKE = Effort(capacity_s=1.5, overload_s=3, after_s=3)


@dataclass
class Beside:
    """What others noticed meanwhile."""

    control_ms: list[float] = field(default_factory=list)
    other_ms: list[float] = field(default_factory=list)
    daemon_mb: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


class Observer(threading.Thread):
    """Asks the control API and another function, and reads the daemon's memory."""

    def __init__(self, daemon: Daemon) -> None:
        super().__init__(daemon=True)
        self.watched = daemon
        self.seen = Beside()
        self.over = threading.Event()

    def __enter__(self) -> Beside:
        self.start()
        return self.seen

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.join()

    def run(self) -> None:
        while not self.over.wait(0.1):
            try:
                self.seen.control_ms.append(timed(lambda: expect(self.watched.call("GET", "/_pilot/v1/functions"))))
                self.seen.other_ms.append(timed(lambda: self.watched.invoke("other", {})))
                self.seen.daemon_mb.append(memory([self.watched.pid]).rss / 2**20)
            except (OSError, RuntimeError) as error:
                self.seen.errors.append(str(error))


def timed(what: object) -> float:
    assert callable(what)
    began = time.perf_counter()
    what()
    return (time.perf_counter() - began) * 1000


def expect(answer: tuple[int, bytes]) -> None:
    if answer[0] != 200:
        raise RuntimeError(f"the control API answers {answer[0]}")


@dataclass
class Measured:
    load: Load
    quiet: Answers
    overload: Answers
    beside: Beside
    before_mb: float
    after: Answers

    @property
    def goodput(self) -> float:
        return self.overload.per_second / self.quiet.per_second

    @property
    def p99_ratio(self) -> float:
        return percentile(self.overload.served_ms, 99) / percentile(self.quiet.served_ms, 99)

    @property
    def more_mb(self) -> float:
        return max(self.beside.daemon_mb) - self.before_mb

    @property
    def recovered(self) -> bool:
        late = percentile(self.after.served_ms, 99) > P99_RATIO_MAX * percentile(self.quiet.served_ms, 99)
        return not self.after.refused_ms and not self.after.other and not late


def measure(daemon: Daemon, load: Load, effort: Effort) -> Measured:
    daemon.deploy(load.name, load.code, timeout_s=30, scale={"max": load.workers, "max_wait_s": load.max_wait_s})
    daemon.scale(load.name, load.workers)
    daemon.wait_for_idle(load.name, load.workers)
    with Clients(daemon.port, load.name, load.workers) as clients:
        clients.closed_loop(effort.capacity_s / 3)
        quiet = clients.closed_loop(effort.capacity_s)
    before_mb = memory([daemon.pid]).rss / 2**20
    with Clients(daemon.port, load.name, CONNECTIONS) as clients:
        with Observer(daemon) as beside:
            overload = clients.open_loop(FACTOR * quiet.per_second, effort.overload_s)
        time.sleep(RECOVERY_S)
        after = clients.open_loop(quiet.per_second / 2, effort.after_s)
    return Measured(load, quiet, overload, beside, before_mb, after)


def row(one: Measured) -> list[str]:
    quiet, overload = one.quiet, one.overload
    return [
        one.load.name,
        f"{quiet.per_second:,.0f}",
        f"{overload.per_second:,.0f}",
        f"{one.goodput:.2f}",
        f"{percentile(quiet.served_ms, 99):.1f} ms",
        f"{percentile(overload.served_ms, 99):.1f} ms",
        f"{len(overload.refused_ms):,}",
        f"{percentile(overload.refused_ms, 99):.1f} ms",
        f"{max(one.beside.control_ms):.0f} ms",
        f"{percentile(one.beside.other_ms, 99):.0f} ms",
        f"{one.more_mb:+.1f} MB",
    ]


HEADER = [
    "function",
    "capacity/s",
    "served/s",
    "goodput",
    "p99 quiet",
    "p99 served",
    "refused",
    "p99 refused",
    "control max",
    "other p99",
    "daemon",
]


def bars(one: Measured) -> list[Bar]:
    name, beside = one.load.name, one.beside
    control_ms = max(beside.control_ms)
    broken = one.overload.other or beside.errors
    return [
        Bar(f"{name}: goodput at {FACTOR:.0f}x", f"≥ {GOODPUT_MIN}", f"{one.goodput:.2f}", one.goodput >= GOODPUT_MIN),
        Bar(
            f"{name}: p99 of the served, to that without load",
            f"≤ {P99_RATIO_MAX}",
            f"{one.p99_ratio:.2f}",
            one.p99_ratio <= P99_RATIO_MAX,
        ),
        Bar(f"{name}: the daemon's memory", f"≤ +{MORE_MB_MAX:.0f} MB", f"{one.more_mb:+.1f} MB", one.more_mb <= MORE_MB_MAX),
        Bar(
            f"{name}: half the load, {RECOVERY_S:.0f} s later",
            "none refused, p99 as above",
            f"{len(one.after.refused_ms)} refused, p99 {percentile(one.after.served_ms, 99):.1f} ms",
            one.recovered,
        ),
        Bar(
            f"{name}: the control API answers",
            f"≤ {CONTROL_S_MAX:.0f} s",
            f"{control_ms:.0f} ms",
            control_ms <= CONTROL_S_MAX * 1000,
        ),
        Bar(f"{name}: other answers, errors beside", "none", str(broken or "none"), not broken),
    ]


def judged(all_measured: list[Measured], effort: Effort) -> Report:
    title = f"{FACTOR:.0f} times as many requests as can be served, for {effort.overload_s:.0f} s"
    report = Report("overload", title, HEADER)
    for one in all_measured:
        report.rows.append(row(one))
        report.bars += bars(one)
        retry = statistics.fmean(one.overload.retry_after_s) if one.overload.retry_after_s else 0.0
        report.notes.append(
            f"{one.load.name}: {one.load.workers} workers, max_wait_s = {one.load.max_wait_s}; Retry-After {retry:.1f} s on average; "
            f"{one.overload.unsent} found no free connection of {CONNECTIONS}"
        )
    report.data = [asdict(one) for one in all_measured]
    return report


def main() -> int:
    parser = options_of("overload", __doc__, "3 seconds of overload of each function")
    run = Run.begin(parser)
    effort = SMOKE if run.options.smoke else FULL
    all_measured = []
    try:
        with tempfile.TemporaryDirectory() as home, Daemon(run.binary, Path(home)) as daemon:
            daemon.deploy("other", "def handler(event, context):\n    return None\n", scale={"min": 1})
            for load in LOADS:
                print(f"… {load.name}", file=sys.stderr, flush=True)
                all_measured.append(measure(daemon, load, effort))
        report = judged(all_measured, effort)
    except (OSError, RuntimeError) as error:
        report = Report("overload", "more requests than can be served", error=str(error))
    print(report.text())
    return run.finish([report])


if __name__ == "__main__":
    sys.exit(main())
