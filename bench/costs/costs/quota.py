"""Figures 10 to 12: the CPU quota by the model, on platforms, in the published logs and here."""

from __future__ import annotations

import csv
import gzip
import json
import os
import subprocess
from pathlib import Path
from statistics import fmean
from typing import Any

from benchlib.pilot import ask
from benchlib.report import Bar, Report
from benchlib.stats import Estimate

from .bench import Bench

MB_PER_VCPU = 1769
# What the paper found (Table 3), and where the ticks lie: the file, its column of sizes, whole sizes per vCPU, and the model's options.
PYAES = {
    "AWS Lambda": (
        "aws_pyaes_duration_by_memory.csv",
        "mem_mb",
        MB_PER_VCPU,
        ["--period", "20000", "--tick-hz", "250", "--cfs"],
    ),
    "Cloud Run": ("gcp_pyaes_duration_by_vcpu.csv", "vcpu", 1, ["--period", "100000", "--tick-hz", "1000"]),
}


def by_share(bench: Bench, cpu_ms: float, options: list[str]) -> dict[int, dict[str, Any]]:
    """The durations at each thousandth of a CPU."""
    rows = ask(bench.binary, "profile", "durations", "--cpu-ms", f"{cpu_ms:.3f}", "--step", "1", *options)
    return {row["cpu_milli"]: row for row in rows}


def durations(bench: Bench) -> Report:
    header = ["platform", "sizes", "CPU ms", "model", "Equation 2", "reciprocal"]
    report = Report("durations", "Fig. 10: mean deviation from the measured mean duration of PyAES", header)
    data = {}
    for name, (file, column, per_vcpu, options) in PYAES.items():
        path = bench.published / file
        if not path.exists():
            report.notes.append(f"{name}: there is no {file}")
            continue
        with path.open() as lines:
            rows = [{key: float(value) for key, value in row.items()} for row in csv.DictReader(lines)]
        # At a whole vCPU nothing is throttled, so that is its CPU time.
        whole = [row["mean_ms"] for row in rows if row[column] >= 0.9 * per_vcpu]
        cpu_ms = min(whole)
        modelled = by_share(bench, cpu_ms, options)
        points = []
        for row in rows:
            milli = min(1000, max(1, round(row[column] / per_vcpu * 1000)))
            point = modelled[milli]
            points.append(
                {
                    "milli": milli,
                    "measured_ms": row["mean_ms"],
                    **{key: point[key] / 1e6 for key in ("model_mean_ns", "equation_2_ns", "ideal_ns")},
                }
            )
        off = [
            fmean(abs(point[key] / point["measured_ms"] - 1) for point in points)
            for key in ("model_mean_ns", "equation_2_ns", "ideal_ns")
        ]
        report.rows.append([name, str(len(points)), f"{cpu_ms:.1f}", *(f"{part:.1%}" for part in off)])
        data[name] = points
    if not report.rows:
        report.rows.append(["no data", "", "", "", "", ""])
    report.data = data
    return report


def periods(bench: Bench) -> Report:
    chosen = (5, 10, 20, 50, 100)
    report = Report(
        "periods",
        "Fig. 11: Equation (2), 51.8 ms of CPU time, ms",
        ["CPU", *(f"P = {period} ms" for period in chosen), "ideal"],
    )
    found = [by_share(bench, 51.8, ["--period", str(period * 1000)]) for period in chosen]
    for milli in range(50, 1001, 50):
        times = [rows[milli]["equation_2_ns"] / 1e6 for rows in found]
        report.rows.append([f"{milli / 1000:.2f}", *(f"{ms:.1f}" for ms in times), f"{found[0][milli]['ideal_ns'] / 1e6:.1f}"])
    off = {
        period: fmean(abs(row["equation_2_ns"] / row["ideal_ns"] - 1) for milli, row in rows.items() if milli >= 50)
        for period, rows in zip(chosen, found)
    }
    report.notes.append(
        "mean deviation from the reciprocal: " + ", ".join(f"{part:.1%} at {period} ms" for period, part in off.items())
    )
    report.bars = [
        Bar(
            "shorter periods are nearer to the reciprocal",
            "in this order",
            "see the note",
            list(off.values()) == sorted(off.values()),
        )
    ]
    report.data = {
        str(period): {milli: row["equation_2_ns"] for milli, row in rows.items()} for period, rows in zip(chosen, found)
    }
    return report


def infer(bench: Bench, log: Path) -> dict[str, Any]:
    answer: dict[str, Any] = ask(bench.binary, "profile", "infer", str(log))
    return answer


HEADER = ["log", "period us", "quota us", "Hz", "intervals", "lengths", "obtained", "plain"]


def row(name: str, found: dict[str, Any]) -> list[str]:
    parts = [found["model"]["with_latencies"][key] for key in ("intervals", "lengths", "obtained")]
    plain = max(found["model"]["plain"].values())
    settings = [str(found[key]) for key in ("period_us", "quota_us", "tick_hz")]
    return [name, *settings, *(f"{part:.3f}" for part in parts), f"{plain:.3f}"]


def logs(bench: Bench) -> Report:
    report = Report("logs", "Fig. 12: Kolmogorov-Smirnov distances of the model from the published logs", HEADER)
    folder = bench.published / "sched"
    data = {}
    for path in sorted(folder.glob("*.json.gz")):
        name = path.name.removesuffix(".json.gz").removeprefix("local-")
        data[name] = infer(bench, path)
        report.rows.append(row(name, data[name]))
    if not data:
        report.rows.append([f"no logs in {folder}", *[""] * (len(HEADER) - 1)])
        return report
    worst = max(max(found["model"]["with_latencies"].values()) for found in data.values())
    report.bars = [Bar(f"distance in each of the {len(data)} logs", "≤ 0.1", f"{worst:.3f} at most", worst <= 0.1)]
    report.notes.append("plain: the largest of the three without the latencies of the log, to within 100 us")
    report.data = data
    return report


# Period and quota, microseconds: like AWS Lambda with 128 MB, IBM with 0.25 CPU, Cloud Run with 0.25 and 0.5.
SETTINGS = ((20_000, 1_447), (10_000, 2_500), (100_000, 25_000), (100_000, 50_000))


# So much of a published log is drawn.
PUBLISHED_RUNS, PUBLISHED_MAX = 5, 500
DISTANCES = ("intervals", "lengths", "obtained")
# A log is like the model if each distance is at most that.
DISTANCE_MAX = 0.1


def amounts_ms(log: list[tuple[int, int]]) -> dict[str, list[float]]:
    """The three quantities of Figure 12 for each throttle of a log, ms."""
    pairs = list(zip(log, log[1:]))
    return {
        "intervals": [(after[0] - before[0]) / 1e6 for before, after in pairs],
        "lengths": [after[1] / 1e6 for _, after in pairs],
        "obtained": [(after[0] - after[1] - before[0]) / 1e6 for before, after in pairs],
    }


def modelled(bench: Bench, period: int, quota: int) -> list[tuple[int, int]]:
    """The log of the model for a setting, with the ticks of most kernels."""
    log = ask_log(bench, "model", "--period", str(period), "--quota", str(quota), "--tick-hz", "250")
    return [(noticed, lasted) for noticed, lasted in log["data"]]


def ask_log(bench: Bench, *arguments: str) -> dict[str, Any]:
    """The log that `pilot profile` writes."""
    done = subprocess.run([bench.binary, "profile", *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip())
    log: dict[str, Any] = json.loads(done.stdout)
    return log


def published_log(bench: Bench, period: int, quota: int) -> list[list[tuple[int, int]]]:
    """The runs of a published log of this setting, if there is one."""
    path = bench.published / "sched" / f"local-EEVDF-H250P{period}Q{quota}.json.gz"
    if not path.exists():
        return []
    runs = json.loads(gzip.decompress(path.read_bytes()))
    return [json.loads(run["data"]["body"])["data"][:PUBLISHED_MAX] for run in runs][:PUBLISHED_RUNS]


def summary_of(name: str, limit: tuple[int, int], runs: list[dict[str, Any]]) -> list[str]:
    """The row of a setting: means of its runs with intervals. A log that nothing is found in has no distances."""
    found = [one["found"] for one in runs if "found" in one]
    right = sum(one["period_us"] == limit[0] and abs(one["quota_us"] - limit[1]) * 20 <= limit[1] for one in found)
    fits = sum(max(one["model"]["with_latencies"].values()) <= DISTANCE_MAX for one in found)
    obtained = [fmean(amounts_ms(one["log"])["obtained"]) for one in runs if len(one["log"]) > 1]
    cells = [name, str(len(runs)), f"{right} of {len(runs)}", f"{fits} of {len(runs)}"]
    cells += [Estimate.of([one["model"]["with_latencies"][key] for one in found]).text(3) if found else "" for key in DISTANCES]
    cells.append(Estimate.of(obtained).text(2) if obtained else "")
    cells.append(Estimate.of([one["probe_ns"] for one in runs]).text(0))
    return cells


def throttles(bench: Bench) -> Report:
    """As root. Other load on the machine is in the measurement. The settings take turns, so that it disturbs all of them alike."""
    header = ["limit", "n", "named right", "within 0.1", *DISTANCES, "obtained ms", "probe ns"]
    report = Report("throttles", "Fig. 12: `pilot profile sched` on this machine, and the model's distances from it", header)
    data: list[dict[str, Any]] = []
    settings = SETTINGS[: bench.effort.settings]
    for number in range(bench.runs):
        for period, quota in settings:
            log = bench.home / f"P{period}Q{quota}-{number}.json"
            command = [
                "profile",
                "sched",
                "--period",
                str(period),
                "--quota",
                str(quota),
                "--seconds",
                str(bench.effort.seconds),
            ]
            done = subprocess.run([bench.binary, *command, "-o", log], capture_output=True, text=True)
            if done.returncode != 0:
                raise RuntimeError(done.stderr.strip())
            measured = json.loads(log.read_text())
            probe_ns = (bench.effort.seconds * 1e9 - sum(length for _, length in measured["data"])) / measured["probes"]
            one: dict[str, Any] = {"period_us": period, "quota_us": quota, "probe_ns": probe_ns, "log": measured["data"]}
            try:
                one["found"] = infer(bench, log)
            except RuntimeError as error:
                # A run on a busy machine need not say anything.
                one["nothing"] = str(error).rsplit(": ", 1)[-1][:60]
            data.append(one)
    for limit in settings:
        runs = [one for one in data if (one["period_us"], one["quota_us"]) == limit]
        name = f"P {limit[0] / 1000:g} ms, Q {limit[1] / 1000:g} ms"
        report.rows.append(summary_of(name, limit, runs))
    probes = [one["probe_ns"] for one in data]
    slowest = max(probes)
    report.bars = [
        Bar("a reading of the clock", "≤ 1 µs", f"{Estimate.of(probes).text(0)} ns, {slowest:.0f} at most", slowest <= 1000)
    ]
    report.notes.append("named right: the period exactly, and the quota to within 5 %; within 0.1: each of the three distances")
    report.notes.append(f"load average {os.getloadavg()[0]:.1f}: what else ran took CPU time from the loop")
    report.data = {
        "runs": data,
        "model": [
            {"period_us": period, "quota_us": quota, "log": modelled(bench, period, quota)} for period, quota in settings
        ],
        "published": [
            {"period_us": period, "quota_us": quota, "runs": published_log(bench, period, quota)} for period, quota in settings
        ],
    }
    return report
