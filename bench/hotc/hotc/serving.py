"""The three serving architectures on an empty function (Fig. 8 of the serverless-costs paper): `pilot bench serving`, judged."""

from __future__ import annotations

import json
import subprocess
from typing import Any

from benchlib.report import Bar, Report

from .bench import Bench

# Architecture, what its bar says.
BARS = {
    "runtime_api": "provided: warm empty function, added p50 (paper 1.17 ms)",
    "http_server": "http: warm empty function, added over the direct call, p50 (paper up to 5.93 ms)",
}
ADDED_MS_MAX = 0.3


def serving(bench: Bench) -> Report:
    report = Report("serving", "what a way of serving adds to an empty function, warm, one connection; µs")
    report.header = ["served by", "round trip p50", "p99", "reported p50", "added p50", "paper"]
    command = [str(bench.binary), "bench", "serving", "--endpoint", bench.daemon(keeps=True).endpoint, "--json"]
    command += ["--turns", str(bench.effort.turns), "--seconds", str(bench.effort.turn_s)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if not done.stdout.strip():
        raise RuntimeError(f"pilot bench serving: {done.stderr.strip()}")
    document = json.loads(done.stdout)
    for row in document["rows"]:
        report.rows.append(told(row))
    report.data = document
    measured = {row["architecture"]: row.get("measured") for row in document["rows"]}
    for architecture, what in BARS.items():
        added = (measured.get(architecture) or {}).get("added_us_p50")
        kept = None if bench.effort.smoke or added is None else added / 1e3 <= ADDED_MS_MAX
        text = "not measured" if added is None else f"{added / 1e3:.3f} ms"
        report.bars.append(Bar(what, f"≤ {ADDED_MS_MAX} ms", text, kept))
    if done.returncode != 0:
        report.error = done.stderr.strip()
    report.notes.append(
        "added: the whole round trip, including this daemon's HTTP; for http, the time beyond a direct call of the server"
    )
    return report


def told(row: dict[str, Any]) -> list[str]:
    measured = row.get("measured")
    if not measured:
        problem = row.get("problem", "")
        return [row["architecture"], problem if problem == "not there yet" else "failed", "", "", "", row["paper"]]
    reported, added = measured["reported_us"], measured["added_us_p50"]
    figures = [measured["round_us"]["p50"], measured["round_us"]["p99"], reported and reported["p50"], added]
    return [row["architecture"], *("" if value is None else f"{value:,.1f}" for value in figures), row["paper"]]
