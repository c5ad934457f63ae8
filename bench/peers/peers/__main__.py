"""Command line: which rows, how long, where the results go."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from pathlib import Path

from . import rows, table
from .daemon import Daemon, find_binary
from .load import Load


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench/peers/run", description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="a few of everything, under a minute: does it run at all")
    parser.add_argument("--only", metavar="WORD", action="append", default=[], help="rows whose name holds WORD")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the results there")
    parser.add_argument("--pilot", metavar="FILE", type=Path, help="the binary (default: target/release, else debug)")
    parser.add_argument("--check", action="store_true", help="exit with 1 when a bar is missed")
    return parser.parse_args()


def main() -> int:
    options = arguments()
    binary = find_binary(options.pilot)
    load = Load(binary)
    effort = rows.SMOKE if options.smoke else rows.FULL
    print(f"pilot: {binary}", file=sys.stderr)
    if "release" not in binary.parts:
        print("*** a debug build: its figures say nothing about the bars ***", file=sys.stderr)
    began = time.monotonic()
    results = []
    with tempfile.TemporaryDirectory(prefix="pilot-peers-") as home, Daemon(binary, Path(home)) as daemon:
        results.append(rows.idle(daemon))
        # Holds the environment, so that it is installed once and not by every row.
        daemon.deploy("environment", rows.IMPORTS, rows.REQUIREMENTS)
        for row in rows.ALL:
            if options.only and not any(word in row.__name__ for word in options.only):
                continue
            print(f"… {row.__name__.replace('_', ' ')}", file=sys.stderr, flush=True)
            since = time.monotonic()
            try:
                found = row(daemon, load, effort)
            except Exception as error:  # a row that fails must not hide the others
                found = [rows.failed(row.__name__, error)]
                print(f"  {error}\n{daemon.log_tail()}", file=sys.stderr)
            daemon.restore(keep={"environment"})
            print(f"  {time.monotonic() - since:.1f} s", file=sys.stderr)
            results.extend(found)
    print(table.render(results))
    document = {
        "kind": "smoke" if options.smoke else "full",
        "build": "release" if "release" in binary.parts else "debug",
        "machine": {"cpus": os.cpu_count(), "kernel": platform.release(), "python": platform.python_version()},
        "seconds": round(time.monotonic() - began, 1),
        "rows": [result.to_json() for result in results],
    }
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(document, indent=2) + "\n")
    broken = [result for result in results if result.error]
    missed = [result for result in results if result.ok is False]
    return 1 if broken or (options.check and missed) else 0


if __name__ == "__main__":
    sys.exit(main())
