"""The report of an experiment: tables for people, data for JSON, and bars that are kept or missed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Bar:
    """One promise, and whether it is kept. `kept` is None if it was not measured."""

    what: str
    bar: str
    measured: str
    kept: bool | None

    @property
    def verdict(self) -> str:
        return {True: "kept", False: "MISSED", None: "not judged"}[self.kept]


@dataclass
class Report:
    name: str
    title: str
    header: list[str] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    data: Any = None
    bars: list[Bar] = field(default_factory=list)
    error: str | None = None

    def text(self) -> str:
        parts = [f"\n── {self.name}: {self.title}"]
        if self.rows:
            parts.append(table([self.header, *self.rows]))
        parts += [f"  {note}" for note in self.notes]
        if self.error:
            parts.append(f"  *** FAILED: {self.error} ***")
        return "\n".join(parts)

    def to_json(self) -> dict[str, Any]:
        return {
            "what": self.name,
            "title": self.title,
            "table": [self.header, *self.rows],
            "notes": self.notes,
            "bars": [{**vars(bar), "verdict": bar.verdict} for bar in self.bars],
            "data": self.data,
            "error": self.error,
        }


def table(lines: list[list[str]]) -> str:
    """The first row is the header. The first column is aligned to the left, the others to the right."""
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    text = [
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width) for column, (cell, width) in enumerate(zip(line, widths))
        ).rstrip()
        for line in lines
    ]
    text.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(text)


def bars_table(bars: list[Bar]) -> str:
    return table(judged(bars))


def judged(bars: list[Bar]) -> list[list[str]]:
    """With a header."""
    return [["what", "bar", "measured", "verdict"], *([bar.what, bar.bar, bar.measured, bar.verdict] for bar in bars)]


def markdown_table(rows: list[list[str]]) -> list[str]:
    """The lines of the table; the first row is the header."""
    text = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return [text[0], "|" + "---|" * len(rows[0]), *text[1:]]
