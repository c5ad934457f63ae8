"""The environment of every experiment: a daemon that keeps no runtimes, one that does, their functions, and the container engine if
there is one.

Every table has three ways as columns: *new* (every request gets a new runtime), *cleaned* (the runtime is cleaned after every request
and reused: HotC's literal form), *kept* (a worker stays while it is warm, and is cleaned afterwards: Pilotlight's normal mode). They
take turns in one run.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from benchlib.daemon import Daemon, end
from benchlib.load import Load, Measured

from .apps import App
from .client import Client
from .engine import Engine
from .images import Images

KINDS = ("native", "container")


@dataclass(frozen=True)
class Way:
    """`reuse` is the value in the manifest."""

    name: str
    keeps: bool
    reuse: str


NEW = Way("new", keeps=False, reuse="once")
CLEANED = Way("cleaned", keeps=True, reuse="once")
KEPT = Way("kept", keeps=True, reuse="always")
WAYS = (NEW, CLEANED, KEPT)

T = TypeVar("T")


def rotated(items: tuple[T, ...], turn: int) -> tuple[T, ...]:
    """The items in another order for each turn."""
    at = turn % len(items)
    return items[at:] + items[:at]


@dataclass(frozen=True)
class Effort:
    """The sizes of the experiments. Rounds are `interval_s` apart instead of the paper's 30 s. Containers get fewer requests at once.
    `series`: how often the patterns are repeated, each time from empty pools."""

    smoke: bool
    to: int
    starts: int
    handovers: int
    web: int
    serial: int
    series: int
    threads: int
    per_thread: int
    linear: int
    exponential: dict[str, int]
    burst: dict[str, int]
    burst_rounds: int
    interval_s: float
    live: dict[str, tuple[int, ...]]
    window_s: float
    turns: int
    turn_s: float


FULL = Effort(
    smoke=False,
    to=10_000_000,
    starts=10,
    handovers=50,
    web=40,
    serial=20,
    series=5,
    threads=10,
    per_thread=20,
    linear=10,
    # 2^i, up to 64 and 16.
    exponential={"native": 6, "container": 4},
    # The paper's 8 times ten: 80 sandboxes at once. For containers, 2 times ten.
    burst={"native": 8, "container": 2},
    burst_rounds=18,
    interval_s=2.0,
    live={"native": (0, 1, 2, 5, 10, 20, 50, 100), "container": (0, 1, 2, 5, 10, 20)},
    window_s=4.0,
    turns=6,
    turn_s=1.0,
)
SMOKE = Effort(
    smoke=True,
    to=10_000,
    starts=1,
    handovers=2,
    web=4,
    serial=2,
    series=1,
    threads=2,
    per_thread=2,
    linear=2,
    exponential={"native": 2, "container": 1},
    burst={"native": 1, "container": 1},
    burst_rounds=4,
    interval_s=0.1,
    live={"native": (0, 2), "container": (0, 1)},
    window_s=0.2,
    turns=1,
    turn_s=0.2,
)


@dataclass(frozen=True)
class Served:
    """A function on one of the daemons."""

    daemon: Daemon
    name: str
    way: Way
    app: App

    def client(self) -> Client:
        return Client(self.daemon.port, self.name, self.app.event, self.app.path)

    def status(self) -> dict[str, Any] | None:
        """`runtimes` of the description; `None` for a function that forks."""
        return self.daemon.describe(self.name).get("runtimes")

    def settle(self) -> dict[str, Any] | None:
        """Waits until no runtime is being started, adapted, cleaned or ended. Returns the runtimes."""

        def still(status: dict[str, Any] | None) -> bool:
            if status is None:
                return True
            base, own = status["base"], status["own"]
            busy = base["starting"] + base["adapting"] + base["cleaning"]
            return not busy and (self.way is KEPT or not own["leased"])

        return self.wait(still, "at rest")

    def wait(self, until: Callable[[dict[str, Any] | None], bool], what: str, limit_s: float = 60) -> dict[str, Any] | None:
        deadline = time.monotonic() + limit_s
        while not until(status := self.status()):
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.name} is not {what} after {limit_s:.0f} s: {status}")
            time.sleep(0.001)
        return status

    def burst(self, load: Load, count: int) -> Measured:
        """Sends this number of requests at once. Workers of the previous burst stay."""
        options: dict[str, Any] = {"connections": count, "count": 1, "pause_ms": 0, "keep_workers": True}
        options |= {"path": self.app.path} if self.app.path else {"data": json.dumps(self.app.event)}
        return load.function("burst", self.daemon.control_endpoint, self.name, **options)


@dataclass
class Bench:
    """`missing` lists what cannot be measured on this machine."""

    binary: Path
    home: Path
    traces: Path
    effort: Effort
    engine: Engine | None
    only: tuple[str, ...]
    missing: list[str] = field(default_factory=list)
    _daemons: dict[bool, Daemon] = field(default_factory=dict)
    _stack: ExitStack = field(default_factory=ExitStack)

    def __post_init__(self) -> None:
        self.load = Load(self.binary)
        self.images = Images(self.engine, self.home) if self.engine else None

    def __enter__(self) -> Bench:
        if self.engine:
            self._stack.callback(self.engine.clear)
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    @property
    def kinds(self) -> tuple[str, ...]:
        return self.only if self.engine else tuple(kind for kind in self.only if kind != "container")

    def daemon(self, keeps: bool) -> Daemon:
        """A daemon, which is started at the first use."""
        if keeps not in self._daemons:
            home = self.home / ("keeps" if keeps else "keeps-none")
            home.mkdir()
            daemon = Daemon(self.binary, home)
            settings = [f'container_engine = "{self.engine.address}"'] if self.engine else []
            settings += ["[log]", 'level = "warn"'] + ([] if keeps else ["[limits]", "runtimes = 0"])
            daemon.config.write_text("\n".join(settings) + "\n")
            self._daemons[keeps] = self._stack.enter_context(daemon)
        return self._daemons[keeps]

    def serve(self, app: App, way: Way, **more: Any) -> Served:
        """Deploys a function that is served in this way."""
        daemon = self.daemon(way.keeps)
        spec = {"timeout_s": 120, "reuse": way.reuse, "scale": {"max": 200}, **app.spec, **more}
        if app.image:
            assert self.images, "without an engine no container is asked for"
            spec["image"] = self.images.get(app.image, app.runtime)
        # The ways with reuse share a daemon.
        name = f"{app.name}-{way.name}"
        daemon.upload(name, app.files, spec)
        return Served(daemon, name, way, app)

    def all_ways(self, app: App, **more: Any) -> dict[str, Served]:
        return {way.name: self.serve(app, way, **more) for way in WAYS}

    def restore(self) -> None:
        """Removes all functions of both daemons, and starts daemons that have ended."""
        for daemon in self._daemons.values():
            daemon.restore(keep=set())

    def restart(self) -> None:
        """Removes all functions, and restarts both daemons, because runtimes of removed functions are kept for a while. Installed packages
        stay."""
        self.restore()
        self.empty()

    def empty(self) -> None:
        """Restarts both daemons with their functions, so that no runtime is kept."""
        for daemon in self._daemons.values():
            if daemon.process:
                end(daemon.process)
            daemon.start()

    def log_tails(self) -> str:
        """The ends of the daemons' logs."""
        return "\n".join(daemon.log_tail() for daemon in self._daemons.values())

    def paced(self, rounds: int) -> Iterator[int]:
        """Yields the rounds, with at least the interval between their beginnings."""
        for number in range(rounds):
            began = time.monotonic()
            yield number
            time.sleep(max(0.0, began + self.effort.interval_s - time.monotonic()))
