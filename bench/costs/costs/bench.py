"""What the experiments share: the binary, a folder, the data, and how much is done."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Effort:
    """How much each experiment does."""

    # Of the generated trace, and of the trace whose rate is measured.
    requests: int
    rows: int
    # Of the profiler, per setting.
    runs: int
    seconds: int
    settings: int
    # Of PyAES: requests per second, for so long each, and for so long at one rate.
    rates: tuple[float, ...]
    rate_seconds: float
    steady_seconds: float
    # Of each way of serving.
    calls: int
    # Of the meter: turns, and seconds of each.
    turns: int
    turn_seconds: int
    # Of the metered CPU time: calls of each turn.
    cpu_calls: int
    # Of each behaviour of idle workers: functions, and tries of each at each idle time, which are parts of `idle_s`.
    functions: int
    rounds: int
    idle_s: float
    idle_parts: tuple[float, ...]
    # Of a frozen worker.
    wakes: int
    reclaims: int
    swaps: bool


FULL = Effort(
    requests=200_000,
    rows=20_000_000,
    runs=5,
    seconds=10,
    settings=4,
    rates=(1, 2, 4, 6, 10, 15, 20, 30),
    rate_seconds=60,
    steady_seconds=180,
    calls=2000,
    turns=5,
    turn_seconds=5,
    cpu_calls=10_000,
    functions=10,
    rounds=10,
    idle_s=3.3,
    idle_parts=(0.2, 0.4, 0.6, 0.8, 0.9, 0.95, 1.0, 1.05, 1.1, 1.3, 1.5, 2.0),
    wakes=100,
    reclaims=5,
    swaps=True,
)
SMOKE = Effort(
    requests=5_000,
    rows=50_000,
    runs=1,
    seconds=2,
    settings=1,
    rates=(2, 10),
    rate_seconds=1,
    steady_seconds=1,
    calls=10,
    turns=1,
    turn_seconds=1,
    cpu_calls=100,
    functions=1,
    rounds=1,
    idle_s=1.0,
    idle_parts=(0.2, 3.0),
    wakes=3,
    reclaims=1,
    # The machine's swap is not for a test.
    swaps=False,
)


@dataclass(frozen=True)
class Bench:
    binary: Path
    home: Path
    data: Path
    effort: Effort
    # Of `rate`: rows, and how often.
    rows: int
    runs: int

    def folder(self, name: str) -> Path:
        """A new folder, for a daemon."""
        made = self.home / name
        made.mkdir()
        return made

    @property
    def published(self) -> Path:
        """The paper's data, where they are at hand."""
        return self.data / "serverless_costs"
