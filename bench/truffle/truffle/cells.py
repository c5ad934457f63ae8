"""The cells of an experiment: cold invocations of both sides, which take turns, and what they say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from benchlib.report import Bar
from benchlib.stats import Ratio

from .world import SIDES, Seen

# The bars: the share of what can be hidden, where that is at least so long; and what no cell may exceed.
HIDDEN_MIN, HIDEABLE_MS_MIN, RATIO_MAX = 0.95, 20.0, 1.02
# 100 MB from S3 to workers whose start is delayed, or containers.
RATIO_OF_LONG_MAX = 0.6

HEADER = ["start, input", "start", "transfer", "after", "overlap", "overlap ÷ after (95 %), n", "Eq. 4 allows", "hidden share"]
NOTES = [
    "hidden share: (after − overlap) ÷ min(start, transfer), medians; both parts as without overlap (Eq. 4 is the limit, 1)",
    "overlap ÷ after: the geometric mean of the turns' ratios of the whole invocation",
    "Eq. 4 allows: the ratio if all of the shorter part were hidden, medians",
]


@dataclass
class Cell:
    """Times are ms. `labels` says what it is of."""

    labels: dict[str, Any]
    sides: dict[str, list[Seen]] = field(default_factory=lambda: {side: [] for side in SIDES})

    @property
    def title(self) -> str:
        return ", ".join(str(value) for value in self.labels.values())

    def middle(self, side: str, what: Callable[[Seen], float]) -> float:
        return median(what(one) for one in self.sides[side])

    def ratio(self) -> Ratio:
        return Ratio.of(one.total / other.total for one, other in zip(self.sides["overlap"], self.sides["after"]))

    @property
    def shorter(self) -> float:
        """What can be hidden."""
        return median(min(one.start, one.transfer) for one in self.sides["after"])

    @property
    def allowed(self) -> float:
        """The ratio that hiding all of the shorter part gives."""
        return median((one.total - min(one.start, one.transfer)) / one.total for one in self.sides["after"])

    @property
    def share(self) -> float:
        gained = self.middle("after", lambda one: one.total) - self.middle("overlap", lambda one: one.total)
        return gained / self.shorter if self.shorter else 0.0

    def row(self) -> list[str]:
        ratio = self.ratio()
        return [
            self.title,
            f"{self.middle('after', lambda one: one.start):.1f} ms",
            f"{self.middle('after', lambda one: one.transfer):.1f} ms",
            f"{self.middle('after', lambda one: one.total):.1f} ms",
            f"{self.middle('overlap', lambda one: one.total):.1f} ms",
            f"{ratio.text()}, {ratio.n}",
            f"{self.allowed:.3f}",
            f"{self.share:.2f}",
        ]

    def bars(self, *, is_long: bool = False) -> list[Bar]:
        """`is_long`: 100 MB from S3, to a worker that starts slowly."""
        ratio = self.ratio().mean
        bars = [Bar(f"{self.title}: ratio", f"≤ {RATIO_MAX}", f"{ratio:.3f}", ratio <= RATIO_MAX)]
        if is_long:
            measured = f"{ratio:.3f}, Eq. 4 allows {self.allowed:.3f}"
            bars[0] = Bar(f"{self.title}: ratio", f"≤ {RATIO_OF_LONG_MAX}", measured, ratio <= RATIO_OF_LONG_MAX)
        if self.shorter >= HIDEABLE_MS_MIN:
            kept = self.share >= HIDDEN_MIN
            bars.append(Bar(f"{self.title}: hidden share", f"≥ {HIDDEN_MIN}", f"{self.share:.2f}", kept))
        return bars

    def to_json(self) -> dict[str, Any]:
        seen = {side: [one.to_json() for one in values] for side, values in self.sides.items()}
        return {**self.labels, "share": self.share, "ratio": self.ratio().mean, "invocations": seen}


def turn_order(turn: int) -> tuple[str, ...]:
    return SIDES if turn % 2 == 0 else SIDES[::-1]
