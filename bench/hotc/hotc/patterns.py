"""Patterns of requests (sections V-B and V-D): random configurations, one after another, ten at once, and rounds that grow, shrink and
burst. The ways take turns within each round. Each series begins with empty pools; a ratio is the geometric mean of those of the series."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from benchlib.report import Bar, Report
from benchlib.stats import Ratio

from . import apps, paper
from .bench import CLEANED, KEPT, KINDS, NEW, WAYS, Bench, Served, rotated
from .client import Answer
from .images import Missing
from .startup import mean_ms, ms

PAPER_INTERVAL_S = 30.0


@dataclass(frozen=True)
class Round:
    """The responses of one way in one round of a series. `cold` is the number of requests that waited for a start."""

    kind: str
    way: str
    series: int
    number: int
    count: int
    mean_ms: float
    max_ms: float
    cold: int


def scaled(bench: Bench) -> str:
    interval = bench.effort.interval_s
    faster = PAPER_INTERVAL_S / interval
    return f"a round every {interval:g} s instead of 30 s, or when the previous round is answered: {faster:g} × faster"


def repeated(bench: Bench) -> str:
    return f"{scaled(bench)}; means of {bench.effort.series} series, each from empty pools"


def rounds(bench: Bench, kind: str, counts: list[int]) -> list[Round]:
    """Rounds with these numbers of simultaneous requests, in several series."""
    served = bench.all_ways(apps.pattern(kind, bench.effort.smoke))
    found = []
    for series in range(bench.effort.series):
        bench.empty()
        for number in bench.paced(len(counts)):
            for name in rotated(tuple(served), series + number):
                measured = served[name].burst(bench.load, counts[number])
                times = [first / 1e3 for first in measured.first_byte]
                cold = measured.starts.get("cold", 0)
                found.append(Round(kind, name, series, number + 1, counts[number], fmean(times), max(times), cold))
    bench.restore()
    return found


def table(report: Report, found: list[Round], paper_at: dict[int, str]) -> None:
    """A row per round, with all ways and their ratios: means over the series."""
    by_place: dict[tuple[str, int], dict[str, list[Round]]] = {}
    for one in found:
        by_place.setdefault((one.kind, one.number), {}).setdefault(one.way, []).append(one)
    for (kind, number), ways in by_place.items():
        line = [kind, str(number), str(ways[NEW.name][0].count)]
        line += [ms(fmean(one.mean_ms for one in ways[way.name])) for way in WAYS]
        for way in (CLEANED, KEPT):
            ratio = ratio_at(found, kind, way.name, [number])
            line.append(f"{ratio.mean:.3f}" if ratio else "")
        line += [f"{fmean(one.cold for one in ways[way.name]):.3g}" for way in (CLEANED, KEPT)]
        report.rows.append([*line, paper_at.get(number, "")])


HEADER = ["kind", "round", "requests", "new ms", "cleaned ms", "kept ms", "cleaned / new", "kept / new"]
HEADER += ["cold, cleaned", "cold, kept", "paper"]


def ratio_at(found: list[Round], kind: str, way: str, numbers: list[int]) -> Ratio | None:
    """The ratio of the mean latencies with and without reuse, over these rounds; `None`: they were not run."""
    means: dict[int, dict[str, list[float]]] = {}
    for one in found:
        if one.kind == kind and one.number in numbers:
            means.setdefault(one.series, {}).setdefault(one.way, []).append(one.mean_ms)
    ratios = [fmean(ways[way]) / fmean(ways[NEW.name]) for ways in means.values()]
    return Ratio.of(ratios) if ratios else None


def judge(report: Report, bench: Bench, what: str, most: float, ratio: Callable[[str, str], Ratio | None]) -> None:
    """A bar per kind and way. Bars without a measurement are not judged."""
    for kind, way in [(kind, way.name) for kind in KINDS for way in (CLEANED, KEPT)]:
        name, measured = f"{what}: {kind}, {way} / new", ratio(kind, way)
        kept = None if measured is None else measured.mean <= most
        report.bars.append(Bar(name, f"≤ {most}", "not measured" if measured is None else measured.text(), kept))


def linear(bench: Bench) -> Report:
    report = Report("linear", "figure 13: 2i requests in round i, up, then down; mean ms", HEADER)
    up = [2 * number for number in range(1, bench.effort.linear + 1)]
    found = [one for kind in bench.kinds for one in rounds(bench, kind, up + up[::-1])]
    top = len(up)
    table(report, found, {5: f"{paper.LINEAR_RATIO_AT_5}"})
    judge(report, bench, "linear, index 5 (paper 0.21)", 0.15, lambda kind, way: ratio_at(found, kind, way, [5]))
    report.notes.append(f"rounds {top + 1} on are the way down, from {up[-1]} (paper: {paper.LINEAR_DOWN}); {repeated(bench)}")
    report.data = [asdict(one) for one in found]
    return report


def exponential(bench: Bench) -> Report:
    report = Report("exponential", "figure 14(a): 2^i requests in round i, up, then down; mean ms", HEADER)
    found = []
    for kind in bench.kinds:
        up = [2**number for number in range(bench.effort.exponential[kind] + 1)]
        found += rounds(bench, kind, up + up[::-1])
        report.notes.append(f"{kind}: up to {up[-1]}, round {len(up) + 1} on the way down (paper: {paper.EXPONENTIAL_DOWN})")
    table(report, found, {})
    report.notes.append(f"paper, up: {paper.EXPONENTIAL_UP}; {repeated(bench)}")
    report.data = [asdict(one) for one in found]
    return report


def bursts(bench: Bench) -> Report:
    report = Report("bursts", "figure 14(b): the same every round, ten times as many in rounds 4, 8, 12, 16; mean ms", HEADER)
    peaks = [number for number in (4, 8, 12, 16) if number <= bench.effort.burst_rounds]
    found = []
    for kind in bench.kinds:
        base = bench.effort.burst[kind]
        counts = [base * (10 if number in peaks else 1) for number in range(1, bench.effort.burst_rounds + 1)]
        found += rounds(bench, kind, counts)
        if base != 8:
            report.notes.append(
                f"{kind}: {base} requests and {10 * base} in the bursts; the paper's 8 and 80 are too many for this machine"
            )
    later = {number: f"{paper.BURST_LATER_RATIO}" for number in peaks[1:]}
    table(report, found, {4: f"{paper.BURST_FIRST_RATIO}", **later})
    judge(report, bench, "the first burst (paper 0.91)", 0.8, lambda kind, way: ratio_at(found, kind, way, peaks[:1]))
    judge(report, bench, "bursts after the first (paper 0.27)", 0.2, lambda kind, way: ratio_at(found, kind, way, peaks[1:]))
    report.notes.append(repeated(bench))
    report.data = [asdict(one) for one in found]
    return report


def serial(bench: Bench) -> Report:
    report = Report("serial", "figure 12(a): one request after another; ms")
    report.header = ["kind", "way", "first", "mean of the others", "max of the others", "others / new", "cold"]
    report.data = []
    for kind in bench.kinds:
        served = bench.all_ways(apps.pattern(kind, bench.effort.smoke))
        bench.empty()
        clients = {name: one.client() for name, one in served.items()}
        found: dict[str, list[Any]] = {name: [] for name in served}
        for number in bench.paced(bench.effort.serial):
            for name in rotated(tuple(served), number):
                found[name].append(clients[name].ask())
        for way in WAYS:
            first, *others = found[way.name]
            mean, new = mean_ms(others), mean_ms(found[NEW.name][1:])
            cold = sum(answer.start == "cold" for answer in found[way.name])
            row = [kind, way.name, ms(first.ms), ms(mean), ms(max(answer.ms for answer in others)), f"{mean / new:.3f}"]
            report.rows.append([*row, f"{cold} of {len(found[way.name])}"])
            report.data.append({"kind": kind, "way": way.name, "ms": [answer.ms for answer in found[way.name]]})
        bench.restore()
    report.notes.append(f"paper: {paper.SERIAL}; {scaled(bench)}")
    report.notes.append("cold: the request waited for a worker, with a new or a cleaned runtime")
    return report


def parallel(bench: Bench) -> Report:
    """Ten clients, each with its own configuration, each sending its next request when it has its response."""
    report = Report("parallel", f"figure 12(b): {bench.effort.threads} threads, a configuration each; mean ms")
    report.header = [
        "kind",
        "way",
        "requests",
        "mean",
        "each one's first",
        "the others",
        "max",
        "mean / new (95 %), n",
        "paper",
    ]
    report.data = []
    ratios: dict[tuple[str, str], Ratio] = {}
    for kind in bench.kinds:
        found = parallel_of(bench, apps.pattern(kind, bench.effort.smoke))
        means = {
            name: [fmean(answer.ms for answers in one for answer in answers) for one in all] for name, all in found.items()
        }
        for way in WAYS:
            threads = [answers for one in found[way.name] for answers in one]
            everything = [answer.ms for answers in threads for answer in answers]
            ratio = Ratio.of(reused / new for reused, new in zip(means[way.name], means[NEW.name]))
            line = [kind, way.name, str(len(everything)), ms(fmean(everything))]
            line.append(ms(fmean(answers[0].ms for answers in threads)))
            line.append(ms(fmean(answer.ms for answers in threads for answer in answers[1:])))
            given = f"{paper.PARALLEL_RATIO}" if way is CLEANED else ""
            report.rows.append([*line, ms(max(everything)), f"{ratio.text()}, {ratio.n}", given])
            times = [[[answer.ms for answer in answers] for answers in one] for one in found[way.name]]
            report.data.append({"kind": kind, "way": way.name, "series_ms": times})
            if way is not NEW:
                ratios[kind, way.name] = ratio
    judge(report, bench, "parallel (paper 0.09)", 0.05, lambda kind, way: ratios.get((kind, way)))
    report.notes.append(
        f"each way sends {bench.effort.per_thread} requests per thread in each of {bench.effort.series} series; before each, the daemon is "
        "restarted, so that no runtime is kept. The mean includes every request"
    )
    return report


def parallel_of(bench: Bench, app: apps.App) -> dict[str, list[list[list[Answer]]]]:
    """The answers by way, series and thread."""
    count = bench.effort.threads
    configured = [app.with_spec(str(number), environment={"CONFIGURATION": str(number)}) for number in range(count)]
    served = {way.name: [bench.serve(one, way) for one in configured] for way in WAYS}
    found: dict[str, list[list[list[Answer]]]] = {way.name: [] for way in WAYS}
    with ThreadPoolExecutor(max_workers=count) as threads:
        for series in range(bench.effort.series):
            for name in rotated(tuple(served), series):
                bench.empty()
                found[name].append(list(threads.map(lambda one: in_a_row(one, bench.effort.per_thread), served[name])))
    bench.restore()
    return found


def in_a_row(one: Served, requests: int) -> list[Answer]:
    with one.client() as client:
        return [client.ask() for _ in range(requests)]


def web(bench: Bench) -> Report:
    """The paper's clients "sent requests using random configurations": here with random environment and memory from a few values."""
    report = Report("web", "figure 9: URL to QR code, a random configuration per request; ms")
    report.header = ["kind", "language", "way", "first of each configuration", "the others", "all", "all / new", "adapted"]
    report.data = []
    for kind in bench.kinds:
        languages = ("python", "node", "go") if kind == "native" else ("go",)
        for language in languages[:2] if bench.effort.smoke else languages:
            try:
                app = apps.qr(kind, language)
            except Missing as error:
                report.notes.append(f"*** {kind}, {language}: skipped, {error} ***")
                continue
            web_of(bench, report, kind, language, app)
    count = 2 if bench.effort.smoke else len(SCALES) * len(MEMORIES_MB)
    report.notes.append(f"{count} configurations with one owner, so that a runtime of one can be used for another")
    report.notes.append(f"paper: {paper.WEB}")
    return report


SCALES = (2, 4, 8)
MEMORIES_MB = (192, 256)


def web_of(bench: Bench, report: Report, kind: str, language: str, app: apps.App) -> None:
    configurations = [
        app.with_spec(f"{scale}-{memory}", environment={"SCALE": str(scale)}, memory_mb=memory)
        for scale in SCALES
        for memory in MEMORIES_MB
    ]
    if bench.effort.smoke:
        configurations = configurations[:2]
    # *cleaned* and *kept* must not share a pool, because they would use each other's runtimes.
    served = {way.name: [bench.serve(one, way, owner=f"web-{way.name}") for one in configurations] for way in WAYS}
    drawn = random.Random(1).choices(range(len(configurations)), k=bench.effort.web)
    found: dict[str, list[tuple[int, float]]] = {way.name: [] for way in WAYS}
    for turn, which in enumerate(drawn):
        for name in rotated(tuple(served), turn):
            with served[name][which].client() as client:
                found[name].append((which, client.ask().ms))
        # A reused runtime is cleaned after its response, before the next request.
        time.sleep(min(bench.effort.interval_s, 0.2))
    new = fmean(took for _, took in found[NEW.name])
    for way in WAYS:
        first, others = split(found[way.name])
        mean = fmean(took for _, took in found[way.name])
        adapted = sum(((one.status() or {}).get("totals") or {}).get("adapted", 0) for one in served[way.name])
        row = [kind, language, way.name, ms(fmean(first)), ms(fmean(others) if others else None), ms(mean), f"{mean / new:.3f}"]
        report.rows.append([*row, str(adapted)])
        report.data.append({"kind": kind, "language": language, "way": way.name, "ms": [took for _, took in found[way.name]]})
    bench.restore()


def split(found: list[tuple[int, float]]) -> tuple[list[float], list[float]]:
    """The first request of each configuration, and all others."""
    seen: set[int] = set()
    first: list[float] = []
    others: list[float] = []
    for which, took in found:
        (others if which in seen else first).append(took)
        seen.add(which)
    return first, others
