"""The cost of starts with and without reuse of runtimes: by language (Fig. 4b), by network (Fig. 4c), only the hand-over, and Node.js
from its pre-warmed pool."""

from __future__ import annotations

import os
import subprocess
import time
from collections import Counter
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any

from benchlib.report import Bar, Report
from benchlib.stats import percentile

from . import apps, paper
from .bench import CLEANED, NEW, WAYS, Bench, Served, rotated
from .client import Answer
from .images import Missing, program

LANGUAGES = ("python", "node", "go", "java", "forked")
NETWORKS = ("none", "outbound", "host")


def ms(value: float | None) -> str:
    return "" if value is None else f"{value:,.2f}" if value < 10 else f"{value:,.1f}"


def over(new: float, other: float) -> str:
    return f"{new / other:.1f}×" if other else ""


def alternate(served: dict[str, Served], count: int) -> dict[str, list[Answer]]:
    """This number of requests for each, in turns, each to a daemon at rest. The first request of each is not measured."""
    answers: dict[str, list[Answer]] = {name: [] for name in served}
    clients = {name: one.client() for name, one in served.items()}
    names = tuple(served)
    for turn in range(count + 1):
        for name in rotated(names, turn):
            served[name].settle()
            answer = clients[name].ask()
            if turn:
                answers[name].append(answer)
    return answers


def mean_ms(answers: list[Answer]) -> float:
    return fmean(answer.ms for answer in answers)


def languages(bench: Bench) -> Report:
    report = Report("languages", f"figure 4(b): the sum of 0 to {bench.effort.to:,}, by language; mean ms")
    report.header = ["kind", "language", *(way.name for way in WAYS), "new / cleaned", "new / kept", "paper"]
    report.data = []
    for kind in bench.kinds:
        chosen = LANGUAGES if kind == "native" else LANGUAGES[:4]
        for language in chosen[:2] if bench.effort.smoke else chosen:
            try:
                app = apps.sums(kind, language, bench.effort.to)
                served = bench.all_ways(app, **({"memory_mb": 512} if language == "java" else {}))
                if language == "forked":
                    served["new"] = bench.serve(app, NEW, template="off")
            except Missing as error:
                report.notes.append(f"*** {kind}, {language}: skipped, {error} ***")
                continue
            found = {name: mean_ms(each) for name, each in alternate(served, bench.effort.starts).items()}
            new, cleaned, kept = (found[way.name] for way in WAYS)
            line = [kind, language, ms(new), ms(cleaned), ms(kept), over(new, cleaned), over(new, kept)]
            report.rows.append([*line, paper.LANGUAGES.get(language, "")])
            report.data.append({"kind": kind, "label": language, **found})
            bench.restore()
    report.notes.append(
        "native python, go and java poll the Runtime API; node uses the node runtime; in containers, each event"
    )
    report.notes.append(
        "starts the program (contract shim). forked: Pilotlight's Python runtime, where new is a new interpreter"
    )
    return report


def networks(bench: Bench) -> Report:
    report = Report("networks", "figure 4(c): the start of a runtime by its network, ms")
    report.header = ["kind", "network", "new", "cleaned", "new / cleaned", "answer, new", "answer, cleaned", "paper"]
    report.data = []
    chosen = NETWORKS[:1] if bench.effort.smoke else NETWORKS
    for kind in bench.kinds:
        for network in chosen:
            app = apps.empty(kind).with_spec(network, network=network)
            try:
                served = {way.name: bench.serve(app, way) for way in (NEW, CLEANED)}
            except RuntimeError as error:
                report.notes.append(f"*** {kind}, {network}: skipped, {error} ***")
                continue
            found = handed(served, bench.effort.starts)
            new, cleaned = mean_of(found["new"].took), mean_of(found["cleaned"].took)
            row = [kind, network, ms(new), ms(cleaned), over(new, cleaned) if new and cleaned else ""]
            report.rows.append([*row, *(ms(fmean(found[name].answers)) for name in served), paper.NETWORKS[network]])
            report.data.append({"kind": kind, "label": network, "new": new, "cleaned": cleaned})
            bench.restore()
    if bench.engine and "container" in bench.kinds:
        by_hand(bench, report)
    report.notes.append("new and cleaned: the time to get a runtime, as the daemon reports it; answer: the whole request")
    return report


def by_hand(bench: Bench, report: Report) -> None:
    """Only the engine, without Pilotlight: creates and starts containers with each network in turn."""
    assert bench.engine and bench.images
    image = bench.images.get("base")
    with bench.engine.proxy(image) as proxy:
        modes = {"none": "none", "bridge": "bridge", "host": "host", "container": proxy}
        found: dict[str, list[float]] = {name: [] for name in modes}
        for turn in range(bench.effort.starts):
            for name in rotated(tuple(modes), turn):
                container, took = bench.engine.start(image, modes[name])
                bench.engine.remove(container)
                found[name].append(took)
    for name, times in found.items():
        report.rows.append(["engine alone", name, ms(fmean(times)), "", "", "", "", paper.NETWORKS[name]])
        report.data.append({"kind": "engine alone", "label": name, "new": fmean(times)})


def mean_of(values: list[float]) -> float | None:
    return fmean(values) if values else None


@dataclass
class Handed:
    """The times of one way, ms: `took` is the time to get a runtime as the daemon reports it (for `new` only starts, for `cleaned` only
    reuses); `answers` are whole requests; `rest` is the time from the answer until the runtime is cleaned or ended."""

    took: list[float] = field(default_factory=list)
    answers: list[float] = field(default_factory=list)
    rest: list[float] = field(default_factory=list)
    how: Counter[str] = field(default_factory=Counter)

    @property
    def told(self) -> str:
        return ", ".join(f"{word} {count}" for word, count in self.how.items())

    def answers_ms(self) -> list[float]:
        return self.answers

    def whole_ms(self) -> list[float]:
        """Until the runtime can be used again, or has ended."""
        return [answer + rest for answer, rest in zip(self.answers, self.rest)]


def handed(served: dict[str, Served], count: int) -> dict[str, Handed]:
    """This number of requests for each, in turns, each to a daemon at rest. The first request of each is not measured."""
    found = {name: Handed() for name in served}
    clients = {name: one.client() for name, one in served.items()}
    for turn in range(count + 1):
        for name in rotated(tuple(served), turn):
            served[name].settle()
            answer = clients[name].ask()
            began = time.monotonic()
            status = served[name].settle()
            if turn:
                one = found[name]
                one.rest.append((time.monotonic() - began) * 1e3)
                one.answers.append(answer.ms)
                last = (status or {}).get("last") or {}
                word = str(last.get("how", "unknown")).split(" ")[0]
                one.how[word] += 1
                if word == ("started" if name == "new" else "reused"):
                    one.took.append(float(last["took_ms"]))
    return found


def handover(bench: Bench) -> Report:
    report = Report("handover", "a cleaned, reused runtime against a new one; ms")
    report.header = ["kind", "way", "n", "runtime p50", "runtime p99", "how", "answer p50", "answer p99", "at rest after p50"]
    report.data = []
    for kind in bench.kinds:
        app = apps.small(kind)
        served = {way.name: bench.serve(app, way) for way in (NEW, CLEANED)}
        found = handed(served, bench.effort.handovers)
        for name, one in found.items():
            middle, worst = (ms(percentile(one.took, p)) if one.took else "" for p in (50, 99))
            line = [kind, name, str(len(one.took)), middle, worst, one.told]
            report.rows.append([*line, *(ms(percentile(one.answers, p)) for p in (50, 99)), ms(percentile(one.rest, 50))])
            report.data.append(
                {"kind": kind, "label": name, "took_ms": one.took, "answer_ms": one.answers, "rest_ms": one.rest}
            )
        judge(report, kind, found)
        bench.restore()
    report.notes.append("runtime: the time to get a runtime; answer: the whole request, including the start of the function")
    report.notes.append("at rest: from the response until the runtime is cleaned or ended; no request waits for this")
    return report


def judge(report: Report, kind: str, found: dict[str, Handed]) -> None:
    new, cleaned = found["new"], found["cleaned"]
    if not new.took or not cleaned.took:
        what = "a cleaned native sandbox against a new one" if kind == "native" else "a cleaned container handed over"
        report.bars.append(Bar(what, "", "nothing was reused", False))
    elif kind == "native":
        # The handover alone (`took`) leaves out what both ways have to do for a request: the program's start, and the cleaning or the end.
        for what, times in (
            ("up to the answer", Handed.answers_ms),
            ("with the cleaning or the end after it", Handed.whole_ms),
        ):
            ratio = median(times(new)) / median(times(cleaned))
            report.bars.append(Bar(f"a new native sandbox ÷ a cleaned one, p50, {what}", "≥ 3×", f"{ratio:.1f}×", ratio >= 3))
    else:
        for what, times in (("up to the answer", Handed.answers_ms), ("with the cleaning after it", Handed.whole_ms)):
            p50 = median(times(cleaned))
            report.bars.append(Bar(f"a cleaned container, p50, {what}", "≤ 15 ms", f"{p50:.1f} ms", p50 <= 15))


def node(bench: Bench) -> Report:
    report = Report("node", "Node: a hello handler cold from the pre-warmed pool, against node started for it; ms")
    report.header = ["start", "n", "p50", "p99", "init phase p50", "how"]
    report.data = []
    served = {way.name: bench.serve(apps.node_hello(), way) for way in (NEW, CLEANED)}
    count = bench.effort.handovers
    bare: list[float] = []
    cold: dict[str, list[Answer]] = {name: [] for name in served}
    how: dict[str, Counter[str]] = {name: Counter() for name in served}
    clients = {name: one.client() for name, one in served.items()}
    clients["cleaned"].ask()
    for turn in range(count):
        bare.append(bare_node())
        for name in rotated(tuple(served), turn):
            status = ready(served[name])
            answer = clients[name].ask()
            if answer.start != "cold":
                raise RuntimeError(f"{served[name].name} was {answer.start}, not cold: {status}")
            last = (served[name].settle() or {}).get("last") or {}
            how[name][str(last.get("how", "unknown")).split(" ")[0]] += 1
            cold[name].append(answer)
    rows: list[tuple[str, list[float], str, str]] = [("node alone, no sandbox, no HTTP", bare, "", "")]
    for name, label in (("new", "new sandbox and node"), ("cleaned", "pre-warmed pool")):
        init = ms(percentile([answer.phases.get("init", 0.0) for answer in cold[name]], 50))
        told = ", ".join(f"{word} {times}" for word, times in how[name].items())
        rows.append((label, [answer.ms for answer in cold[name]], init, told))
    for label, times, init, told in rows:
        report.rows.append([label, str(len(times)), ms(percentile(times, 50)), ms(percentile(times, 99)), init, told])
        report.data.append({"label": label, "ms": times})
    p50 = percentile(rows[2][1], 50)
    report.bars.append(Bar("node: cold from the pre-warmed pool, first byte p50", "≤ 15 ms", f"{p50:.2f} ms", p50 <= 15))
    for what, times in (("starting node in a new sandbox", rows[1][1]), ("starting node, bare", bare)):
        ratio = percentile(times, 50) / p50
        report.bars.append(Bar(f"node: the same against {what}", "≥ 4×", f"{ratio:.1f}×", ratio >= 4))
    report.notes.append("complete responses on a persistent connection; every response said X-Pilot-Start: cold")
    return report


def ready(one: Served) -> dict[str, Any] | None:
    """Waits for rest, and for a free pre-warmed or cleaned runtime if runtimes are kept."""
    one.settle()
    if one.way is NEW:
        return None
    return one.wait(lambda status: bool(status and status["base"]["available"]), "given a pre-warmed runtime ahead")


def bare_node() -> float:
    """The time of the interpreter with a hello program, up to its first byte. Without the environment of this process, which a sandbox does
    not have either: with NODE_EXTRA_CA_CERTS, for example, Node.js reads certificates at each start."""
    command = [str(program("node")), "-e", 'console.log("hello")']
    began = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE, env={"PATH": os.defpath}) as process:
        assert process.stdout
        process.stdout.read(1)
        took = (time.monotonic() - began) * 1e3
        process.wait()
    return took
