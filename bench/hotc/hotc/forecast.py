"""The errors of the predictor (section V-C, figure 10): the paper's jump, and the containers of real functions.
The forecasts come from `pilot-experiments forecast`; this module chooses the initial values and compares the results."""

from __future__ import annotations

import csv
import gzip
import random
from dataclasses import dataclass
from itertools import dropwhile
from pathlib import Path
from typing import Any

from benchlib.pilot import experiment
from benchlib.report import Bar, Report

from . import paper
from .bench import Bench

ALPHAS = (0.2, 0.8)
READINGS = ("correction", "literal")
# The app of the trace with the most containers, and a function with bursts of requests.
APP, FUNCTION = "b5a2e82aea", "a29c85c09f"
# The first samples, for which the initial value matters (section IV-C: "when the number of time series is less than 20").
EARLY = 5
JUMP_AT = 7


@dataclass(frozen=True)
class Series:
    name: str
    values: tuple[float, ...]


def forecast(bench: Bench) -> Report:
    report = Report("forecast", "figure 10: relative error of forecasts, %: the sum of what they were off by, of all that came")
    report.header = ["series", "samples", "α", "initial", "smoothing", "+ chain, correction", "+ chain, literal"]
    report.header += [f"first {EARLY}: smoothing", f"first {EARLY}: correction"]
    report.data = []
    jump, traced = jumps(), traces(bench.traces)
    if not traced:
        report.notes.append(f"*** no traces at {bench.traces}: the jump alone ***")
    for one in (*jump, *traced):
        for alpha in ALPHAS:
            for initial in (None, random.Random(1).uniform(0, 2 * max(one.values))):
                report.rows.append(line(bench, report, one, alpha, initial))
    around(bench, report, jump)
    report.notes.append(
        "initial, historical: the mean of the observations, as in the paper; random: between 0 and twice the highest observation"
    )
    report.notes.append("the paper's YouTube trace is not available: Azure 2019 replaces it, with one sample per minute")
    return report


def line(bench: Bench, report: Report, one: Series, alpha: float, initial: float | None) -> list[str]:
    told = {
        reading: predicted(bench, one, f"smoothing-markov:alpha={alpha},reading={reading}", initial) for reading in READINGS
    }
    correction, literal = (told[reading] for reading in READINGS)
    early = [error(correction["samples"][:EARLY], key) for key in ("smoothed", "forecast")]
    word = "historical" if initial is None else f"random {initial:.1f}"
    errors = [correction["smoothed_error"], correction["forecast_error"], literal["forecast_error"]]
    report.data.append(
        {"series": one.name, "alpha": alpha, "initial": initial, "errors": errors, "early": early}
        | {reading: each["samples"] for reading, each in told.items() if len(one.values) <= 40}
    )
    return [one.name, str(len(one.values)), f"{alpha}", word, *map(percent, errors), *map(percent, early)]


def around(bench: Bench, report: Report, jump: list[Series]) -> None:
    """The samples at and after the jump, with the default policy."""
    for one in jump:
        told = predicted(bench, one, "smoothing-markov", None)
        errors = {}
        for key in ("smoothed", "forecast"):
            samples = told["samples"][JUMP_AT : JUMP_AT + 4]
            errors[key] = [abs(sample[key] - sample["observed"]) / sample["observed"] for sample in samples]
        texts = {key: ", ".join(percent(value) for value in values) for key, values in errors.items()}
        what = f"{one.name}: the four samples from index {JUMP_AT + 1} on"
        report.notes.append(f"{what}: smoothing {texts['smoothed']}; + chain {texts['forecast']} (paper: {paper.JUMP_ERRORS})")
        report.data.append({"series": one.name, "jump": errors})
        if one.name == jump[0].name:
            third = errors["forecast"][3]
            name = "forecast: relative error, third sample behind the jump 8→19"
            report.bars.append(Bar(name, "≤ 10 %", percent(third), third <= 0.10))


def jumps() -> list[Series]:
    """The paper's text gives the two numbers and the indices 7 to 10. The jump is at once, and in equal steps."""
    low, high = (float(value) for value in paper.JUMP)
    thirds = (high - low) / 3
    way = (low + thirds, low + 2 * thirds)
    return [
        Series("jump 8→19, at once", (low,) * JUMP_AT + (high,) * 10),
        Series("jump 8→19, over 3 samples", (low,) * JUMP_AT + (*way, *(high,) * 8)),
    ]


def traces(folder: Path) -> list[Series]:
    """Azure 2019: containers in use per minute of its busiest app and of all apps together; requests per minute of a bursty function."""
    containers = folder / "azure2019" / "femux_100apps_containers_per_min.csv.gz"
    requests = folder / "azure2019" / "100_inv.csv"
    if not containers.exists() or not requests.exists():
        return []
    with gzip.open(containers, "rt") as file:
        apps = {row[0]: [float(value) for value in row[5:]] for row in list(csv.reader(file))[1:]}
    with requests.open() as file:
        functions = {row[0]: [float(value) for value in row[3:]] for row in list(csv.reader(file))[1:]}
    together = [float(sum(values)) for values in zip(*apps.values())]
    return [
        Series("Azure 2019, containers of an app", in_use(begins(apps, APP))),
        Series("Azure 2019, containers of 100 apps", in_use(together)),
        Series("Azure 2019, requests of a function", in_use(begins(functions, FUNCTION))),
    ]


def begins(rows: dict[str, list[float]], word: str) -> list[float]:
    return next(values for name, values in rows.items() if name.startswith(word))


def in_use(values: list[float]) -> tuple[float, ...]:
    """The samples from the first one that is not zero, because there is nothing to forecast from before it."""
    return tuple(dropwhile(lambda value: not value, values))


def predicted(bench: Bench, one: Series, policy: str, initial: float | None) -> dict[str, Any]:
    begin = [] if initial is None else ["--initial", f"{initial}"]
    text = "\n".join(f"{value:g}" for value in one.values)
    answer = experiment(bench.binary, "forecast", "-", "--policy", policy, *begin, text=text)
    told: dict[str, Any] = answer["policies"][0]
    return told


def error(samples: list[dict[str, Any]], key: str) -> float | None:
    known = [sample for sample in samples if sample[key] is not None]
    came = sum(sample["observed"] for sample in known)
    return sum(abs(sample[key] - sample["observed"]) for sample in known) / came if came else None


def percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f} %"
