"""The tables of kept results: one page for a folder with the documents of [`benchlib.command.Run`], to each of which `commit` was added."""

from __future__ import annotations

import json
from pathlib import Path

from benchlib.report import markdown_table

TOP = """# Figures of {what}

`bench/{bench}/figures` writes this file from the JSON beside it, which has every invocation. [../README.md](../README.md) says what the
columns mean, and what is behind the figures.
"""


def keep(results: Path, document: Path, commit: str) -> None:
    """Keeps a document, with the commit of the build that it is of."""
    content = json.loads(document.read_text())
    (results / document.name).write_text(json.dumps({"commit": commit, **content}, indent=1) + "\n")


def write(results: Path, bench: str, what: str) -> None:
    """Writes `README.md` of a folder with results."""
    lines = [line for path in sorted(results.glob("*.json")) for line in told(path)]
    (results / "README.md").write_text(TOP.format(bench=bench, what=what) + "\n".join(lines) + "\n")


def told(path: Path) -> list[str]:
    document = json.loads(path.read_text())
    if "rows" not in document or "build" not in document:
        return []
    load = ", ".join(f"{number:.1f}" for number in document["load_average"])
    machine = document["machine"]
    lines = ["", f"## `{path.name}`", ""]
    lines += [
        f"A {document['build']} build, {machine['cpus']} CPUs, Linux {machine['kernel']}, {document['seconds']:.0f} s. At the end,"
    ]
    lines += [f"the load average was {load}, of the measurement itself. Commit `{document['commit']}`."]
    for row in document["rows"]:
        lines += ["", f"### {row['what']}: {row['title']}", ""]
        if row["error"]:
            lines += [f"Failed: {row['error']}"]
            continue
        lines += markdown_table(row["table"])
        if row["bars"]:
            bars = [[bar["what"], bar["bar"], bar["measured"], bar["verdict"].lower()] for bar in row["bars"]]
            lines += ["", *markdown_table([["bar", "wanted", "measured", ""], *bars])]
        lines += ["", *(f"- {note}" for note in row["notes"])] if row["notes"] else []
    return lines


def main(script: str, bench: str, what: str, arguments: list[str]) -> None:
    """The command `figures` of a benchmark: `figures [COMMIT FILE...]` keeps documents, and writes the page."""
    results = Path(script).resolve().parent / "results"
    for document in arguments[1:]:
        keep(results, Path(document), arguments[0])
    write(results, bench, what)
