"""Cold invocations with and without an initscript, in turns, and what they say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

from benchlib.stats import Ratio

from .world import Seen

SIDES = ("with", "without")


@dataclass
class Cell:
    """One function at one distance: the invocations of both sides, in the order of the turns."""

    name: str
    kind: str
    round_trip_ms: float
    fetches: bool
    sides: dict[str, list[Seen]]

    @property
    def title(self) -> str:
        return f"{self.name}, {self.kind}, {self.round_trip_ms:g} ms"

    def ratios(self, what: Callable[[Seen], float]) -> list[float]:
        """Without ÷ with, of each turn."""
        return [what(without) / what(one) for one, without in zip(self.sides["with"], self.sides["without"])]

    def share(self) -> float | None:
        """What was gained, of what the longer of both parts allows: medians, both parts as without a script. `None`: next to nothing can
        be gained.
        """
        without = self.sides["without"]
        shorter = median(min(one.start, one.fetch) for one in without)
        gained = median(one.begun for one in without) - median(one.begun for one in self.sides["with"])
        return gained / shorter if shorter >= HIDEABLE_MS_MIN else None

    def begun_ratio(self) -> float:
        """How many times sooner the function has its data: the geometric mean over the turns."""
        return Ratio.of(self.ratios(lambda one: one.begun)).mean

    def most(self) -> float:
        """The largest ratio that hiding the shorter part can give."""
        without = self.sides["without"]
        return median(one.begun / (one.begun - min(one.start, one.fetch)) for one in without)

    def row(self) -> list[str]:
        def middle(side: str, what: Callable[[Seen], float]) -> str:
            return f"{median(what(one) for one in self.sides[side]):.1f}"

        share = self.share()
        first = {side: f"{seen[0].begun:.0f}" for side, seen in self.sides.items()}
        return [
            self.title,
            middle("without", lambda one: one.start),
            middle("without", lambda one: one.fetch),
            middle("without", lambda one: one.begun),
            middle("with", lambda one: one.begun),
            interval(self.ratios(lambda one: one.begun)),
            f"{self.most():.2f}",
            interval(self.ratios(lambda one: one.total)),
            "–" if share is None else f"{share:.2f}",
            f"{first['without']} / {first['with']}",
        ]

    def to_json(self) -> dict[str, Any]:
        seen = {side: [one.to_json() for one in values] for side, values in self.sides.items()}
        told = {"function": self.name, "kind": self.kind, "round_trip_ms": self.round_trip_ms, "fetches": self.fetches}
        return {**told, "begun_ratios": self.ratios(lambda one: one.begun), "share": self.share(), "invocations": seen}


HEADER = [
    "function, worker, distance",
    "start, ms",
    "fetch, ms",
    "begun without",
    "begun with",
    "without ÷ with (95 %), n",
    "at most",
    "of the whole",
    "share",
    "firsts",
]
NOTES = [
    "start, fetch: the worker's start, and what the function waits for its data, both without a script",
    "begun: from the request until the function has its data; of the whole: until the answer. Medians; the ratio is the geometric mean "
    "of the turns' ratios",
    "at most: begun without ÷ (begun without − min(start, fetch)), which is what hiding the shorter part gives",
    "share: (begun without − begun with) ÷ min(start, fetch), where that minimum is at least 5 ms; firsts: the first cold invocation "
    "after the deployment, without / with, which counts as every other",
]
# Below it, the share is mostly noise.
HIDEABLE_MS_MIN = 5.0


def interval(ratios: list[float]) -> str:
    return f"{Ratio.of(ratios).text(2)}, {len(ratios)}"


def turn_order(turn: int) -> tuple[str, ...]:
    return SIDES if turn % 2 == 0 else SIDES[::-1]
