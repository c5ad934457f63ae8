"""Measures warm requests of daemons that differ in `[traces]` alone: not there, 1 % of the requests recorded, all of them.

The daemons are of one build. They are started anew in each round, because two daemons of one build differ by more than this does, and take
short turns in a round. The collector is a process of the bench that reads nothing, on the same CPUs. A ratio is the geometric mean of the
rounds' ratios to the daemon without traces.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchlib.command import Run, options_of
from benchlib.daemon import Daemon
from benchlib.load import Load
from benchlib.report import Bar, Report
from benchlib.stats import Ratio

NOOP = "def handler(event, context):\n    return {}\n"
# The sides, with the share of requests that each records.
SIDES: dict[str, float | None] = {"without": None, "1 %": 0.01, "all": 1.0}
RATIO_MAX = 1.02


@dataclass(frozen=True)
class Effort:
    rounds: int
    turns: int
    seconds: float


FULL = Effort(rounds=15, turns=10, seconds=0.25)
SMOKE = Effort(rounds=1, turns=1, seconds=0.2)


@dataclass(frozen=True)
class Row:
    """A figure of a warm request, with its unit. `better` is "less" or "more"."""

    name: str
    unit: str
    better: str
    connections: int


ROWS = [Row("one connection, p50", "µs", "less", 1), Row("16 connections, throughput", "/s", "more", 16)]

Seen = dict[str, dict[str, list[float]]]


class Collector:
    """`collector.py` as a child."""

    def __enter__(self) -> Collector:
        command = [sys.executable, str(Path(__file__).with_name("collector.py"))]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout
        self.port = int(self.process.stdout.readline())
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.end()

    def end(self) -> dict[str, Any]:
        """Ends it. Returns what it received."""
        self.process.terminate()
        counts: dict[str, Any] = json.loads(self.process.communicate(timeout=20)[0])
        return counts


def measure(load: Load, daemon: Daemon, row: Row, effort: Effort) -> float:
    seen = load.function(
        "warm", daemon.control_endpoint, "noop", connections=row.connections, seconds=effort.seconds, warm_up=100
    )
    return seen.p(50) if row.connections == 1 else seen.per_second


def one_round(load: Load, daemons: dict[str, Daemon], effort: Effort, number: int) -> dict[str, dict[str, float]]:
    """The medians of a round, by row and side. The side that begins changes from turn to turn."""
    figures = {}
    for row in ROWS:
        turns: dict[str, list[float]] = {name: [] for name in daemons}
        for turn in range(number, number + effort.turns):
            names = list(daemons)
            first = turn % len(names)
            for name in names[first:] + names[:first]:
                turns[name].append(measure(load, daemons[name], row, effort))
        figures[row.name] = {name: median(values) for name, values in turns.items()}
    return figures


def exported(daemon: Daemon) -> dict[str, int]:
    """Spans by what became of them, from the daemon's metrics."""
    text = daemon.call("GET", "/metrics")[1].decode()
    lines = [line for line in text.splitlines() if line.startswith("pilot_trace_spans_total{")]
    return {line.split('outcome="')[1].split('"')[0]: int(float(line.split()[-1])) for line in lines}


def main() -> int:
    run = Run.begin(options_of("tracing", __doc__, "one short round"))
    effort = SMOKE if run.options.smoke else FULL
    load = Load(run.binary)
    seen: Seen = {row.name: {name: [] for name in SIDES} for row in ROWS}
    spans: dict[str, dict[str, int]] = {name: {} for name in SIDES}
    with tempfile.TemporaryDirectory() as home, Collector() as collector:
        for number in range(effort.rounds):
            with ExitStack() as stack:
                daemons: dict[str, Daemon] = {}
                for name, sample in SIDES.items():
                    folder = Path(home) / f"{number}-{len(daemons)}"
                    folder.mkdir()
                    daemon = Daemon(run.binary, folder)
                    if sample is not None:
                        with daemon.config.open("a") as config:
                            config.write(f'[traces]\nendpoint = "http://127.0.0.1:{collector.port}"\nsample = {sample}\n')
                    daemons[name] = stack.enter_context(daemon)
                    daemon.deploy("noop", NOOP)
                for row, figures in one_round(load, daemons, effort, number).items():
                    for name, figure in figures.items():
                        seen[row][name].append(figure)
                for name, daemon in daemons.items():
                    for outcome, count in exported(daemon).items():
                        spans[name][outcome] = spans[name].get(outcome, 0) + count
            print(f"… round {number + 1} of {effort.rounds}", file=sys.stderr, flush=True)
        received = collector.end()
    if not received["requests"]:
        raise RuntimeError("the collector received nothing: nothing was traced")
    report = judged(seen, spans, received)
    print(report.text())
    return run.finish([report])


def judged(seen: Seen, spans: dict[str, dict[str, int]], received: dict[str, Any]) -> Report:
    report = Report("tracing", "warm requests with and without traces", ["what", *SIDES, "1 % (95 %), n", "all (95 %), n"])
    for row in ROWS:
        told = [f"{median(seen[row.name][name]):,.1f} {row.unit}" for name in SIDES]
        for name in list(SIDES)[1:]:
            ratio = Ratio.of(traced / plain for traced, plain in zip(seen[row.name][name], seen[row.name]["without"]))
            told.append(f"{ratio.text()}, {ratio.n}")
            worse = ratio.mean if row.better == "less" else 1 / ratio.mean
            if name == "1 %":
                report.bars.append(Bar(f"{row.name}, 1 %", f"≤ {RATIO_MAX} × worse", f"{worse:.3f}", worse <= RATIO_MAX))
        report.rows.append([row.name, *told])
    report.notes.append(
        f"spans by what became of them: {json.dumps(spans)}; the collector received {received['requests']} requests"
    )
    report.data = {"figures": seen, "spans": spans, "received": received}
    return report


if __name__ == "__main__":
    sys.exit(main())
