"""Whether forecasting delays requests: one daemon with a thousand functions, in turns with forecasters for all of them and for none.

The policies are changed while the daemon runs, so that both sides are the same processes with the same memory. The measured function
has no forecaster on either side.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from statistics import median

from benchlib.daemon import Daemon
from benchlib.load import Load
from benchlib.report import Bar, Report

NOOP = "def handler(event, context):\n    return None\n"


def run(binary: Path, functions: int = 1000, turns: int = 10, seconds: float = 3.0) -> Report:
    report = Report("path", f"warm calls with {functions:,} forecasters ticking and with none, in turns in one daemon")
    report.header = ["forecasters", "p50 µs, by turn", "median"]
    found: dict[str, list[float]] = {"none": [], "auto": []}
    with tempfile.TemporaryDirectory(prefix="pilot-edge-faas-") as home, Daemon(binary, Path(home)) as daemon:
        names = [f"idle-{index}" for index in range(functions)]
        for number, name in enumerate(["called", *names]):
            daemon.deploy(name, NOOP, handler="app.handler")
            if number % 100 == 0:
                print(f"  {number} of {functions} functions deployed", file=sys.stderr, flush=True)
        load = Load(binary)
        daemon.invoke("called", {})
        load.function("warm", daemon.control_endpoint, "called", seconds=1)
        for turn in range(turns):
            # The order changes every turn, so that other load on the machine affects both sides.
            for side in ("none", "auto") if turn % 2 == 0 else ("auto", "none"):
                for name in names:
                    daemon.choose(name, "demand" if side == "none" else "auto")
                found[side].append(load.function("warm", daemon.control_endpoint, "called", seconds=seconds).p(50))
    for side, values in found.items():
        report.rows.append([side, ", ".join(f"{value:.1f}" for value in values), f"{median(values):.1f}"])
    ratios = [ticking / still for ticking, still in zip(found["auto"], found["none"])]
    ratio = median(ratios)
    report.data = {"functions": functions, "p50_us": found, "ratios": ratios, "ratio": ratio}
    report.notes.append("the ratio is the median of those within a turn: " + ", ".join(f"{ratio:.3f}" for ratio in ratios))
    what = f"predicting: p50 with {functions:,} forecasters ticking / without"
    report.bars.append(Bar(what, "≤ 1.03", f"{ratio:.3f}", ratio <= 1.03 if functions >= 1000 else None))
    return report
