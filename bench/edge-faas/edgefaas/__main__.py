"""Command line: which experiments, how often, where the results go."""

from __future__ import annotations

import argparse
import hashlib
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from benchlib.command import Run, add_experiments, options_of
from benchlib.report import Report

from . import experiments, path, pictures, runner, simulated, sweeps, trial
from .cells import STARTS_MS, Cell
from .memory import Sampler


@dataclass(frozen=True)
class Found:
    """The sources of a report: the trials' outcomes, and the binary for its own measurements."""

    binary: Path
    traces: Path
    results: runner.Results


@dataclass(frozen=True)
class Experiment:
    """`plan` lists the cells that it needs."""

    what: str
    report: Callable[[Found], Report]
    plan: list[Cell] = field(default_factory=list)


def of_trials(what: str, plan: list[Cell], report: Callable[[runner.Results], Report]) -> Experiment:
    return Experiment(what, lambda found: report(found.results), plan)


EXPERIMENTS = {
    "cold-starts": of_trials("1: cold starts per policy, bursty ramp", experiments.COLD_STARTS, experiments.cold_starts),
    "template-off": of_trials("2: the same without the template", experiments.TEMPLATE_OFF, experiments.template_off),
    "interval": of_trials("3: the interval between bursts", experiments.INTERVAL, experiments.interval_sweep),
    "step": of_trials("4: the step", experiments.STEPS, experiments.step),
    "quick-ticks": of_trials("1 and 4 with ticks of 0.2 s", experiments.QUICK_TICKS, experiments.quick_ticks),
    "ticks": Experiment("5: decisions", lambda found: simulated.ticks(found.binary)),
    "memory": of_trials("6: PSS and RSS", experiments.MEMORY, experiments.memory),
    "busiest-ten": of_trials("7: ten functions of a trace", experiments.TEN, experiments.busiest_ten),
    "simulate": Experiment("7: all workloads, simulated", lambda found: simulated.simulate(found.binary, found.traces)),
    "starts": of_trials("the rules of starts", experiments.STARTS, experiments.starts),
    "start-rules": Experiment("the rules of starts, simulated", lambda found: sweeps.start_rules(found.binary)),
    "auto": Experiment("auto beside each policy at its best, simulated", lambda found: sweeps.auto(found.binary, found.traces)),
    "validation": Experiment(
        "the simulator beside the daemon", lambda found: simulated.validation(found.binary, found.results), simulated.REPLAYED
    ),
    "path": Experiment(
        "warm calls beside 1,000 functions that have traffic and forecasters", lambda found: path.run(found.binary)
    ),
}
SMOKE = {
    "smoke": of_trials("does it run", experiments.SMALL, experiments.smoke),
    "ticks": Experiment("decisions", lambda found: simulated.ticks(found.binary, count=100, functions=20)),
    "path": Experiment("warm calls", lambda found: path.run(found.binary, functions=3, turns=2, seconds=0.3, past_s=0.3)),
}


def options() -> argparse.ArgumentParser:
    parser = options_of("edge-faas", __doc__, smoke="a few seconds of everything: does it run at all")
    add_experiments(parser, "edge-faas", EXPERIMENTS)
    parser.add_argument("--trials", metavar="N", type=int, default=5, help="of each cell (5)")
    parser.add_argument(
        "--start", metavar="MS", type=int, action="append", choices=STARTS_MS, help="start costs: 0, 100, 900 (all)"
    )
    parser.add_argument("--policy", metavar="POLICY", action="append", help="these alone")
    parser.add_argument("--side-by-side", metavar="N", type=int, default=16, help="trials at once, each with a daemon (16)")
    parser.add_argument("--reuse", action="store_true", help="run only what is not in the folder from earlier runs")
    parser.add_argument(
        "--busy-max",
        metavar="SHARE",
        type=float,
        default=1.0,
        help="leave out trials that ran on busier CPUs, and with --reuse run them again (1)",
    )
    parser.add_argument("--report", action="store_true", help="with --reuse: run no trial, make the tables of what is there")
    parser.add_argument("--plan", action="store_true", help="say what would run and how long it takes")
    return parser


def main() -> int:
    run = Run.begin(options())
    asked = run.options
    chosen = SMOKE if asked.smoke else {name: EXPERIMENTS[name] for name in asked.only or EXPERIMENTS}
    kept = run.folder / "trials.jsonl"
    cells = [cell for experiment in chosen.values() for cell in experiment.plan if wanted(cell, asked)]
    # Experiments without cells do not change the outcomes of others.
    if cells and not asked.reuse and not asked.plan:
        kept.unlink(missing_ok=True)
    work = runner.plan(cells, 1 if asked.smoke else asked.trials)
    if asked.reuse:
        work = runner.without(work, kept, asked.busy_max)
    estimate = runner.estimate_s(work, asked.side_by_side) / 60
    print(f"{len(work)} trials on the daemon, about {estimate:.0f} minutes", file=sys.stderr)
    if asked.plan:
        for cell in dict.fromkeys(cell for cell, _ in work):
            print(cell.name)
        return 0
    measure([] if asked.report else work, run, kept)
    found = Found(run.binary, asked.data, runner.read(kept, cells, asked.busy_max))
    reports = [run.experiment(name, one.what, partial(one.report, found), pictures.DRAWN) for name, one in chosen.items()]
    return run.finish(reports, side_by_side=asked.side_by_side)


def wanted(cell: Cell, options: argparse.Namespace) -> bool:
    return options.smoke or (
        (not options.start or cell.start_ms in options.start) and (not options.policy or cell.policy in options.policy)
    )


def measure(work: list[tuple[Cell, int]], run: Run, kept: Path) -> None:
    if not work:
        return
    smoke = run.options.smoke
    with tempfile.TemporaryDirectory(prefix="pilot-edge-faas-") as home:
        print("… the function's environment", file=sys.stderr, flush=True)
        seed = trial.prepare(run.binary, Path(home))
        with Sampler(0.5 if smoke else 2.0) as sampler:
            with run.binary.open("rb") as file:
                build = hashlib.file_digest(file, "sha256").hexdigest()[:12]
            bench = trial.Bench(run.binary, build, run.options.data, seed, sampler)
            runner.execute(work, bench, 2 if smoke else run.options.side_by_side, kept)


if __name__ == "__main__":
    sys.exit(main())
