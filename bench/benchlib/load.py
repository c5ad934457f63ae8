"""Runs `pilot bench`, and combines the samples of several turns."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .pilot import ask
from .stats import percentile


@dataclass
class Measured:
    """Times are µs, in the order of the requests."""

    first_byte: list[float] = field(default_factory=list)
    complete: list[float] = field(default_factory=list)
    rounds: list[float] = field(default_factory=list)
    requests: int = 0
    seconds: float = 0.0
    starts: dict[str, int] = field(default_factory=dict)
    phases_p50: dict[str, float] = field(default_factory=dict)

    def p(self, percent: float) -> float:
        return percentile(self.first_byte, percent)

    @property
    def per_second(self) -> float:
        return self.requests / self.seconds

    def add(self, other: Measured) -> None:
        self.first_byte += other.first_byte
        self.complete += other.complete
        self.rounds += other.rounds
        self.requests += other.requests
        self.seconds += other.seconds
        for kind, count in other.starts.items():
            self.starts[kind] = self.starts.get(kind, 0) + count
        self.phases_p50 = other.phases_p50 or self.phases_p50


class Load:
    """The load client: `pilot bench` of the measured binary."""

    def __init__(self, binary: Path) -> None:
        self.binary = binary

    def function(self, kind: str, endpoint: str, name: str, **options: Any) -> Measured:
        """One turn of `pilot bench KIND` on a function. The options are those of the command, with `_` for `-`; True is a flag."""
        return self._run([kind, name, "--endpoint", endpoint], options)

    def url(self, url: str, **options: Any) -> Measured:
        """One turn of `pilot bench warm` on any server."""
        return self._run(["warm", "--url", url], options)

    def _run(self, what: list[str], options: dict[str, Any]) -> Measured:
        command = ["bench", *what, "--samples"]
        for name, value in {"warm_up": 0, **options}.items():
            if value is not None and value is not False:
                command.append("--" + name.replace("_", "-"))
                if value is not True:
                    command.append(str(value))
        answer = ask(self.binary, *command, limit_s=300)
        return Measured(
            first_byte=answer["samples"]["first_byte_us"],
            complete=answer["samples"]["complete_us"],
            rounds=answer["samples"]["round_us"],
            requests=answer["complete_us"]["count"],
            seconds=answer["seconds"],
            starts=answer.get("start", {}),
            phases_p50={phase["name"]: phase["p50"] for phase in answer.get("phases", [])},
        )
