"""Command line: which experiments, with which kinds of runtime, where the results go."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from benchlib.command import Run, add_experiments, options_of
from benchlib.report import Report

from . import forecast, overhead, patterns, pictures, serving, startup
from .bench import FULL, KINDS, SMOKE, Bench
from .engine import Engine


@dataclass(frozen=True)
class Experiment:
    """`containers`: a part of it needs a container engine."""

    what: str
    run: Callable[[Bench], Report]
    containers: bool = True


EXPERIMENTS = {
    "languages": Experiment("Fig. 4b: cold and reused, by language", startup.languages),
    "networks": Experiment("Fig. 4c: starts by network", startup.networks),
    "web": Experiment("Fig. 9: URL to QR code, random configurations", patterns.web),
    "forecast": Experiment("Fig. 10: the predictor", forecast.forecast, containers=False),
    "serial": Experiment("Fig. 12a: one after another", patterns.serial),
    "parallel": Experiment("Fig. 12b: ten at once, a configuration each", patterns.parallel),
    "linear": Experiment("Fig. 13: 2i requests in round i, up and down", patterns.linear),
    "exponential": Experiment("Fig. 14a: 2^i requests in round i, up and down", patterns.exponential),
    "bursts": Experiment("Fig. 14b: ten times as many in every fourth round", patterns.bursts),
    "overhead": Experiment("Fig. 15a: memory and CPU of live runtimes", overhead.overhead),
    "handover": Experiment("a cleaned runtime against a new one", startup.handover),
    "node": Experiment("Node from its pre-warmed pool", startup.node, containers=False),
    "serving": Experiment("what a way of serving adds", serving.serving, containers=False),
}


def options() -> argparse.ArgumentParser:
    parser = options_of("hotc", __doc__, smoke="under a minute of everything, without an engine: does it run at all")
    add_experiments(parser, "hotc", EXPERIMENTS)
    parser.add_argument("--kind", action="append", choices=KINDS, help="these runtimes alone (both, where an engine answers)")
    parser.add_argument("--interval-s", metavar="S", type=float, help="between rounds, in place of the paper's 30 s (2)")
    return parser


def main() -> int:
    run = Run.begin(options())
    wanted = run.options
    effort = SMOKE if wanted.smoke else FULL
    if wanted.interval_s is not None:
        effort = replace(effort, interval_s=wanted.interval_s)
    kinds = tuple(wanted.kind or (KINDS[:1] if wanted.smoke else KINDS))
    engine, why = Engine.find() if "container" in kinds else (None, "")
    if why:
        print(f"*** CONTAINERS ARE SKIPPED: {why} ***", file=sys.stderr)
    reports = []
    with tempfile.TemporaryDirectory(prefix="pilot-hotc-") as home:
        with Bench(run.binary, Path(home), wanted.data, effort, engine, kinds) as bench:
            for name in wanted.only or EXPERIMENTS:
                experiment = EXPERIMENTS[name]
                report = run.experiment(name, experiment.what, partial(measured, experiment, bench, why), pictures.DRAWN)
                reports.append(report)
    return run.finish(reports, containers=why or ("yes" if engine else "not asked for"), interval_s=effort.interval_s)


def measured(experiment: Experiment, bench: Bench, why: str) -> Report:
    """Runs an experiment with fresh daemons. `why` is the reason if there are no containers."""
    bench.restart()
    try:
        report = experiment.run(bench)
    except Exception as error:
        error.add_note(bench.log_tails())
        raise
    if why and experiment.containers:
        report.notes.append(f"*** containers skipped: {why} ***")
    return report


if __name__ == "__main__":
    sys.exit(main())
