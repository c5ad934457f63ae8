"""The memory and CPU of kept runtimes that are not used: with none, with one, with many (section V-E, figure 15a)."""

from __future__ import annotations

import os
import time
from dataclasses import asdict, dataclass

from benchlib.proc import cpu_s, memory, trees
from benchlib.report import Bar, Report

from . import apps, paper
from .bench import CLEANED, Bench, Served

MB = 1e6


@dataclass(frozen=True)
class Point:
    """`live` is the number of runtimes, including free and pre-warmed ones. Memory in MB: `pss` of the daemon and its descendants (and,
    for containers, of the engine's shims and their descendants); `interpreters` is the part of `pss` in processes of that name; `used` is the
    machine's memory that is not available. `cpu` is the share of all CPUs that these processes used (and, for containers, the engine)."""

    kind: str
    app: str
    live: int
    pss: float
    interpreters: float
    used: float
    cpu: float


def overhead(bench: Bench) -> Report:
    report = Report("overhead", "figure 15(a): live, unused runtimes; each beyond the first line's")
    report.header = [
        "kind",
        "runtime",
        "live",
        "PSS MB",
        "PSS each",
        "beyond the interpreter",
        "machine MB",
        "machine each",
        "CPU %",
    ]
    report.data = []
    for kind in bench.kinds:
        chosen = [(apps.empty(kind), "")] + ([(apps.node_hello(), "node")] if kind == "native" else [])
        for app, interpreter in chosen:
            points = ladder(bench, app, interpreter)
            for point in points:
                report.rows.append(row(point, points[0]))
            report.data += [{**asdict(point), "panel": f"{kind} {app.name}"} for point in points]
            if kind == "native":
                beyond = beyond_interpreter(points[-1], points[0])
                what = f"a kept sandbox of {app.name} beyond its interpreter, PSS"
                more = points[-1].live > points[0].live
                report.bars.append(Bar(what, "≤ 1 MB", f"{beyond:.2f} MB", beyond <= 1.0 if more else None))
                if not interpreter and more:
                    used = (points[-1].used - points[0].used) / (points[-1].live - points[0].live)
                    what = f"a kept sandbox of {app.name}, of the machine's memory"
                    report.bars.append(Bar(what, "≤ 1 MB", f"{used:.2f} MB", used <= 1.0))
            bench.restart()
    report.notes.append(
        "PSS contains no kernel memory (namespaces, cgroups, the mount of /tmp); the machine's value does, and other programs' noise"
    )
    report.notes.append(f"paper: {paper.MB_PER_CONTAINER} MB for each live container; CPU of ten {paper.CPU_OF_TEN}")
    report.notes.append(
        "each runtime is kept after its worker was retired; figure 15(b), a Cassandra in a container, is not repeated"
    )
    return report


def row(point: Point, least: Point) -> list[str]:
    """`least`: the point with the fewest runtimes, with which the others are compared."""
    line = [point.kind, point.app, str(point.live), f"{point.pss:.1f}"]
    more = point.live - least.live
    if not more:
        return [*line, "", "", f"{point.used:.0f}", "", f"{point.cpu:.1%}"]
    each, machine = (point.pss - least.pss) / more, (point.used - least.used) / more
    # The processes in a container are those of the image, and cannot be separated.
    beyond = f"{beyond_interpreter(point, least):.2f}" if point.kind == "native" else ""
    return [*line, f"{each:.2f}", beyond, f"{point.used:.0f}", f"{machine:.2f}", f"{point.cpu:.1%}"]


def beyond_interpreter(point: Point, least: Point) -> float:
    own = (point.pss - point.interpreters) - (least.pss - least.interpreters)
    more = point.live - least.live
    return own / more if more else 0.0


def ladder(bench: Bench, app: apps.App, interpreter: str) -> list[Point]:
    """Increasing numbers of runtimes, each measured at rest. The deployment leaves one runtime."""
    one = bench.serve(app, CLEANED)
    found = []
    for live in bench.effort.live[app.kind]:
        available = keep(one, live)
        time.sleep(min(1.0, bench.effort.window_s))
        found.append(measure(bench, one, available, interpreter))
    return found


def keep(one: Served, live: int) -> int:
    """Starts this number of workers and retires them, so that their runtimes are unused. Returns the number of runtimes: a pre-warmed one may
    have been started ahead of demand."""
    if live:
        one.daemon.scale(one.name, live)
        one.daemon.wait_for_idle(one.name, live, limit_s=120)
    one.daemon.scale(one.name, 0)
    if live:
        one.wait(lambda status: bool(status and status["own"]["available"] >= live), f"left with {live} kept runtimes", 120)
    status = one.settle()
    return int(status["base"]["available"]) if status else 0


def measure(bench: Bench, one: Served, live: int, interpreter: str) -> Point:
    engine = processes("dockerd") | processes("containerd") if one.app.kind == "container" else set()
    roots = {one.daemon.pid} | (processes("containerd-shim") if engine else set())
    pids = {pid for members in trees(roots).values() for pid in members} | roots
    before = cpu_s(pids | engine)
    time.sleep(bench.effort.window_s)
    cpu = (cpu_s(pids | engine) - before) / bench.effort.window_s / (os.cpu_count() or 1)
    named = processes(interpreter) if interpreter else set()
    return Point(
        kind=one.app.kind,
        app=one.app.name,
        live=live,
        pss=memory(pids).pss / MB,
        interpreters=memory(pids & named).pss / MB,
        used=used_mb(),
        cpu=cpu,
    )


def processes(name: str) -> set[int]:
    """The processes whose name begins with this word (proc_pid_comm(5) shortens names to 15 bytes)."""
    found = set()
    for pid in os.listdir("/proc"):
        if pid.isdigit():
            try:
                with open(f"/proc/{pid}/comm") as file:
                    if file.read().startswith(name):
                        found.add(int(pid))
            except OSError:
                continue
    return found


def used_mb() -> float:
    """The machine's memory that is not available. The free pages that each CPU keeps for itself are not in MemAvailable; since Linux 6.7
    they can be an eighth of the memory, and processes that have just ended leave theirs there."""
    with open("/proc/meminfo") as file:
        values = {key: int(rest.split()[0]) for key, _, rest in (line.partition(":") for line in file)}
    with open("/proc/zoneinfo") as file:
        kept = sum(int(line.split()[1]) for line in file if line.split()[:1] == ["count:"])
    return ((values["MemTotal"] - values["MemAvailable"]) * 1024 - kept * os.sysconf("SC_PAGE_SIZE")) / MB
