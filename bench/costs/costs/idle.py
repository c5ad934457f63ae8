"""Figure 9, and what an idle worker costs: CPU time, memory, and the time until it serves again."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from typing import Any

from benchlib import proc
from benchlib.daemon import Daemon
from benchlib.report import Bar, Report
from benchlib.stats import Estimate, percentile

from .bench import Bench
from .calls import Client, Seen

EMPTY = "def handler(event, context):\n    return ''\n"

# How long each behaviour keeps a worker: `idle_s` stands for AWS Lambda's 330 s.
BEHAVIOURS = ("run", "freeze", "throttle", "template")
PUBLISHED = ("aws", "azure", "gcp")
AWS_S = 330


def keys(behaviour: str, idle_s: float) -> dict[str, Any]:
    if behaviour == "template":
        return {"keep_alive": {"behaviour": behaviour}}
    after = {} if behaviour == "run" else {"after_s": 0.05}
    return {"keep_alive": {"behaviour": behaviour, **after}, "scale": {"idle_s": idle_s}}


def keep_alive(bench: Bench) -> Report:
    """Two calls with a pause between them, many times: is the second one cold? All functions are called at the same time."""
    effort = bench.effort
    pauses = [round(part * effort.idle_s, 3) for part in effort.idle_parts]
    header = ["idle s", *(f"{name}: cold" for name in BEHAVIOURS), *(f"{name}: ms" for name in BEHAVIOURS)]
    report = Report(
        "keepalive", "Fig. 9: probability of a cold start by the idle time, and the time of a call after it", header
    )
    seen: dict[str, dict[float, list[tuple[str, float]]]] = {name: {pause: [] for pause in pauses} for name in BEHAVIOURS}
    with Daemon(bench.binary, bench.folder("keepalive")) as daemon:
        functions = [(name, f"{name}{number}") for name in BEHAVIOURS for number in range(effort.functions)]
        for behaviour, function in functions:
            daemon.deploy(function, EMPTY, handler="app.handler", **keys(behaviour, effort.idle_s))

        def after_a_pause(function: str, pause: float) -> Seen:
            with Client(daemon) as client:
                client.call(function)
            time.sleep(pause)
            with Client(daemon) as client:
                return client.call(function)

        with ThreadPoolExecutor(len(functions)) as pool:
            for _ in range(effort.rounds):
                for pause in pauses:
                    tries = [(name, pool.submit(after_a_pause, function, pause)) for name, function in functions]
                    for name, one in tries:
                        seen[name][pause].append((one.result().start, one.result().total_ms))
    cold = {name: {pause: share_of_cold(tries) for pause, tries in by.items()} for name, by in seen.items()}
    for pause in pauses:
        times = [fmean(ms for _, ms in seen[name][pause]) for name in BEHAVIOURS]
        report.rows.append([f"{pause:g}", *(f"{cold[name][pause]:.2f}" for name in BEHAVIOURS), *(f"{ms:.1f}" for ms in times)])
    tries_each = effort.functions * effort.rounds
    report.notes.append(
        f"{tries_each} tries for each idle time; idle_s = {effort.idle_s:g} stands for the paper's {AWS_S} s on AWS Lambda"
    )
    report.notes.append("the times are those of many calls at the same moment")
    warm = [cold[name][pause] for name in BEHAVIOURS[:3] for pause in pauses if pause <= 0.8 * effort.idle_s]
    gone = [cold[name][pause] for name in BEHAVIOURS[:3] for pause in pauses if pause >= 1.5 * effort.idle_s]
    report.bars = [
        Bar("cold below 0.8 of idle_s", "none", f"{max(warm):.0%} at most", max(warm) == 0),
        Bar("cold above 1.5 of idle_s", "all", f"{min(gone):.0%} at least", min(gone) == 1),
        Bar("cold with `template`", "all", f"{min(cold['template'].values()):.0%}", min(cold["template"].values()) == 1),
    ]
    report.data = {
        "idle_s": effort.idle_s,
        "scaled": AWS_S / effort.idle_s,
        "tries": tries_each,
        "cold": cold,
        "calls": {name: {str(pause): tries for pause, tries in by.items()} for name, by in seen.items()},
        "published": published(bench),
    }
    return report


def share_of_cold(tries: list[tuple[str, float]]) -> float:
    return sum(start == "cold" for start, _ in tries) / len(tries)


def published(bench: Bench) -> dict[str, list[tuple[float, float]]]:
    """Idle time (s) and share of cold starts, by platform."""
    found = {}
    for name in PUBLISHED:
        points: dict[float, float] = {}
        for path in bench.published.glob(f"keep_alive_{name}_*.json"):
            for idle, counts in json.loads(path.read_text()).items():
                points[float(idle)] = counts["cold"] / (counts["cold"] + counts["warm"])
        if points:
            found[name] = sorted(points.items())
    return found


MEGABYTES = 64
# `own`: memory that no file contains and that is not shared with a template.
OWN = f"""
import os
own = None
def handler(event, context):
    global own
    own = own or os.urandom({MEGABYTES} << 20)
    return os.getpid()
"""
PID = "import os\ndef handler(event, context):\n    return os.getpid()\n"
PID_NODE = b"exports.handler = async () => process.pid;\n"
POLLS = b"""
import http.client, os
api = http.client.HTTPConnection(os.environ["AWS_LAMBDA_RUNTIME_API"])
while True:
    api.request("GET", "/2018-06-01/runtime/invocation/next")
    asked = api.getresponse()
    asked.read()
    path = f"/2018-06-01/runtime/invocation/{asked.headers['Lambda-Runtime-Aws-Request-Id']}/response"
    api.request("POST", path, str(os.getpid()))
    api.getresponse().read()
"""
# The worker, its files, the keys of its function.
KINDS: dict[str, tuple[dict[str, bytes], dict[str, Any]]] = {
    "python, small": ({"app.py": PID.encode()}, {"handler": "app.handler"}),
    f"python, {MEGABYTES} MB": ({"app.py": OWN.encode()}, {"handler": "app.handler"}),
    "node": ({"index.js": PID_NODE}, {"runtime": "node"}),
    "provided (Python)": ({"main.py": POLLS}, {"runtime": "provided", "command": ["python3", "main.py"]}),
}
AFTER_S, RECLAIM_AFTER_S = 0.05, 1.0
STANDS_S = 2.0
SWAP_MB = 256


def frozen(bench: Bench) -> Report:
    """As root, for the swap."""
    header = ["worker", "swap", "PSS MB", "reclaimed", "left", "own left", "CPU ns", "wake p50 ms", "p99", "after reclaim"]
    report = Report(
        "frozen", "a frozen worker: its memory before and after it is reclaimed, its CPU time, and its wake", header
    )
    data = []
    for swap in ("none", "file") if bench.effort.swaps else ("none",):
        with swapping(bench.home / "swap", on=swap == "file") as has_swap:
            if swap == "file" and not has_swap:
                report.notes.append("no swap could be switched on here: only the memory of files was given back")
                break
            with Daemon(bench.binary, bench.folder(f"frozen-{swap}")) as daemon:
                for kind, (files, spec) in KINDS.items():
                    one = {"kind": kind, "swap": swap, **of_kind(bench, daemon, files, spec)}
                    data.append(one)
                    report.rows.append(
                        [
                            kind,
                            swap,
                            *(f"{one[key] / 2**20:.2f}" for key in ("pss", "reclaimed")),
                            f"{one['reclaimed'] / one['pss']:.0%}",
                            f"{one['own_left']:.0%}",
                            str(one["cpu_ns"]),
                            *(f"{percentile(one['wakes_ms'], percent):.2f}" for percent in (50, 99)),
                            Estimate.of(one["first_after_ms"]).text(2),
                        ]
                    )
    slowest = max(percentile(one["wakes_ms"], 50) for one in data)
    own = {one["kind"]: one["own_left"] for one in data if one["swap"] == "file"}
    left = {one["kind"]: one["reclaimed"] / one["pss"] for one in data if one["swap"] == "file"}
    report.bars = [
        Bar(
            "CPU time of a frozen worker",
            "0",
            f"{max(one['cpu_ns'] for one in data)} ns",
            all(not one["cpu_ns"] for one in data),
        ),
        Bar("wake to first byte, median", "≤ 2 ms", f"{slowest:.2f} ms at most", slowest <= 2),
        *(Bar(f"PSS after reclaim, {kind}", "≤ 20 %", f"{share:.0%}", share <= 0.2) for kind, share in left.items()),
        *(Bar(f"of it its own, {kind}", "≤ 20 %", f"{share:.0%}", share <= 0.2) for kind, share in own.items()),
    ]
    report.notes.append(
        "own: what is not shared with other processes; a forked worker shares the rest with its template, which stays"
    )
    report.notes.append(
        f"wake: the whole call at the client, {bench.effort.wakes} times; after reclaim: the first call after it"
    )
    report.data = data
    return report


def of_kind(bench: Bench, daemon: Daemon, files: dict[str, bytes], spec: dict[str, Any]) -> dict[str, Any]:
    rest = {"behaviour": "freeze", "after_s": AFTER_S, "reclaim_after_s": RECLAIM_AFTER_S}
    daemon.upload("lab", files, {**spec, "memory_mb": 256, "keep_alive": rest, "scale": {"max": 1, "idle_s": 600}})
    wakes: list[float] = []
    first_after: list[float] = []
    found: dict[str, Any] = {}
    try:
        with Client(daemon) as client:
            client.call("lab")
            for _ in range(bench.effort.wakes):
                wait_until_frozen(daemon, "lab")
                wakes.append(client.call("lab").total_ms)
        for _ in range(bench.effort.reclaims):
            # A connection is closed that was quiet for some seconds.
            with Client(daemon) as client:
                pid = on_the_host(daemon, client.call("lab").answer)
            wait_until_frozen(daemon, "lab")
            before, own_before = memory_of(pid)
            # What was reclaimed once and is not used stays in the swap.
            before, own_before = max(before, found.get("pss", 0)), max(own_before, found.get("own", 0))
            after, own_after = settled(pid, before)
            cpu = cpu_ns(pid)
            time.sleep(STANDS_S)
            cpu = cpu_ns(pid) - cpu
            with Client(daemon) as client:
                first_after.append(client.call("lab").total_ms)
            found = {
                "pss": before,
                "own": own_before,
                "reclaimed": after,
                "own_left": own_after / max(1, own_before),
                "cpu_ns": max(cpu, found.get("cpu_ns", 0)),
            }
    finally:
        daemon.call("DELETE", "/_pilot/v1/functions/lab")
    return {**found, "wakes_ms": wakes, "first_after_ms": first_after}


def wait_until_frozen(daemon: Daemon, name: str) -> None:
    deadline = time.monotonic() + 20
    while not daemon.workers(name).get("frozen"):
        if time.monotonic() > deadline:
            raise RuntimeError(f"{name} has no frozen worker after 20 s: {daemon.workers(name)}")
        time.sleep(0.005)


def on_the_host(daemon: Daemon, inside: int) -> int:
    """The process with this id in its sandbox (`NSpid`, proc_pid_status(5)), as the host numbers it."""
    for pid in proc.tree(daemon.pid):
        try:
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            continue
        ids = next(line for line in status.splitlines() if line.startswith("NSpid:")).split()[1:]
        if len(ids) > 1 and int(ids[-1]) == inside:
            return pid
    raise RuntimeError(f"there is no process {inside} in a sandbox of the daemon")


def memory_of(pid: int) -> tuple[int, int]:
    """PSS, and what no other process has, bytes."""
    own = 0
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Private_"):
            own += int(line.split()[1]) * 1024
    return proc.memory([pid]).pss, own


def settled(pid: int, before: int) -> tuple[int, int]:
    """Its memory once that has been reclaimed and does not change any more."""
    time.sleep(RECLAIM_AFTER_S)
    deadline = time.monotonic() + 15
    seen = [(before, 0)]
    while time.monotonic() < deadline:
        time.sleep(0.3)
        seen.append(memory_of(pid))
        # Without swap there may be nothing to reclaim.
        same = 2 if seen[-1][0] < before else 6
        if len(set(seen[-same:])) == 1 and len(seen) > same:
            break
    return seen[-1]


def cpu_ns(pid: int) -> int:
    """CPU time of all its threads (sched-stats.rst)."""
    return sum(int(task.joinpath("schedstat").read_text().split()[0]) for task in Path(f"/proc/{pid}/task").iterdir())


@contextmanager
def swapping(file: Path, on: bool) -> Iterator[bool]:
    """A swap file, if wanted, until the end, also after an error. False: there is no swap."""
    if not on or os.geteuid() != 0 or shutil.which("swapon") is None:
        yield False
        return
    if len(Path("/proc/swaps").read_text().splitlines()) > 1:
        # The machine's own.
        yield True
        return
    try:
        with file.open("wb") as content:
            file.chmod(0o600)
            for _ in range(SWAP_MB):
                content.write(bytes(1 << 20))
            content.flush()
            os.fsync(content.fileno())
        made = subprocess.run(["mkswap", file], capture_output=True).returncode == 0
        on = made and subprocess.run(["swapon", file], capture_output=True).returncode == 0
        try:
            yield on
        finally:
            if on:
                subprocess.run(["swapoff", file], check=True)
    finally:
        file.unlink(missing_ok=True)
