"""What the experiments share: the binary, a folder, the data, and how much is done."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Effort:
    """`requests`: of the generated trace. `rows`: of the trace whose rate is measured. `runs`, `seconds`: of the profiler per setting."""

    requests: int
    rows: int
    runs: int
    seconds: int
    settings: int


FULL = Effort(requests=200_000, rows=20_000_000, runs=5, seconds=10, settings=4)
SMOKE = Effort(requests=5_000, rows=50_000, runs=1, seconds=2, settings=1)


@dataclass(frozen=True)
class Bench:
    binary: Path
    home: Path
    data: Path
    effort: Effort
    rows: int

    @property
    def published(self) -> Path:
        """The paper's data, where they are at hand."""
        return self.data / "serverless_costs"
