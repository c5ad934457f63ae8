"""Results as a table for people: what, bar, measured, ratio, ok."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from benchlib.report import table


@dataclass
class Result:
    """One row. `bar` is the limit of `measured`, in the same unit; None: not judged."""

    what: str
    measured: float | None
    unit: str
    bar: float | None = None
    at_least: bool = False
    rival: str | None = None
    rival_measured: float | None = None
    notes: dict[str, Any] = field(default_factory=dict)
    error: str | None = None

    @property
    def ok(self) -> bool | None:
        if self.error:
            return False
        if self.bar is None or self.measured is None:
            return None
        return self.measured >= self.bar if self.at_least else self.measured <= self.bar

    @property
    def ratio(self) -> float | None:
        """The ratio of `measured` to the rival's value."""
        if not self.rival_measured or self.measured is None:
            return None
        return self.measured / self.rival_measured

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "ratio": self.ratio, "ok": self.ok}


def number(value: float | None, unit: str) -> str:
    if value is None:
        return ""
    digits = 0 if abs(value) >= 1000 else 1 if abs(value) >= 100 else 2
    return f"{value:,.{digits}f} {unit}".strip()


def render(results: list[Result]) -> str:
    lines = [["what", "bar", "measured", "rival", "ratio", "ok"]]
    for result in results:
        sign = "≥" if result.at_least else "≤"
        lines.append(
            [
                result.what,
                f"{sign} {number(result.bar, result.unit)}" if result.bar is not None else "",
                "failed, see below" if result.error else number(result.measured, result.unit),
                f"{result.rival} {number(result.rival_measured, result.unit)}" if result.rival_measured else "",
                f"{result.ratio:.2f}×" if result.ratio is not None else "",
                "FAILED" if result.error else {True: "ok", False: "MISSED", None: ""}[result.ok],
            ]
        )
    text = [table(lines)]
    for result in results:
        if result.error:
            text.append(f"  {result.what}: {result.error}")
        if result.notes:
            told = ", ".join(f"{key} {value}" for key, value in result.notes.items())
            text.append(f"  {result.what}: {told}")
    return "\n".join(text)
