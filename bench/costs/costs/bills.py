"""Figures 2 to 5, and the rate at which traces are billed."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from fractions import Fraction
from math import ceil
from pathlib import Path
from statistics import correlation, fmean
from typing import Any

import tomllib
from benchlib.pilot import ask
from benchlib.report import Bar, Report
from benchlib.stats import Estimate, percentile

from . import traces
from .bench import Bench

# What the paper says of 558.74 million requests (section 2.3), hundredths.
PAPER_CPU, PAPER_MEMORY = "1.01 (Cloudflare) to 3.63 (Cloud Run)", "1.57 (Azure) to 4.35 (Cloud Run)"


def found(bench: Bench) -> Iterator[tuple[str, Path]]:
    """The traces that are at hand."""
    yield "generated", traces.write(bench.home / "generated.csv", bench.effort.requests)
    for name, path in (("Azure 2021", "azure2021/Azure2021_200.csv"), ("Azure 2019", "azure2019/100_run.csv")):
        if (bench.data / path).exists():
            yield name, bench.data / path


def billable(bench: Bench) -> Report:
    """Means of the whole trace, and amounts per request as a distribution. Some of the latter are also computed here."""
    header = ["trace", "platform", "memory", "CPU", "MB-s p50", "p95", "CPU ms p50", "p95"]
    report = Report("billable", "Fig. 2: billable resources ÷ used ones by platform, and billable amounts per request", header)
    means, distributions = [], {}
    for name, path in found(bench):
        bill = ask(bench.binary, "cost", "--trace", str(path), "--memory-mb", "256")
        distribution = distributions[name] = bill["analysis"]["distribution"]
        points = [distribution["percents"].index(percent) for percent in (50, 95)]
        per_request = {one["id"]: one for one in distribution["platforms"]}
        report.rows.append([name, "(used)", "", "", *amounts(distribution["used"], points)])
        for platform in bill["platforms"]:
            memory, cpu = (platform.get(f"{what}_inflation_hundredths") for what in ("memory", "cpu"))
            # A machine is billed for all the time, which says nothing about a trace of minutes.
            if (memory is None and cpu is None) or platform["bill"].get("per_month"):
                continue
            means.append({"trace": name, "platform": platform["id"], "memory": memory, "cpu": cpu})
            shown = ["" if value is None else f"{value / 100:.2f}" for value in (memory, cpu)]
            report.rows.append([name, platform["name"], *shown, *amounts(per_request.get(platform["id"], {}), points)])
    report.notes.append(f"the paper: CPU {PAPER_CPU}, memory {PAPER_MEMORY}")
    report.notes.append(
        "Azure's traces do not say how much memory was used: as much as the 256 MB that are assumed to be allocated"
    )
    off = apart(bench, distributions["generated"])
    report.bars = [Bar("`pilot cost --trace` beside this arithmetic", "≤ 0.032 apart", f"{off:.4f}", off <= 0.032)]
    report.notes.append("amounts per request are up to a 32nd too large, because they are counted in bins")
    report.data = {"means": means, "distributions": distributions}
    return report


# A kilobyte-millisecond in MB-seconds, and a nanosecond in ms.
MB_S, MS = 1 / 1024 / 1000, 1e-6


def amounts(of: dict[str, Any], points: list[int]) -> list[str]:
    """The amounts of a request at these points, as text."""
    memory, cpu = of.get("memory_kb_ms"), of.get("cpu_ns")
    shown = ["" if memory is None else f"{memory[point] * MB_S:.3f}" for point in points]
    return shown + ["" if cpu is None else f"{cpu[point] * MS:.2f}" for point in points]


def apart(bench: Bench, told: dict[str, Any]) -> float:
    """How far amounts of the generated trace are from those computed here, at most, as a part of them."""
    requests = list(traces.requests(bench.effort.requests))
    whole_ms = [ceil(round(request.duration_s * 1000, 3)) for request in requests]
    cpu_ms = [request.cpu_share * request.cpu_milli / 1000 * request.duration_s * 1000 for request in requests]
    by_id = {one["id"]: one for one in told["platforms"]}
    here = {
        "used memory": [request.memory_share * request.memory_mb * request.duration_s for request in requests],
        "Huawei": [request.memory_mb * ms / 1000 for request, ms in zip(requests, whole_ms)],
        # With at least the CPU that was allocated, as the paper does.
        "AWS Lambda": [
            max(request.memory_mb, ceil(request.cpu_milli * 1769 / 1000)) * ms / 1000 for request, ms in zip(requests, whole_ms)
        ],
        "used CPU": cpu_ms,
    }
    there = {
        "used memory": [value * MB_S for value in told["used"]["memory_kb_ms"]],
        "Huawei": [value * MB_S for value in by_id["huawei"]["memory_kb_ms"]],
        "AWS Lambda": [value * MB_S for value in by_id["aws-lambda-x86"]["memory_kb_ms"]],
        "used CPU": [value * MS for value in told["used"]["cpu_ns"]],
    }
    off = 0.0
    for name, values in there.items():
        exact = [percentile(here[name], percent) for percent in told["percents"]]
        off = max(off, *(abs(value / other - 1) for value, other in zip(values, exact)))
    return off


def ranks(values: list[float]) -> list[float]:
    order = sorted(range(len(values)), key=values.__getitem__)
    places = [0.0] * len(values)
    for place, at in enumerate(order):
        places[at] = float(place)
    return places


def analysed(bench: Bench) -> dict[str, Any]:
    """What `pilot cost --trace` says of the generated trace."""
    path = traces.write(bench.home / "analysed.csv", bench.effort.requests)
    analysis: dict[str, Any] = ask(bench.binary, "cost", "--trace", str(path))["analysis"]
    return analysis


def utilisation(bench: Bench) -> Report:
    """Also computed here, which checks that of the binary."""
    found = analysed(bench)
    shares = [(request.cpu_share, request.memory_share) for request in traces.requests(bench.effort.requests)]
    cpu, memory = [one for one, _ in shares], [other for _, other in shares]
    below = [sum(share < 0.5 for share in one) / len(one) for one in (cpu, memory)]
    pearson, spearman = correlation(cpu, memory), correlation(ranks(cpu), ranks(memory))
    told = [found[key]["below_half_thousandths"] / 1000 for key in ("cpu", "memory")] + [found["pearson"], found["spearman"]]
    report = Report("utilisation", "Fig. 3: used ÷ allocated", ["what", "pilot cost", "here", "paper"])
    report.rows = [
        ["requests below half of the CPU", f"{told[0]:.1%}", f"{below[0]:.1%}", "65 %"],
        ["requests below half of the memory", f"{told[1]:.1%}", f"{below[1]:.1%}", "76 %"],
        ["Pearson", f"{told[2]:.3f}", f"{pearson:.3f}", "0.552"],
        ["Spearman", f"{told[3]:.3f}", f"{spearman:.3f}", "0.565"],
    ]
    off = max(abs(one - other) for one, other in zip(told, (*below, pearson, spearman)))
    report.bars = [Bar("`pilot cost --trace` beside this arithmetic", "≤ 0.005 apart", f"{off:.4f}", off <= 0.005)]
    report.notes.append("a generated trace: its utilisations were made like those of the paper")
    report.data = {"shares": shares[:5000], "below_half": below, "pearson": pearson, "spearman": spearman, "pilot": found}
    return report


PERCENTS = (5, 25, 50, 75, 95)


def coldstart(bench: Bench) -> Report:
    """Also computed here, which checks that of the binary."""
    pods = list(traces.pods(bench.effort.requests // 20))
    requests, starts = traces.write_pods(bench.home, pods)
    told = ask(bench.binary, "cost", "--trace", str(requests), "--starts", str(starts))["analysis"]["starts"]
    differences = [sum(pod.requests_s) - pod.start_s for pod in pods]
    share = sum(difference <= 0 for difference in differences) / len(differences)
    here = [percentile(differences, percent) for percent in PERCENTS]
    by_pilot = [us / 1e6 for us in told["difference_us"]]
    header = ["what", "pilot cost", "here", "paper"]
    report = Report("coldstart", "Fig. 4: time of the requests of a worker − time of its start", header)
    told_share = told["not_positive_thousandths"] / 1000
    report.rows = [["starts that take at least as long as all their requests", f"{told_share:.1%}", f"{share:.1%}", "42.1 %"]]
    for percent, one, other in zip(PERCENTS, by_pilot, here):
        report.rows.append([f"{percent}th percentile, s", f"{one:.2f}", f"{other:.2f}", ""])
    off = max(abs(one - other) / max(1, abs(other)) for one, other in zip((told_share, *by_pilot), (share, *here)))
    every = told["known"] == len(pods)
    report.bars = [Bar("`pilot cost --trace` beside this arithmetic", "≤ 0.001 apart", f"{off:.4f}", every and off <= 0.001)]
    report.notes.append("a generated trace: what it says of platforms is what was put in")
    report.data = {"differences_s": differences[:20_000], "share_not_positive": share, "pilot": told}
    return report


PERIODS_NS = {"ns": 1, "ms": 10**6, "s": 10**9, "h": 3600 * 10**9}


def rate_per_ns(platform: dict[str, Any], cpu_milli: int, memory_mb: int) -> Fraction:
    """What a size costs per nanosecond, exactly."""
    total = Fraction(0)
    for resource, amount in (("memory", Fraction(memory_mb, 1024)), ("cpu", Fraction(cpu_milli, 1000))):
        if price := platform.get(resource):
            total += Fraction(price["price"]) * amount / PERIODS_NS[price["per"].split()[-1]]
    return total


def fees(bench: Bench) -> Report:
    """The arithmetic is repeated here from the table, and checks that of the binary's tests."""
    shown = subprocess.run([bench.binary, "cost", "platforms"], capture_output=True, text=True, check=True)
    platforms = tomllib.loads(shown.stdout)["platforms"]
    sizes = ((73, 128), (145, 256), (500, 512), (1000, 1769))
    header = ["platform", *(f"{memory} MB, {cpu / 1000:.2f} vCPU" for cpu, memory in sizes)]
    report = Report("fees", "Fig. 5, left: the billable time that costs as much as the fee, ms", header)
    data = {}
    for key, platform in platforms.items():
        fee = Fraction(platform.get("fee", "0"))
        if not fee or platform["time"] in ("instance", "machine"):
            continue
        rates = [rate_per_ns(platform, *size) for size in sizes]
        times = [float(fee / price / 10**6) if price else None for price in rates]
        data[key] = times
        report.rows.append([platform["name"], *("" if value is None else f"{value:.2f}" for value in times)])
    report.data = {"sizes": sizes, "ms": data}
    aws, run = data["aws-lambda-x86"][0] or 0.0, data["gcp-request"][2] or 0.0
    report.bars = [
        Bar("fee at 128 MB on AWS Lambda", "96 ms", f"{aws:.2f} ms", round(aws) == 96),
        Bar("fee at 0.5 vCPU and 512 MB on Cloud Run", "30.19 ms", f"{run:.2f} ms", f"{run:.2f}" == "30.19"),
    ]
    return report


def rounding(bench: Bench) -> Report:
    requests = list(traces.requests(bench.effort.requests))
    times = [request.duration_s * 1000 for request in requests]
    coarse = [ceil(ms / 100) * 100 - ms for ms in times]
    cutoff = [max(ceil(ms), 100) - ms for ms in times]
    memory = []
    for request, ms in zip(requests, times):
        used_mb = request.memory_share * request.memory_mb
        billed = ceil(used_mb / 128) * 128 * max(ceil(ms), 100)
        memory.append((billed - used_mb * ms) / 1024 / 1000)
    found = analysed(bench)
    told = {(one["step_ms"], one["min_ms"]): one["mean_us"] / 1000 for one in found["rounding"]}
    header = ["granularity", "pilot cost", "here", "paper"]
    report = Report("rounding", "Fig. 5, right: what is rounded up, on average, in a generated trace", header)
    report.rows = [
        ["time: 100 ms", f"{told[100, 0]:.2f} ms", f"{fmean(coarse):.2f} ms", "77.12 ms"],
        ["time: 1 ms, at least 100 ms", f"{told[1, 100]:.2f} ms", f"{fmean(cutoff):.2f} ms", "61.35 ms"],
        [
            "memory: 128 MB, with that time",
            f"{found['memory_rounding_gb_s']:.2e} GB-s",
            f"{fmean(memory):.2e} GB-s",
            "2.67e-02 GB-s",
        ],
        ["(the durations themselves)", "", f"{fmean(times):.2f} ms", "58.19 ms"],
    ]
    off = max(abs(told[100, 0] - fmean(coarse)), abs(told[1, 100] - fmean(cutoff)))
    report.bars = [Bar("`pilot cost --trace` beside this arithmetic", "≤ 0.1 ms apart", f"{off:.3f} ms", off <= 0.1)]
    report.data = {
        "coarse_ms": sorted(coarse)[:: max(1, len(coarse) // 2000)],
        "cutoff_ms": sorted(cutoff)[:: max(1, len(cutoff) // 2000)],
    }
    return report


BLOCK_ROWS = 10_000
# A run that takes longer than this times the bar is ended, so that the experiment is, too.
LIMIT_S_PER_MILLION = 2 * 60 / 100
LIMIT_S_MIN = 60


def billed(bench: Bench, rows: int) -> dict[str, float]:
    """Bills a trace of so many rows through a pipe: seconds, CPU seconds and MB of the process."""
    block = "".join(request.row for request in traces.requests(BLOCK_ROWS)).encode()
    command = [str(bench.binary), "cost", "--trace", "-", "--json"]
    limit_s = max(LIMIT_S_MIN, LIMIT_S_PER_MILLION * rows / 1e6)
    began = time.monotonic()
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        limit = threading.Timer(limit_s, process.kill)
        limit.start()
        try:
            process.stdin.write(traces.HEADER.encode())
            for _ in range(rows // BLOCK_ROWS):
                process.stdin.write(block)
            process.stdin.close()
            answer = process.stdout.read()
        except BrokenPipeError:
            answer = b""
        finally:
            limit.cancel()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.monotonic() - began
    if process.returncode != 0:
        raise RuntimeError(f"{rows} rows: exit status {process.returncode} after {seconds:.0f} s (limit {limit_s:.0f} s)")
    calls = json.loads(answer)["used"]["calls"]
    if calls != rows // BLOCK_ROWS * BLOCK_ROWS:
        raise RuntimeError(f"{calls} of {rows} rows were billed")
    return {
        "rows": rows,
        "seconds": seconds,
        "cpu_s": usage.ru_utime + usage.ru_stime,
        "memory_mb": usage.ru_maxrss / 1024,
    }


BAR_ROWS = 100_000_000
# How far the rate of a tenth of the rows may be from that of all.
RATE_OFF = 0.1


def rate(bench: Bench) -> Report:
    """A tenth of the rows, and all of them, take turns, so that what else runs on the machine disturbs both alike."""
    header = ["rows", "s", "longest s", "million rows/s", "CPU ns per row", "MB at most"]
    report = Report("rate", "a generated trace through a pipe, under all platforms", header)
    short, whole = max(bench.rows // 10, BLOCK_ROWS), bench.rows
    runs: list[dict[str, float]] = []
    for _ in range(bench.runs):
        runs += [billed(bench, rows) for rows in (short, whole)]
    for rows in (short, whole):
        of = [run for run in runs if run["rows"] == rows]
        times = [run["seconds"] for run in of]
        report.rows.append(
            [
                f"{rows:,}",
                Estimate.of(times).text(1),
                f"{max(times):.1f}",
                Estimate.of([rows / took / 1e6 for took in times]).text(2),
                Estimate.of([run["cpu_s"] / rows * 1e9 for run in of]).text(0),
                f"{max(run['memory_mb'] for run in of):.0f}",
            ]
        )
    took = [run["seconds"] for run in runs if run["rows"] == whole]
    most_mb = max(run["memory_mb"] for run in runs)
    # Of neighbours in time: how much faster the whole is.
    ratios = [(long["rows"] / long["seconds"]) / (part["rows"] / part["seconds"]) for part, long in zip(runs[::2], runs[1::2])]
    ratio = Estimate.of(ratios)
    is_whole = whole >= BAR_ROWS
    unjudged = f"{whole:,} rows"
    report.bars = [
        Bar(
            "100 million rows, the longest run",
            "≤ 60 s",
            f"{max(took):.1f} s ({Estimate.of(took).text(1)} s)" if is_whole else unjudged,
            max(took) <= 60 if is_whole else None,
        ),
        Bar("memory", "≤ 1 GB", f"{most_mb:.0f} MB at most", most_mb <= 1024),
        Bar(
            "rate of all rows ÷ that of a tenth of them",
            f"{1 - RATE_OFF:g} to {1 + RATE_OFF:g}",
            ratio.text(3) if is_whole else unjudged,
            abs(ratio.mean - 1) <= RATE_OFF if is_whole else None,
        ),
    ]
    report.notes.append("`bench/costs/run --only rate --rows 100000000` measures the bars, `--runs N` so often (5)")
    report.data = runs
    return report
