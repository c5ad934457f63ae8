"""Patterns of requests (sections V-B and V-D): random configurations, one after another, ten at once, and rounds that grow, shrink and
burst. The ways take turns within each round."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from benchlib.report import Bar, Report

from . import apps, paper
from .bench import CLEANED, KEPT, KINDS, NEW, WAYS, Bench, Served, rotated
from .images import Missing
from .startup import mean_ms, ms

PAPER_INTERVAL_S = 30.0
Pairs = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Round:
    """The responses of one way in one round. `cold` is the number of requests that waited for a start."""

    kind: str
    way: str
    number: int
    count: int
    mean_ms: float
    max_ms: float
    cold: int


def scaled(bench: Bench) -> str:
    interval = bench.effort.interval_s
    faster = PAPER_INTERVAL_S / interval
    return f"a round every {interval:g} s instead of 30 s, or when the previous round is answered: {faster:g} × faster"


def rounds(bench: Bench, kind: str, counts: list[int]) -> list[Round]:
    """Rounds with these numbers of simultaneous requests."""
    served = bench.all_ways(apps.pattern(kind, bench.effort.smoke))
    found = []
    for number in bench.paced(len(counts)):
        for name in rotated(tuple(served), number):
            measured = served[name].burst(bench.load, counts[number])
            times = [first / 1e3 for first in measured.first_byte]
            cold = measured.starts.get("cold", 0)
            found.append(Round(kind, name, number + 1, counts[number], fmean(times), max(times), cold))
    bench.restore()
    return found


def table(report: Report, found: list[Round], paper_at: dict[int, str]) -> None:
    """A row per round, with all ways and their ratios."""
    by_place: dict[tuple[str, int], dict[str, Round]] = {}
    for one in found:
        by_place.setdefault((one.kind, one.number), {})[one.way] = one
    for (kind, number), ways in by_place.items():
        new, cleaned, kept = (ways[way.name] for way in WAYS)
        line = [kind, str(number), str(new.count), *(ms(one.mean_ms) for one in (new, cleaned, kept))]
        line += [f"{one.mean_ms / new.mean_ms:.3f}" for one in (cleaned, kept)]
        line += [str(one.cold) for one in (cleaned, kept)]
        report.rows.append([*line, paper_at.get(number, "")])


HEADER = ["kind", "round", "requests", "new ms", "cleaned ms", "kept ms", "cleaned / new", "kept / new"]
HEADER += ["cold, cleaned", "cold, kept", "paper"]


def ratio_at(found: list[Round], kind: str, way: str, numbers: list[int]) -> float | None:
    """The ratio of the mean latencies with and without reuse, over these rounds; `None`: they were not run."""
    reused = [one.mean_ms for one in found if (one.kind, one.way) == (kind, way) and one.number in numbers]
    new = [one.mean_ms for one in found if (one.kind, one.way) == (kind, NEW.name) and one.number in numbers]
    return fmean(reused) / fmean(new) if reused and new else None


# The paper's figures are for containers that are cleaned after every request. A native runtime still has to start its interpreter after
# cleaning, which is most of the cost of a new one. So it is reported, but not judged.
JUDGED = (("container", CLEANED.name), ("container", KEPT.name), ("native", KEPT.name))


def judge(
    report: Report, bench: Bench, what: str, most: float, ratio: Callable[[str, str], float | None], judged: Pairs = JUDGED
) -> None:
    """A bar per kind and way. Bars without a measurement, and all bars of a smoke run, are not judged."""
    for kind, way in [(kind, way.name) for kind in KINDS for way in (CLEANED, KEPT)]:
        name, measured = f"{what}: {kind}, {way} / new", ratio(kind, way)
        told = "not measured" if measured is None else f"{measured:.3f}"
        counts = measured is not None and (kind, way) in judged and not bench.effort.smoke
        report.bars.append(Bar(name, f"≤ {most}", told, measured <= most if counts and measured is not None else None))


def linear(bench: Bench) -> Report:
    report = Report("linear", "figure 13: 2i requests in round i, up, then down; mean ms", HEADER)
    up = [2 * number for number in range(1, bench.effort.linear + 1)]
    found = [one for kind in bench.kinds for one in rounds(bench, kind, up + up[::-1])]
    top = len(up)
    table(report, found, {5: f"{paper.LINEAR_RATIO_AT_5}"})
    judge(report, bench, "linear, index 5 (paper 0.21)", 0.15, lambda kind, way: ratio_at(found, kind, way, [5]))
    report.notes.append(f"rounds {top + 1} on are the way down, from {up[-1]} (paper: {paper.LINEAR_DOWN}); {scaled(bench)}")
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
    report.notes.append(f"paper, up: {paper.EXPONENTIAL_UP}; {scaled(bench)}")
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
    report.notes.append(scaled(bench))
    report.data = [asdict(one) for one in found]
    return report


def serial(bench: Bench) -> Report:
    report = Report("serial", "figure 12(a): one request after another; ms")
    report.header = ["kind", "way", "first", "mean of the others", "max of the others", "others / new", "cold"]
    report.data = []
    for kind in bench.kinds:
        served = bench.all_ways(apps.pattern(kind, bench.effort.smoke))
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
    report.header = ["kind", "way", "requests", "mean", "without each one's first", "max", "mean / new", "paper"]
    report.data = []
    ratios: dict[tuple[str, str], float] = {}
    for kind in bench.kinds:
        app = apps.pattern(kind, bench.effort.smoke)
        found = parallel_of(bench, app)
        mean = {name: fmean(time for times in threads for time in times) for name, threads in found.items()}
        for way in WAYS:
            threads = found[way.name]
            everything = [time for times in threads for time in times]
            rest = [time for times in threads for time in times[1:]]
            ratio = mean[way.name] / mean[NEW.name]
            line = [kind, way.name, str(len(everything)), ms(mean[way.name]), ms(fmean(rest)) if rest else ""]
            given = f"{paper.PARALLEL_RATIO}" if way is CLEANED else ""
            report.rows.append([*line, ms(max(everything)), f"{ratio:.3f}", given])
            report.data.append({"kind": kind, "way": way.name, "threads_ms": threads})
            if way is not NEW:
                ratios[kind, way.name] = ratio
    judge(report, bench, "parallel (paper 0.09)", 0.05, lambda kind, way: ratios.get((kind, way)), JUDGED[:2])
    report.notes.append(
        "the mean includes every request, also the first one of each thread; ways with reuse send five times as many requests"
    )
    return report


def parallel_of(bench: Bench, app: apps.App) -> dict[str, list[list[float]]]:
    """The times in order, by way and thread."""
    count = bench.effort.threads
    configured = [app.with_spec(str(number), environment={"CONFIGURATION": str(number)}) for number in range(count)]
    served = {way.name: [bench.serve(one, way) for one in configured] for way in WAYS}
    found: dict[str, list[list[float]]] = {way.name: [[] for _ in range(count)] for way in WAYS}
    names = tuple(served)
    with ThreadPoolExecutor(max_workers=count) as threads:
        for turn in range(bench.effort.thread_turns):
            for name in rotated(names, turn):
                requests = 1 if name == NEW.name else 5
                times = threads.map(lambda one, requests=requests: in_a_row(one, requests), served[name])
                for known, more in zip(found[name], times):
                    known.extend(more)
    bench.restore()
    return found


def in_a_row(one: Served, requests: int) -> list[float]:
    with one.client() as client:
        return [client.ask().ms for _ in range(requests)]


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
