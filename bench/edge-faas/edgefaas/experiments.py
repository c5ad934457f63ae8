"""Experiments 1 to 4 and 6, and the traces on the daemon: the cells, the table and the bars of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from benchlib.report import Bar, Report
from benchlib.stats import Estimate, percentile

from . import paper
from .cells import BURSTY_RAMP, BUSIEST_TEN, INTERVALS_S, POLICIES, RULE, SMOKE, STARTS_MS, STEP, Cell, Outcome, interval
from .runner import Results

Given = Callable[[Cell], str]


@dataclass(frozen=True)
class Column:
    """A column of a table: its header, and what it says of a cell's trials."""

    header: str
    says: Callable[[list[Outcome]], str]


def estimated(header: str, key: str, digits: int = 0, unit: str = "") -> Column:
    """The mean of the trials with its interval."""
    return Column(header, lambda outcomes: estimate(outcomes, key, digits) + unit)


def at(header: str, percent: float) -> Column:
    """A percentile of all trials' requests together, ms beyond the function's half second."""
    return Column(header, lambda outcomes: ms(beyond(outcomes, percent)))


COLUMNS = [estimated("over 700 ms", "over_700"), estimated("over 50 ms", "over_50_share", 1, " %"), estimated("cold", "cold")]
COLUMNS += [estimated("waits s", "wait_s", 1), at("p50", 50), at("p99", 99), at("max", 100)]
COLUMNS += [estimated("PSS MB", "pss_mb", 1), estimated("MB·s", "mb_s")]


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
# The paper's policies that change their target, with a tick that is as short as that of `auto`.
TICKED = ("reactive", "cusum", "adaptive-cusum", "arima")
QUICK = ":tick_s=0.2"
QUICK_TICKS = [
    cell
    for workload in (BURSTY_RAMP, STEP)
    for cell in cells(workload, STARTS_MS, ("auto", *TICKED, *(policy + QUICK for policy in TICKED)))
]
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


def per_cell(
    name: str, title: str, plan: list[Cell], results: Results, given: Given | None, columns: list[Column] | None = None
) -> Report:
    """A row per cell: the paper's figure, and the columns."""
    columns = columns or COLUMNS
    several = len({cell.workload for cell in plan}) > 1
    report = Report(name, title, [*(["workload"] if several else []), "start ms", "policy", *(["paper"] if given else [])])
    report.header += [column.header for column in columns]
    for cell, outcomes in good(results, plan):
        place = [*([cell.workload.name] if several else []), str(cell.start_ms), cell.policy, *([given(cell)] if given else [])]
        report.rows.append([*place, *(column.says(outcomes) for column in columns)])
    return finished(report, plan, results)


def finished(report: Report, plan: list[Cell], results: Results) -> Report:
    """With the data of its cells, and what the reader must know of their trials."""
    found = good(results, plan)
    report.data = [record(cell, outcomes) for cell, outcomes in found]
    failed = [outcome for cell in plan for outcome in results.get(cell, []) if outcome.error]
    report.notes += [f"*** failed: {outcome.cell}, trial {outcome.trial + 1}: {outcome.error}" for outcome in failed]
    if lost := sum(outcome.failed for cell in plan for outcome in results.get(cell, [])):
        report.notes.append(f"{lost} requests failed; they count as over 700 ms")
    everything = [outcome for _, outcomes in found for outcome in outcomes]
    if everything:
        busy, load = mean(everything, "cpu_busy"), mean(everything, "load_average")
        lag = max(outcome.lag_p99 for outcome in everything)
        counts = [len(outcomes) for cell, outcomes in found if not cell.alone] or [1]
        n = " to ".join(map(str, sorted({min(counts), max(counts)})))
        report.notes.append(
            f"n = {n}, 95 % intervals; CPUs {busy:.0%} busy, load average {load:.1f}, "
            f"generator late by {lag:.1f} ms p99 in the worst trial"
        )
        if len(builds := {outcome.build for outcome in everything}) > 1:
            report.notes.append(f"*** trials of {len(builds)} builds: {', '.join(sorted(builds))}")
    if failed:
        report.error = f"{len(failed)} trials failed"
    return report


def record(cell: Cell, outcomes: list[Outcome]) -> dict[str, Any]:
    """A cell for JSON: the interval of each figure, and every trial without its single times."""
    keys = ["over_700", "over_50_share", "cold", "cold_wait_s", "wait_s", "pss_mb", "rss_mb", "mb_s", "forks", "start_mean"]
    keys += ["last_init", "service_mean", "worker_mb", "cpu_busy", "load_average", "lag_p99"]
    trials = [{key: value for key, value in vars(outcome).items() if key != "beyond"} for outcome in outcomes]
    return {
        "workload": cell.workload.name,
        "policy": cell.policy,
        "start_ms": cell.start_ms,
        "template": cell.template,
        "alone": cell.alone,
        "rule": cell.rule,
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


# What tells policies apart at each start.
OVER_W = {0: COLUMNS[2:3], 100: COLUMNS[:3], 900: [COLUMNS[0], COLUMNS[3]]}


def interval_sweep(results: Results) -> Report:
    report = Report("interval", "the interval W between bursts (figure 6), seconds")
    report.header = ["start ms", "what", "policy", *map(str, INTERVALS_S)]
    for start, columns in OVER_W.items():
        for column in columns:
            if start == 100 and column.header == "over 700 ms":
                for policy in dict.fromkeys(policy for policy, _ in paper.INTERVAL):
                    figures = [paper.INTERVAL.get((policy, seconds), paper.NOT_GIVEN) for seconds in INTERVALS_S]
                    report.rows.append([str(start), column.header, f"{policy} (paper)", *figures])
            for policy in FIGURE_6 if start < 900 else POLICIES:
                of_policy = [results.get(Cell(interval(seconds), policy, start), []) for seconds in INTERVALS_S]
                ran = [[outcome for outcome in outcomes if not outcome.error] for outcomes in of_policy]
                if any(ran):
                    report.rows.append(
                        [str(start), column.header, policy, *(column.says(each) if each else "" for each in ran)]
                    )
    finished(report, INTERVAL, results)
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
        if cell.policy == "auto":
            what = "bursty ramp, start as it is: mean PSS of auto" + (", alone on the machine" if cell.alone else "")
            report.bars.append(Bar(what, "≤ 120 MB", f"{pss:.1f} MB", pss <= 120))
    return finished(report, MEMORY, results)


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
    found = dict(good(results, STARTS))
    for cell, outcomes in found.items():
        before = found.get(replace(cell, rule="sooner"))
        waiting, workers = (mean(outcomes, key) / mean(before, key) if before else 0.0 for key in ("wait_s", "worker_s"))
        figures = [
            estimate(outcomes, key, digits) for key, digits in (("wait_s", 1), ("over_700", 0), ("worker_s", 0), ("forks", 0))
        ]
        report.rows.append([cell.workload.name, cell.policy, cell.rule, *figures, f"{waiting:.3f}", f"{workers:.3f}"])
        if before and cell.rule != "sooner":
            limits = (0.08, 1.05) if cell.workload is BURSTY_RAMP else (0.35, 1.4)
            what = f"{cell.workload.name}, 900 ms, {cell.policy}: waiting and worker-seconds ÷ sooner"
            fits = waiting <= limits[0] and workers <= limits[1]
            report.bars.append(Bar(what, f"≤ {limits[0]} and {limits[1]}", f"{waiting:.3f} and {workers:.3f}", fits))
    return finished(report, STARTS, results)


def quick_ticks(results: Results) -> Report:
    """Whether `auto` only gains by its shorter tick."""
    report = Report("quick-ticks", "the paper's policies with their tick of 2 s, and with that of auto: 0.2 s")
    columns = [estimated("over 700 ms", "over_700"), COLUMNS[2], COLUMNS[3], estimated("worker s", "worker_s")]
    report.header = ["workload", "start ms", "policy"]
    report.header += [f"{column.header}, {tick} s" for column in columns for tick in ("2", "0.2")]
    found = dict(good(results, QUICK_TICKS))
    for cell in QUICK_TICKS:
        if QUICK in cell.policy:
            continue
        slow = None if cell.policy == "auto" else found.get(cell)
        quick = found.get(cell if cell.policy == "auto" else replace(cell, policy=cell.policy + QUICK))
        if slow or quick:
            said = [column.says(each) if each else "" for column in columns for each in (slow, quick)]
            report.rows.append([cell.workload.name, str(cell.start_ms), cell.policy, *said])
    return finished(report, QUICK_TICKS, results)


def busiest_ten(results: Results) -> Report:
    title = "the ten busiest functions of the Azure 2019 trace, ten minutes from noon (beyond the paper)"
    columns = [estimated("cold", "cold"), estimated("cold wait s", "cold_wait_s", 1), estimated("PSS MB", "pss_mb")]
    columns += [Column("GB·s", lambda outcomes: f"{mean(outcomes, 'mb_s') / 1e3:,.1f}"), estimated("failed", "failed", 1)]
    report = per_cell("busiest-ten", title, TEN, results, None, columns)
    report.notes.append("cold waits are the platform's own; each function takes as long as the trace says")
    report.bars += waits(good(results, cells(BUSIEST_TEN, (900,), POLICIES)))
    return report


def smoke(results: Results) -> Report:
    return per_cell("smoke", "does it run at all", SMALL, results, None)


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
    beside = f"{share:.0%} of {best}'s {affordable[best]:.1f} s" if affordable[best] else f"{best} does not wait"
    return Bar(told, "≤ 60 % of the best as small", f"{auto[0]:.1f} s, {beside}", kept)
