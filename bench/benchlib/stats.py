"""Percentiles of samples; means and ratios with 95 % intervals of Student's t at n - 1 degrees of freedom."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import exp, log
from statistics import fmean, stdev

# The 97.5 % quantile of t by degrees of freedom. Beyond 30, that of the normal distribution is 4 % less.
T = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131]
T += [2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042]


def percentile(samples: list[float], percent: float) -> float:
    """The smallest sample that this percentage of the samples does not exceed."""
    ordered = sorted(samples)
    if not ordered:
        raise RuntimeError("nothing was measured")
    return ordered[min(len(ordered) - 1, max(0, -(-len(ordered) * percent // 100).__int__() - 1))]


@dataclass(frozen=True)
class Estimate:
    """`half` is None for a single value, which says nothing about the variation."""

    mean: float
    half: float | None
    n: int

    @staticmethod
    def of(values: list[float]) -> Estimate:
        n = len(values)
        half = T[min(n - 2, len(T) - 1)] * stdev(values) / n**0.5 if n > 1 else None
        return Estimate(fmean(values), half, n)

    def text(self, digits: int = 0) -> str:
        return f"{self.mean:,.{digits}f}" + (f" ± {self.half:,.{digits}f}" if self.half is not None else "")

    def to_json(self) -> dict[str, float | int | None]:
        return {"mean": self.mean, "half_95": self.half, "n": self.n}


@dataclass(frozen=True)
class Ratio:
    """The geometric mean of the turns' ratios. The mean of ratios of noisy figures is above 1 for two sides that are the same; that of
    their logarithms is not. `low` and `high` are the ends of the interval. A single turn has none: there, they are its ratio."""

    mean: float
    low: float
    high: float
    n: int

    @staticmethod
    def of(ratios: Iterable[float]) -> Ratio:
        logs = Estimate.of([log(ratio) for ratio in ratios])
        half = logs.half or 0.0
        return Ratio(exp(logs.mean), exp(logs.mean - half), exp(logs.mean + half), logs.n)

    def text(self, digits: int = 3) -> str:
        return f"{self.mean:.{digits}f}" + (f" ({self.low:.{digits}f} to {self.high:.{digits}f})" if self.n > 1 else "")
