"""Measures the same rows on two builds, which take turns, and the floor of a fork in the same run.

Each build has a daemon of its own, started anew in every round: two daemons of one build differ by more than two builds do, because
of where the kernel places their threads. In every round each row is measured on both, and the build that begins changes from round to
round; the rows of warm requests are measured in short turns. A figure is the median over the rounds. The ratio is the geometric mean
of the rounds' ratios, with its interval. The load client is that of the newer build for both.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from benchlib.command import Run, options_of
from benchlib.daemon import Daemon, invoke_path
from benchlib.load import Load
from benchlib.pilot import ROOT
from benchlib.proc import memory, tree
from benchlib.report import Bar, Report
from benchlib.stats import Ratio, percentile

IMPORTS = "import numpy, PIL.Image\n"
NOOP = "def handler(event, context):\n    return {}\n"
REQUIREMENTS = (Path(__file__).parents[1] / "requirements.txt").read_text()
HOOK = (
    "import time\nfrom snapshot_restore_py import register_after_restore\n"
    "register_after_restore(lambda: time.sleep(0.1))\n" + NOOP
)
ASYNC = "async def handler(event, context):\n    return {}\n"
ASGI = """
async def handler(scope, receive, send):
    if scope["type"] == "lifespan":
        while True:
            kind = (await receive())["type"]
            await send({"type": kind + ".complete"})
            if kind == "lifespan.shutdown":
                return
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"{}"})
"""
FASTAPI = """
import fastapi
handler = fastapi.FastAPI()
@handler.get("/")
async def root():
    return {}
"""
WSGI = """
def handler(environ, start_response):
    start_response("200 OK", [])
    return [b"{}"]
"""
SLEEP = "import time\ndef handler(event, context):\n    time.sleep({})\n    return {{}}\n"
COMPUTE = """
import time
def handler(event, context):
    end = time.thread_time() + 0.005
    while time.thread_time() < end:
        pass
    return {}
"""
SETTLE_MS = 20
STARTED = "workers started"
MEGABYTE = 1_000_000
UPLOAD_BYTES_PER_S = 10 * MEGABYTE


@dataclass(frozen=True)
class Effort:
    rounds: int
    cold: int
    seconds: float
    bursts: int
    uploads: int
    workers: int
    deploys: int


FULL = Effort(rounds=10, cold=30, seconds=0.25, bursts=3, uploads=1, workers=10, deploys=5)
SMOKE = Effort(rounds=1, cold=3, seconds=0.2, bursts=1, uploads=1, workers=2, deploys=1)


@dataclass(frozen=True)
class Kind:
    """A kind of function, for `--kinds`. `path`: it is called by its URL."""

    code: str
    spec: dict[str, Any] = field(default_factory=dict)
    path: str | None = None
    requirements: str = ""


KINDS = {
    "plain": Kind(NOOP),
    "import ssl": Kind("import ssl\n" + NOOP),
    "concurrency 4": Kind(NOOP, {"concurrency": 4}),
    "async def": Kind(ASYNC),
    "ASGI": Kind(ASGI, {"interface": "asgi", "handler": "app.handler"}, "/"),
    "FastAPI": Kind(FASTAPI, {"interface": "asgi", "handler": "app.handler"}, "/", "fastapi==0.165.0\n"),
    "WSGI": Kind(WSGI, {"interface": "wsgi", "handler": "app.handler"}, "/"),
}


# The handlers of `--bursts`. They import numpy and Pillow.
HANDLERS = {
    "no work": NOOP,
    "sleeps 1 ms": SLEEP.format(0.001),
    "sleeps 10 ms": SLEEP.format(0.01),
    "sleeps 100 ms": SLEEP.format(0.1),
    "computes 5 ms": COMPUTE,
}


@dataclass(frozen=True)
class Side:
    """One build with its daemon."""

    daemon: Daemon
    load: Load
    effort: Effort


def cold(side: Side, name: str, path: str | None = None) -> list[float]:
    options = {"count": side.effort.cold, "warm_up": 1, "pause_ms": SETTLE_MS, "path": path}
    seen = side.load.function("cold", side.daemon.control_endpoint, name, **options)
    return [percentile(seen.first_byte, 50) / 1000, percentile(seen.first_byte, 99) / 1000]


def function_name(kind: str) -> str:
    return kind.lower().replace(" ", "-")


def warm(side: Side) -> list[float]:
    seen = side.load.function("warm", side.daemon.control_endpoint, "noop", seconds=side.effort.seconds, warm_up=100)
    return [seen.p(50), seen.p(99)]


def many(side: Side) -> list[float]:
    options = {"connections": 16, "seconds": side.effort.seconds, "warm_up": 100}
    return [side.load.function("warm", side.daemon.control_endpoint, "noop", **options).per_second]


def burst(side: Side) -> list[float]:
    return burst_of(side, "packages")[:1]


def burst_of(side: Side, name: str) -> list[float]:
    """Fifty requests at one instant: when all are answered, and how many workers were started for them, the median and the most of the
    bursts. The next burst waits for starts that nobody waits for any more: their workers would be there for it."""
    took, started = [], []
    for _ in range(side.effort.bursts):
        before = worker_starts(side.daemon, name)
        options = {"connections": 50, "count": 1, "pause_ms": 100}
        took.append(median(side.load.function("burst", side.daemon.control_endpoint, name, **options).rounds) / 1000)
        while side.daemon.workers(name)["starting"]:
            time.sleep(0.01)
        started.append(worker_starts(side.daemon, name) - before)
    return [median(took), median(started), max(started)]


def worker_starts(daemon: Daemon, name: str) -> int:
    for path in ("/metrics", "/_pilot/v1/metrics"):
        status, text = daemon.call("GET", path)
        if status == 200:
            found = re.search(rf'^pilot_worker_starts_total\{{faas_name="{name}"\}} (\d+)', text.decode(), re.MULTILINE)
            return int(found[1]) if found else 0
    raise RuntimeError(f"the daemon has no metrics: {status}")


def pss(side: Side) -> list[float]:
    """PSS of an idle worker: with workers, minus without workers, divided by their number."""
    daemon, workers = side.daemon, side.effort.workers

    def all_of_it() -> float:
        return memory(tree(daemon.pid)).pss / (1 << 20)

    daemon.scale("packages", 0)
    daemon.wait_for_idle("packages", 0)
    time.sleep(0.3)
    bare = all_of_it()
    daemon.scale("packages", workers)
    daemon.wait_for_idle("packages", workers)
    return [(all_of_it() - bare) / workers]


def upload(side: Side) -> list[float]:
    """A cold request whose body arrives at 10 MB/s and whose worker takes 100 ms to start: from the first byte to the answer."""
    took = []
    for _ in range(side.effort.uploads):
        side.daemon.scale("hook", 0)
        side.daemon.wait_for_idle("hook", 0)
        time.sleep(SETTLE_MS / 1000)
        took.append(_upload(side.daemon.port))
    return [median(took)]


def _upload(port: int) -> float:
    body = json.dumps({"padding": "x" * (MEGABYTE - 20)}).encode()
    head = f"POST {invoke_path('hook')} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        began = time.perf_counter()
        client.sendall(head)
        sent = 0
        while sent < len(body):
            # as many bytes as the clock allows by now, the last of them on time
            due = min(len(body), int((time.perf_counter() - began) * UPLOAD_BYTES_PER_S))
            client.sendall(body[sent:due])
            sent = due
            time.sleep(0.001)
        answer = client.recv(65536)
        took = (time.perf_counter() - began) * 1000
    if b" 200 OK" not in answer or b"x-pilot-start: cold" not in answer.lower():
        raise RuntimeError(f"not a cold answer: {answer[:300]!r}")
    return took


@dataclass(frozen=True)
class Row:
    """`figures` are the names and units of the results of `measure`. `better` is "less" or "more"."""

    name: str
    measure: Callable[[Side], list[float]]
    figures: list[tuple[str, str]]
    better: str = "less"
    turns: int = 1


ROWS = [
    Row("cold, numpy and Pillow", lambda side: cold(side, "packages"), [("p50", "ms"), ("p99", "ms")]),
    Row("cold, no imports", lambda side: cold(side, "noop"), [("p50", "ms"), ("p99", "ms")]),
    Row("warm, one connection", warm, [("p50", "µs"), ("p99", "µs")], turns=8),
    Row("warm, 16 connections", many, [("throughput", "/s")], better="more", turns=8),
    Row("50 at one instant, numpy and Pillow", burst, [("all answered", "ms")], turns=3),
    Row("idle worker, numpy and Pillow", pss, [("PSS", "MB")]),
    Row("cold, 1 MB at 10 MB/s, start of 100 ms", upload, [("answer", "ms")]),
]
KIND_ROWS = [
    Row(f"cold, {name}", partial(cold, name=function_name(name), path=kind.path), [("p50", "ms"), ("p99", "ms")])
    for name, kind in KINDS.items()
]
BURST_ROWS = [
    Row(
        f"50 at one instant, {name}",
        partial(burst_of, name=function_name(name)),
        [("all answered", "ms"), (STARTED, ""), (f"{STARTED}, most", "")],
        turns=2,
    )
    for name in HANDLERS
]
DEPLOY = "deploy with numpy and Pillow, empty caches"
# The limit: at most 3 % worse in every row. The upload and the deployment have their own.
RATIO_MAX = 1.03
UPLOAD_MS_MAX = 115.0
DEPLOY_RATIO_MAX = 1.1
# Most workers for fifty calls that take at most 1 ms.
STARTS_MAX = 14


def prepare(daemon: Daemon, packages: bool) -> None:
    daemon.deploy("noop", NOOP)
    daemon.deploy("packages", IMPORTS + NOOP if packages else NOOP, REQUIREMENTS if packages else "")
    daemon.deploy("hook", HOOK)


def prepare_kinds(daemon: Daemon, packages: bool) -> None:
    for name, kind in KINDS.items():
        if packages or not kind.requirements:
            daemon.deploy(function_name(name), kind.code, kind.requirements, **kind.spec)


def prepare_bursts(daemon: Daemon, packages: bool) -> None:
    for name, code in HANDLERS.items():
        daemon.deploy(function_name(name), IMPORTS + code if packages else code, REQUIREMENTS if packages else "")


def deploy(binary: Path, packages: bool) -> float:
    """Seconds from the upload to the report, by a new daemon. Its data directory and the installers' caches are empty."""
    with tempfile.TemporaryDirectory() as home:
        environment = {**os.environ, "XDG_CACHE_HOME": str(Path(home) / "cache")}
        with Daemon(binary, Path(home), environment) as daemon:
            began = time.perf_counter()
            daemon.deploy("packages", IMPORTS + NOOP if packages else NOOP, REQUIREMENTS if packages else "")
            return time.perf_counter() - began


def deploys(binaries: dict[str, Path], count: int, packages: bool) -> dict[str, list[list[float]]]:
    """The builds take turns. The first turn, which fills the caches of the registry, is not counted."""
    took: dict[str, list[list[float]]] = {name: [] for name in binaries}
    for number in range(count + 1):
        for name in list(binaries) if number % 2 == 0 else list(binaries)[::-1]:
            seconds = deploy(binaries[name], packages)
            if number > 0 or count == 1:
                took[name].append([seconds])
    return took


def floor(rounds: int) -> list[str]:
    """A bare os.fork() of a process with numpy and Pillow: what a fork costs on this machine."""
    tool = ROOT.parent / "shared" / "tools" / "floor.py"
    if not tool.exists():
        return []
    command = [sys.executable, str(tool)]
    return [subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() for _ in range(rounds)]


def main() -> int:
    parser = options_of("builds", __doc__, "every row once, without packages, of one build against itself")
    parser.add_argument("--before", metavar="FILE", type=Path, help="the older binary (default: the same)")
    parser.add_argument("--kinds", action="store_true", help="cold starts of each kind of Python function instead")
    parser.add_argument("--bursts", action="store_true", help="bursts for handlers of different durations instead")
    run = Run.begin(parser)
    options = run.options
    effort = SMOKE if options.smoke else FULL
    load = Load(run.binary)
    before: Path = options.before or run.binary
    rows = KIND_ROWS if options.kinds else BURST_ROWS if options.bursts else ROWS
    are_general = rows is ROWS
    if options.smoke:
        # And one that is called by its URL, and one that counts workers. The packages of the others are not installed.
        rows = [*ROWS, *(row for row in [*KIND_ROWS, *BURST_ROWS] if row.name in ("cold, ASGI", "50 at one instant, no work"))]
    seen: dict[str, dict[str, list[list[float]]]] = {row.name: {"before": [], "after": []} for row in rows}
    floors = [] if options.smoke else floor(2)
    with tempfile.TemporaryDirectory() as home:
        homes = {name: Path(home) / name for name in ("before", "after")}
        for folder in homes.values():
            folder.mkdir()
        binaries = {"before": before.resolve(), "after": run.binary}
        for name, binary in binaries.items():
            with Daemon(binary, homes[name]) as daemon:
                if options.kinds or options.smoke:
                    prepare_kinds(daemon, packages=not options.smoke)
                if options.bursts or options.smoke:
                    prepare_bursts(daemon, packages=not options.smoke)
                if are_general:
                    prepare(daemon, packages=not options.smoke)
        for number in range(effort.rounds):
            with Daemon(binaries["before"], homes["before"]) as one, Daemon(run.binary, homes["after"]) as other:
                sides = [("before", Side(one, load, effort)), ("after", Side(other, load, effort))]
                for _, side in sides:
                    for function in ("noop", "packages", "hook") if are_general else ():
                        side.daemon.invoke(function, {})
                    # So that the daemon knows how long starts and calls take.
                    for name in HANDLERS if options.bursts else ():
                        cold(side, function_name(name))
                for row in rows:
                    turns: dict[str, list[list[float]]] = {"before": [], "after": []}
                    for turn in range(number, number + (row.turns if not options.smoke else 1)):
                        for name, side in sides if turn % 2 == 0 else sides[::-1]:
                            turns[name].append(row.measure(side))
                    for name, measured in turns.items():
                        seen[row.name][name].append([median(values) for values in zip(*measured)])
            print(f"… round {number + 1} of {effort.rounds}", file=sys.stderr, flush=True)
    if are_general:
        rows = [*rows, Row(DEPLOY, lambda side: [], [("deployed", "s")])]
        seen[DEPLOY] = deploys(binaries, effort.deploys, packages=not options.smoke)
    if not options.smoke:
        floors += floor(2)
    report = judged(rows, seen, floors)
    print(report.text())
    return run.finish([report], floor=floors)


def judged(rows: list[Row], seen: dict[str, dict[str, list[list[float]]]], floors: list[str]) -> Report:
    report = Report(
        "builds", "before and after, taking turns", ["what", "before", "after", "after ÷ before (95 %), n"], notes=floors
    )
    for row in rows:
        for at, (figure, unit) in enumerate(row.figures):
            before = [values[at] for values in seen[row.name]["before"]]
            after = [values[at] for values in seen[row.name]["after"]]
            ratio = Ratio.of(new / old for new, old in zip(after, before))
            worse = ratio.mean if row.better == "less" else 1 / ratio.mean
            told = f"{ratio.text()}, {ratio.n}"
            what = f"{row.name}: {figure}"
            report.rows.append([what, f"{median(before):,.2f} {unit}", f"{median(after):,.2f} {unit}", told])
            if figure.startswith(STARTED):
                # Single bursts are in the data; the bar is for the median.
                if figure == STARTED and row.name.endswith(("no work", "sleeps 1 ms")):
                    started = median(after)
                    report.bars.append(Bar(what, f"≤ {STARTS_MAX}", f"{started:g}", started <= STARTS_MAX))
            elif row.measure is upload:
                bar, kept = f"≤ {UPLOAD_MS_MAX} ms", median(after) <= UPLOAD_MS_MAX
                report.bars.append(Bar(what, bar, f"{median(after):.1f} ms", kept))
            else:
                limit = DEPLOY_RATIO_MAX if row.name == DEPLOY else RATIO_MAX
                report.bars.append(Bar(what, f"≤ {limit} × worse", f"{worse:.3f}", worse <= limit))
    report.data = seen
    return report


if __name__ == "__main__":
    sys.exit(main())
