"""Measurements without a daemon: decisions (experiment 5), every workload in the simulator, and a comparison of the simulator with the
daemon's runs."""

from __future__ import annotations

import csv
import json
import tempfile
from pathlib import Path
from statistics import fmean
from typing import Any

from benchlib.pilot import ask, experiment
from benchlib.report import Bar, Report
from benchlib.stats import Estimate

from . import paper
from .cells import BURSTY_RAMP, IDLE_S, INTERVALS_S, POLICIES, PROFILES, STARTS_MS, STEP, Cell, Outcome, Workload, interval
from .experiments import good, mean, sixty
from .runner import Results
from .trial import SERVICE_MS

LIGHT = ("static", "reactive", "cusum", "adaptive-cusum", "histogram", "auto")
TRACES = ("azure2019-100", "azure2019-busiest10", "azure2021-200")
# The real start time and memory of a worker, from `describe`. The memory is the PSS of a single worker, which shares pages only with
# the template. With fifteen workers, each has 2.8 MB.
START_MS = 2.3
WORKER_MB = 5.0
# Warm requests that took longer beyond the handler's time had to wait for a worker.
WAITED_MS = 25.0
# Of service times, for each trial.
SEEDS = 8
# With two trials, Student's interval is nine times as wide as the spread, so nearly everything is within it.
TRIALS_MIN = 3
# Without arima, whose ticks take a thousand times as long. It runs only on the workloads that take minutes.
ALL = ("demand", "static:1", "static:15", "reactive", "cusum", "adaptive-cusum", "smoothing-markov", "histogram", "auto")

# All cells of experiments 1 and 4.
REPLAYED = [Cell(workload, policy, start) for workload in (BURSTY_RAMP, STEP) for start in STARTS_MS for policy in POLICIES]


def ticks(binary: Path, count: int = 20_000, functions: int = 10_000) -> Report:
    """Experiment 5."""
    report = Report("ticks", "a decision, per policy (table 1; the paper's ARIMA is in another process)")
    report.header = ["policy", "paper p50 / p99 µs", "p50 µs", "p99 µs", "max µs", "functions", "all of them ms", "max ms"]
    found = experiment(binary, "ticks", "--count", str(count), "--functions", str(functions))["policies"]
    report.data = found
    for times in found:
        policy = times["policy"].partition(":")[0]
        report.rows.append(
            [
                times["policy"],
                paper.TICKS_US.get(policy, paper.NOT_GIVEN),
                *(f"{times[f'tick_ns_{key}'] / 1e3:,.2f}" for key in ("p50", "p99", "max")),
                str(times["functions"]),
                *(f"{times[f'round_ms_{key}']:,.2f}" for key in ("p50", "max")),
            ]
        )
        p99 = times["tick_ns_p99"] / 1e3
        if policy == "arima":
            report.bars.append(Bar("a tick of arima, p99", "≤ 2 ms", f"{p99 / 1e3:.2f} ms", p99 <= 2000))
        elif policy in LIGHT and policy != "static":
            report.bars.append(Bar(f"a tick of {policy}, p99", "≤ 5 µs", f"{p99:.2f} µs", p99 <= 5))
            took = times["round_ms_p50"]
            kept = took <= 20 if times["functions"] >= 10_000 else None
            report.bars.append(Bar(f"{times['functions']:,} functions of {policy} ticked", "≤ 20 ms", f"{took:.2f} ms", kept))
    if found:
        report.notes.append(f"{found[0]['clock_ns']} ns of each tick is the clock")
    return report


def arguments(workload: Workload) -> str:
    """The argument of `pilot simulate` for a profile with replaced values."""
    return "@".join([str(workload.path), *workload.overrides])


def simulate(binary: Path, traces: Path) -> Report:
    """Every workload and trace at three start costs; experiment 7's days."""
    report = Report("simulate", "every workload, trace and start cost in the simulator")
    phased = [arguments(workload) for workload in (BURSTY_RAMP, STEP, *map(interval, INTERVALS_S))]
    traced = [str(PROFILES / f"{name}.toml") for name in TRACES]
    common = [
        "--idle-s",
        str(IDLE_S),
        "--start-ms",
        ",".join(str(start or START_MS) for start in STARTS_MS),
    ]
    common += ["--service-ms", "501", "--worker-mb", str(WORKER_MB), "--lead-s", "2"]
    policies = [word for policy in ALL for word in ("--policy", policy)]
    found = ask(binary, "simulate", *phased, *traced, *common, "--data", str(traces), *policies)
    short = [*phased, str(PROFILES / "azure2019-busiest10.toml")]
    arima = ask(binary, "simulate", *short, *common, "--data", str(traces), "--policy", "arima")
    light = small_workers(binary, traces, common)
    report.header = ["policy", "cells", "worse than another in", "cold wait s", "GB·s", "w=0.1", "w=1", "w=10"]
    for row in found["standings"]:
        scores = [f"{score:,.1f}{'*' if best else ''}" for score, best in zip(row["scores"], row["best"])]
        line = [row["policy"], str(row["cells"]), str(row["dominated"]), f"{row['cold_wait_s']:,.1f}", f"{row['gb_s']:,.0f}"]
        report.rows.append([*line, *scores])
    report.data = {
        "standings": found["standings"],
        "cells": found["cells"],
        "arima": arima["cells"],
        "small_workers": light,
        "speed": found["speed"],
    }
    report.notes.append(
        f"a start as it is: {START_MS} ms; a worker: {WORKER_MB} MB; * is the best; arima is left out of the table"
    )
    report.notes.append(
        f"{found['speed']['invocations']:,} invocations, {found['speed']['ticks']:,} ticks in {found['speed']['core_s']:.1f} s of one core"
    )
    report.notes.append(
        "the traces' apps are of 100 MB and more; small workers: the ten busiest with what our function takes, as in busiest-ten"
    )
    everything = [*found["cells"], *arima["cells"], *light]
    places = sorted({(cell["profile"], cell["start"]) for cell in everything})
    beaten = []
    for profile, start in places:
        of_it = {cell["policy"]: cell for cell in everything if (cell["profile"], cell["start"]) == (profile, start)}
        auto = of_it["auto"]
        better = [
            policy
            for policy, cell in of_it.items()
            if cell["cold_wait_s"] < auto["cold_wait_s"] and cell["gb_s"] < auto["gb_s"]
        ]
        if better:
            beaten.append(f"{profile} at {start} ({', '.join(better)})")
        if start == "900 ms":
            rivals = {
                policy: (of_it[policy]["cold_wait_s"], of_it[policy]["gb_s"]) for policy in paper.POLICIES if policy in of_it
            }
            # arima does not run on days. On other workloads it uses more memory and waits longer.
            rivals.setdefault("arima", (float("inf"), float("inf")))
            report.bars.append(sixty(f"simulated {profile}, 900 ms: cold wait", (auto["cold_wait_s"], auto["gb_s"]), rivals))
    measured = f"beaten in {len(beaten)} of {len(places)}" + (f": {'; '.join(beaten)}" if beaten else "")
    report.bars.append(Bar("simulator: nobody better than auto in both", "in no cell", measured, not beaten))
    for index, weight in enumerate(("0.1", "1", "10")):
        rank = sorted(found["standings"], key=lambda row: row["scores"][index])
        text = f"{rank[0]['policy']}; auto has place {[row['policy'] for row in rank].index('auto') + 1} of {len(rank)}"
        report.bars.append(Bar(f"simulator: lowest mean score at w={weight}", "auto", text, rank[0]["policy"] == "auto"))
    return report


def small_workers(binary: Path, traces: Path, common: list[str]) -> list[Any]:
    """The ten busiest functions with our function's memory instead of their own, as `busiest-ten` runs them on the daemon."""
    with tempfile.TemporaryDirectory(prefix="pilot-edge-faas-") as folder:
        copy = Path(folder) / "azure2019"
        copy.mkdir()
        for name in ("100_inv.csv", "100_run.csv"):
            (copy / name).symlink_to((traces / "azure2019" / name).resolve())
        with (traces / "azure2019" / "100_mem.csv").open() as source, (copy / "100_mem.csv").open("w") as target:
            rows = csv.DictReader(source)
            writer = csv.DictWriter(target, rows.fieldnames or [])
            writer.writeheader()
            for row in rows:
                writer.writerow(
                    {key: WORKER_MB if key.startswith("AverageAllocatedMb") else value for key, value in row.items()}
                )
        profile = str(PROFILES / "azure2019-busiest10.toml")
        policies = [word for policy in (*ALL, "arima") for word in ("--policy", policy)]
        cells = ask(binary, "simulate", profile, *common, "--data", folder, *policies)["cells"]
    return [{**cell, "profile": f"{cell['profile']}, small workers"} for cell in cells]


def validation(binary: Path, results: Results) -> Report:
    """Compares simulated cold starts with the daemon's. Each trial is simulated with its own mean of start times, times of warm requests,
    memory of a worker, and time from the deployment to the load, which places the ticks."""
    report = Report("validation", "the simulator beside the daemon: cold starts (the platform's word) per run")
    report.header = ["workload", "start ms", "policy", "measured start ms", "service ms", "daemon", "simulator", "within"]
    report.data = []
    within: list[tuple[str, bool]] = []
    close = 0
    for cell, outcomes in good(results, REPLAYED):
        real = Estimate.of([float(outcome.cold) for outcome in outcomes])
        if real.half is None or real.n < TRIALS_MIN:
            continue
        simulated = Estimate.of([replay(binary, cell, outcome) for outcome in outcomes])
        # Counts are integers: five equal runs do not determine a fraction.
        fits = abs(simulated.mean - real.mean) <= max(real.half, 0.5)
        close += abs(simulated.mean - real.mean) <= max(real.mean / 10, 2)
        within.append((cell.policy, fits))
        times = [f"{mean(outcomes, 'start_mean'):.1f}", f"{fmean(fmean(services(outcome)) for outcome in outcomes):.1f}"]
        line = [cell.workload.name, str(cell.start_ms), cell.policy, *times]
        report.rows.append([*line, real.text(1), simulated.text(1), "yes" if fits else "no"])
        report.data.append(
            {"workload": cell.workload.name, "policy": cell.policy, "start_ms": cell.start_ms}
            | {"daemon": real.to_json(), "simulator": simulated.to_json(), "within": fits}
        )
    for what, least, of in (("auto", 4, 6), ("all policies", 34, 42)):
        judged = [fits for policy, fits in within if what in (policy, "all policies")]
        kept = sum(judged) >= least if len(judged) >= of else None
        bar = f"simulator within the interval of the daemon's trials: {what}"
        report.bars.append(Bar(bar, f"≥ {least} of {of} cells", f"{sum(judged)} of {len(judged)}", kept))
    report.notes.append(f"{close} of {len(report.rows)} cells differ by at most a tenth, or two requests")
    if not report.rows:
        report.error = "nothing was measured: cells of cold-starts and step with three trials at least"
    return report


def services(outcome: Outcome) -> list[float]:
    """How long workers were busy, ms: the times of the warm requests that did not wait. Their mean would not do: where as many workers as
    are needed are there, it is the spread that makes requests wait."""
    found = [SERVICE_MS + ms for ms, kind in zip(outcome.beyond, outcome.kinds) if kind == "w" and ms < WAITED_MS]
    return found or [outcome.service_mean]


def replay(binary: Path, cell: Cell, outcome: Outcome) -> float:
    """The number of cold requests in the simulator, the mean over several seeds of the service times: one draw decides about several requests
    of a burst."""
    counts = []
    with tempfile.TemporaryDirectory(prefix="pilot-edge-faas-") as folder:
        # Without a start during the load, any time will do.
        for name, values in (("start", [outcome.start_mean]), ("service", services(outcome))):
            (Path(folder) / f"{name}.json").write_text(json.dumps({"samples_ms": values}))
        for seed in range(outcome.trial * SEEDS, (outcome.trial + 1) * SEEDS):
            found = ask(
                binary,
                *("simulate", arguments(cell.workload), "--policy", cell.policy, "--idle-s", str(IDLE_S), "--seed", str(seed)),
                *("--start-file", f"{folder}/start.json", "--service-file", f"{folder}/service.json"),
                *("--lead-s", f"{outcome.lead_s:.3f}", "--worker-mb", f"{outcome.worker_seen_mb or WORKER_MB:.3f}"),
            )["cells"][0]
            counts.append(found["cold"] + found["cold_shared"])
    return fmean(counts)
