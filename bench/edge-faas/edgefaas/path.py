"""Whether forecasting delays requests: one daemon with a thousand functions that have traffic, in turns with forecasters for all of them and
for none.

The policies are changed while the daemon runs, so that both sides are the same processes with the same memory. The traffic is the same on
both sides and never stops. A new policy begins without a past, so it has some seconds of traffic before calls are measured. The measured
function has no forecaster on either side.
"""

from __future__ import annotations

import contextlib
import http.client
import resource
import sys
import tempfile
import threading
import time
from pathlib import Path
from statistics import median

from benchlib.daemon import Daemon, invoke_path
from benchlib.load import Load
from benchlib.report import Bar, Report
from benchlib.stats import Ratio

NOOP = "def handler(event, context):\n    return None\n"
TRAFFIC_PER_S = 200.0
DESCRIPTORS = 1 << 20


class Traffic:
    """Calls the functions one after the other at a fixed rate, over one connection."""

    def __init__(self, daemon: Daemon, names: list[str]) -> None:
        self.daemon, self.names = daemon, names
        self.calls = 0
        self.failed: str | None = None
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Traffic:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self.thread.join()

    def _run(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.daemon.port, timeout=60)
        began = time.monotonic()
        while not self.ended.wait(max(0.0, began + self.calls / TRAFFIC_PER_S - time.monotonic())):
            name = self.names[self.calls % len(self.names)]
            connection.request("POST", invoke_path(name), b"{}")
            response = connection.getresponse()
            body = response.read()
            if response.status != 200:
                self.failed = f"{name}: {response.status} {body[:200]!r}"
                return
            self.calls += 1


def with_room(binary: Path, home: Path, functions: int) -> Daemon:
    """A daemon that may have so many functions, and, if the machine allows it, as many descriptors as its systemd unit gives it: each
    function takes about twenty."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most < DESCRIPTORS:
        with contextlib.suppress(ValueError, PermissionError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
    daemon = Daemon(binary, home)
    with daemon.config.open("a") as config:
        config.write(f"[limits]\nfunctions = {functions}\n")
    return daemon


def run(binary: Path, functions: int = 1000, turns: int = 8, seconds: float = 4.0, past_s: float = 15.0) -> Report:
    report = Report(
        "path", f"warm calls beside {functions:,} functions with traffic, with forecasters and without, in turns in one daemon"
    )
    report.header = ["forecasters", "p50 µs, by turn", "median"]
    found: dict[str, list[float]] = {"none": [], "auto": []}
    with tempfile.TemporaryDirectory(prefix="pilot-edge-faas-") as home, with_room(binary, Path(home), functions + 1) as daemon:
        names = [f"other-{index}" for index in range(functions)]
        for number, name in enumerate(["called", *names]):
            daemon.deploy(name, NOOP, handler="app.handler")
            if number % 100 == 0:
                print(f"  {number} of {functions} functions deployed", file=sys.stderr, flush=True)
        load = Load(binary)
        daemon.invoke("called", {})
        load.function("warm", daemon.control_endpoint, "called", seconds=1)
        with Traffic(daemon, names) as traffic:
            for turn in range(turns):
                # The order changes every turn, so that other load on the machine affects both sides.
                for side in ("none", "auto") if turn % 2 == 0 else ("auto", "none"):
                    for name in names:
                        daemon.choose(name, "demand" if side == "none" else "auto")
                    time.sleep(past_s)
                    found[side].append(load.function("warm", daemon.control_endpoint, "called", seconds=seconds).p(50))
        if traffic.failed:
            raise RuntimeError(f"the traffic ended: {traffic.failed}")
        report.notes.append(f"the other functions were called {traffic.calls:,} times, {TRAFFIC_PER_S:g} per second")
    for side, values in found.items():
        report.rows.append([side, ", ".join(f"{value:.1f}" for value in values), f"{median(values):.1f}"])
    ratios = [ticking / still for ticking, still in zip(found["auto"], found["none"])]
    ratio = Ratio.of(ratios)
    report.data = {"functions": functions, "p50_us": found, "ratios": ratios, "ratio": vars(ratio)}
    report.notes.append(
        "the ratio is the geometric mean of those within a turn: " + ", ".join(f"{each:.3f}" for each in ratios)
    )
    what = f"predicting: p50 beside {functions:,} functions with traffic, with forecasters / without"
    report.bars.append(Bar(what, "≤ 1.03", ratio.text(), ratio.mean <= 1.03 if functions >= 1000 else None))
    return report
