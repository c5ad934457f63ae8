"""Command line: which experiments, where the results go."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchlib.command import Run, add_experiments, options_of
from benchlib.report import Report

from . import imgrec, pictures, scripts, sebs, servers, services, sizes, template
from .world import World

TURNS, TURNS_SMOKE = 7, 1
EXPERIMENTS: dict[str, tuple[Callable[[World], Report], str]] = {
    "sebs": (sebs.measure, "Fig. 9: functions in the manner of SeBS"),
    "imgrec": (imgrec.measure, "Fig. 10: image recognition with a task from a queue"),
    "template": (template.measure, "Fig. 15: on workers forked from a template, with an input, and with shared weights"),
    "servers": (servers.measure, "Fig. 11, 12: memcached and etcd, from snapshots"),
    "services": (services.measure, "Fig. 13, 14: vecdb and cached, with and without shared memory"),
    "sizes": (sizes.measure, "Tables 4, 5: sizes of scripts"),
    "starts": (scripts.starts, "how soon a script sends its first request"),
    "reply": (scripts.reply, "what a large reply costs the function"),
    "relay": (scripts.relay, "what the relay adds by itself"),
}


def options() -> argparse.ArgumentParser:
    parser = options_of("initscripts", __doc__, smoke="a turn of everything, with small data: does it run at all")
    add_experiments(parser, "initscripts", EXPERIMENTS)
    parser.add_argument("--turns", metavar="N", type=int, help=f"how often (default: {TURNS})")
    return parser


def main() -> int:
    run = Run.begin(options())
    wanted = run.options
    turns = wanted.turns or (TURNS_SMOKE if wanted.smoke else TURNS)
    reports = []

    @contextmanager
    def world() -> Iterator[World]:
        with tempfile.TemporaryDirectory(prefix="pilot-initscripts-") as home:
            with World(run.binary, Path(home), turns, wanted.smoke) as made:
                yield made

    with ExitStack() as stack:
        # A smoke run has one daemon for everything, which installs each set of packages once.
        only = stack.enter_context(world()) if wanted.smoke else None
        for name in wanted.only or EXPERIMENTS:
            experiment, what = EXPERIMENTS[name]

            def measure(experiment: Callable[[World], Report] = experiment) -> Report:
                if only:
                    return experiment(only)
                with world() as own:
                    return experiment(own)

            reports.append(run.experiment(name, what, measure, pictures.DRAWN))
    return run.finish(reports)


if __name__ == "__main__":
    sys.exit(main())
