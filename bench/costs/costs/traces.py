"""Generated traces in the form of Huawei's request tables, and how the columns of one are read.

Durations are log-normal with the mean of the published traces (58.19 ms). Utilisations of CPU and memory are those of two normal
variables with a correlation, pressed into (0, 1). They are a model: what the figures say of them is what was put in.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from math import erf, log, sqrt
from pathlib import Path

HEADER = "time_worker,podID,runtimeCost,cpu_usage,memory_usage,requestBodySize\n"
POOLS = ((300, 128), (400, 256), (600, 512), (1000, 1024))
MEAN_S, SIGMA = 0.05819, 1.4
CORRELATION = 0.58
# The share of requests by pool, and of the mean of a utilisation.
WEIGHTS = (70, 15, 10, 5)
SHIFT_CPU, SHIFT_MEMORY = -0.4, -0.7


@dataclass(frozen=True)
class Request:
    at_s: float
    cpu_milli: int
    memory_mb: int
    duration_s: float
    cpu_share: float
    memory_share: float

    @property
    def row(self) -> str:
        cpus, used_mb = self.cpu_share * self.cpu_milli / 1000, self.memory_share * self.memory_mb
        pod = f"pool22-{self.cpu_milli}-{self.memory_mb}-0000618412"
        return f"{self.at_s:.3f},{pod},{self.duration_s:.6f},{cpus:.6f},{used_mb:.3f},512\n"


def requests(count: int, seed: int = 1) -> Iterator[Request]:
    draw = random.Random(seed)
    at = 0.0
    for _ in range(count):
        at += draw.expovariate(200)
        cpu_milli, memory_mb = draw.choices(POOLS, WEIGHTS)[0]
        one = draw.gauss(0, 1)
        other = CORRELATION * one + sqrt(1 - CORRELATION**2) * draw.gauss(0, 1)
        duration = draw.lognormvariate(log(MEAN_S) - SIGMA**2 / 2, SIGMA)
        shares = (0.5 * (1 + erf(value / sqrt(2))) for value in (one + SHIFT_CPU, other + SHIFT_MEMORY))
        yield Request(at, cpu_milli, memory_mb, max(duration, 0.001), *shares)


def write(path: Path, count: int) -> Path:
    with path.open("w") as file:
        file.write(HEADER)
        file.writelines(request.row for request in requests(count))
    return path


@dataclass(frozen=True)
class Pod:
    """A worker: what its start took, and each of its requests, seconds."""

    name: str
    start_s: float
    requests_s: tuple[float, ...]


def pods(count: int, seed: int = 2) -> Iterator[Pod]:
    """Most workers serve few requests: the number is geometric with a mean that differs between functions."""
    draw = random.Random(seed)
    for number in range(count):
        cpu_milli, memory_mb = draw.choices(POOLS, WEIGHTS)[0]
        mean = draw.lognormvariate(log(20), 1.8)
        served = 1 + int(draw.expovariate(1 / mean))
        start = draw.lognormvariate(log(0.6), 0.9)
        scale = draw.lognormvariate(log(MEAN_S), 1.0)
        requests_s = tuple(draw.lognormvariate(log(scale), 0.5) for _ in range(min(served, 2000)))
        yield Pod(f"pool22-{cpu_milli}-{memory_mb}-{number:010}", start, requests_s)


def write_pods(folder: Path, generated: list[Pod]) -> tuple[Path, Path]:
    """The request table and the table of cold starts, with the columns of Huawei's that are read and one more."""
    requests, starts = folder / "requests.csv", folder / "starts.csv"
    with requests.open("w") as file:
        file.write(HEADER)
        for pod in generated:
            file.writelines(f"1,{pod.name},{took:.6f},0.1,10,512\n" for took in pod.requests_s)
    with starts.open("w") as file:
        file.write("day,totalCost_cold_start,podID\n")
        file.writelines(f"30,{pod.start_s:.6f},{pod.name}\n" for pod in generated)
    return requests, starts
