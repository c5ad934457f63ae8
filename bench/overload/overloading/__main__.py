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
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchlib.command import Run, options_of
from benchlib.daemon import Daemon
from benchlib.proc import memory
from benchlib.report import Bar, Report
from benchlib.stats import Estimate, percentile

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
    rounds: int


FULL = Effort(capacity_s=15, overload_s=60, after_s=8, rounds=5)
SMOKE = Effort(capacity_s=1.5, overload_s=3, after_s=3, rounds=1)


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


def row(rounds: list[Measured]) -> list[str]:
    """The rounds of one function."""

    def text(what: Callable[[Measured], float], digits: int = 0) -> str:
        return Estimate.of([what(one) for one in rounds]).text(digits)

    return [
        rounds[0].load.name,
        text(lambda one: one.quiet.per_second),
        text(lambda one: one.overload.per_second),
        text(lambda one: one.goodput, 2),
        text(lambda one: percentile(one.quiet.served_ms, 99), 1) + " ms",
        text(lambda one: percentile(one.overload.served_ms, 99), 1) + " ms",
        text(lambda one: len(one.overload.refused_ms)),
        text(lambda one: percentile(one.overload.refused_ms, 99), 1) + " ms",
        f"{max(max(one.beside.control_ms) for one in rounds):.0f} ms",
        text(lambda one: percentile(one.beside.other_ms, 99)) + " ms",
        f"{max(one.more_mb for one in rounds):+.1f} MB",
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


def bars(rounds: list[Measured]) -> list[Bar]:
    """Each round of a function must keep them, so the worst one is judged."""
    name = rounds[0].load.name
    goodput = min(one.goodput for one in rounds)
    p99_ratio = max(one.p99_ratio for one in rounds)
    more_mb = max(one.more_mb for one in rounds)
    refused = sum(len(one.after.refused_ms) for one in rounds)
    late_ms = max(percentile(one.after.served_ms, 99) for one in rounds)
    control_ms = max(max(one.beside.control_ms) for one in rounds)
    broken = [problem for one in rounds for problem in (*one.overload.other, *one.beside.errors)]
    worst = "" if len(rounds) == 1 else f" in the worst of {len(rounds)} rounds"
    return [
        Bar(f"{name}: goodput at {FACTOR:.0f}x", f"≥ {GOODPUT_MIN}", f"{goodput:.2f}{worst}", goodput >= GOODPUT_MIN),
        Bar(
            f"{name}: p99 of the served, to that without load",
            f"≤ {P99_RATIO_MAX}",
            f"{p99_ratio:.2f}{worst}",
            p99_ratio <= P99_RATIO_MAX,
        ),
        Bar(f"{name}: the daemon's memory", f"≤ +{MORE_MB_MAX:.0f} MB", f"{more_mb:+.1f} MB{worst}", more_mb <= MORE_MB_MAX),
        Bar(
            f"{name}: half the load, {RECOVERY_S:.0f} s later",
            "none refused, p99 as above",
            f"{refused} refused, p99 {late_ms:.1f} ms{worst}",
            all(one.recovered for one in rounds),
        ),
        Bar(
            f"{name}: the control API answers",
            f"≤ {CONTROL_S_MAX:.0f} s",
            f"{control_ms:.0f} ms{worst}",
            control_ms <= CONTROL_S_MAX * 1000,
        ),
        Bar(f"{name}: other answers, errors beside", "none", str(broken or "none"), not broken),
    ]


def judged(all_measured: list[Measured], effort: Effort) -> Report:
    title = f"{FACTOR:.0f} times as many requests as can be served, for {effort.overload_s:.0f} s"
    report = Report("overload", title, HEADER)
    for load in LOADS:
        rounds = [one for one in all_measured if one.load == load]
        report.rows.append(row(rounds))
        report.bars += bars(rounds)
        after_s = [seconds for one in rounds for seconds in one.overload.retry_after_s]
        retry = statistics.fmean(after_s) if after_s else 0.0
        report.notes.append(
            f"{load.name}: {load.workers} workers, max_wait_s = {load.max_wait_s}; n = {len(rounds)}; Retry-After {retry:.1f} s on average; "
            f"{sum(one.overload.unsent for one in rounds)} found no free connection of {CONNECTIONS}"
        )
    report.data = [asdict(one) for one in all_measured]
    return report


def main() -> int:
    parser = options_of("overload", __doc__, "3 seconds of overload of each function")
    run = Run.begin(parser)
    effort = SMOKE if run.options.smoke else FULL
    all_measured = []
    try:
        for number in range(effort.rounds):
            with tempfile.TemporaryDirectory() as home, Daemon(run.binary, Path(home)) as daemon:
                daemon.deploy("other", "def handler(event, context):\n    return None\n", scale={"min": 1})
                for load in LOADS:
                    print(f"… {load.name}, round {number + 1} of {effort.rounds}", file=sys.stderr, flush=True)
                    all_measured.append(measure(daemon, load, effort))
        report = judged(all_measured, effort)
    except (OSError, RuntimeError) as error:
        report = Report("overload", "more requests than can be served", error=str(error))
    print(report.text())
    return run.finish([report])


if __name__ == "__main__":
    sys.exit(main())
