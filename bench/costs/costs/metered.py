"""The CPU time in the records of invocations beside what the kernel counts for the workers."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from benchlib.daemon import Daemon, invoke_path
from benchlib.report import Bar, Report
from benchlib.stats import Estimate

from .bench import Bench

# Computes in its process or in another one, and ends as the event says.
MIXED = """
import os, time

def burn(seconds):
    begun = time.thread_time()
    while time.thread_time() - begun < seconds:
        pass

def handler(event, context):
    kind = event['kind']
    if kind == 'child':
        child = os.fork()
        if child == 0:
            burn(event['burn'])
            os._exit(0)
        os.waitpid(child, 0)
        return kind
    burn(event['burn'])
    if kind == 'error':
        raise ValueError('as asked')
    if kind == 'crash':
        os._exit(3)
    if kind == 'timeout':
        while True:
            pass
    return kind
"""
TIMEOUT_S = 0.4
# Functions: their keys, the share of the calls that are theirs, and how many call at a time. Calls that share a worker do not end it.
FUNCTIONS: dict[str, tuple[dict[str, Any], float, int]] = {
    "alone": ({"scale": {"max": 4}}, 0.7, 2),
    "shared": ({"concurrency": 4, "scale": {"max": 2}}, 0.3, 4),
}
# The bar: how much of the kernel's count the records may lack.
MISSING_MAX = 0.01
WAIT_S = 30


def events(count: int, *, ends_workers: bool) -> Iterator[dict[str, Any]]:
    for number in range(count):
        kind, burn_ms = "ok", 5
        if ends_workers and number % 100 == 7:
            kind, burn_ms = "crash", 20
        elif ends_workers and number % 100 == 23:
            kind, burn_ms = "timeout", 20
        elif number % 5 == 0:
            kind, burn_ms = "child", 10
        elif number % 5 == 1:
            kind = "error"
        yield {"kind": kind, "burn": burn_ms / 1000}


class Kernel:
    """The control groups of a daemon in which CPU time is counted."""

    def __init__(self, daemon: Daemon) -> None:
        prefix = f"pilotlightd-{daemon.pid}-"
        # Unlike Path.glob, os.walk does not fail if a group of another worker ends meanwhile.
        walk = os.walk("/sys/fs/cgroup")
        folders = [Path(above, name) for above, names, _ in walk for name in names if name.startswith(prefix)]
        groups = [folder for folder in folders if (folder / "cpuacct.usage").exists()]
        groups += [folder for folder in folders if (folder / "memory.max").exists()]
        if not groups:
            raise RuntimeError("there is no control group that counts: run it as root")
        self.group = groups[0]

    @staticmethod
    def count_s(group: Path) -> float:
        usage = group / "cpuacct.usage"
        if usage.exists():
            return int(usage.read_text()) / 1e9
        lines = (group / "cpu.stat").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("usage_usec ")) / 1e6

    def used(self) -> tuple[float, dict[str, float]]:
        """CPU seconds of everything below the daemon, and of each group that has processes: if no worker is there, the templates."""
        inner = {}
        for group in self.group.iterdir():
            # Groups of workers come and go.
            with suppress(OSError):
                if group.is_dir() and (group / "cgroup.procs").read_text():
                    inner[group.name] = self.count_s(group)
        return self.count_s(self.group), inner


@dataclass(frozen=True)
class Counted:
    """So far: in the records, in them and between calls, by the kernel; calls with records, and parts of a CPU time below 0 or missing."""

    records_s: float
    workers_s: float
    kernel_s: float
    templates_s: dict[str, float]
    calls: int
    wrong: int


def until(what: str, is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not is_so():
        if time.monotonic() > deadline:
            raise RuntimeError(f"after {WAIT_S} s, it is not so that {what}")
        time.sleep(0.02)


def without_workers(daemon: Daemon, kernel: Kernel, groups: int | None) -> None:
    """Ends all workers and waits until they are gone. `groups`: how many have processes then, if that is known."""

    def is_done() -> bool:
        states = [daemon.workers(name) for name in FUNCTIONS]
        left = sum(state["idle"] + state["busy"] + state["starting"] for state in states)
        return left == 0 and (groups is None or len(kernel.used()[1]) <= groups)

    for name in FUNCTIONS:
        daemon.scale(name, 0)
    until("no worker is there", is_done)


def counted(daemon: Daemon, kernel: Kernel, calls: int) -> Counted:
    """Without workers, and with the records of so many calls."""
    rows: list[dict[str, str]] = []

    def are_written() -> bool:
        command = [str(daemon.binary), "cost", "export", "--endpoint", daemon.control_endpoint]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        rows[:] = csv.DictReader(io.StringIO(told))
        return len(rows) >= calls

    until("every call has a record", are_written)
    texts = [row[part] for row in rows for part in ("cpu_user_ns", "cpu_system_ns")]
    parts = [int(text) for text in texts if text]
    metrics = daemon.call("GET", "/metrics")[1].decode()
    workers = [line for line in metrics.splitlines() if line.startswith("pilot_worker_cpu_seconds_total{")]
    kernel_s, templates_s = kernel.used()
    return Counted(
        sum(parts) / 1e9,
        sum(float(line.rsplit(" ", 1)[1]) for line in workers),
        kernel_s,
        templates_s,
        len(rows),
        sum(part < 0 for part in parts) + len(texts) - len(parts),
    )


def called(daemon: Daemon, calls: int) -> int:
    """Makes the calls of a turn. Returns how many."""

    def one(name: str, event: dict[str, Any]) -> None:
        status, answer = daemon.call("POST", invoke_path(name), json.dumps(event).encode())
        if status != 200:
            raise RuntimeError(f"{name} {event}: {status} {answer!r}")

    def each(name: str, events_of: list[dict[str, Any]]) -> None:
        for event in events_of:
            one(name, event)

    made = 0
    with ThreadPoolExecutor(sum(at_once for _, _, at_once in FUNCTIONS.values())) as pool:
        running = []
        for name, (_, share, at_once) in FUNCTIONS.items():
            mixed = list(events(max(at_once, round(calls * share)), ends_workers=name == "alone"))
            made += len(mixed)
            for first in range(at_once):
                part = list(islice(mixed, first, None, at_once))
                running.append(pool.submit(each, name, part))
        for done in running:
            done.result()
    return made


def cpu_time(bench: Bench) -> Report:
    """As root. Each turn begins and ends without workers. What else runs on the machine is not in the groups of the workers."""
    header = ["turn", "calls", "s", "records, s", "with what is between calls, s", "kernel, s", "missing"]
    report = Report(
        "cputime", "CPU time in the records of mixed invocations, and what the kernel counts for their workers", header
    )
    turns: list[dict[str, Any]] = []
    with Daemon(bench.binary, bench.folder("cputime")) as daemon:
        for name, (keys, _, _) in FUNCTIONS.items():
            daemon.deploy(name, MIXED, handler="app.handler", timeout_s=TIMEOUT_S, **keys)
            daemon.call("POST", invoke_path(name), json.dumps({"kind": "ok", "burn": 0}).encode())
        kernel = Kernel(daemon)
        without_workers(daemon, kernel, None)
        before = counted(daemon, kernel, len(FUNCTIONS))
        groups = len(before.templates_s)
        for number in range(bench.effort.turns):
            began = time.monotonic()
            made = called(daemon, bench.effort.cpu_calls)
            seconds = time.monotonic() - began
            without_workers(daemon, kernel, groups)
            after = counted(daemon, kernel, before.calls + made)
            templates_s = sum(used - before.templates_s.get(name, 0) for name, used in after.templates_s.items())
            kernel_s = after.kernel_s - before.kernel_s - templates_s
            records_s, workers_s = after.records_s - before.records_s, after.workers_s - before.workers_s
            turn = {
                "calls": made,
                "records": after.calls - before.calls,
                "seconds": seconds,
                "records_s": records_s,
                "workers_s": workers_s,
                "kernel_s": kernel_s,
                "missing": 1 - records_s / kernel_s,
                "before": asdict(before),
                "after": asdict(after),
            }
            turns.append(turn)
            amounts = [f"{amount:.3f}" for amount in (records_s, workers_s, kernel_s)]
            report.rows.append([str(number + 1), f"{made:,}", f"{seconds:.0f}", *amounts, f"{turn['missing']:.2%}"])
            before = after
    missing = Estimate.of([100 * turn["missing"] for turn in turns])
    most = max(abs(turn["missing"]) for turn in turns)
    # The parts of a turn are differences of numbers with nine places.
    ordered = all(turn["records_s"] <= turn["workers_s"] * 1.0001 <= turn["kernel_s"] * 1.0002 for turn in turns)
    whole = bench.effort.cpu_calls >= BAR_CALLS
    told = f"{missing.text(2)} % missing, {most:.2%} at most"
    report.bars = [
        Bar(
            f"metered CPU time beside the kernel's, {BAR_CALLS:,} calls each turn",
            f"within {MISSING_MAX:.0%}",
            told if whole else f"{bench.effort.cpu_calls:,} calls",
            most <= MISSING_MAX if whole else None,
        ),
        Bar("CPU times that are below 0 or missing", "none", f"{before.wrong} of {before.calls:,} calls", before.wrong == 0),
        Bar("records ≤ with what is between calls ≤ kernel", "in each turn", "yes" if ordered else "NO", ordered),
        Bar("calls without a record, and records without a call", "none", *unmatched(turns)),
    ]
    report.notes.append(
        "a call: 5 ms, an error after 5 ms, a child process of 10 ms, a crash after 20 ms, or a timeout of 400 ms; seven tenths alone in a "
        "worker, the others four at a time"
    )
    report.notes.append("missing: what workers did before their first and after their last call, mostly their ends")
    report.data = turns
    return report


BAR_CALLS = 10_000


def unmatched(turns: list[dict[str, Any]]) -> tuple[str, bool]:
    off = sum(abs(turn["records"] - turn["calls"]) for turn in turns)
    return str(off), off == 0
