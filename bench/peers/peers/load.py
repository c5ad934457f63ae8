"""`bench/loadgen`, and putting the samples of several turns together."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Measured:
    """Times are µs, in the order in which they were taken."""

    first_byte: list[float] = field(default_factory=list)
    rounds: list[float] = field(default_factory=list)
    requests: int = 0
    seconds: float = 0.0
    headers: dict[str, int] = field(default_factory=dict)
    phases_p50: dict[str, float] = field(default_factory=dict)

    def p(self, percent: float) -> float:
        return percentile(self.first_byte, percent)

    @property
    def per_second(self) -> float:
        return self.requests / self.seconds

    def add(self, other: Measured) -> None:
        self.first_byte += other.first_byte
        self.rounds += other.rounds
        self.requests += other.requests
        self.seconds += other.seconds
        for value, count in other.headers.items():
            self.headers[value] = self.headers.get(value, 0) + count
        self.phases_p50 = other.phases_p50 or self.phases_p50


def percentile(samples: list[float], percent: float) -> float:
    """The smallest sample that so many percent do not exceed."""
    ordered = sorted(samples)
    if not ordered:
        raise RuntimeError("nothing was measured")
    return ordered[min(len(ordered) - 1, max(0, -(-len(ordered) * percent // 100).__int__() - 1))]


class Load:
    def __init__(self, binary: Path) -> None:
        self.binary = binary

    def run(self, address: str, request: str, *, body: str = "", **options: Any) -> Measured:
        """One turn. Options are loadgen's, `_` for `-`; True is a flag."""
        command = [str(self.binary), "--address", address, "--request", request, "--body", body, "--samples"]
        command += ["--count-header", "x-pilot-start"]
        for name, value in options.items():
            if value is not None and value is not False:
                command.append("--" + name.replace("_", "-"))
                if value is not True:
                    command.append(str(value))
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        if done.returncode != 0:
            raise RuntimeError(f"loadgen: {done.stderr.strip()}")
        answer = json.loads(done.stdout)
        wrong = {status: count for status, count in answer["status"].items() if not status.startswith("2")}
        if wrong:
            raise RuntimeError(f"{request} at {address}: {wrong} {answer.get('first_problem')}")
        return Measured(
            first_byte=answer["first_byte_us"]["samples"],
            rounds=answer.get("round_us", {}).get("samples", []),
            requests=answer["complete_us"]["count"],
            seconds=answer["seconds"],
            headers=answer.get("headers", {}).get("x-pilot-start", {}),
            phases_p50={name: times["p50"] for name, times in answer.get("phases_us", {}).items()},
        )
