"""Comparisons in the simulator that give every policy every setting: the rules of starts, and `auto` beside each other policy at its best
`idle_s`. Both keep their rows as JSON in `results/`, from which the tables of the documentation are written."""

from __future__ import annotations

import csv
import gzip
import json
import tempfile
from collections import defaultdict
from dataclasses import dataclass
from math import exp, log
from pathlib import Path
from statistics import fmean
from typing import Any

from benchlib.pilot import experiment
from benchlib.report import Bar, Report

from .cells import BURSTY_RAMP, IDLE_S, PROFILES, STEP, Workload, interval

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


@dataclass(frozen=True)
class Compared:
    """Workloads with the same functions. `options`: the service time and the memory of a worker, for workloads without their own.
    `heldout`: no constant of `auto` was tuned on them."""

    what: str
    profiles: tuple[str, ...]
    options: tuple[str, ...]
    heldout: bool


HALF_SECOND = ("--service-ms", "501", "--worker-mb", "5")
SHORT = ("--service-ms", "60", "--worker-mb", "60")
# What is kept of each simulation.
COLUMNS = ("profile", "start_ms", "policy", "idle_s", "cold_wait_s", "queue_wait_s", "gb_s", "forks", "invocations", "heldout")


def compared(traces: Path, folder: Path) -> list[Compared]:
    """Everything on which `auto` is compared. The hundred functions of the Azure trace contain the fifty of the tuning set, so the other
    fifty are held out."""
    tuned = tuple(str(path) for path in sorted((PROFILES / "tuning").glob("*.toml")))
    paper = tuple(map(named, (BURSTY_RAMP, interval(10), interval(60))))
    unseen = tuple(map(named, (STEP, *map(interval, (5, 20, 35, 120)))))
    shapes = tuple(map(named, SHAPES))
    days = {}
    with (traces / "azure2019" / "50_inv.csv").open() as file:
        seen = {row["HashFunction"] for row in csv.DictReader(file)}
    with (traces / "azure2019" / "100_inv.csv").open() as file:
        every = [row["HashFunction"] for row in csv.DictReader(file)]
    for name, functions in (("tuned", seen), ("other", set(every) - seen)):
        day = folder / f"azure2019-{name}-50.toml"
        chosen = json.dumps([function for function in every if function in functions])
        day.write_text(f'[trace]\nformat = "azure2019"\npath = "azure2019/100_inv.csv"\nfunctions = {chosen}\n')
        days[name] = str(day)
    others = tuple(str(PROFILES / f"{name}.toml") for name in ("azure2019-busiest10", "azure2021-200"))
    return [
        Compared("", (*paper, *tuned), HALF_SECOND, False),
        Compared(", 60 ms and 60 MB", tuned, SHORT, False),
        Compared("", (days["tuned"],), HALF_SECOND, False),
        Compared("", (*unseen, *shapes), HALF_SECOND, True),
        Compared(", 60 ms and 60 MB", shapes, SHORT, True),
        Compared("", (days["other"], *others), HALF_SECOND, True),
    ]


def named(workload: Workload) -> str:
    return "@".join([str(workload.path), *workload.overrides])


def auto(binary: Path, traces: Path) -> Report:
    """`auto` beside every other policy, each at its best `idle_s` of that cell."""
    report = Report(
        "auto", "auto beside the best of every other policy at its best idle_s, by cell; the score is every wait + GB·s"
    )
    report.header = ["workload", "held out", "start ms", "auto: wait s", "GB·s", "score", "starts"]
    report.header += ["best other", "idle_s", "score", "starts", "ratio", "without static"]
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="pilot-edge-faas-") as folder:
        for group in compared(traces, Path(folder)):
            common = [*group.options, "--data", str(traces), "--start-ms", listed(STARTS_MS), "--jobs", "1"]
            own = simulated(binary, group.profiles, *common, "--policy", "auto", "--idle-s", str(IDLE_S))
            others = simulated(binary, group.profiles, *common, *words("--policy", OTHERS), "--idle-s", listed(IDLES_S))
            for row in (*own, *others):
                kept = {**row, "profile": row["profile"] + group.what, "heldout": group.heldout}
                rows.append({key: kept[key] for key in COLUMNS})
    report.data = rows
    lines = "".join(json.dumps(row, sort_keys=True) + "\n" for row in rows)
    KEPT.mkdir(exist_ok=True)
    # Without the time in the header, equal rows give an equal file.
    (KEPT / "auto.jsonl.gz").write_bytes(gzip.compress(lines.encode(), mtime=0))
    judge(report, rows)
    return report


def judge(report: Report, rows: list[dict[str, Any]]) -> None:
    """The table, and the bars over the cells that were held out."""
    cells: dict[tuple[str, bool, float], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        cells[row["profile"], row["heldout"], row["start_ms"]].append(row)
    ratios: dict[bool, list[Ratio]] = {True: [], False: []}
    flaps = []
    for (profile, heldout, start), found in cells.items():
        (own,) = [row for row in found if row["policy"] == "auto"]
        rivals = [row for row in found if row["policy"] != "auto"]
        best = min(rivals, key=score)
        adaptive = min((row for row in rivals if not row["policy"].startswith("static")), key=score)
        ratio = Ratio(
            f"{profile} at {start:g} ms: {score(own) / score(best):.2f} × {best['policy']}, idle_s {best['idle_s']:g}",
            start,
            score(own) / score(best),
            score(own) / score(adaptive),
            cold_score(own) / min(map(cold_score, rivals)),
        )
        ratios[heldout].append(ratio)
        if heldout and profile.startswith("square"):
            fewest = min((row for row in rivals if row["policy"] != "static:1"), key=lambda row: row["forks"])
            text = f"{profile}: {own['forks']} at {start:g} ms, {fewest['policy']} {fewest['forks']}"
            flaps.append((own["forks"] / fewest["forks"], text))
        mine = [f"{waited(own):,.1f}", f"{own['gb_s']:,.2f}", f"{score(own):,.2f}", str(own["forks"])]
        other = [best["policy"], f"{best['idle_s']:g}", f"{score(best):,.2f}", str(best["forks"])]
        share = [f"{ratio.best:.2f}", f"{ratio.adaptive:.2f}"]
        report.rows.append([profile, "yes" if heldout else "no", f"{start:g}", *mine, *other, *share])
    judged = ratios[True]
    mean = geometric([ratio.best for ratio in judged])
    report.bars.append(
        Bar("auto ÷ the best other, held out, geometric mean", "≤ 0.9", f"{mean:.3f} over {len(judged)} cells", mean <= 0.9)
    )
    worst = max(judged, key=lambda ratio: ratio.best)
    over = sum(ratio.best > 1.05 for ratio in judged)
    report.bars.append(
        Bar("auto ÷ the best other, held out, every cell", "≤ 1.05", f"{over} above; worst {worst.where}", over == 0)
    )
    flap, text = max(flaps)
    report.bars.append(Bar("starts of auto on the square wave ÷ the thriftiest", "≤ 3", f"{flap:.1f}: {text}", flap <= 3))
    for heldout, of in ratios.items():
        report.notes.append(("held out" if heldout else "tuned on") + ": " + summary(of))


@dataclass(frozen=True)
class Ratio:
    """One cell: the score of `auto` divided by that of the best other policy; of the best that is not static; both with the waits for
    starts alone."""

    where: str
    start_ms: float
    best: float
    adaptive: float
    cold: float


def summary(ratios: list[Ratio]) -> str:
    """Geometric means, and how many cells are above 1.05."""
    parts = [f"{geometric([one.best for one in ratios]):.3f} over {len(ratios)} cells"]
    for start in STARTS_MS:
        parts.append(f"{start} ms {geometric([one.best for one in ratios if one.start_ms == start]):.3f}")
    parts.append(f"{sum(one.best > 1.05 for one in ratios)} above 1.05")
    without = geometric([one.adaptive for one in ratios])
    parts.append(f"without static {without:.3f}, {sum(one.adaptive > 1.05 for one in ratios)} above 1.05")
    parts.append(f"waits for starts alone {geometric([one.cold for one in ratios]):.3f}")
    return "; ".join(parts)


def simulated(binary: Path, profiles: tuple[str, ...], *options: str) -> list[dict[str, Any]]:
    return list(experiment(binary, "sweep", *profiles, *options, limit_s=3600)["rows"])


def geometric(values: list[float]) -> float:
    return exp(fmean(map(log, values)))


def score(row: dict[str, Any]) -> float:
    return max(waited(row) + float(row["gb_s"]), SCORE_MIN)


def cold_score(row: dict[str, Any]) -> float:
    return max(float(row["cold_wait_s"] + row["gb_s"]), SCORE_MIN)
