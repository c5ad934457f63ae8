"""Runs cells in parallel: as many as fit, the longest first, with spread beginnings so that their spikes do not coincide. The outcome
of each trial is a line of a file, so that tables can be made again without new runs (`--reuse`).
"""

from __future__ import annotations

import json
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

from . import trial
from .cells import Cell, Outcome

Results = dict[Cell, list[Outcome]]


class Slots:
    """Limits the weight of the parallel trials. First come, first served; otherwise a trial that needs all of it would starve."""

    def __init__(self, capacity: int, spread_s: float) -> None:
        self.capacity, self.spread_s = capacity, spread_s
        self._free = capacity
        self._next_begin = 0.0
        self._changed = threading.Condition()
        self._queue: list[object] = []

    def take(self, weight: int) -> None:
        ticket = object()
        with self._changed:
            self._queue.append(ticket)
            self._changed.wait_for(lambda: self._queue[0] is ticket and self._free >= weight)
            self._queue.pop(0)
            self._free -= weight
            begin = max(time.monotonic(), self._next_begin)
            self._next_begin = begin + self.spread_s
            self._changed.notify_all()
        time.sleep(max(0.0, begin - time.monotonic()))

    def give(self, weight: int) -> None:
        with self._changed:
            self._free += weight
            self._changed.notify_all()


def plan(cells: list[Cell], trials: int) -> list[tuple[Cell, int]]:
    """Every trial once, even if several experiments need it. Trials that must run alone come last."""
    wanted = [(cell, number) for cell in dict.fromkeys(cells) for number in range(1 if cell.alone else trials)]
    # Trials of one cell run at different times, so that other load on the machine does not affect only one policy.
    return sorted(wanted, key=lambda item: (item[0].alone, -item[0].workload.duration_s(), item[1]))


def estimate_s(work: list[tuple[Cell, int]], capacity: int) -> float:
    shared = [(cell, cell.workload.duration_s() + OVERHEAD_S) for cell, _ in work if not cell.alone]
    alone = sum(cell.workload.duration_s() + OVERHEAD_S for cell, _ in work if cell.alone)
    longest = max((seconds for _, seconds in shared), default=0.0)
    return alone + max(longest, sum(cell.weight(capacity) * seconds for cell, seconds in shared) / capacity)


def execute(work: list[tuple[Cell, int]], bench: trial.Bench, capacity: int, kept: Path) -> None:
    """Runs every trial, and appends each to `kept`."""
    if not work:
        return
    spread = min(cell.workload.duration_s() for cell, _ in work) / capacity
    slots = Slots(capacity, spread)
    done, lock = [0], threading.Lock()
    kept.parent.mkdir(parents=True, exist_ok=True)

    def one(item: tuple[Cell, int]) -> None:
        cell, number = item
        weight = cell.weight(capacity)
        slots.take(weight)
        try:
            outcome = trial.run(cell, number, bench)
        finally:
            slots.give(weight)
        with lock, kept.open("a") as file:
            file.write(json.dumps(asdict(outcome)) + "\n")
            done[0] += 1
            said = outcome.error or f"{outcome.over_700} over 700 ms, {outcome.cold} cold, {outcome.pss_mb:.0f} MB"
            print(f"  {done[0]}/{len(work)} {cell.name}, trial {number + 1}: {said}", file=sys.stderr, flush=True)

    with ThreadPoolExecutor(max_workers=capacity + 1) as threads:
        try:
            list(threads.map(one, work))
        except BaseException:  # Ctrl-C: without its daemon a trial ends, and those that wait must not begin
            threads.shutdown(wait=False, cancel_futures=True)
            bench.stop()
            raise


def read(kept: Path, cells: list[Cell], busy_max: float = 1.0) -> Results:
    """The saved outcomes of these cells: the newer one of a repeated trial, and none with busier CPUs."""
    newest: dict[tuple[str, int], Outcome] = {}
    if kept.exists():
        for line in kept.read_text().splitlines():
            outcome = Outcome(**json.loads(line))
            if outcome.cpu_busy > busy_max:
                continue
            newest[outcome.cell, outcome.trial] = outcome
    results: Results = {}
    for cell in dict.fromkeys(cells):
        results[cell] = [outcome for (name, _), outcome in sorted(newest.items()) if name == cell.name]
    return results


def without(work: list[tuple[Cell, int]], kept: Path, busy_max: float) -> list[tuple[Cell, int]]:
    """The trials that have not run, that failed, or that ran while a larger share of the CPUs was used."""
    results = read(kept, [cell for cell, _ in work], busy_max)

    def ran(item: tuple[Cell, int]) -> bool:
        cell, number = item
        return any(outcome.trial == number for outcome in results[cell] if not outcome.error)

    return [item for item in work if not ran(item)]


# The time for the daemon's start, the deployment and the end.
OVERHEAD_S = 5.0
