"""Command line: which experiments, where the results go."""

from __future__ import annotations

import argparse
import sys
import tempfile
from functools import partial
from pathlib import Path

from benchlib.command import Run, add_experiments, options_of

from . import bills, idle, metered, pictures, quota, serving
from .bench import FULL, SMOKE, Bench

EXPERIMENTS = {
    "billable": (bills.billable, "Fig. 2: billable resources beside used ones"),
    "utilisation": (bills.utilisation, "Fig. 3: how much of an allocation is used, in a generated trace"),
    "coldstart": (bills.coldstart, "Fig. 4: a cold start beside the requests after it, in a generated trace"),
    "fees": (bills.fees, "Fig. 5, left: the time that costs as much as a fee"),
    "rounding": (bills.rounding, "Fig. 5, right: what is rounded up"),
    "concurrency": (serving.concurrency, "Fig. 6: durations by the rate of requests, with one and many in a worker"),
    "overhead": (serving.overhead, "Fig. 8: durations of a function that does nothing"),
    "metering": (serving.metering, "what the records of invocations cost"),
    "cputime": (metered.cpu_time, "the CPU time in the records beside the kernel's"),
    "keepalive": (idle.keep_alive, "Fig. 9: cold starts by the idle time"),
    "frozen": (idle.frozen, "memory, CPU time and wake of a frozen worker"),
    "durations": (quota.durations, "Fig. 10: duration by size, beside PyAES on AWS and Google Cloud"),
    "periods": (quota.periods, "Fig. 11: Equation (2) for 51.8 ms of CPU time"),
    "logs": (quota.logs, "Fig. 12: the model beside the published throttle logs"),
    "throttles": (quota.throttles, "Fig. 12: the model beside `pilot profile sched` here"),
    "rate": (bills.rate, "how fast a trace is billed"),
}


def options() -> argparse.ArgumentParser:
    parser = options_of("costs", __doc__, smoke="seconds of everything: does it run at all")
    add_experiments(parser, "costs", EXPERIMENTS)
    parser.add_argument("--rows", metavar="N", type=int, help="rows of the trace of `rate`; the bar is for 100,000,000")
    parser.add_argument(
        "--runs", metavar="N", type=int, help="how often `rate` bills it (5), and `throttles` profiles each setting (5)"
    )
    return parser


def main() -> int:
    run = Run.begin(options())
    wanted = run.options
    effort = SMOKE if wanted.smoke else FULL
    reports = []
    with tempfile.TemporaryDirectory(prefix="pilot-costs-") as home:
        bench = Bench(run.binary, Path(home), wanted.data, effort, wanted.rows or effort.rows, wanted.runs or effort.runs)
        for name in wanted.only or EXPERIMENTS:
            measure, what = EXPERIMENTS[name]
            reports.append(run.experiment(name, what, partial(measure, bench), pictures.DRAWN))
    return run.finish(reports)


if __name__ == "__main__":
    sys.exit(main())
