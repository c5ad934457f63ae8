"""Compares what a function answered in three ways: forked from a template, in a fresh interpreter (`template = "off"`), and with
awslambdaric outside.

Each of the three has descriptors, variables and so on of its own. Therefore the surroundings are compared as differences from
those of a plain function, which imports no package and ran in the same way.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Run:
    """One function, run in one way."""

    answer: dict[str, Any]
    error: dict[str, Any]


@dataclass(frozen=True)
class Difference:
    """`aspect` is, for example, `result` or `descriptors after`. `forked` and `other` are JSON."""

    aspect: str
    way: str
    forked: str
    other: str

    def __str__(self) -> str:
        return f"{self.aspect}: {self.forked} when forked, {self.other} {self.way}"


# Threads that have done their work end at some time.
UNSTEADY = {("threads", "after")}
# Each invocation has its own.
OF_ONE_INVOCATION = {"_X_AMZN_TRACE_ID"}
# How the two others are named in texts.
OFF = "in a fresh interpreter"
OUTSIDE = "with awslambdaric outside"


def aspects(run: Run, plain: Run) -> dict[str, str]:
    """What is compared, by its name."""
    found: dict[str, Any] = {"result": run.answer["result"]}
    for part in ("errorType", "errorMessage", "stackTrace"):
        found[part] = run.error.get(part)
    for when in ("before", "after"):
        for name, value in run.answer[when].items():
            if (name, when) in UNSTEADY:
                continue
            # Variables and folders of packages are given to the process. Only what changed since then is compared.
            given = run.answer["given"].get(name)
            found[f"{name} {when}"] = beside(value, plain.answer[when][name] if given is None else given)
    return {name: json.dumps(value, sort_keys=True) for name, value in found.items()}


def beside(value: Any, plain: Any) -> Any:
    """What is more or other than in the plain function, and what is missing."""
    if isinstance(value, dict):
        other = {key: one for key, one in value.items() if plain.get(key) != one and key not in OF_ONE_INVOCATION}
        return [other, sorted(plain.keys() - value.keys())]
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        more, less = Counter(value) - Counter(plain), Counter(plain) - Counter(value)
        return [sorted(more.elements()), sorted(less.elements())]
    if isinstance(value, int):
        return value - plain
    return [value, "as plain"] if value != plain else "as plain"


def differences(forked: dict[str, str], other: dict[str, str], way: str) -> list[Difference]:
    return [
        Difference(name, way, forked.get(name, "missing"), other.get(name, "missing"))
        for name in sorted(forked.keys() | other.keys())
        if forked.get(name) != other.get(name)
    ]


def repeated(runs: list[Run]) -> list[str]:
    """Values that were drawn twice: by two workers, or at import and in a worker. An import of a template is one import, so what
    its workers drew at import is the same and counts once."""
    at_import = {json.dumps(run.answer["drawn"]["at import"]) for run in runs if "drawn" in run.answer}
    later = [json.dumps(run.answer["drawn"]["in the worker"]) for run in runs if "drawn" in run.answer]
    return sorted({value for value, count in Counter([*at_import, *later]).items() if count > 1})
