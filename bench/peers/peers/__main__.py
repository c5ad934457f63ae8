"""Command line: which rows, how long, where the results go."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from benchlib.command import Run, options_of
from benchlib.daemon import Daemon
from benchlib.load import Load

from . import rows, table


def options() -> argparse.ArgumentParser:
    parser = options_of("peers", __doc__, smoke="a few of everything, under a minute: does it run at all")
    parser.add_argument("--only", metavar="WORD", action="append", default=[], help="rows whose name holds WORD")
    return parser


def main() -> int:
    run = Run.begin(options())
    words = run.options.only
    load = Load(run.binary)
    effort = rows.SMOKE if run.options.smoke else rows.FULL
    results = []
    with tempfile.TemporaryDirectory(prefix="pilot-peers-") as home, Daemon(run.binary, Path(home)) as daemon:
        results.append(rows.idle(daemon))
        # Keeps the environment, so that it is installed once and not for every row.
        daemon.deploy("environment", rows.IMPORTS, rows.REQUIREMENTS)
        for row in rows.ALL:
            if words and not any(word in row.__name__ for word in words):
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
    run.write([result.to_json() for result in results])
    broken, missed = any(result.error for result in results), any(result.ok is False for result in results)
    return run.status(broken=broken, missed=missed)


if __name__ == "__main__":
    sys.exit(main())
