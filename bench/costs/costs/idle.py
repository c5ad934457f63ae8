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
# How a call started, and its milliseconds.
Try = tuple[str, float]


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
    seen: dict[str, dict[float, list[Try]]] = {name: {pause: [] for pause in pauses} for name in BEHAVIOURS}
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
    report.rows += keep_alive_rows({name: {str(pause): tries for pause, tries in by.items()} for name, by in seen.items()})
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


def keep_alive_rows(seen: dict[str, dict[str, list[Try]]]) -> list[list[str]]:
    """Of the tries by behaviour and idle time."""
    rows = []
    for pause in seen[BEHAVIOURS[0]]:
        tries = [seen[name][pause] for name in BEHAVIOURS]
        shares = [f"{share_of_cold(each):.2f}" for each in tries]
        times = [Estimate.of([ms for _, ms in each]).text(1) for each in tries]
        rows.append([f"{float(pause):g}", *shares, *times])
    return rows


def share_of_cold(tries: list[Try]) -> float:
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


# From the lease of a worker that rests to the last byte of its answer. What is before them does not depend on the worker's rest.
WAKE = ("thaw", "start", "handler", "answer")


def wake_ms(seen: Seen) -> float:
    """The time line's, without the client's time. The handlers do nothing; of a program, the handler's phase has the program's wake."""
    return sum(seen.phases_ms.get(phase, 0) for phase in WAKE)


def frozen(bench: Bench) -> Report:
    """As root, for the swap."""
    header = [
        "worker",
        "swap",
        "PSS MB",
        "reclaimed",
        "left",
        "own left",
        "shared anonymous",
        "shared files",
        "all of the daemon's",
    ]
    header += ["CPU ns", "thaw p50 ms", "wake p50", "p99", "client p50", "after reclaim: wake", "client"]
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
                    report.rows.append(frozen_row(one))
    report.bars = frozen_bars(data)
    report.notes += [
        "own: what is not shared with other processes. The rest counts in parts for each process that has it: a forked worker shares it with "
        "its template, which stays, and a Node.js worker with the kept interpreters",
        "all of the daemon's: the PSS of the daemon and all its processes, before and after the reclaim",
        f"wake: {' + '.join(WAKE)} of the time line, {bench.effort.wakes} times; client: the whole call",
        "after reclaim: the first call after it, which reads the memory again",
    ]
    report.data = data
    return report


def frozen_row(one: dict[str, Any]) -> list[str]:
    before, after = one["before"], one["after"]
    wakes, first = one["wakes"], one["first_after"]
    of = {key: [wake[key] for wake in wakes] for key in ("thaw_ms", "wake_ms", "client_ms")}
    return [
        one["kind"],
        one["swap"],
        *(megabytes(held["pss"]) for held in (before, after)),
        f"{after['pss'] / before['pss']:.0%}",
        f"{after['own'] / max(1, before['own']):.0%}",
        *(megabytes(after[key]) for key in ("anonymous", "files")),
        f"{megabytes(one['all_before'])} to {megabytes(one['all_after'])}",
        str(one["cpu_ns"]),
        f"{percentile(of['thaw_ms'], 50):.3f}",
        *(f"{percentile(of['wake_ms'], percent):.3f}" for percent in (50, 99)),
        f"{percentile(of['client_ms'], 50):.2f}",
        *(Estimate.of([call[key] for call in first]).text(2) for key in ("wake_ms", "client_ms")),
    ]


def megabytes(count: int) -> str:
    return f"{count / 2**20:.2f}"


def frozen_bars(data: list[dict[str, Any]]) -> list[Bar]:
    slowest = max(percentile([wake["wake_ms"] for wake in one["wakes"]], 50) for one in data)
    reclaimed = [one for one in data if one["swap"] == "file"]
    used = max(one["cpu_ns"] for one in data)
    bars = [
        Bar("CPU time of a frozen worker", "0", f"{used} ns", not used),
        Bar("wake to the answer, median", "≤ 2 ms", f"{slowest:.2f} ms at most", slowest <= 2),
    ]
    for key, what in (("pss", "PSS after reclaim"), ("own", "of it its own")):
        for one in reclaimed:
            left = one["after"][key] / max(1, one["before"][key])
            bars.append(Bar(f"{what}, {one['kind']}", "≤ 20 %", f"{left:.0%}", left <= 0.2))
    return bars


def of_kind(bench: Bench, daemon: Daemon, files: dict[str, bytes], spec: dict[str, Any]) -> dict[str, Any]:
    rest = {"behaviour": "freeze", "after_s": AFTER_S, "reclaim_after_s": RECLAIM_AFTER_S}
    daemon.upload("lab", files, {**spec, "memory_mb": 256, "keep_alive": rest, "scale": {"max": 1, "idle_s": 600}})
    wakes: list[dict[str, float]] = []
    first_after: list[dict[str, float]] = []
    found: dict[str, Any] = {}
    cpu_ns_max = 0
    try:
        with Client(daemon) as client:
            client.call("lab")
            for _ in range(bench.effort.wakes):
                wait_until_frozen(daemon, "lab")
                wakes.append(woken(client.call("lab")))
        for _ in range(bench.effort.reclaims):
            # A connection is closed that was quiet for some seconds.
            with Client(daemon) as client:
                pid = on_the_host(daemon, client.call("lab").answer)
            wait_until_frozen(daemon, "lab")
            before, all_before = memory_of(pid), pss_of_all(daemon)
            # What was reclaimed once and is not used stays in the swap.
            if not found or before["pss"] > found["before"]["pss"]:
                found |= {"before": before, "all_before": all_before}
            found |= {
                "after": settled(pid, found["before"]["pss"]),
                "all_after": pss_of_all(daemon),
                "mappings": mappings_of(pid),
            }
            cpu = cpu_ns(pid)
            time.sleep(STANDS_S)
            cpu_ns_max = max(cpu_ns_max, cpu_ns(pid) - cpu)
            with Client(daemon) as client:
                first_after.append(woken(client.call("lab")))
    finally:
        daemon.call("DELETE", "/_pilot/v1/functions/lab")
    return {**found, "cpu_ns": cpu_ns_max, "wakes": wakes, "first_after": first_after}


def woken(seen: Seen) -> dict[str, float]:
    """A call that had to wake its worker."""
    if "thaw" not in seen.phases_ms:
        raise RuntimeError(f"the worker was not frozen: {seen.phases_ms}")
    return {"thaw_ms": seen.phases_ms["thaw"], "wake_ms": wake_ms(seen), "client_ms": seen.total_ms}


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


Held = dict[str, int]


def memory_of(pid: int) -> Held:
    """Bytes. `own` is what no other process has; `anonymous` and `files` are the parts of the PSS."""
    rollup = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        key, _, value = line.partition(":")
        rollup[key] = int(value.split()[0]) * 1024
    return {
        "rss": rollup["Rss"],
        "pss": rollup["Pss"],
        "own": sum(size for key, size in rollup.items() if key.startswith("Private_")),
        "anonymous": rollup["Pss_Anon"],
        "files": rollup["Pss_File"] + rollup["Pss_Shmem"],
    }


def mappings_of(pid: int) -> list[dict[str, Any]]:
    """What is mapped, by the file's name; the largest first by PSS (proc_pid_smaps(5))."""
    by_name: dict[str, Held] = {}
    held: Held = {}
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        fields = line.split()
        if not fields[0].endswith(":"):
            name = Path(fields[5]).name if len(fields) > 5 else "anonymous"
            held = by_name.setdefault(name, {"rss": 0, "pss": 0, "own": 0})
            continue
        keys = {"Rss:": "rss", "Pss:": "pss", "Private_Clean:": "own", "Private_Dirty:": "own"}
        if key := keys.get(fields[0]):
            held[key] += int(fields[1]) * 1024
    largest = sorted(by_name.items(), key=lambda entry: -entry[1]["pss"])
    return [{"name": name, **held} for name, held in largest[:8]]


def pss_of_all(daemon: Daemon) -> int:
    return proc.memory(proc.tree(daemon.pid)).pss


def settled(pid: int, before: int) -> Held:
    """Its memory once that has been reclaimed and does not change any more."""
    time.sleep(RECLAIM_AFTER_S)
    deadline = time.monotonic() + 15
    seen = [memory_of(pid)]
    while time.monotonic() < deadline:
        time.sleep(0.3)
        seen.append(memory_of(pid))
        # Without swap there may be nothing to reclaim.
        same = 2 if seen[-1]["pss"] < before else 6
        if len(seen) > same and all(one == seen[-1] for one in seen[-same:]):
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
