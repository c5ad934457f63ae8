"""The time that each way of serving adds to an empty function (Fig. 8 of "Demystifying Serverless Costs", section 3.2): warm, on one
connection, in turns.

The function does nothing, so serving adds the whole round trip, including the client and the daemon's own HTTP (`/healthz` shows how
long those take). For an HTTP server, only the time beyond a direct call of the same program counts as added. *Reported* is the daemon's
`handler` phase, which clouds bill and the paper's figure shows. For Runtime API polling, it lasts from the answer to the poll until the
response arrives, and includes the client's work.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from benchlib.daemon import end
from benchlib.load import Measured
from benchlib.report import Bar, Report
from benchlib.stats import percentile

from .apps import EMPTY, ROOT, read
from .bench import Bench

Turn = Callable[..., Measured]

# Figures from the paper's text on Fig. 8: means of what providers report.
PAPER = {"runtime_api": "~1.17 ms (AWS)", "http_server": "up to 5.93 ms (GCP, Azure)", "wasm": "< 0.01 ms (Cloudflare)"}
# The bars, by architecture.
BARS = {
    "runtime_api": "provided: warm empty function, added p50 (paper 1.17 ms)",
    "http_server": "http: warm empty function, added over the direct call, p50 (paper up to 5.93 ms)",
}
ADDED_MS_MAX = 0.3
# By examples/wasm/build.
COMPONENT = ROOT / "examples" / "wasm" / "greeter.wasm"
NOT_BUILT = "not built"
# Requests at the beginning of each turn that are not measured, because the first one starts a worker.
WARM_UP = 20


@dataclass
class Architecture:
    """`turn` measures one turn. An architecture that cannot be measured has a `problem`."""

    name: str
    turn: Turn | None = None
    problem: str = ""
    turns: list[Measured] = field(default_factory=list)

    def measure(self, seconds: float) -> None:
        if self.turn is None or self.problem:
            return
        try:
            self.turns.append(self.turn(seconds=seconds, warm_up=WARM_UP))
        except RuntimeError as error:
            self.problem = str(error)


def serving(bench: Bench) -> Report:
    report = Report("serving", "what a way of serving adds to an empty function, warm, one connection; µs")
    report.header = ["served by", "round trip p50", "p99", "reported p50", "added p50", "paper"]
    with direct_server() as direct:
        architectures = [
            Architecture("daemon", daemon_alone(bench)),
            function(bench, "fork_worker", EMPTY / "app.py", {"handler": "app.handler"}),
            function(bench, "runtime_api", EMPTY / "poll.py", {"runtime": "provided", "command": ["python3", "poll.py"]}),
            function(
                bench, "http_server", EMPTY / "server.py", {"runtime": "http", "command": ["python3", "server.py"]}, path="/"
            ),
            Architecture("http_direct", url(bench, direct)),
            component(bench),
        ]
        for turn in range(bench.effort.turns):
            at = turn % len(architectures)
            for one in architectures[at:] + architectures[:at]:
                one.measure(bench.effort.turn_s)
    rows = rows_of(architectures)
    report.rows = [cells(row) for row in rows]
    report.data = {"kind": "serving", "turns": bench.effort.turns, "turn_s": bench.effort.turn_s, "rows": rows}
    failed = [one for one in architectures if one.problem and one.turn]
    report.error = "\n".join(f"{one.name}: {one.problem}" for one in failed)
    measured = {row["architecture"]: row["measured"] for row in rows}
    for architecture, what in BARS.items():
        added = (measured[architecture] or {}).get("added_us_p50")
        kept = None if added is None else added / 1e3 <= ADDED_MS_MAX
        text = "not measured" if added is None else f"{added / 1e3:.3f} ms"
        report.bars.append(Bar(what, f"≤ {ADDED_MS_MAX} ms", text, kept))
    report.notes += [
        f"{row['architecture']}: {row['measured']['cold']} requests waited for a start"
        for row in rows
        if row["measured"] and row["measured"]["cold"]
    ]
    report.notes.append(
        "added: the whole round trip, including this daemon's HTTP; for http, the time beyond a direct call of the server"
    )
    return report


def function(bench: Bench, name: str, file: Path, spec: dict[str, Any], **options: Any) -> Architecture:
    """Deploys one of the functions."""
    daemon = bench.daemon(keeps=True)
    deployed = f"empty-{name.replace('_', '-')}"

    def turn(**more: Any) -> Measured:
        return bench.load.function("warm", daemon.control_endpoint, deployed, **options, **more)

    architecture = Architecture(name, turn)
    try:
        daemon.upload(deployed, read(file), spec)
    except RuntimeError as error:
        architecture.problem = str(error)
    return architecture


def component(bench: Bench) -> Architecture:
    """The example's component, which answers with a line of text, where it has been built."""
    if not COMPONENT.exists():
        return Architecture("wasm", problem=NOT_BUILT)
    return function(bench, "wasm", COMPONENT, {"runtime": "wasm", "component": COMPONENT.name}, path="/")


def daemon_alone(bench: Bench) -> Turn:
    return url(bench, f"{bench.daemon(keeps=True).endpoint}/healthz")


def url(bench: Bench, address: str) -> Turn:
    def turn(**options: Any) -> Measured:
        return bench.load.url(address, **options)

    return turn


@contextmanager
def direct_server() -> Iterator[str]:
    """Starts the program of the HTTP function as a child process. Yields its URL."""
    command = ["python3", str(EMPTY / "server.py")]
    with subprocess.Popen(command, env={**os.environ, "PORT": "0"}, stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout
            yield f"http://127.0.0.1:{int(child.stdout.readline())}/"
        finally:
            end(child)


def rows_of(architectures: list[Architecture]) -> list[dict[str, Any]]:
    """One row per architecture, for JSON."""
    rounds = {one.name: [time for turn in one.turns for time in turn.complete] for one in architectures}
    p50 = {name: percentile(times, 50) for name, times in rounds.items() if times}
    rows = []
    for one in architectures:
        row: dict[str, Any] = {"architecture": one.name, "measured": None, "paper": PAPER.get(one.name, "")}
        if one.problem:
            row["problem"] = one.problem
        else:
            reported = [turn.phases_p50["handler"] for turn in one.turns if "handler" in turn.phases_p50]
            handler = median(reported) if reported else None
            row["measured"] = {
                "round_us": {"p50": p50[one.name], "p99": percentile(rounds[one.name], 99), "count": len(rounds[one.name])},
                "reported_us_p50": handler,
                "added_us_p50": added(one.name, p50),
                "outside_us_p50": None if handler is None else p50[one.name] - handler,
                "cold": sum(turn.starts.get("cold", 0) for turn in one.turns),
            }
        rows.append(row)
    return rows


def added(name: str, p50: dict[str, float]) -> float | None:
    """The median of the added time; None for architectures that are only there for comparison."""
    if name in ("fork_worker", "runtime_api", "wasm"):
        return p50[name]
    if name == "http_server" and "http_direct" in p50:
        return p50[name] - p50["http_direct"]
    return None


def cells(row: dict[str, Any]) -> list[str]:
    measured = row["measured"]
    if not measured:
        problem = row["problem"]
        return [row["architecture"], problem if problem == NOT_BUILT else "failed", "", "", "", row["paper"]]
    figures = [measured["round_us"]["p50"], measured["round_us"]["p99"], measured["reported_us_p50"], measured["added_us_p50"]]
    return [row["architecture"], *("" if value is None else f"{value:,.1f}" for value in figures), row["paper"]]
