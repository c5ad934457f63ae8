"""Writes `results/packages.json`, and makes docs/packages.md from it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from known import DIFFERENCES, NOT_FORKED, REMARKS, UNSTEADY
from measured import Measured

ROOT = Path(__file__).resolve().parents[2]
RESULTS = Path(__file__).resolve().parent / "results" / "packages.json"
DOCUMENT = ROOT / "docs" / "packages.md"

Row = dict[str, Any]

INTRODUCTION = """\
# Packages

`make fidelity` deploys a small function for each of these {count} packages and runs it in three ways: forked from a template, in a
fresh interpreter (`template = "off"`), and with
[awslambdaric](https://github.com/aws/aws-lambda-python-runtime-interface-client) outside of Pilotlight. It compares the result, an
exception that is typical of the package (type, message, stack trace), environment variables, `sys.path`, open descriptors, files,
threads, processes, signal handlers and the root logger, before and after the work. It also checks that no random value is drawn
twice: by two workers of a template, in the template, in the fresh interpreter, or outside.

{forked} of the {count} packages fork. This page is made from `tests/fidelity/results/packages.json`. The functions are in
`tests/fidelity/functions/packages`.

- *import*: how long a new interpreter needs for the import of the function.
- *cold*: the first invocation of a new worker, from the client's view, with the work of the function. *Fork* is a forked worker,
  *new* is a fresh interpreter. The times are those of one run on a machine with two cores that was busy with other work, so compare
  them only with each other.

"""


def row(measured: Measured, plain: Measured) -> Row:
    return {
        "package": measured.package.name,
        "version": measured.package.version,
        "forkable": measured.is_forkable,
        "reason": NOT_FORKED.get(measured.package.name, ""),
        "differences": sorted(known_differences(measured, plain)),
        "findings": measured.findings,
        "import_s": round(measured.import_s(), 3),
        "cold_ms": round(measured.cold_ms, 1),
        "cold_off_ms": round(measured.cold_off_ms, 1),
    }


def known_differences(measured: Measured, plain: Measured) -> set[str]:
    return {one.aspect for one in measured.differences(plain)} - set(UNSTEADY.get(measured.package.name, {}))


def write(found: list[Measured], plain: Measured) -> None:
    rows = [row(measured, plain) for measured in found]
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps({"packages": rows}, indent=1) + "\n")
    DOCUMENT.write_text(document(rows))


def stored() -> list[Row]:
    rows: list[Row] = json.loads(RESULTS.read_text())["packages"]
    return rows


def document(rows: list[Row]) -> str:
    packages = [one for one in rows if one["version"]]
    forked = sum(one["forkable"] for one in packages)
    lines = ["| package | forks | import | cold, fork | cold, new | remarks |", "|---|---|---|---|---|---|"]
    for one in sorted(rows, key=lambda one: one["package"].lower()):
        name = f"{one['package']} {one['version']}" if one["version"] else "the standard library"
        times = f"{one['import_s']:.2f} s | {one['cold_ms']:.0f} ms | {one['cold_off_ms']:.0f} ms"
        lines.append(f"| {name} | {'yes' if one['forkable'] else 'no'} | {times} | {remarks(one)} |")
    return INTRODUCTION.format(count=len(packages), forked=forked) + "\n".join(lines) + "\n"


def remarks(one: Row) -> str:
    known = DIFFERENCES.get(one["package"], {})
    reasons = dict.fromkeys(known[aspect] for aspect in one["differences"] if aspect in known)
    return "; ".join(filter(None, [one["reason"], REMARKS.get(one["package"], ""), *reasons]))
