"""The common part of every benchmark's command line: options, running the experiments one after another, and the output: tables, a
JSON document, pictures, the exit status.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sys
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from . import pictures
from .pilot import ROOT, build_of, find_binary
from .report import Report, bars_table

TRACES = ROOT.parent / "shared" / "data"


def options_of(bench: str, what: str | None, smoke: str) -> argparse.ArgumentParser:
    """The options that every benchmark has. `smoke` is the help text of `--smoke`."""
    parser = argparse.ArgumentParser(prog=f"bench/{bench}/run", description=what)
    parser.add_argument("--smoke", action="store_true", help=smoke)
    parser.add_argument("--check", action="store_true", help="exit with 1 when a bar is missed")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write everything there, too")
    parser.add_argument("--pilot", metavar="FILE", type=Path, help="the binary (default: target/release, else debug)")
    return parser


def add_experiments(parser: argparse.ArgumentParser, bench: str, names: Collection[str]) -> None:
    """The options of a benchmark with experiments that return reports."""
    parser.add_argument("--only", metavar="EXPERIMENT", action="append", choices=names, help=", ".join(names))
    parser.add_argument("--out", metavar="DIR", type=Path, default=ROOT / "target" / bench, help="a JSON and a PNG each")
    parser.add_argument("--data", metavar="DIR", type=Path, default=TRACES, help="the folder with the traces")


@dataclass(frozen=True)
class Run:
    """One run of a benchmark: its options, the measured binary, and its start (seconds, monotonic)."""

    options: argparse.Namespace
    binary: Path
    began: float

    @staticmethod
    def begin(parser: argparse.ArgumentParser) -> Run:
        # Like Ctrl-C, so that daemons and containers do not outlive this process.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        options = parser.parse_args()
        binary = find_binary(options.pilot)
        print(f"pilot: {binary}", file=sys.stderr)
        if build_of(binary) != "release":
            print("*** not target/release: figures of a debug build say nothing about the bars ***", file=sys.stderr)
        return Run(options, binary, time.monotonic())

    @property
    def folder(self) -> Path:
        """The folder for reports and pictures. Smoke runs have their own."""
        out: Path = self.options.out
        return out / "smoke" if self.options.smoke else out

    def experiment(self, name: str, what: str, measure: Callable[[], Report], drawn: pictures.Pictures) -> Report:
        """Runs an experiment, and prints, saves and draws its report. A failure does not stop the other experiments."""
        print(f"… {name}", file=sys.stderr, flush=True)
        began = time.monotonic()
        try:
            report = measure()
        except Exception as error:
            told = [f"{type(error).__name__}: {error}", *getattr(error, "__notes__", [])]
            report = Report(name, what, error="\n".join(told))
        if self.options.smoke:
            # So few repetitions, of a build for debugging perhaps, say nothing.
            report.bars = [replace(bar, kept=None) for bar in report.bars]
        if not report.rows and not report.error:
            report.error = "nothing was measured"
        print(f"  {time.monotonic() - began:.1f} s", file=sys.stderr)
        print(report.text(), flush=True)
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / f"{report.name}.json").write_text(json.dumps(report.to_json(), indent=1) + "\n")
        pictures.draw(report, self.folder, drawn)
        return report

    def finish(self, reports: list[Report], **more: Any) -> int:
        """Judges the bars and writes the document, with `more` in it. Returns the exit status."""
        if pictures.pyplot is None:
            print("\n*** no pictures: matplotlib is not installed here ***")
        bars = [bar for report in reports for bar in report.bars]
        if bars:
            print(f"\n── bars\n{bars_table(bars)}")
        self.write([report.to_json() for report in reports], **more)
        return self.status(broken=any(report.error for report in reports), missed=any(bar.kept is False for bar in bars))

    def write(self, rows: list[dict[str, Any]], **more: Any) -> None:
        """Writes the document, if one was requested."""
        if not self.options.json:
            return
        document = {
            "kind": "smoke" if self.options.smoke else "full",
            "build": build_of(self.binary),
            "machine": {"cpus": os.cpu_count(), "kernel": platform.release(), "python": platform.python_version()},
            "load_average": os.getloadavg(),
            **more,
            "seconds": round(time.monotonic() - self.began, 1),
            "rows": rows,
        }
        self.options.json.parent.mkdir(parents=True, exist_ok=True)
        self.options.json.write_text(json.dumps(document, indent=1) + "\n")

    def status(self, *, broken: bool, missed: bool) -> int:
        return 1 if broken or (self.options.check and missed) else 0
