"""Command line: which experiments, how often, where the results go."""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from peers.daemon import find_binary

from . import experiments, path, pictures, runner, simulated, trial
from .cells import STARTS_MS, Cell
from .memory import Sampler
from .report import Report, bars_table

ROOT = Path(__file__).resolve().parents[3]
TRACES = ROOT.parent / "shared" / "data"


@dataclass(frozen=True)
class Experiment:
    """`plan` is what it needs of the daemon; `report` is given that."""

    what: str
    plan: Callable[[], list[Cell]]
    report: Callable[[Path, Path, runner.Results], Report]


def nothing() -> list[Cell]:
    return []


EXPERIMENTS = {
    "cold-starts": Experiment(
        "1: cold starts per policy, bursty ramp",
        experiments.cold_starts_plan,
        lambda _b, _t, found: experiments.cold_starts(found),
    ),
    "template-off": Experiment(
        "2: the same without the template", experiments.template_off_plan, lambda _b, _t, found: experiments.template_off(found)
    ),
    "interval": Experiment(
        "3: the interval between bursts", experiments.interval_plan, lambda _b, _t, found: experiments.interval_sweep(found)
    ),
    "step": Experiment("4: the step", experiments.step_plan, lambda _b, _t, found: experiments.step(found)),
    "ticks": Experiment("5: decisions", nothing, lambda binary, _t, _f: simulated.ticks(binary)),
    "memory": Experiment("6: PSS and RSS", experiments.memory_plan, lambda _b, _t, found: experiments.memory(found)),
    "busiest-ten": Experiment(
        "7: ten functions of a trace", experiments.busiest_ten_plan, lambda _b, _t, found: experiments.busiest_ten(found)
    ),
    "simulate": Experiment(
        "7: all workloads, simulated", nothing, lambda binary, traces, _f: simulated.simulate(binary, traces)
    ),
    "validation": Experiment(
        "the simulator beside the daemon",
        simulated.validation_plan,
        lambda binary, _t, found: simulated.validation(binary, found),
    ),
    "path": Experiment("warm calls beside 1,000 forecasters", nothing, lambda binary, _t, _f: path.run(binary)),
}
SMOKE = {
    "smoke": Experiment("does it run", experiments.smoke_plan, lambda _b, _t, found: experiments.smoke(found)),
    "ticks": Experiment("decisions", nothing, lambda binary, _t, _f: simulated.ticks(binary, count=100, functions=20)),
    "path": Experiment("warm calls", nothing, lambda binary, _t, _f: path.run(binary, functions=3, turns=2, seconds=0.3)),
}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench/edge-faas/run", description=__doc__)
    parser.add_argument("--only", metavar="EXPERIMENT", action="append", choices=EXPERIMENTS, help=", ".join(EXPERIMENTS))
    parser.add_argument("--trials", metavar="N", type=int, default=5, help="of each cell (5)")
    parser.add_argument(
        "--start", metavar="MS", type=int, action="append", choices=STARTS_MS, help="start costs: 0, 100, 900 (all)"
    )
    parser.add_argument("--policy", metavar="POLICY", action="append", help="these alone")
    parser.add_argument("--side-by-side", metavar="N", type=int, default=16, help="trials at once, each with a daemon (16)")
    parser.add_argument("--smoke", action="store_true", help="a few seconds of everything: does it run at all")
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
    parser.add_argument("--check", action="store_true", help="exit with 1 when a bar is missed")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write everything there, too")
    parser.add_argument("--out", metavar="DIR", type=Path, default=ROOT / "target" / "edge-faas", help="a JSON and a PNG each")
    parser.add_argument("--data", metavar="DIR", type=Path, default=TRACES, help="the folder with the traces")
    parser.add_argument("--pilot", metavar="FILE", type=Path, help="the binary (default: target/release, else debug)")
    return parser.parse_args()


def main() -> int:
    # As Ctrl-C: the daemons must not outlive their driver.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    options = arguments()
    binary = find_binary(options.pilot)
    chosen = SMOKE if options.smoke else {name: EXPERIMENTS[name] for name in options.only or EXPERIMENTS}
    trials = 1 if options.smoke else options.trials
    folder = options.out / "smoke" if options.smoke else options.out
    kept = folder / "trials.jsonl"
    if not options.reuse and not options.plan:
        kept.unlink(missing_ok=True)
    cells = [cell for experiment in chosen.values() for cell in experiment.plan() if wanted(cell, options)]
    work = runner.plan(cells, trials)
    if options.reuse:
        work = runner.without(work, kept, options.busy_max)
    estimate = runner.estimate_s(work, options.side_by_side) / 60
    print(f"pilot: {binary}\n{len(work)} trials on the daemon, about {estimate:.0f} minutes", file=sys.stderr)
    if "release" not in binary.parts:
        print("*** not target/release: figures of a debug build say nothing about the bars ***", file=sys.stderr)
    if options.plan:
        for cell in dict.fromkeys(cell for cell, _ in work):
            print(cell.name)
        return 0
    began = time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    measure([] if options.report else work, binary, options, kept)
    results = runner.read(kept, cells, options.busy_max)
    reports = [report(name, experiment, binary, options.data, results) for name, experiment in chosen.items()]
    for one in reports:
        print(one.text())
        (folder / f"{one.name}.json").write_text(json.dumps(one.to_json(), indent=1) + "\n")
        pictures.draw(one, folder)
    if not pictures.available():
        print("\n*** no pictures: matplotlib is not installed here ***")
    bars = [bar for one in reports for bar in one.bars]
    if bars:
        print(f"\n── bars\n{bars_table(bars)}")
    document = {
        "kind": "smoke" if options.smoke else "full",
        "build": "release" if "release" in binary.parts else "other",
        "machine": {"cpus": os.cpu_count(), "kernel": platform.release(), "python": platform.python_version()},
        "load_average": os.getloadavg(),
        "side_by_side": options.side_by_side,
        "seconds": round(time.monotonic() - began, 1),
        "rows": [one.to_json() for one in reports],
    }
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    broken = any(one.error for one in reports)
    missed = any(bar.kept is False for bar in bars)
    return 1 if broken or (options.check and missed) else 0


def wanted(cell: Cell, options: argparse.Namespace) -> bool:
    return options.smoke or (
        (not options.start or cell.start_ms in options.start) and (not options.policy or cell.policy in options.policy)
    )


def measure(work: list[tuple[Cell, int]], binary: Path, options: argparse.Namespace, kept: Path) -> None:
    if not work:
        return
    with tempfile.TemporaryDirectory(prefix="pilot-edge-faas-") as home:
        print("… the function's environment", file=sys.stderr, flush=True)
        seed = trial.prepare(binary, Path(home))
        with Sampler(0.5 if options.smoke else 2.0) as sampler:
            bench = trial.Bench(binary, options.data, seed, sampler)
            runner.execute(work, bench, 2 if options.smoke else options.side_by_side, kept)


def report(name: str, experiment: Experiment, binary: Path, traces: Path, results: runner.Results) -> Report:
    try:
        return experiment.report(binary, traces, results)
    except Exception as error:  # one that fails must not hide the others
        return Report(name, experiment.what, error=f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    sys.exit(main())
