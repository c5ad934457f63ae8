"""The results that benchmarks keep, and the texts that are written from them.

`bench/NAME/results/FILE.json` is what a run wrote with `--json`, and the commit of the build. Where a text has

    <!-- FILE table -->
    <!-- end -->

the lines between are written: `table`, `bars`, `notes` or `machine` of that file, or of a row of it (`FILE#ROW table`). Within a line:
- `<!-- FILE: cold p50 -->3 ms<!-- end -->` has what was measured for a row of bench/peers, or for a bar;
- `<!-- FILE: ÷ cold p50 -->0.9 ×<!-- end -->` has a row of bench/peers divided by the peer's;
- `<!-- FILE: container, go: new / kept -->` has a cell of the table: the first cells of its line, and its column.

In another text than the benchmark's own README, FILE is `NAME/FILE`, from `bench/`: tests/chaos has `../tests/chaos/FILE`. Files with rows
that the README does not mark are listed in `results/README.md`, which is written as a whole. Larger raw data lie packed beside a result.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .report import Bar, judged, markdown_table

BENCH = Path(__file__).resolve().parent.parent
# Other texts with marked sections.
TEXTS = [BENCH.parent / name for name in ("SPECIFICATION.md", "docs/forecasting.md", "docs/papers.md", "tests/chaos/README.md")]
MARKED = re.compile(r"<!-- (?P<what>[a-z0-9_/.#-]+) (?P<part>table|bars|notes|machine) -->\n.*?<!-- end -->", re.DOTALL)
INLINE = re.compile(r"<!-- (?P<what>[a-z0-9_/.-]+): (?P<name>[^\n]+?) -->[^\n]*?<!-- end -->")
TOP = """# Kept results

`bench/figures` writes this file from the JSON beside it. [../README.md](../README.md) says what was measured, and what is behind the figures.
"""
# Larger raw data lie beside a row's file, packed.
BESIDE_BYTES = 64 << 10
# How fast the build is does not matter for these.
ARITHMETIC = {"billable", "utilisation", "coldstart", "fees", "rounding", "durations", "periods", "logs"}
# A file for each row, in place of one for each run: their experiments are repeated one by one.
BY_ROW = {"costs", "edge-faas", "hotc"}
FOLDERS = re.compile(r'"/(tmp|home|root|work)[^"]*"')


class KeptError(Exception):
    """A result that cannot be kept, or a text without its result."""


def keep(bench: str, file: Path, commit: str) -> None:
    """Keeps what a run wrote. `commit` is that of the measured build."""
    document = json.loads(file.read_text())
    if document.get("kind") == "smoke":
        raise KeptError(f"{file}: a smoke run says nothing")
    if document.get("build", "release") != "release" and {row.get("what") for row in document["rows"]} - ARITHMETIC:
        raise KeptError(f"{file}: a {document['build']} build says nothing")
    for row in document["rows"]:
        if row.get("error"):
            raise KeptError(f"{file}: {row.get('what')} failed: {row['error']}")
    results = BENCH / bench / "results"
    results.mkdir(exist_ok=True)
    if bench not in BY_ROW:
        for row in document["rows"]:
            if "data" in row:
                row["data"] = packed(results / f"{file.stem}.{row['what']}.data.json.gz", row["data"])
        write(results / file.name, {"commit": commit, **document})
        return
    about = {"commit": commit, **{key: document[key] for key in ("build", "machine", "load_average", "seconds")}}
    for row in document["rows"]:
        name = row["what"]
        data = packed(results / f"{name}.data.json.gz", row.pop("data"))
        write(results / f"{name}.json", {**about, **row, "data": data})


def packed(beside: Path, data: Any) -> Any:
    """The data, or the name of the file that has them."""
    data = rounded(data)
    raw = json.dumps(data).encode()
    if len(raw) <= BESIDE_BYTES:
        beside.unlink(missing_ok=True)
        return data
    # Without a time and a name, so that the same data are the same file.
    beside.write_bytes(gzip.compress(raw, mtime=0))
    return beside.name


def write(path: Path, document: dict[str, Any]) -> None:
    text = json.dumps(document, indent=1) + "\n"
    if outside := FOLDERS.search(text):
        raise KeptError(f"{path.name} would name a folder of the machine: {outside[0]}")
    path.write_text(text)


def rounded(value: Any) -> Any:
    """With six digits."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, list):
        return [rounded(each) for each in value]
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    return value


def texts() -> dict[Path, str]:
    """All texts with figures, as they must be."""
    found = {path: marked(path.read_text(), None) for path in TEXTS}
    for readme in sorted(BENCH.glob("*/README.md")):
        bench, text = readme.parent.name, readme.read_text()
        found[readme] = marked(text, bench)
        named = {match["what"].split("#")[0] for match in MARKED.finditer(text)}
        lines = [line for file in files(bench) if file.stem not in named for line in listed(file)]
        page = readme.parent / "results" / "README.md"
        if lines:
            found[page] = TOP + "\n".join(lines) + "\n"
        elif page.exists():
            raise KeptError(f"{page.relative_to(BENCH.parent)} has nothing to say any more: delete it")
    return found


def files(bench: str) -> list[Path]:
    return sorted((BENCH / bench / "results").glob("*.json"))


def marked(text: str, bench: str | None) -> str:
    """The text with its marked sections."""

    def section(found: re.Match[str]) -> str:
        lines = "\n".join(part_of(found["what"], found["part"], bench))
        return f"<!-- {found['what']} {found['part']} -->\n{lines}\n<!-- end -->"

    def value(found: re.Match[str]) -> str:
        return f"<!-- {found['what']}: {found['name']} -->{measured(found['what'], found['name'], bench)}<!-- end -->"

    return INLINE.sub(value, MARKED.sub(section, text))


def document_of(name: str, bench: str | None) -> dict[str, Any]:
    file = Path(bench or "", name)
    path = BENCH / file.parent / "results" / f"{file.name}.json"
    if not path.exists():
        raise KeptError(f"a text names {name}, but there is no {path.relative_to(BENCH.parent)}")
    document: dict[str, Any] = json.loads(path.read_text())
    return document


def measured(name: str, what: str, bench: str | None) -> str:
    """What was measured for a row of bench/peers, or for a bar; or a cell of the table."""
    document = document_of(name, bench)
    for row in document.get("rows", [document]):
        if row["what"] == what and "unit" in row:
            return amount(row)
        if f"÷ {row['what']}" == what and row.get("rival_measured"):
            return f"{row['measured'] / row['rival_measured']:.2f} ×"
        for bar in row.get("bars", []):
            if bar["what"] == what:
                return str(bar["measured"])
    if "table" in document and ": " in what:
        return cell_of(document, what)
    raise KeptError(f'a text wants "{what}" of {name}, which has no such row or bar')


def cell_of(report: dict[str, Any], what: str) -> str:
    """`container, go: new / kept` is the column `new / kept` of the line that begins with `container` and `go`."""
    line, _, column = what.partition(": ")
    first = line.split(", ")
    header, *lines = report["table"]
    found = [cells for cells in lines if cells[: len(first)] == first]
    if len(found) != 1 or header.count(column) != 1:
        raise KeptError(
            f'a text wants "{what}" of {report["what"]}, whose table has {len(found)} such lines and the columns {header}'
        )
    return str(found[0][header.index(column)])


def part_of(what: str, part: str, bench: str | None) -> list[str]:
    name, _, row = what.partition("#")
    document = document_of(name, bench)
    if part == "machine":
        return [machine(document)]
    if row:
        rows = [each for each in document["rows"] if each.get("what") == row]
        if not rows:
            raise KeptError(f"a text wants the {part} of {what}, but {name} has no such row")
        document = rows[0]
    if part == "table":
        return table(document)
    if part == "notes":
        return [f"- {note}" for note in document["notes"]]
    return bars(document)


def machine(document: dict[str, Any]) -> str:
    about = document["machine"]
    load = document.get("load_average") or about.get("load_average")
    words = [f"`{document['commit']}`"] if "commit" in document else []
    words += [f"{document['build']} build"] if document.get("build", "release") != "release" else []
    words += [f"{about['cpus']} CPUs, Linux {about['kernel']}"]
    words += [f"load average {load[0]:.1f} at the end"] if load else []
    return ", ".join(words) + "."


def table(document: dict[str, Any]) -> list[str]:
    """Of a report, of the rows of bench/peers, or of anything else that has rows: what is a number or a word in them."""
    if "table" in document:
        return markdown_table(document["table"])
    rows = document["rows"]
    if rows and "rival" in rows[0]:
        return markdown_table([["what", "bar", "measured", "peer", "verdict"], *map(beside_peer, rows)])
    columns = [key for key, value in rows[0].items() if cell(value) is not None and key != "error"]
    return markdown_table([columns, *([cell(row.get(key)) or "" for key in columns] for row in rows)])


def beside_peer(row: dict[str, Any]) -> list[str]:
    """A row of bench/peers."""
    bar = "" if row["bar"] is None else f"{'≥' if row['at_least'] else '≤'} {row['bar']:g} {row['unit']}"
    peer = "" if row["rival"] is None else f"{row['rival']}: {amount({**row, 'measured': row['rival_measured']})}"
    verdict = {True: "kept", False: "MISSED", None: ""}[row["ok"]]
    return [row["what"], bar, row["error"] or amount(row), peer, verdict]


def amount(row: dict[str, Any]) -> str:
    number = row["measured"]
    return f"{number:,.0f} {row['unit']}" if number >= 100 else f"{number:.3g} {row['unit']}"


def cell(value: Any) -> str | None:
    """None: not for a table."""
    if isinstance(value, dict) and {"mean", "half_95"} <= value.keys():
        return f"{value['mean']:.4g} ± {value['half_95'] or 0:.2g}"
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
    return value if isinstance(value, str) else None


def bars(document: dict[str, Any]) -> list[str]:
    return markdown_table(judged([Bar(bar["what"], bar["bar"], bar["measured"], bar["kept"]) for bar in document["bars"]]))


def listed(path: Path) -> Iterator[str]:
    """The lines of a page on a file: a report in each row, or a table of its own."""
    document = json.loads(path.read_text())
    if not isinstance(document, dict) or "rows" not in document:
        return
    yield from ["", f"## `{path.name}`"]
    if "machine" in document:
        yield from ["", machine(document)]
    if document.get("floor"):
        yield from ["", *(f"- {line.strip()}" for line in document["floor"])]
    if "table" not in document["rows"][0]:
        yield from ["", *table(document)]
        return
    for row in document["rows"]:
        yield from ["", f"### {row['what']}: {row['title']}", "", *table(row)]
        if row["bars"]:
            yield from ["", *bars(row)]
        if row["notes"]:
            yield from ["", *(f"- {note}" for note in row["notes"])]
