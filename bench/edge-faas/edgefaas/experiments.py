"""Experiments 1 to 4 and 6, and the traces on the daemon: the cells, the table and the bars of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from statistics import fmean
from typing import Any

from benchlib.report import Bar, Report
from benchlib.stats import Estimate, percentile

from . import paper
from .cells import BURSTY_RAMP, BUSIEST_TEN, INTERVALS_S, POLICIES, RULE, SMOKE, STARTS_MS, STEP, Cell, Outcome, interval
from .runner import Results

Given = Callable[[Cell], str]
HEADER = ["start", "policy", "paper", "over 700 ms", "cold", "cold wait s", "all waits s", "p50", "p99", "max", "1st cycle max"]
HEADER += ["PSS MB", "MB·s"]


def cells(workload: Any, starts: tuple[int, ...], policies: tuple[str, ...], template: bool = True) -> list[Cell]:
    return [Cell(workload, policy, start, template) for start in starts for policy in policies]


# The paper's figure 6 has the three policies that react. At 900 ms `auto` is compared with all five.
FIGURE_6 = ("reactive", "cusum", "adaptive-cusum", "auto")

COLD_STARTS = cells(BURSTY_RAMP, STARTS_MS, POLICIES)
TEMPLATE_OFF = cells(BURSTY_RAMP, STARTS_MS, POLICIES, template=False)
INTERVAL = [
    cell
    for seconds in INTERVALS_S
    for start in STARTS_MS
    for cell in cells(interval(seconds), (start,), FIGURE_6 if start < 900 else POLICIES)
]
STEPS = cells(STEP, STARTS_MS, POLICIES)
# The cells of experiment 1, and one run alone on the machine, which shows how much PSS parallel daemons share.
MEMORY = [*cells(BURSTY_RAMP, (0,), POLICIES), Cell(BURSTY_RAMP, "auto", alone=True)]
TEN = cells(BUSIEST_TEN, STARTS_MS, POLICIES)
# The rule of starts, and the one before it.
STARTS = [
    Cell(workload, policy, 900, rule=rule)
    for workload in (BURSTY_RAMP, STEP)
    for policy in ("demand", "reactive", "cusum", "adaptive-cusum")
    for rule in ("sooner", RULE)
]
SMALL = cells(SMOKE, (100,), ("reactive", "auto"))


def beyond(outcomes: list[Outcome], percent: float) -> float | None:
    """The times of all trials' requests together, ms."""
    values = [value for outcome in outcomes for value in outcome.beyond]
    return percentile(values, percent) if values else None


def ms(value: float | None) -> str:
    return "" if value is None else f"{value:,.1f}"


def estimate(outcomes: list[Outcome], key: str, digits: int = 0) -> str:
    return Estimate.of([float(getattr(outcome, key)) for outcome in outcomes]).text(digits)


def mean(outcomes: list[Outcome], key: str) -> float:
    return fmean(float(getattr(outcome, key)) for outcome in outcomes)


def good(results: Results, plan: list[Cell]) -> list[tuple[Cell, list[Outcome]]]:
    """The cells with trials that did not fail."""
    found = []
    for cell in plan:
        outcomes = [outcome for outcome in results.get(cell, []) if not outcome.error]
        if outcomes:
            found.append((cell, outcomes))
    return found


def per_cell(name: str, title: str, plan: list[Cell], results: Results, given: Given) -> Report:
    """A row per cell: the paper's figure, both kinds of cold starts, times beyond the half second, memory."""
    report = Report(name, title, HEADER)
    report.data = []
    several = len({cell.workload for cell in plan}) > 1
    for cell, outcomes in good(results, plan):
        label = (f"{cell.workload.name}, " if several else "") + f"{cell.start_ms} ms"
        report.rows.append(
            [
                label,
                cell.policy,
                given(cell),
                estimate(outcomes, "over_700") if outcomes[0].beyond else "",
                estimate(outcomes, "cold"),
                estimate(outcomes, "cold_wait_s", 2),
                estimate(outcomes, "wait_s", 1) if outcomes[0].beyond else "",
                *(ms(beyond(outcomes, percent)) for percent in (50, 99, 100)),
                ms(max(outcome.beyond_first_cycle_max for outcome in outcomes)) if outcomes[0].beyond else "",
                estimate(outcomes, "pss_mb"),
                estimate(outcomes, "mb_s"),
            ]
        )
        report.data.append(record(cell, outcomes))
    failed = [outcome for cell in plan for outcome in results.get(cell, []) if outcome.error]
    report.notes += [f"*** failed: {outcome.cell}, trial {outcome.trial + 1}: {outcome.error}" for outcome in failed]
    if lost := sum(outcome.failed for cell in plan for outcome in results.get(cell, [])):
        report.notes.append(f"{lost} requests failed; they count as over 700 ms")
    everything = [outcome for _, outcomes in good(results, plan) for outcome in outcomes]
    if everything:
        busy, load = mean(everything, "cpu_busy"), mean(everything, "load_average")
        lag = max(outcome.lag_p99 for outcome in everything)
        report.notes.append(
            f"times are ms beyond the function's 500; n = {max(outcome.trial for outcome in everything) + 1}, 95 % intervals; "
            f"CPUs {busy:.0%} busy, load average {load:.1f}, generator late by {lag:.1f} ms p99 in the worst trial"
        )
    if failed:
        report.error = f"{len(failed)} trials failed"
    return report


def record(cell: Cell, outcomes: list[Outcome]) -> dict[str, Any]:
    """A cell for JSON: the interval of each figure, and every trial without its single times."""
    keys = ["over_700", "cold", "cold_own", "cold_wait_s", "wait_s", "pss_mb", "rss_mb", "mb_s", "forks", "start_mean"]
    keys += ["last_init", "service_mean", "worker_mb", "cpu_busy", "load_average", "lag_p99"]
    trials = [{key: value for key, value in vars(outcome).items() if key != "beyond"} for outcome in outcomes]
    return {
        "workload": cell.workload.name,
        "policy": cell.policy,
        "start_ms": cell.start_ms,
        "template": cell.template,
        **{key: Estimate.of([float(getattr(outcome, key)) for outcome in outcomes]).to_json() for key in keys},
        "beyond_ms": {f"p{percent}": beyond(outcomes, percent) for percent in (50, 90, 99, 100)},
        "cold_by_cycle": by_cycle(outcomes, "cold_by_cycle"),
        "over_700_by_cycle": by_cycle(outcomes, "over_700_by_cycle"),
        "trials": trials,
    }


def by_cycle(outcomes: list[Outcome], key: str) -> list[float]:
    longest = max(len(getattr(outcome, key)) for outcome in outcomes)
    return [fmean((getattr(outcome, key) + [0] * longest)[cycle] for outcome in outcomes) for cycle in range(longest)]


def cold_starts(results: Results) -> Report:
    title = "cold starts on the four-cycle bursty ramp (the paper's figure 4: its starts take ~100 ms)"
    report = per_cell("cold-starts", title, COLD_STARTS, results, lambda cell: given(paper.COLD_STARTS, cell.policy))
    as_it_is = good(results, cells(BURSTY_RAMP, (0,), POLICIES))
    for percent, limit in ((99, 15), (100, 60)):
        worst = [(beyond(outcomes, percent) or 0.0, cell.policy) for cell, outcomes in as_it_is if cell.policy != "static:1"]
        if worst:
            value, policy = max(worst)
            what = f"bursty ramp, start as it is: {'p99' if percent == 99 else 'worst'} beyond 500 ms, all but static:1"
            report.bars.append(Bar(what, f"≤ {limit} ms", f"{value:.1f} ms ({policy})", value <= limit))
    report.bars += waits(good(results, cells(BURSTY_RAMP, (900,), POLICIES)))
    return report


def template_off(results: Results) -> Report:
    title = "the same without the template (figure 5: its starts take ~900 ms then)"
    return per_cell(
        "template-off", title, TEMPLATE_OFF, results, lambda cell: given(paper.COLD_STARTS_TEMPLATE_OFF, cell.policy)
    )


def interval_sweep(results: Results) -> Report:
    title = "the interval between bursts (figure 6)"

    def says(cell: Cell) -> str:
        seconds = int(cell.workload.name.rpartition("=")[2])
        return paper.INTERVAL.get((cell.policy, seconds), paper.NOT_GIVEN)

    report = per_cell("interval", title, INTERVAL, results, says)
    found = good(results, [cell for cell in INTERVAL if cell.policy == "auto" and cell.start_ms == 100])
    over = {cell.workload.name: max(outcome.over_700 for outcome in outcomes) for cell, outcomes in found}
    if over:
        missing = len(INTERVALS_S) - len(over)
        text = (
            "0 at every W" if not any(over.values()) else ", ".join(f"{key}: {value}" for key, value in over.items() if value)
        )
        kept = False if any(over.values()) else None if missing else True
        measured = text + (f" ({missing} not run)" if missing else "")
        report.bars.append(Bar("intervals, start 100 ms: auto over 700 ms", "0 at every W", measured, kept))
    for seconds in INTERVALS_S:
        report.bars += waits(good(results, cells(interval(seconds), (900,), POLICIES)))
    return report


def step(results: Results) -> Report:
    title = "the step from 2 to 30 requests/s (section 6, n = 3: its starts take ~100 ms)"
    report = per_cell("step", title, STEPS, results, lambda cell: given(paper.STEP, cell.policy))
    for _, outcomes in good(results, [Cell(STEP, "auto", 100)]):
        worst = max(outcome.over_700 for outcome in outcomes)
        report.bars.append(Bar("step, start 100 ms: auto over 700 ms", "0", str(worst), worst == 0))
    report.bars += waits(good(results, cells(STEP, (900,), POLICIES)))
    return report


def memory(results: Results) -> Report:
    """Experiment 6."""
    report = Report("memory", f"memory of daemon, templates and workers (figure 7; its RSS: {paper.RSS_MB} MB in all)")
    report.header = [
        "policy",
        "paper PSS MB",
        "PSS MB",
        "of files",
        "PSS max",
        "RSS MB",
        "RSS/PSS",
        "paper cold",
        "over 700 ms",
        "cold",
    ]
    report.data = []
    for cell, outcomes in good(results, MEMORY):
        pss, rss = mean(outcomes, "pss_mb"), mean(outcomes, "rss_mb")
        report.rows.append(
            [
                cell.policy + (" (alone)" if cell.alone else ""),
                given(paper.PSS_MB, cell.policy),
                estimate(outcomes, "pss_mb", 1),
                estimate(outcomes, "pss_files_mb", 1),
                f"{max(outcome.pss_max_mb for outcome in outcomes):.0f}",
                estimate(outcomes, "rss_mb"),
                f"{rss / pss:.1f}" if pss else "",
                given(paper.COLD_STARTS, cell.policy),
                estimate(outcomes, "over_700"),
                estimate(outcomes, "cold"),
            ]
        )
        report.data.append(record(cell, outcomes) | {"alone": cell.alone})
        if cell.policy == "auto":
            what = "bursty ramp, start as it is: mean PSS of auto" + (", alone on the machine" if cell.alone else "")
            report.bars.append(Bar(what, "≤ 120 MB", f"{pss:.1f} MB", pss <= 120))
    return report


def starts(results: Results) -> Report:
    """The rules of starts on the daemon: the default beside `sooner`."""
    report = Report("starts", "the rules of starts on the daemon, starts of 900 ms: waiting at the client, and worker-seconds")
    report.header = [
        "workload",
        "policy",
        "rule",
        "waits s",
        "over 700 ms",
        "worker s",
        "starts",
        "waits ÷ sooner",
        "worker s ÷ sooner",
    ]
    report.data = []
    found = dict(good(results, STARTS))
    for cell, outcomes in found.items():
        before = found.get(replace(cell, rule="sooner"))
        waiting, workers = (mean(outcomes, key) / mean(before, key) if before else 0.0 for key in ("wait_s", "worker_s"))
        figures = [
            estimate(outcomes, key, digits) for key, digits in (("wait_s", 1), ("over_700", 0), ("worker_s", 0), ("forks", 0))
        ]
        report.rows.append([cell.workload.name, cell.policy, cell.rule, *figures, f"{waiting:.3f}", f"{workers:.3f}"])
        report.data.append(record(cell, outcomes) | {"rule": cell.rule})
        if before and cell.rule != "sooner":
            limits = (0.08, 1.05) if cell.workload is BURSTY_RAMP else (0.35, 1.4)
            what = f"{cell.workload.name}, 900 ms, {cell.policy}: waiting and worker-seconds ÷ sooner"
            fits = waiting <= limits[0] and workers <= limits[1]
            report.bars.append(Bar(what, f"≤ {limits[0]} and {limits[1]}", f"{waiting:.3f} and {workers:.3f}", fits))
    return report


def busiest_ten(results: Results) -> Report:
    title = "the ten busiest functions of the Azure 2019 trace, ten minutes from noon (beyond the paper)"
    report = per_cell("busiest-ten", title, TEN, results, lambda _: paper.NOT_GIVEN)
    report.notes.append("cold waits are the platform's own; each function takes as long as the trace says")
    report.bars += waits(good(results, cells(BUSIEST_TEN, (900,), POLICIES)))
    return report


def smoke(results: Results) -> Report:
    return per_cell("smoke", "does it run at all", SMALL, results, lambda _: "")


def given(figures: dict[str, str], key: str) -> str:
    return figures.get(key, paper.NOT_GIVEN)


def waits(found: list[tuple[Cell, list[Outcome]]]) -> list[Bar]:
    """At 900 ms, `auto` waits at most 60 % of the best of the paper's five policies that use no more memory."""
    by_policy = {cell.policy: outcomes for cell, outcomes in found}
    auto = by_policy.get("auto")
    if not auto:
        return []
    workload = found[0][0].workload.name
    rivals = {policy: by_policy[policy] for policy in paper.POLICIES if policy in by_policy}
    # The daemon's cold wait ends when the worker is ready. Only the client measures the wait for the worker's turn after that.
    kinds = {"cold_wait_s": "cold wait"} | ({"wait_s": "all waits"} if auto[0].beyond else {})
    return [
        sixty(
            f"{workload}, start 900 ms: {kind}", as_pair(auto, key), {policy: as_pair(rivals[policy], key) for policy in rivals}
        )
        for key, kind in kinds.items()
    ]


def as_pair(outcomes: list[Outcome], key: str) -> tuple[float, float]:
    return mean(outcomes, key), mean(outcomes, "mb_s")


def sixty(what: str, auto: tuple[float, float], rivals: dict[str, tuple[float, float]]) -> Bar:
    """The pairs are seconds of cold wait, and memory over time."""
    affordable = {policy: wait for policy, (wait, used) in rivals.items() if used <= auto[1]}
    told = f"{what} of auto"
    missing = [policy for policy in paper.POLICIES if policy not in rivals]
    if not affordable:
        kept = None if missing else True
        absent = f"; not run: {', '.join(missing)}" if missing else ""
        return Bar(told, "≤ 60 % of the best as small", f"{auto[0]:.1f} s; none of the five uses as little{absent}", kept)
    best = min(affordable, key=lambda policy: affordable[policy])
    share = auto[0] / affordable[best] if affordable[best] else float("inf") if auto[0] else 0.0
    kept = share <= 0.6 if not missing or share > 0.6 else None
    return Bar(told, "≤ 60 % of the best as small", f"{auto[0]:.1f} s, {share:.0%} of {best}'s {affordable[best]:.1f} s", kept)
