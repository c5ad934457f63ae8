"""Measures an honest neighbour quiet and under each attack, in turns: its latency and throughput, how long the control API takes, and the
daemon's memory.

In each turn, the neighbour is measured quiet, then under the attack. The attack is another process from another address. The ratio of a
turn is that of its two measurements, so noise of the machine falls on both. A figure is the median over the turns; the ratio is the
geometric mean with its interval.
"""

from __future__ import annotations

import http.client
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from benchlib.command import Run, options_of
from benchlib.daemon import Daemon
from benchlib.load import Load
from benchlib.pilot import ROOT
from benchlib.proc import cpu_s, memory
from benchlib.report import Bar, Report
from benchlib.stats import Ratio, percentile

from . import functions
from .attacks import CLIENTS

MB = 1 << 20
# The bars.
P99_RATIO_MAX = 2.0
MEMORY_MB_MAX = 64
CONTROL_MS_MAX = 50.0
THROUGHPUT_MIN = 0.95
# A daemon at rest uses less of a CPU than this. It is waited for in steps.
REST_SHARE_MAX = 0.05
REST_LOOK_S = 0.5


@dataclass(frozen=True)
class Effort:
    turns: int
    seconds: float
    settle_s: float
    rest_s_max: float


FULL = Effort(turns=5, seconds=4.0, settle_s=1.0, rest_s_max=60.0)
SMOKE = Effort(turns=1, seconds=0.3, settle_s=0.1, rest_s_max=0.0)


@dataclass(frozen=True)
class Seen:
    """One measurement: µs, requests per second, ms, bytes."""

    p50: float
    p99: float
    throughput: float
    control_ms: float
    rss: int


@dataclass(frozen=True)
class Turn:
    quiet: Seen
    attacked: Seen


class Watch:
    """Samples the daemon's memory and the control API's time until it ends."""

    def __init__(self, daemon: Daemon) -> None:
        self.rss = 0
        self.control_ms: list[float] = []
        self._daemon = daemon
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._over.wait(0.05):
            self.rss = max(self.rss, rss(self._daemon))
            began = time.perf_counter()
            self._daemon.call("GET", "/_pilot/v1/functions")
            self.control_ms.append((time.perf_counter() - began) * 1000)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def rss(daemon: Daemon) -> int:
    assert daemon.process
    return memory([daemon.process.pid]).rss


def rest(daemon: Daemon, s_max: float) -> None:
    """Waits until the daemon has done what an attack has left: what clients have sent is read after their end, too."""
    assert daemon.process
    end = time.monotonic() + s_max
    used = cpu_s([daemon.process.pid])
    while time.monotonic() < end:
        time.sleep(REST_LOOK_S)
        before, used = used, cpu_s([daemon.process.pid])
        if used - before <= REST_SHARE_MAX * REST_LOOK_S:
            return
    if s_max:
        print(
            f"… the daemon is still busy after {s_max:.0f} s: the next quiet figures have that in them",
            file=sys.stderr,
            flush=True,
        )


def measure(daemon: Daemon, load: Load, effort: Effort) -> Seen:
    with Watch(daemon) as watch:
        options = {"seconds": effort.seconds, "warm_up": 20}
        one = load.function("warm", daemon.control_endpoint, "neighbour", **options)
        many = load.function("warm", daemon.control_endpoint, "neighbour", connections=8, **options)
    return Seen(one.p(50), one.p(99), many.per_second, percentile(watch.control_ms or [0.0], 99), watch.rss or rss(daemon))


@contextmanager
def client(name: str, daemon: Daemon) -> Iterator[None]:
    """An attack of clients, while it is under way."""
    control = daemon.data / "control.sock"
    command = [sys.executable, "-m", "neighbours.attacks", name, str(daemon.port), str(control)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[1])
    try:
        assert process.stdout
        if not process.stdout.readline():
            raise RuntimeError(f"the attack {name} ended with {process.wait()}")
        yield
    finally:
        process.kill()
        process.wait()


@contextmanager
def deploying(code: str, daemon: Daemon) -> Iterator[None]:
    """An attack of a deployer, who deploys the same again and again. Refused deployments are what is wanted."""
    over = threading.Event()

    def deploy() -> None:
        number = 0
        while not over.is_set():
            number += 1
            try:
                daemon.deploy("deployed", code.replace("{mark}", str(number)))
            except (RuntimeError, OSError):
                over.wait(0.05)

    thread = threading.Thread(target=deploy)
    thread.start()
    try:
        # The first deployment is being compiled or imported by then.
        time.sleep(0.3)
        yield
    finally:
        over.set()
        thread.join()


HOSTILE = {
    "printing": functions.PRINTING,
    "long": functions.LONG,
    "partial": functions.PARTIAL,
    "forking": functions.FORKING,
    "hog": functions.HOG,
    "everything": functions.EVERYTHING,
}
Attack = Callable[[Daemon], AbstractContextManager[None]]


def attacks() -> dict[str, Attack]:
    def of_clients(name: str) -> Attack:
        return lambda daemon: client(name, daemon)

    return {
        **{name: of_clients(name) for name in CLIENTS},
        "template log flood": lambda daemon: deploying(functions.FLOODING, daemon),
        "2 MB in one expression": lambda daemon: deploying(functions.LARGE_SOURCE, daemon),
        # The difference of two quiet measurements: what the machine's noise alone does to the figures.
        "none": lambda _: nullcontext(),
    }


def daemon_of(binary: Path, home: Path) -> Daemon:
    daemon = Daemon(binary, home)
    daemon.config.write_text(f"h2c = true\n{daemon.config.read_text()}")
    return daemon


def prepare(daemon: Daemon) -> None:
    daemon.deploy("neighbour", functions.NEIGHBOUR)
    for name, code in HOSTILE.items():
        keys: dict[str, Any] = {"timeout_s": 60, "cpu": 0.25, "memory_mb": 512, "scale": {"max": 40}}
        daemon.deploy(name, code, **keys)
    daemon.deploy("everything-unlimited", functions.EVERYTHING, timeout_s=60, memory_mb=512)
    program: dict[str, Any] = {"runtime": "provided", "command": ["python3", "app.py"]}
    daemon.deploy("pieces", functions.PIECES, timeout_s=60, cpu=0.25, scale={"max": 3}, **program)
    daemon.deploy("flooded", functions.NEIGHBOUR, cpu=0.25)
    daemon.deploy("websocket", functions.WEBSOCKET, handler="app.app", interface="asgi", cpu=0.25)


def fill_logs(daemon: Daemon) -> None:
    daemon.deploy("says", functions.SAYS, timeout_s=60)
    for _ in range(40):
        invoke(daemon, "says", b"3000", {})


def fill_queue(daemon: Daemon) -> None:
    daemon.deploy("slow", functions.SLOW, timeout_s=60, scale={"max": 1})
    for _ in range(1000):
        invoke(daemon, "slow", b"{}", {"X-Amz-Invocation-Type": "Event"})


def invoke(daemon: Daemon, name: str, body: bytes, headers: dict[str, str]) -> None:
    connection = http.client.HTTPConnection(daemon.address, timeout=60)
    connection.request("POST", f"/2015-03-31/functions/{name}/invocations", body, headers)
    response = connection.getresponse()
    answer = response.read()
    connection.close()
    if response.status >= 300:
        raise RuntimeError(f"{name}: {response.status} {answer[:200]!r}")


# What is read again and again must be there.
FILLS: dict[str, Callable[[Daemon], None]] = {"logs": fill_logs, "asynchronous invocations": fill_queue}


@contextmanager
def ready(binary: Path, names: list[str]) -> Iterator[Daemon]:
    """A daemon with all functions, and with what these attacks read."""
    with tempfile.TemporaryDirectory() as home, daemon_of(binary, Path(home)) as daemon:
        prepare(daemon)
        for name in names:
            if fill := FILLS.get(name):
                fill(daemon)
        yield daemon


def compare(name: str, attack: Attack, daemon: Daemon, load: Load, effort: Effort) -> list[Turn]:
    turns = []
    # Memory that a daemon takes once and keeps, whoever calls it.
    measure(daemon, load, SMOKE)
    for number in range(effort.turns):
        quiet = measure(daemon, load, effort)
        with attack(daemon):
            time.sleep(effort.settle_s)
            attacked = measure(daemon, load, effort)
        turns.append(Turn(quiet, attacked))
        time.sleep(effort.settle_s)
        rest(daemon, effort.rest_s_max)
        print(f"… {name}: turn {number + 1} of {effort.turns}", file=sys.stderr, flush=True)
    return turns


def ratio(turns: list[Turn], figure: Callable[[Seen], float]) -> Ratio:
    return Ratio.of(figure(turn.attacked) / figure(turn.quiet) for turn in turns)


def judge(report: Report, name: str, turns: list[Turn]) -> None:
    p99, throughput = ratio(turns, lambda seen: seen.p99), ratio(turns, lambda seen: seen.throughput)
    grown = max(turn.attacked.rss - turn.quiet.rss for turn in turns) / MB
    control = median(turn.attacked.control_ms for turn in turns)

    def both(figure: Callable[[Seen], float], digits: int = 0) -> str:
        quiet = median(figure(turn.quiet) for turn in turns)
        return f"{quiet:,.{digits}f} → {median(figure(turn.attacked) for turn in turns):,.{digits}f}"

    report.rows.append(
        [
            name,
            both(lambda seen: seen.p50),
            both(lambda seen: seen.p99),
            p99.text(2),
            both(lambda seen: seen.throughput),
            throughput.text(2),
            both(lambda seen: seen.rss / MB, 1),
            both(lambda seen: seen.control_ms, 1),
            str(len(turns)),
        ]
    )
    report.bars.append(
        Bar(f"{name}: p99 of a neighbour", f"≤ {P99_RATIO_MAX} × quiet", f"{p99.mean:.2f}", p99.mean <= P99_RATIO_MAX)
    )
    report.bars.append(
        Bar(f"{name}: the daemon's memory", f"≤ {MEMORY_MB_MAX} MB more", f"{grown:.1f} MB", grown <= MEMORY_MB_MAX)
    )
    if name == "trickle":
        report.bars.append(
            Bar("trickle: control API, p99", f"≤ {CONTROL_MS_MAX} ms", f"{control:.1f} ms", control <= CONTROL_MS_MAX)
        )
        kept = throughput.mean >= THROUGHPUT_MIN
        report.bars.append(
            Bar("trickle: throughput from another address", f"≥ {THROUGHPUT_MIN} × quiet", f"{throughput.mean:.3f}", kept)
        )


def commit() -> str:
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip() or "unknown"


def floor() -> str:
    """What a fork costs on this machine now, if the tool for it is there."""
    tool = ROOT.parent / "shared" / "tools" / "floor.py"
    if not tool.exists():
        return "not measured"
    return subprocess.run([sys.executable, str(tool)], capture_output=True, text=True, check=True).stdout.strip()


def main() -> int:
    known = attacks()
    parser = options_of("neighbours", __doc__, "every attack once, for a short time")
    parser.add_argument("--only", metavar="ATTACK", action="append", choices=list(known), help=", ".join(known))
    parser.add_argument("--turns", type=int, help=f"turns per attack (default: {FULL.turns})")
    run = Run.begin(parser)
    effort = SMOKE if run.options.smoke else FULL
    if run.options.turns:
        effort = replace(effort, turns=run.options.turns)
    header = [
        "attack",
        "p50, µs",
        "p99, µs",
        "p99 ÷ quiet (95 %)",
        "requests/s",
        "÷ quiet (95 %)",
        "RSS, MB",
        "control p99, ms",
        "n",
    ]
    report = Report("neighbours", "a neighbour, quiet → under attack", header)
    floors = [] if run.options.smoke else [floor()]
    seen: dict[str, list[Turn]] = {}
    load = Load(run.binary)
    chosen = [name for name in known if not run.options.only or name in run.options.only]
    # Each attack has a new daemon where figures count.
    for group in [chosen] if run.options.smoke else [[name] for name in chosen]:
        with ready(run.binary, group) as daemon:
            for name in group:
                seen[name] = compare(name, known[name], daemon, load, effort)
                judge(report, name, seen[name])
    floors += [] if run.options.smoke else [floor()]
    report.notes = floors
    report.data = {name: [asdict(turn) for turn in turns] for name, turns in seen.items()}
    print(report.text())
    return run.finish([report], commit=commit(), floor=floors, cpus=os.cpu_count(), turns=effort.turns, seconds=effort.seconds)


if __name__ == "__main__":
    sys.exit(main())
