"""Measures cold invocations with inputs: with the fetch during the start, and with the fetch after it.

Two daemons of the same build differ in `data.overlap` alone. They take turns, and the one that begins changes from turn to turn. Nothing
is kept between invocations (`data.cache_mb = 0`), and every invocation is cold. The ratio of a turn is that of its two measurements, so
noise of the machine falls on both.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from benchlib.command import Run, add_experiments, options_of
from benchlib.report import Report

from . import chained, delay, grid, pictures, video
from .setting import Setting

TURNS = 5
EXPERIMENTS: dict[str, tuple[Callable[[Setting], Report], str]] = {
    "grid": (grid.measure, "inputs from S3 by worker, size and link"),
    "lifecycle": (grid.life_cycle, "Fig. 1, 7, 8: the steps of an invocation with 128 MB, by store"),
    "chained": (chained.measure, "Fig. 9: two functions, 1 to 128 MB, by the way between them"),
    "video": (video.measure, "Fig. 10: a clip is streamed, decoded and recognised, with fan-out and fan-in"),
    "delay": (delay.measure, "Fig. 11: 100 MB by the delay that is added to the start"),
}


def main() -> int:
    parser = options_of("truffle", __doc__, "small inputs once")
    add_experiments(parser, "truffle", EXPERIMENTS)
    parser.add_argument("--turns", metavar="N", type=int, help=f"how often (default: {TURNS})")
    run = Run.begin(parser)
    setting = Setting(run.binary, run.options.turns or (1 if run.options.smoke else TURNS), run.options.smoke)
    reports = []
    for name in run.options.only or EXPERIMENTS:
        experiment, what = EXPERIMENTS[name]

        def measure(experiment: Callable[[Setting], Report] = experiment) -> Report:
            return experiment(setting)

        reports.append(run.experiment(name, what, measure, pictures.DRAWN))
    return run.finish(reports)


if __name__ == "__main__":
    sys.exit(main())
