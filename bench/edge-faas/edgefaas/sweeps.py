"""Comparisons in the simulator that give every policy every setting: the rules of starts, and `auto` beside each other policy at its best
`idle_s`. Both keep their rows as JSON in `results/`, from which the tables of the documentation are written."""

from __future__ import annotations

import json
from collections import defaultdict
from math import exp, log
from pathlib import Path
from typing import Any

from benchlib.pilot import experiment
from benchlib.report import Bar, Report

from .cells import BURSTY_RAMP, IDLE_S, INTERVALS_S, PROFILES, STEP, Workload, interval

KEPT = Path(__file__).resolve().parent.parent / "results"
# Shapes that neither the rule of starts nor the constants of `auto` were tuned on.
SHAPES = tuple(Workload(name, name) for name in ("square", "two-ramps", "on-off", "random-walk", "rare"))
RULES = ("sooner", "each", "expected")
PAPER = ("demand", "reactive", "cusum", "adaptive-cusum")
OTHERS = ("demand", "static:1", "static:15", "reactive", "cusum", "adaptive-cusum", "smoothing-markov", "histogram")
IDLES_S = (0.5, 2.0, 6.0, 60.0)
STARTS_MS = (2, 100, 900, 3000)
COMMON = ("--service-ms", "501", "--worker-mb", "5")
# The smallest score: a millisecond of waiting. Two policies that cost nothing are equally good.
SCORE_MIN = 1e-3


def sweep(binary: Path, profiles: list[str], *options: str) -> list[dict[str, Any]]:
    return list(experiment(binary, "sweep", *profiles, *COMMON, *options, limit_s=3600)["rows"])


def words(option: str, values: tuple[object, ...]) -> list[str]:
    return [word for value in values for word in (option, str(value))]


def listed(values: tuple[object, ...]) -> str:
    return ",".join(str(value) for value in values)


def waited(row: dict[str, Any]) -> float:
    return float(row["cold_wait_s"] + row["queue_wait_s"])


def keep(name: str, rows: list[dict[str, Any]]) -> None:
    """One row per line, so that a change of one is a change of one line."""
    KEPT.mkdir(exist_ok=True)
    text = "".join(json.dumps(row, sort_keys=True) + "\n" for row in rows)
    (KEPT / f"{name}.jsonl").write_text(text)


def start_rules(binary: Path) -> Report:
    """The rules of starts on the paper's ramp and step, and on shapes that they were not tuned on."""
    report = Report("start-rules", "the rules of starts in the simulator: waiting and worker-seconds")
    report.header = ["workload", "start ms", "policy"]
    report.header += [f"{rule}: {what}" for rule in RULES for what in ("waits s", "worker s")] + [
        "waits ÷ sooner",
        "worker s ÷ sooner",
    ]
    workloads = [str(workload.path) for workload in (BURSTY_RAMP, STEP, *SHAPES)]
    options = [*words("--policy", PAPER), *words("--start-rule", RULES), "--idle-s", str(IDLE_S)]
    rows = sweep(binary, workloads, *options, "--start-ms", listed(STARTS_MS[1:]))
    cells: dict[tuple[str, float, str], dict[str, dict[str, Any]]] = defaultdict(dict)
    for row in rows:
        cells[row["profile"], row["start_ms"], row["policy"]][row["start_rule"]] = row
    for (profile, start, policy), rules in cells.items():
        before, now = rules["sooner"], rules["expected"]
        waiting = waited(now) / max(waited(before), SCORE_MIN)
        workers = now["worker_s"] / max(before["worker_s"], SCORE_MIN)
        figures = [f"{value:,.1f}" for rule in RULES for value in (waited(rules[rule]), rules[rule]["worker_s"])]
        report.rows.append([profile, f"{start:g}", policy, *figures, f"{waiting:.3f}", f"{workers:.3f}"])
        limits = {("bursty-ramp", 900.0): (0.08, 1.05), ("step", 900.0): (0.35, 1.4)}.get((profile, start))
        if limits:
            text = f"{waiting:.3f} and {workers:.3f}"
            what = f"simulated {profile}, 900 ms, {policy}: waiting and worker-seconds ÷ sooner"
            fits = waiting <= limits[0] and workers <= limits[1]
            report.bars.append(Bar(what, f"≤ {limits[0]} and {limits[1]}", text, fits))
    report.data = rows
    keep("start-rules", rows)
    return report


def auto(binary: Path, traces: Path) -> Report:
    """`auto` beside every other policy, each at its best `idle_s` of that cell."""
    report = Report(
        "auto", "auto beside the best of every other policy at its best idle_s, by cell; the score is cold wait + GB·s"
    )
    report.header = [
        "workload",
        "start ms",
        "auto: wait s",
        "GB·s",
        "score",
        "starts",
        "best other",
        "idle_s",
        "score",
        "starts",
        "ratio",
    ]
    phased = [BURSTY_RAMP, STEP, *map(interval, INTERVALS_S), *SHAPES]
    names = ["@".join([str(workload.path), *workload.overrides]) for workload in phased]
    names += [str(PROFILES / f"{name}.toml") for name in ("azure2019-100", "azure2019-busiest10", "azure2021-200")]
    common = ["--data", str(traces), "--start-ms", listed(STARTS_MS)]
    others = sweep(binary, names, *common, *words("--policy", OTHERS), "--idle-s", listed(IDLES_S))
    rows = [*sweep(binary, names, *common, "--policy", "auto", "--idle-s", str(IDLE_S)), *others]
    cells: dict[tuple[str, float], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        cells[row["profile"], row["start_ms"]].append(row)
    ratios, with_queue, flaps = [], [], []
    for (profile, start), found in cells.items():
        (own,) = [row for row in found if row["policy"] == "auto"]
        rivals = [row for row in found if row["policy"] != "auto"]
        best = min(rivals, key=score)
        ratio = score(own) / score(best)
        ratios.append((ratio, f"{profile} at {start:g} ms: {ratio:.2f} × {best['policy']}, idle_s {best['idle_s']:g}"))
        with_queue.append(score_all(own) / min(map(score_all, rivals)))
        if profile == "square":
            fewest = min((row for row in rivals if row["policy"] != "static:1"), key=lambda row: row["forks"])
            flaps.append(
                (own["forks"] / fewest["forks"], f"{own['forks']} at {start:g} ms, {fewest['policy']} {fewest['forks']}")
            )
        mine = [f"{own['cold_wait_s']:,.1f}", f"{own['gb_s']:,.2f}", f"{score(own):,.2f}", str(own["forks"])]
        other = [best["policy"], f"{best['idle_s']:g}", f"{score(best):,.2f}", str(best["forks"]), f"{ratio:.2f}"]
        report.rows.append([profile, f"{start:g}", *mine, *other])
    mean = exp(sum(log(ratio) for ratio, _ in ratios) / len(ratios))
    worst, where = max(ratios)
    over = sum(ratio > 1.05 for ratio, _ in ratios)
    report.bars.append(
        Bar("auto ÷ the best other, geometric mean", "≤ 0.9", f"{mean:.3f} over {len(ratios)} cells", mean <= 0.9)
    )
    report.bars.append(Bar("auto ÷ the best other, every cell", "≤ 1.05", f"{over} cells above; worst {where}", worst <= 1.05))
    flap, text = max(flaps)
    report.bars.append(Bar("starts of auto on the square wave ÷ the thriftiest", "≤ 3", f"{flap:.1f}: {text}", flap <= 3))
    queued = exp(sum(map(log, with_queue)) / len(with_queue))
    report.notes.append(f"with the waits for busy workers counted as well, the geometric mean is {queued:.3f}")
    report.data = rows
    keep("auto", rows)
    return report


def score(row: dict[str, Any]) -> float:
    return max(float(row["cold_wait_s"] + row["gb_s"]), SCORE_MIN)


def score_all(row: dict[str, Any]) -> float:
    return max(waited(row) + float(row["gb_s"]), SCORE_MIN)
