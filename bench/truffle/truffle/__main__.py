"""Measures cold invocations whose input comes from S3: with the fetch during the start, and with the fetch after it.

Two daemons of the same build differ in `data.overlap` alone. They take turns, and the one that begins changes from turn to turn. Nothing
is kept between invocations (`data.cache_mb = 0`), and every invocation is cold. The ratio of a turn is that of its two measurements, so
noise of the machine falls on both.
"""

from __future__ import annotations

import http.client
import json
import os
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from math import exp, log
from pathlib import Path
from statistics import median

from benchlib.command import Run, options_of
from benchlib.daemon import Daemon, invoke_path
from benchlib.report import Bar, Report
from benchlib.stats import Estimate
from benchlib.store import Store

HANDLER = """
def handler(event, context):
    view = context.inputs["x"]
    return {"bytes": len(view), "ends": [view[0], view[-1]]}
"""
DELAYED = """
import time
from snapshot_restore_py import register_after_restore
register_after_restore(lambda: time.sleep({seconds}))
"""
# How a worker starts: the delay of a hook that runs in it, seconds.
STARTS = {"fork": 0.0, "fork + 100 ms": 0.1, "fork + 400 ms": 0.4}
SIZES = {"1 KB": 1 << 10, "1 MB": 1 << 20, "16 MB": 16 << 20, "100 MB": 100 << 20}
# The bars: the share of what can be hidden, where that is at least so long; and what no cell may exceed.
HIDDEN_MIN, HIDEABLE_MS_MIN, RATIO_MAX = 0.95, 20.0, 1.02
SIDES = ("overlap", "after")


@dataclass(frozen=True)
class Effort:
    turns: int
    starts: tuple[str, ...]
    sizes: tuple[str, ...]


FULL = Effort(turns=7, starts=tuple(STARTS), sizes=tuple(SIZES))
SMOKE = Effort(turns=1, starts=("fork", "fork + 100 ms"), sizes=("1 KB", "1 MB"))


@dataclass(frozen=True)
class Seen:
    """One cold invocation, ms: as the client sees it, and the two parts that can overlap."""

    total: float
    start: float
    transfer: float
    hidden: float


def cold(daemon: Daemon, function: str, size: str) -> Seen:
    daemon.scale(function, 0)
    daemon.wait_for_idle(function, 0)
    time.sleep(0.02)
    body = json.dumps({"key": size.replace(" ", "-")}).encode()
    connection = http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=120)
    try:
        began = time.perf_counter()
        connection.request("POST", invoke_path(function), body)
        response = connection.getresponse()
        answer = response.read()
        total = (time.perf_counter() - began) * 1000
    finally:
        connection.close()
    if response.status != 200 or json.loads(answer).get("bytes") != SIZES[size]:
        raise RuntimeError(f"{function} with {size}: {response.status} {answer[:300]!r}")
    if response.getheader("x-pilot-start") != "cold":
        raise RuntimeError(f"{function} was not cold")
    phases = timing(response.getheader("server-timing") or "")
    start = sum(phases.get(name, {}).get("dur", 0.0) for name in ("lease", "fork", "sandbox", "init"))
    fetch = phases["fetch.x"]
    return Seen(total, start, fetch["dur"], fetch["hidden"])


def timing(header: str) -> dict[str, dict[str, float]]:
    """`Server-Timing`: the numbers of each entry."""
    entries = {}
    for entry in header.split(", "):
        name, *parts = entry.split(";")
        pairs = [part.split("=", 1) for part in parts]
        entries[name] = {key: float(value) for key, value in pairs if key != "desc"}
    return entries


Cells = dict[tuple[str, str], dict[str, list[Seen]]]


def measure(run: Run, effort: Effort) -> Cells:
    seen: Cells = {(start, size): {side: [] for side in SIDES} for start in effort.starts for size in effort.sizes}
    with tempfile.TemporaryDirectory() as home:
        folders = {name: Path(home) / name for name in ("store", *SIDES)}
        for folder in folders.values():
            folder.mkdir()
        with Store(folders["store"]) as store:
            for size in effort.sizes:
                store.put(size.replace(" ", "-"), os.urandom(SIZES[size]))
            daemons = {side: Daemon(run.binary, folders[side]) for side in SIDES}
            for side, daemon in daemons.items():
                overlap = str(side == "overlap").lower()
                limits = "memory_mb = 512\nfunction_mb = 256\ncache_mb = 0"
                with daemon.config.open("a") as config:
                    config.write(f"[data]\n{limits}\noverlap = {overlap}\n{store.config()}")
            with daemons["overlap"], daemons["after"]:
                for daemon in daemons.values():
                    for number, start in enumerate(effort.starts):
                        delay = DELAYED.format(seconds=STARTS[start]) if STARTS[start] else ""
                        daemon.deploy(f"start-{number}", delay + HANDLER, timeout_s=60, inputs={"x": "s3://photos/{event.key}"})
                        cold(daemon, f"start-{number}", effort.sizes[0])
                for turn in range(effort.turns):
                    for number, start in enumerate(effort.starts):
                        for size in effort.sizes:
                            for side in SIDES if turn % 2 == 0 else SIDES[::-1]:
                                seen[start, size][side].append(cold(daemons[side], f"start-{number}", size))
                    print(f"… turn {turn + 1} of {effort.turns}", file=sys.stderr, flush=True)
    return seen


def judged(cells: Cells) -> Report:
    header = ["start, input", "start", "transfer", "after", "overlap", "overlap ÷ after (95 %), n", "hidden share"]
    report = Report("prefetch-s3", "cold invocations with an input from S3: the fetch after the start, and during it", header)
    for (start, size), sides in cells.items():
        overlap, after = sides["overlap"], sides["after"]
        logs = Estimate.of([log(one.total / other.total) for one, other in zip(overlap, after)])
        ratio, half = exp(logs.mean), logs.half or 0.0
        # Equation 4 of the paper: at most the shorter of the two can be hidden. Both are those without overlap.
        shorter = median(min(one.start, one.transfer) for one in after)
        gained = median(one.total for one in after) - median(one.total for one in overlap)
        share = gained / shorter if shorter else 0.0
        what = f"{start}, {size}"
        report.rows.append(
            [
                what,
                f"{median(one.start for one in after):.1f} ms",
                f"{median(one.transfer for one in after):.1f} ms",
                f"{median(one.total for one in after):.1f} ms",
                f"{median(one.total for one in overlap):.1f} ms",
                f"{ratio:.3f} ({ratio / exp(half):.3f} to {ratio * exp(half):.3f}), {len(after)}",
                f"{share:.2f}",
            ]
        )
        report.bars.append(Bar(f"{what}: ratio", f"≤ {RATIO_MAX}", f"{ratio:.3f}", ratio <= RATIO_MAX))
        if shorter >= HIDEABLE_MS_MIN:
            report.bars.append(Bar(f"{what}: hidden share", f"≥ {HIDDEN_MIN}", f"{share:.2f}", share >= HIDDEN_MIN))
    report.notes.append(
        "hidden share: (after - overlap) ÷ min(start, transfer), medians; both parts as without overlap (Eq. 4)"
    )
    report.data = {
        f"{start}, {size}": {side: [asdict(one) for one in values] for side, values in sides.items()}
        for (start, size), sides in cells.items()
    }
    return report


def main() -> int:
    parser = options_of("truffle", __doc__, "two small inputs once")
    parser.add_argument("--turns", metavar="N", type=int, help=f"how often (default: {FULL.turns})")
    run = Run.begin(parser)
    effort = SMOKE if run.options.smoke else FULL
    if run.options.turns:
        effort = Effort(run.options.turns, effort.starts, effort.sizes)
    try:
        report = judged(measure(run, effort))
    except RuntimeError as error:
        report = Report("prefetch-s3", "cold invocations with an input from S3", error=str(error))
    print(report.text())
    return run.finish([report])


if __name__ == "__main__":
    sys.exit(main())
