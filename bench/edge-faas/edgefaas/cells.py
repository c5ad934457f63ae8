"""The cells that run on the daemon: a workload, a policy, a start cost, with or without the template. Each run of a cell is a trial."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomllib

PROFILES = Path(__file__).resolve().parent.parent / "profiles"
IDLE_S = 6.0
# The daemon's default.
RULE = "expected"

# The paper's five policies, a static pool of one worker, and ours.
POLICIES = ("static:1", "static:15", "reactive", "cusum", "adaptive-cusum", "arima", "auto")
# Delay after the fork, ms: none, the paper's start with copy-on-write, and the paper's start without it.
STARTS_MS = (0, 100, 900)
INTERVALS_S = (5, 10, 20, 35, 60, 120)


@dataclass(frozen=True)
class Workload:
    name: str
    profile: str
    overrides: tuple[str, ...] = ()
    functions: int = 1

    @property
    def path(self) -> Path:
        return PROFILES / f"{self.profile}.toml"

    def duration_s(self) -> float:
        """The duration according to the profile."""
        profile = tomllib.loads(self.path.read_text())
        if "trace" in profile:
            return 60.0 * float(profile["trace"].get("minutes", 1440))
        replaced = dict(entry.split("=", 1) for entry in self.overrides)
        repeat = int(replaced.get("repeat", profile.get("repeat", 1)))
        total = 0.0
        for phase in profile["phases"]:
            length: Any = replaced.get(f"{phase['name']}.duration_s", phase["duration_s"])
            total += sum(length) if isinstance(length, list) else repeat * float(length)
        return total


BURSTY_RAMP = Workload("bursty-ramp", "bursty-ramp")
STEP = Workload("step", "step")
BUSIEST_TEN = Workload("azure2019-busiest10", "azure2019-busiest10", functions=10)
SMOKE = Workload("smoke", "smoke")


def interval(seconds: int) -> Workload:
    return Workload(f"interval W={seconds}", "interval", (f"warm-up.duration_s={seconds}",))


@dataclass(frozen=True)
class Cell:
    """`rule`: the rule of starts. `alone`: no other cell runs at the same time."""

    workload: Workload
    policy: str
    start_ms: int = 0
    template: bool = True
    alone: bool = False
    rule: str = RULE

    @property
    def name(self) -> str:
        more = ("" if self.template else ", template off") + (", alone" if self.alone else "")
        more += "" if self.rule == RULE else f", {self.rule}"
        return f"{self.workload.name}, {self.policy}, start {self.start_ms} ms{more}"

    def weight(self, capacity: int) -> int:
        """Its share of the parallel trials. Without a template, a start computes for a tenth of a second."""
        return capacity if self.alone else 1 if self.template else min(capacity, 3)


@dataclass
class Outcome:
    """The outcome of one trial. Times are ms unless the name says otherwise. `beyond` is the time from the intended send time to the
    last byte, minus the function's own half second. `worker_mb` is a worker's memory at the end; `worker_seen_mb` is the mean of the
    daemon's own measurements during the load, which the forecasters use. `worker_s` is the lifetimes of all workers, added up. `cpu_busy` is the used share of the machine's CPUs;
    `cpu_pressure` is the share of the time in which some process waited for a CPU (0 if the kernel has no such data). `lead_s`: from the
    deployment, which begins the function's ticks, to the beginning of the load. `kinds` has a letter for each time in `beyond`, w(arm) or
    c(old). `start_mean` is of the starts during the load, `forks` of all. `build`: the beginning of the SHA-256 of the measured binary."""

    cell: str
    trial: int
    requests: int = 0
    failed: int = 0
    over_700: int = 0
    cold: int = 0
    cold_wait_s: float = 0.0
    over_700_by_cycle: list[int] = field(default_factory=list)
    cold_by_cycle: list[int] = field(default_factory=list)
    beyond: list[float] = field(default_factory=list)
    kinds: str = ""
    beyond_first_cycle_max: float = 0.0
    pss_mb: float = 0.0
    pss_files_mb: float = 0.0
    pss_max_mb: float = 0.0
    rss_mb: float = 0.0
    mb_s: float = 0.0
    start_mean: float = 0.0
    last_init: float = 0.0
    service_mean: float = 0.0
    forks: int = 0
    worker_s: float = 0.0
    worker_mb: float = 0.0
    worker_seen_mb: float = 0.0
    lag_p99: float = 0.0
    seconds: float = 0.0
    lead_s: float = 0.0
    build: str = ""
    cpu_busy: float = 0.0
    cpu_pressure: float = 0.0
    load_average: float = 0.0
    error: str | None = None

    @property
    def wait_s(self) -> float:
        """The sum of the waits beyond the function's half second, cold or queued, as measured by the client."""
        return sum(value for value in self.beyond if value > 0) / 1e3

    @property
    def over_50_share(self) -> float:
        """The share of the requests, in percent, that took more than 50 ms beyond the function's half second. It tells policies apart where
        a start takes 100 ms: there, nothing is over 700 ms."""
        return 100 * sum(value > 50 for value in self.beyond) / max(len(self.beyond), 1)
