"""The findings of a template: what was open or running at the end of its imports, and what is done about it (PROTOCOL.md,
section 2). Names in them are the user's, so they are bounded and made printable."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List

    Row = Dict[str, str]

COUNT_MAX = 50
TEXT_LEN_MAX = 200
LEN_MAX = 24 * 1024  # together, as JSON: the message has 64 KiB


class Report:
    """Collects rows, each once. `before` are those of the templates above."""

    def __init__(self, before: List[Row]) -> None:
        self._rows = list(before)

    def add(self, where: str, what: str, instead: str) -> None:
        row = {"where": printable(where), "what": printable(what), "instead": printable(instead)}
        if row not in self._rows:
            self._rows.append(row)

    def rows(self) -> List[Row]:
        found: List[Row] = []
        length = 0
        for row in self._rows:
            length += sum(len(ascii(text)) + 16 for text in row.values())
            if len(found) < COUNT_MAX and length <= LEN_MAX:
                found.append(row)
        return found


def printable(text: str) -> str:
    """One text, bounded. Also for what a template reports outside its findings."""
    return "".join(character if character.isprintable() else "?" for character in text[:TEXT_LEN_MAX])
