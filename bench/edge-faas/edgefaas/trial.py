"""One trial: its own daemon with an empty pool, the function, the load, and the outcome."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import subprocess
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from benchlib.daemon import Daemon
from benchlib.proc import busy_share, cpu_times, cpu_waits_s

from .cells import IDLE_S, Cell, Outcome
from .memory import MB, Sampler

FUNCTION = Path(__file__).resolve().parent.parent / "function"
SERVICE_MS = 500.0
OVER_MS = 700.0


@dataclass(frozen=True)
class Bench:
    """What all trials share: the binary and what identifies it, the traces, and a data directory with the installed environment."""

    binary: Path
    build: str
    traces: Path
    seed: Path
    sampler: Sampler
    running: set[Daemon | subprocess.Popen[str]] = field(default_factory=set)
    stopped: threading.Event = field(default_factory=threading.Event)

    def stop(self) -> None:
        """Ends all daemons, and prevents new trials."""
        self.stopped.set()
        for process in list(self.running):
            process.kill()


def prepare(binary: Path, home: Path) -> Path:
    """Installs the function's environment once, into the data directory that every trial copies. The function that uses the
    environment stays deployed. It is never called, so nothing of it runs after the restart."""
    with Daemon(binary, home) as daemon:
        deploy(daemon, "environment", "demand", 0, True)
    return daemon.data


def deploy(daemon: Daemon, name: str, policy: str, start_ms: int, template: bool) -> None:
    daemon.deploy(
        name,
        (FUNCTION / "app.py").read_text(),
        (FUNCTION / "requirements.txt").read_text(),
        handler="app.handler",
        timeout_s=120,
        environment={"START_MS": str(start_ms)},
        template="on" if template else "off",
        scale={"idle_s": IDLE_S, "policy": policy},
    )


def run(cell: Cell, number: int, bench: Bench) -> Outcome:
    """Does not raise for errors of the daemon or of the load; they are in `error`."""
    outcome = Outcome(cell.name, number, build=bench.build)
    if bench.stopped.is_set():
        outcome.error = "interrupted"
        return outcome
    with tempfile.TemporaryDirectory(prefix="pilot-edge-faas-") as folder:
        home = Path(folder)
        try:
            shutil.copytree(bench.seed, home / "data", symlinks=True)
            daemon = Daemon(bench.binary, home)
            daemon.config.write_text(f'{daemon.config.read_text()}[pool]\nstart_rule = "{cell.rule}"\n')
            with daemon:
                bench.running.add(daemon)
                try:
                    _measure(cell, daemon, bench, home, outcome)
                finally:
                    bench.running.discard(daemon)
        except Exception as error:  # a trial that fails must not hide the others
            outcome.error = f"{type(error).__name__}: {error}"
    return outcome


def _measure(cell: Cell, daemon: Daemon, bench: Bench, home: Path, outcome: Outcome) -> None:
    names = [f"invert-{index}" for index in range(cell.workload.functions)]
    deployed = time.monotonic()
    for name in names:
        deploy(daemon, name, cell.policy, cell.start_ms, cell.template)
        deployed = time.monotonic() if name == names[0] else deployed
    held = re.fullmatch(r"static:(\d+)", cell.policy)
    if held:  # the paper's Static forks its workers when the gateway starts
        for name in names:
            daemon.wait_for_idle(name, int(held[1]), limit_s=60)
    ahead = starts_of(metrics_of(daemon))
    began, busy, waited = time.monotonic(), cpu_times(), cpu_waits_s()
    outcome.lead_s = began - deployed
    memory = bench.sampler.add(daemon.pid)
    try:
        report = load(cell, daemon, bench, home, outcome)
    finally:
        bench.sampler.remove(daemon.pid)
    outcome.seconds = time.monotonic() - began
    outcome.cpu_busy = busy_share(busy, cpu_times())
    outcome.cpu_pressure = (cpu_waits_s() - waited) / outcome.seconds
    outcome.load_average = os.getloadavg()[0]
    outcome.lag_p99 = report["lag_us"]["p99"] / 1e3
    outcome.pss_mb, outcome.rss_mb, outcome.pss_files_mb = (memory.mean_mb(column) for column in (1, 2, 3))
    outcome.pss_max_mb, outcome.mb_s = memory.max_mb(1), memory.mb_s(1)
    outcome.worker_mb = worker_mb(daemon, names[0])
    _end_workers(daemon, names)
    _ask_daemon(daemon, names, ahead, outcome)
    _read_samples(home / "samples.csv", cell, outcome)


def load(cell: Cell, daemon: Daemon, bench: Bench, home: Path, outcome: Outcome) -> dict[str, Any]:
    """Replays the workload, with its samples in `samples.csv`. Measures the workers' memory periodically."""
    command = [str(bench.binary), "bench", "load", str(cell.workload.path), "--endpoint", daemon.control_endpoint, "--json"]
    command += ["--samples", str(home / "samples.csv"), "--timeout-s", "120"]
    for entry in cell.workload.overrides:
        command += ["--set", entry]
    if cell.workload.functions > 1:
        command += ["--target", "invert-{index}", "--data", str(bench.traces), "--body-text", '{"service_ms": {service_ms}}']
    else:
        command += ["--target", "invert-0", "--body-text", "{}"]
    deadline = time.monotonic() + cell.workload.duration_s() + 180
    seen: list[float] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        bench.running.add(process)
        while True:
            try:
                told, complaint = process.communicate(timeout=5)
                break
            except subprocess.TimeoutExpired:
                if time.monotonic() > deadline:
                    process.kill()
                    raise
                if each := worker_mb(daemon, "invert-0"):
                    seen.append(each)
    bench.running.discard(process)
    # With 1 and a report, some requests failed. The samples say which.
    if process.returncode != 0 and not (process.returncode == 1 and told):
        raise RuntimeError(f"pilot bench load: {complaint.strip()}\n{daemon.log_tail()}")
    outcome.worker_seen_mb = fmean(seen) if seen else 0.0
    return dict(json.loads(told))


def _end_workers(daemon: Daemon, names: list[str], limit_s: float = 10.0) -> None:
    """Ends all workers, so that the metrics contain their lifetimes."""
    deadline = time.monotonic() + limit_s
    for name in names:
        daemon.scale(name, 0)
        while any(daemon.workers(name)[state] for state in ("starting", "idle", "busy")) and time.monotonic() < deadline:
            time.sleep(0.05)


def worker_mb(daemon: Daemon, name: str) -> float:
    """PSS of a worker at the last sample; 0 without a worker."""
    workers = daemon.workers(name)
    alive = workers["idle"] + workers["busy"]
    return workers["memory_bytes"] / alive / MB if alive else 0.0


def metrics_of(daemon: Daemon) -> str:
    return daemon.call("GET", "/metrics")[1].decode()


def total(metrics: str, name: str) -> float:
    """Of all functions."""
    return sum(float(value) for value in re.findall(rf"^{name}{{[^}}]*}} (\S+)$", metrics, re.MULTILINE))


def starts_of(metrics: str) -> tuple[float, float]:
    """How many workers have become ready, and how many seconds that took, all together."""
    name = "pilot_worker_start_duration_seconds"
    return total(metrics, f"{name}_count"), total(metrics, f"{name}_sum")


def _ask_daemon(daemon: Daemon, names: list[str], ahead: tuple[float, float], outcome: Outcome) -> None:
    """Start and service times and waits from the daemon's metrics, summed over the functions. `ahead`: the starts before the load."""
    metrics = metrics_of(daemon)
    count, seconds = (after - before for after, before in zip(starts_of(metrics), ahead))
    outcome.start_mean = seconds / count * 1e3 if count else 0.0
    calls = total(metrics, "faas_invoke_duration_seconds_count")
    outcome.forks = int(total(metrics, "pilot_worker_starts_total"))
    outcome.service_mean = total(metrics, "faas_invoke_duration_seconds_sum") / max(calls, 1) * 1e3
    # As the daemon measures it; where the function's own time is known, the client's measurement replaces it.
    waits = re.findall(r'^pilot_worker_wait_seconds_sum{[^}]*start="cold"[^}]*} (\S+)$', metrics, re.MULTILINE)
    outcome.cold_wait_s = sum(map(float, waits))
    outcome.worker_s = total(metrics, "pilot_worker_lifetime_seconds_total")
    if cold := daemon.describe(names[0]).get("last_cold"):
        line = cold["timeline"]
        # A request that waited for the start of another one has no start phases.
        if line.get("initialised") and line.get("sandboxed"):
            outcome.last_init = (line["initialised"] - line["sandboxed"]) / 1e6


def _read_samples(path: Path, cell: Cell, outcome: Outcome) -> None:
    cold_wait_ms = 0.0
    service = SERVICE_MS if cell.workload.functions == 1 else None
    with path.open() as file:
        for row in csv.DictReader(file):
            outcome.requests += 1
            cycle = int(row["cycle"] or 1)
            for counts in (outcome.over_700_by_cycle, outcome.cold_by_cycle):
                counts.extend([0] * (cycle - len(counts)))
            if row["failure"] or row["status"] != "200":
                outcome.failed += 1
                outcome.over_700 += 1
                outcome.over_700_by_cycle[cycle - 1] += 1
                continue
            took = (float(row["done_s"]) - float(row["intended_s"])) * 1e3
            cold = row["start"] == "cold"
            outcome.cold += cold
            outcome.cold_by_cycle[cycle - 1] += cold
            if service is None:
                continue
            beyond = took - service
            outcome.beyond.append(round(beyond, 3))
            outcome.kinds += "c" if cold else "w"
            cold_wait_ms += max(beyond, 0.0) if cold else 0.0
            if cycle == 1:
                outcome.beyond_first_cycle_max = max(outcome.beyond_first_cycle_max, beyond)
            if took > OVER_MS:
                outcome.over_700 += 1
                outcome.over_700_by_cycle[cycle - 1] += 1
    if service is not None:
        outcome.cold_wait_s = cold_wait_ms / 1e3
