"""The rows of the table. Each is a function of a fresh daemon, the load client and an effort, and returns its results.

If there is a rival, both run during the whole row and take turns, so that other load on the machine affects both.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from benchlib.daemon import Daemon, end
from benchlib.load import Load, Measured
from benchlib.proc import cpu_s, tree
from benchlib.proc import memory as memory_of
from benchlib.stats import percentile

from . import rivals
from .floor import Floor
from .rivals import APPS, Rival
from .table import Result

NOOP = (APPS / "noop.py").read_text()
IMPORTS = (APPS / "imports.py").read_text()
COMPUTES = (APPS / "computes.py").read_text()
TOUCHED = (APPS / "touched.py.txt").read_text()
REQUIREMENTS = "numpy==2.4.6\npillow==13.0.0\n"

# The time to remove the namespaces and the cgroup of a retired worker, so that this does not affect the next start.
SETTLE_MS = 20


@dataclass(frozen=True)
class Effort:
    """The sizes of the measurements."""

    turns: int
    cold: int
    spawns: int
    seconds: float
    bursts: int
    idle_workers: int
    calls_each: int
    functions: int
    heaps_mb: tuple[int, ...]


FULL = Effort(
    turns=6,
    cold=60,
    spawns=10,
    seconds=2.0,
    bursts=15,
    idle_workers=20,
    calls_each=1000,
    functions=200,
    heaps_mb=(20, 100, 500),
)
SMOKE = Effort(turns=1, cold=10, spawns=3, seconds=0.3, bursts=2, idle_workers=4, calls_each=20, functions=5, heaps_mb=(20,))

Turn = Callable[[], Measured]


def alternate(turns: int, **sides: Turn) -> dict[str, Measured]:
    """Measures each side in turn, this number of times. The order changes every turn."""
    measured = {name: Measured() for name in sides}
    order = list(sides.items())
    for _ in range(turns):
        for name, turn in order:
            measured[name].add(turn())
        order.reverse()
    return measured


def failed(name: str, error: Exception) -> Result:
    return Result(what=name.replace("_", " "), measured=None, unit="", error=f"{type(error).__name__}: {error}"[:400])


def ms(microseconds: float) -> float:
    return round(microseconds / 1000, 3)


def pss_mb(pids: Iterable[int]) -> float:
    return memory_of(pids).pss / (1 << 20)


def phases(measured: Measured) -> str:
    return " ".join(f"{name}={took / 1000:.2f}" for name, took in measured.phases_p50.items())


def cold_turn(daemon: Daemon, load: Load, name: str, count: int) -> Turn:
    """Cold requests: the pool is emptied before each."""
    return lambda: load.function("cold", daemon.control_endpoint, name, count=count, warm_up=1, pause_ms=SETTLE_MS)


def only(measured: Measured, kind: str) -> None:
    """Checks that all requests had this kind of start."""
    if set(measured.starts) != {kind}:
        raise RuntimeError(f"meant to be {kind}, but X-Pilot-Start says {measured.starts}")


def cold(daemon: Daemon, load: Load, effort: Effort) -> list[Result]:
    daemon.deploy("cold", IMPORTS, REQUIREMENTS)
    with rivals.fresh_interpreter() as fresh, Floor() as bare:
        seen = alternate(
            effort.turns,
            cold=cold_turn(daemon, load, "cold", effort.cold),
            fresh=lambda: load.url(fresh.url, count=effort.spawns, warm_up=1),
            floor=lambda: Measured(first_byte=bare.times(effort.cold)),
        )
    only(seen["cold"], "cold")
    p50, fresh_p50 = seen["cold"].p(50), seen["fresh"].p(50)
    over = {percent: round(seen["cold"].p(percent) / seen["floor"].p(percent), 2) for percent in (50, 99)}
    floor = {"floor:": f"p50 {ms(seen['floor'].p(50))} ms, p99 {ms(seen['floor'].p(99))} ms"}
    return [
        Result(
            "cold p50",
            ms(p50),
            "ms",
            bar=2.5,
            rival="fresh interpreter",
            rival_measured=ms(fresh_p50),
            notes={"phases p50, ms:": phases(seen["cold"])},
        ),
        Result("cold p99", ms(seen["cold"].p(99)), "ms", bar=8.0),
        Result("cold, times faster than a fresh interpreter", round(fresh_p50 / p50, 1), "×", bar=30.0, at_least=True),
        Result("cold p50 ÷ that of a bare fork", over[50], "×", bar=1.25, notes=floor),
        Result("cold p99 ÷ that of a bare fork", over[99], "×", bar=2.0),
    ]


def template_off(daemon: Daemon, load: Load, effort: Effort) -> list[Result]:
    """The ablation: the same sandbox and worker, but a fresh interpreter in it."""
    daemon.deploy("forked", IMPORTS, REQUIREMENTS)
    daemon.deploy("spawned", IMPORTS, REQUIREMENTS, template="off")
    seen = alternate(
        max(1, effort.turns // 2),
        forked=cold_turn(daemon, load, "forked", effort.spawns),
        spawned=cold_turn(daemon, load, "spawned", effort.spawns),
    )
    only(seen["spawned"], "cold")
    forked = ms(seen["forked"].p(50))
    return [Result('cold p50 with template = "off"', ms(seen["spawned"].p(50)), "ms", rival="forked", rival_measured=forked)]


def spare(daemon: Daemon, load: Load, effort: Effort) -> list[Result]:
    """Every request gets a spare worker that has never served. It serves once, and another one is started in the pause."""
    daemon.deploy("spare", IMPORTS, REQUIREMENTS, reuse="once", scale={"spare": 1})
    seen = load.function(
        "warm",
        daemon.control_endpoint,
        "spare",
        count=effort.cold * effort.turns,
        warm_up=3,
        pause_ms=SETTLE_MS + 10,
    )
    only(seen, "warm")
    return [
        Result(
            "cold with one spare worker p50",
            ms(seen.p(50)),
            "ms",
            bar=0.6,
            notes={"p99": ms(seen.p(99)), "phases p50, ms:": phases(seen)},
        )
    ]


def once(daemon: Daemon, load: Load, effort: Effort) -> list[Result]:
    daemon.deploy("once", IMPORTS, REQUIREMENTS, reuse="once")
    seen = alternate(
        effort.turns,
        one=lambda: load.function("warm", daemon.control_endpoint, "once", count=effort.cold, warm_up=2),
        many=lambda: load.function("warm", daemon.control_endpoint, "once", connections=16, seconds=effort.seconds, warm_up=32),
    )
    return [
        Result("reuse once, sequential p50", ms(seen["one"].p(50)), "ms", bar=2.5, notes={"p99": ms(seen["one"].p(99))}),
        Result("reuse once, 16 connections", round(seen["many"].per_second, 1), "/s", bar=600, at_least=True),
    ]


def burst(daemon: Daemon, load: Load, effort: Effort) -> list[Result]:
    results = []
    for name, event, bar in (("fast", "{}", 60.0), ("slow", '{"sleep_ms": 100}', 220.0)):
        daemon.deploy(name, IMPORTS, REQUIREMENTS)
        # The pool must know the handler's duration to decide how many workers a burst needs.
        load.function("warm", daemon.control_endpoint, name, data=event, count=10)
        seen = load.function(
            "burst", daemon.control_endpoint, name, data=event, connections=50, count=effort.bursts, pause_ms=200
        )
        what = "handler under 1 ms" if name == "fast" else "handler of 100 ms"
        results.append(
            Result(
                f"50 at one instant, {what}: all answered, median",
                ms(percentile(seen.rounds, 50)),
                "ms",
                bar=bar,
                notes={
                    "worst": ms(max(seen.rounds)),
                    "best": ms(min(seen.rounds)),
                    "workers after": daemon.workers(name)["idle"],
                },
            )
        )
    return results


def warm(daemon: Daemon, load: Load, effort: Effort) -> list[Result]:
    """Compares the event handler with the same handler behind uvicorn, and the ASGI application with itself under uvicorn."""
    daemon.deploy("event", NOOP)
    daemon.deploy("asgi", NOOP, handler="app:asgi", interface="asgi")
    daemon.deploy("several", NOOP, handler="app:asgi", interface="asgi", concurrency=16)
    with ExitStack() as stack:
        over_asgi = stack.enter_context(rivals.uvicorn("noop:event_over_asgi"))
        asgi = stack.enter_context(rivals.uvicorn("noop:asgi"))
        wsgi = stack.enter_context(rivals.gunicorn("noop:wsgi"))
        many_of = {"seconds": effort.seconds / 2, "warm_up": 200}
        servers: dict[str, Callable[..., Measured]] = {
            "event": lambda **how: load.function("warm", daemon.control_endpoint, "event", **how),
            "asgi": lambda **how: load.function("warm", daemon.control_endpoint, "asgi", path="/", **how),
            "several": lambda **how: load.function("warm", daemon.control_endpoint, "several", path="/", **how),
            "uvicorn_event": lambda **how: load.url(over_asgi.url, data="{}", **how),
            "uvicorn_asgi": lambda **how: load.url(asgi.url, **how),
            "gunicorn": lambda **how: load.url(wsgi.url, **how),
        }

        used = {name: Spent() for name in servers}

        def turn(name: str, connections: int) -> Turn:
            def run() -> Measured:
                before = Spent.of(daemon)
                seen = servers[name](connections=connections, **many_of)
                if connections > 1:
                    used[name] = used[name].plus(Spent.of(daemon), before)
                return seen

            return run

        one = alternate(effort.turns, **{name: turn(name, 1) for name in servers if name != "several"})
        many = alternate(effort.turns, **{name: turn(name, 16) for name in servers})
    results = []
    for ours, theirs in (("event", "uvicorn_event"), ("asgi", "uvicorn_asgi")):
        for percent, factor in ((50, 1.4), (99, 2.0)):
            rival = one[theirs].p(percent)
            results.append(
                Result(
                    f"warm no-op ({ours}), one connection p{percent}",
                    round(one[ours].p(percent), 1),
                    "µs",
                    bar=round(factor * rival, 1),
                    rival="uvicorn",
                    rival_measured=round(rival, 1),
                )
            )
    at_once = (
        ("event", "event", "uvicorn_event", 0.6),
        ("asgi", "asgi", "uvicorn_asgi", 0.6),
        ("asgi, concurrency 16", "several", "uvicorn_asgi", 0.8),
    )
    for what, ours, theirs, factor in at_once:
        rival = many[theirs].per_second
        results.append(
            Result(
                f"warm no-op ({what}), 16 connections",
                round(many[ours].per_second),
                "/s",
                bar=round(factor * rival),
                at_least=True,
                rival="uvicorn",
                rival_measured=round(rival),
                notes={"CPU per request": used[ours].per_request(many[ours].requests)},
            )
        )
    results[0].notes = {"gunicorn (WSGI) p50 µs": round(one["gunicorn"].p(50), 1)}
    results[-1].notes["gunicorn (WSGI) /s"] = round(many["gunicorn"].per_second)
    return results


class Spent(NamedTuple):
    """CPU time, seconds."""

    daemon: float = 0.0
    workers: float = 0.0
    client: float = 0.0

    @classmethod
    def of(cls, daemon: Daemon) -> Spent:
        """Until now. The client is `pilot bench`, which has ended."""
        workers = [pid for pid in tree(daemon.pid) if pid != daemon.pid]
        times = os.times()
        return cls(cpu_s([daemon.pid]), cpu_s(workers), times.children_user + times.children_system)

    def plus(self, after: Spent, before: Spent) -> Spent:
        return Spent(*(total + later - earlier for total, later, earlier in zip(self, after, before, strict=True)))

    def per_request(self, requests: int) -> str:
        each = (f"{name} {1e6 * seconds / requests:.0f} µs" for name, seconds in self._asdict().items())
        return ", ".join(each)


@contextmanager
def computing() -> Iterator[None]:
    """A program that computes without end."""
    program = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        end(program)


def busy_polling(daemon: Daemon, load: Load, effort: Effort) -> list[Result]:
    """What `busy_poll_us` brings and costs: this daemon beside one that does not poll, without and with programs that compute."""
    with tempfile.TemporaryDirectory(prefix="pilot-peers-") as home, ExitStack() as stack:
        without = Daemon(daemon.binary, Path(home))
        without.config.write_text(f"busy_poll_us = 0\n{without.config.read_text()}")
        stack.enter_context(without)
        sides = {"polls": daemon, "sleeps": without}
        for side in sides.values():
            side.deploy("event", NOOP)
            side.deploy("asgi", NOOP, handler="app:asgi", interface="asgi")
            side.deploy("computes", COMPUTES)
        used = dict.fromkeys(sides, 0.0)

        def measured(name: str, connections: int, **options: Any) -> dict[str, Measured]:
            used.update(dict.fromkeys(sides, 0.0))

            def turn(side: str) -> Turn:
                def run() -> Measured:
                    before = cpu_s([sides[side].pid])
                    seen = load.function(
                        "warm",
                        sides[side].control_endpoint,
                        name,
                        connections=connections,
                        seconds=effort.seconds / 2,
                        warm_up=50,
                        **options,
                    )
                    used[side] += cpu_s([sides[side].pid]) - before
                    return seen

                return run

            return alternate(effort.turns, **{side: turn(side) for side in sides})

        def p(seen: dict[str, Measured], percent: float) -> float:
            return round(seen["polls"].p(percent) / seen["sleeps"].p(percent), 2)

        def cpu(seen: dict[str, Measured]) -> str:
            each = {side: 1e6 * used[side] / seen[side].requests for side in sides}
            return f"{each['polls']:.0f} µs, {each['sleeps']:.0f} without"

        results = []
        for name, options in (("event", {}), ("asgi", {"path": "/"})):
            seen = measured(name, 1, **options)
            results += [
                Result(
                    f"busy polling: warm no-op ({name}), one connection p50 ÷ without",
                    p(seen, 50),
                    "×",
                    notes={"daemon's CPU per request": cpu(seen)},
                ),
                Result(f"busy polling: the same p99 ÷ without ({name})", p(seen, 99), "×"),
            ]
        for connections in (1, 2, 4):
            seen = measured("computes", connections)
            ratio = round(seen["polls"].per_second / seen["sleeps"].per_second, 2)
            what = f"busy polling: handler that computes for 0.3 ms, {connections} at a time: throughput ÷ without"
            results.append(Result(what, ratio, "×", notes={"daemon's CPU per request": cpu(seen)}))
        for _ in range(2):
            stack.enter_context(computing())
        seen = measured("event", 1)
        ratio = round(seen["polls"].per_second / seen["sleeps"].per_second, 2)
        results.append(
            Result("busy polling: warm no-op (event) beside two programs that compute: throughput ÷ without", ratio, "×")
        )
    return results


def idle(daemon: Daemon) -> Result:
    """The daemon before the first deployment."""
    time.sleep(0.5)
    return Result("daemon's own PSS, idle, nothing deployed", round(pss_mb([daemon.pid]), 2), "MB", bar=20.0)


def memory(daemon: Daemon, load: Load, effort: Effort) -> list[Result]:
    """PSS with this number of idle workers, minus PSS without workers, divided by their number."""
    daemon.deploy("memory", IMPORTS, REQUIREMENTS, scale={"max": effort.idle_workers, "idle_s": 600})
    daemon.invoke("memory", {})
    daemon.scale("memory", 0)
    daemon.wait_for_idle("memory", 0)
    time.sleep(0.3)
    bare = pss_mb(tree(daemon.pid))

    def per_worker(workers: int) -> float:
        return (pss_mb(tree(daemon.pid)) - bare) / workers

    daemon.scale("memory", effort.idle_workers)
    daemon.wait_for_idle("memory", effort.idle_workers)
    fresh = per_worker(effort.idle_workers)
    daemon.scale("memory", 4)
    daemon.wait_for_idle("memory", 4)
    load.function(
        "warm",
        daemon.control_endpoint,
        "memory",
        data='{"sleep_ms": 0.2}',
        connections=4,
        count=4 * effort.calls_each + effort.calls_each // 2,
    )
    workers = daemon.workers("memory")["idle"]
    used = per_worker(workers)
    after = pss_mb([daemon.pid])
    return [
        Result("PSS per idle worker, fresh", round(fresh, 2), "MB", bar=3.0),
        Result(
            f"PSS per idle worker, after {effort.calls_each:,} calls each",
            round(used, 2),
            "MB",
            bar=5.0,
            notes={"workers": workers},
        ),
        Result("daemon's own PSS, after the calls", round(after, 2), "MB"),
    ]


def fork_cost(daemon: Daemon, load: Load, effort: Effort) -> list[Result]:
    names = []
    for megabytes in effort.heaps_mb:
        name = f"heap{megabytes}"
        daemon.deploy(name, TOUCHED.replace("MEGABYTES", str(megabytes)), memory_mb=megabytes + 256)
        names.append((name, megabytes))
    seen = alternate(effort.turns, **{name: cold_turn(daemon, load, name, effort.cold // 2) for name, _ in names})
    return [
        Result(
            f"cold p50 with a template of {megabytes} MB touched heap",
            ms(seen[name].p(50)),
            "ms",
            notes={"phases p50, ms:": phases(seen[name]), "p99": ms(seen[name].p(99))},
        )
        for name, megabytes in names
    ]


def many_functions(daemon: Daemon, load: Load, effort: Effort) -> list[Result]:
    """Many functions with one environment: their memory, a cold start of the oldest one, and a restart."""
    number = effort.functions
    began = time.monotonic()
    for at in range(number):
        daemon.deploy(f"f{at}", IMPORTS + f"\nNUMBER = {at}\n", REQUIREMENTS)
    deployed = time.monotonic() - began
    time.sleep(1)
    everything = pss_mb(tree(daemon.pid))
    untouched = [load.function("warm", daemon.control_endpoint, f"f{at}", count=1) for at in range(min(50, number))]
    first = [seen.first_byte[0] for seen in untouched]

    starts, ready = [], []
    for turn in range(3):
        daemon.kill()
        since = time.monotonic()
        daemon.start()
        ready.append(time.monotonic() - since)
        daemon.invoke(f"f{(turn * 7) % number}", {})
        starts.append(time.monotonic() - since)
    others = [
        load.function("warm", daemon.control_endpoint, f"f{at}", count=1).first_byte[0]
        for at in range(number - min(30, number), number)
    ]
    return [
        Result(
            f"{number} functions, one environment: PSS of everything",
            round(everything),
            "MB",
            bar=1536,
            notes={"deploys took": f"{deployed:.1f} s"},
        ),
        Result(
            "the oldest of them, untouched since their deploy: cold p50",
            ms(percentile(first, 50)),
            "ms",
            bar=30.0,
            notes={"p99": ms(percentile(first, 99)), "starts": json.dumps(_kinds(untouched))},
        ),
        Result(
            "each one's first request after a restart: cold p50",
            ms(percentile(others, 50)),
            "ms",
            bar=30.0,
            notes={"max": ms(max(others))},
        ),
        Result(
            f"restart with {number} functions: first answer",
            round(median(starts) * 1000),
            "ms",
            bar=1000,
            notes={"ready after, ms": round(median(ready) * 1000)},
        ),
    ]


def _kinds(measured: list[Measured]) -> dict[str, int]:
    kinds: dict[str, int] = {}
    for seen in measured:
        for kind, count in seen.starts.items():
            kinds[kind] = kinds.get(kind, 0) + count
    return kinds


Row = Callable[[Daemon, Load, Effort], list[Result]]
ALL: list[Row] = [cold, template_off, spare, once, burst, warm, busy_polling, memory, fork_cost, many_functions]

__all__ = ["ALL", "FULL", "SMOKE", "Effort", "Rival", "failed"]
