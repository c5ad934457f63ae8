"""Command line: which experiments, with which kinds of runtime, where the results go."""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from edgefaas.report import Report, bars_table
from peers.daemon import find_binary

from . import forecast, overhead, patterns, pictures, serving, startup
from .bench import FULL, KINDS, SMOKE, Bench
from .engine import Engine

ROOT = Path(__file__).resolve().parents[3]
TRACES = ROOT.parent / "shared" / "data"


@dataclass(frozen=True)
class Experiment:
    """`containers`: it has a part that needs an engine."""

    what: str
    run: Callable[[Bench], Report]
    containers: bool = True


EXPERIMENTS = {
    "languages": Experiment("Fig. 4b: cold and reused, by language", startup.languages),
    "networks": Experiment("Fig. 4c: starts by network", startup.networks),
    "web": Experiment("Fig. 9: URL to QR code, random configurations", patterns.web),
    "forecast": Experiment("Fig. 10: the predictor", forecast.forecast, containers=False),
    "serial": Experiment("Fig. 12a: one after another", patterns.serial),
    "parallel": Experiment("Fig. 12b: ten at once, a configuration each", patterns.parallel),
    "linear": Experiment("Fig. 13: 2i requests in round i, up and down", patterns.linear),
    "exponential": Experiment("Fig. 14a: 2^i requests in round i, up and down", patterns.exponential),
    "bursts": Experiment("Fig. 14b: ten times as many in every fourth round", patterns.bursts),
    "overhead": Experiment("Fig. 15a: memory and CPU of live runtimes", overhead.overhead),
    "handover": Experiment("a cleaned runtime against a new one", startup.handover),
    "node": Experiment("Node from its generic pool", startup.node, containers=False),
    "serving": Experiment("what a way of serving adds", serving.serving, containers=False),
}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench/hotc/run", description=__doc__)
    parser.add_argument("--only", metavar="EXPERIMENT", action="append", choices=EXPERIMENTS, help=", ".join(EXPERIMENTS))
    parser.add_argument("--kind", action="append", choices=KINDS, help="these runtimes alone (both, where an engine answers)")
    parser.add_argument("--interval-s", metavar="S", type=float, help="between rounds, in place of the paper's 30 s (2)")
    parser.add_argument(
        "--smoke", action="store_true", help="under a minute of everything, without an engine: does it run at all"
    )
    parser.add_argument("--check", action="store_true", help="exit with 1 when a bar is missed")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write everything there, too")
    parser.add_argument("--markdown", metavar="FILE", type=Path, help="write the tables there, for a README")
    parser.add_argument("--out", metavar="DIR", type=Path, default=ROOT / "target" / "hotc", help="a JSON and a PNG each")
    parser.add_argument("--data", metavar="DIR", type=Path, default=TRACES, help="the folder with the traces")
    parser.add_argument("--pilot", metavar="FILE", type=Path, help="the binary (default: target/release, else debug)")
    return parser.parse_args()


def main() -> int:
    # As Ctrl-C: the daemons and containers must not outlive their driver.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    options = arguments()
    binary = find_binary(options.pilot)
    chosen = {name: EXPERIMENTS[name] for name in options.only or EXPERIMENTS}
    effort = SMOKE if options.smoke else FULL
    if options.interval_s is not None:
        effort = replace(effort, interval_s=options.interval_s)
    kinds = tuple(options.kind or (KINDS[:1] if options.smoke else KINDS))
    folder = options.out / "smoke" if options.smoke else options.out
    folder.mkdir(parents=True, exist_ok=True)
    engine, why = Engine.find() if "container" in kinds else (None, "")
    began = time.monotonic()
    print(f"pilot: {binary}", file=sys.stderr)
    if "release" not in binary.parts:
        print("*** not target/release: figures of a debug build say nothing about the bars ***", file=sys.stderr)
    if why:
        print(f"*** CONTAINERS ARE SKIPPED: {why} ***", file=sys.stderr)
    reports = []
    with tempfile.TemporaryDirectory(prefix="pilot-hotc-") as home:
        with Bench(binary, Path(home), options.data, effort, engine, kinds) as bench:
            for name, experiment in chosen.items():
                reports.append(run(name, experiment, bench, why))
                save(reports[-1], folder)
    if not pictures.available():
        print("\n*** no pictures: matplotlib is not installed here ***")
    bars = [bar for report in reports for bar in report.bars]
    if bars:
        print(f"\n── bars\n{bars_table(bars)}")
    document = {
        "kind": "smoke" if options.smoke else "full",
        "build": "release" if "release" in binary.parts else "other",
        "machine": {"cpus": os.cpu_count(), "kernel": platform.release(), "python": platform.python_version()},
        "load_average": os.getloadavg(),
        "containers": why or (engine.address if engine else "not asked for"),
        "interval_s": effort.interval_s,
        "seconds": round(time.monotonic() - began, 1),
        "rows": [report.to_json() for report in reports],
    }
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    if options.markdown:
        options.markdown.write_text(markdown(reports))
    broken = any(report.error for report in reports)
    missed = any(bar.kept is False for bar in bars)
    return 1 if broken or (options.check and missed) else 0


def run(name: str, experiment: Experiment, bench: Bench, why: str) -> Report:
    """One that fails must not hide the others."""
    print(f"… {name}", file=sys.stderr, flush=True)
    began = time.monotonic()
    try:
        report = experiment.run(bench)
    except Exception as error:
        report = Report(name, experiment.what, error=f"{type(error).__name__}: {error}\n{bench.log_tails()}")
    try:
        bench.restart()
    except Exception as error:
        report.error = report.error or f"the daemons could not be brought back to their beginning: {error}"
    if not report.rows and not report.error:
        report.error = "nothing was measured"
    if why and experiment.containers:
        report.notes.append(f"*** containers skipped: {why} ***")
    print(f"  {time.monotonic() - began:.1f} s", file=sys.stderr)
    print(report.text(), flush=True)
    return report


def markdown(reports: list[Report]) -> str:
    """The bars, then every experiment's table."""
    judged = [[bar.what, bar.bar, bar.measured, bar.verdict] for report in reports for bar in report.bars]
    parts = ["**Bars**", "", *lines([["what", "bar", "measured", "verdict"], *judged])]
    for report in reports:
        parts += ["", f"**{report.name}**: {report.title}.", ""]
        parts += lines([report.header, *report.rows]) if report.rows else [f"failed: {report.error}"]
        parts += ["", *(f"- {note}" for note in report.notes)]
    return "\n".join(parts) + "\n"


def lines(rows: list[list[str]]) -> list[str]:
    """A Markdown table; the first row is the header."""
    text = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return [text[0], "|" + "---|" * len(rows[0]), *text[1:]]


def save(report: Report, folder: Path) -> None:
    (folder / f"{report.name}.json").write_text(json.dumps(report.to_json(), indent=1) + "\n")
    pictures.draw(report, folder)


if __name__ == "__main__":
    sys.exit(main())
