"""The memory of a daemon with all its processes (templates, inits, workers) during a trial. One thread samples all trials.

With several daemons in parallel, PSS divides the pages of files that all of them map (the binary, the interpreter) among them. A trial
that runs alone shows the difference (`memory`).
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

from benchlib.proc import memory, trees

MB = 1e6


@dataclass
class Memory:
    """The samples of one trial: (seconds, PSS, RSS, PSS of files), bytes."""

    samples: list[tuple[float, int, int, int]] = field(default_factory=list)

    def mean_mb(self, column: int) -> float:
        """The mean over time, by the trapezoidal rule."""
        if len(self.samples) < 2:
            return self.samples[0][column] / MB if self.samples else 0.0
        return self.mb_s(column) / (self.samples[-1][0] - self.samples[0][0])

    def mb_s(self, column: int) -> float:
        pairs = zip(self.samples, self.samples[1:])
        return sum((b[0] - a[0]) * (a[column] + b[column]) / 2 for a, b in pairs) / MB

    def max_mb(self, column: int) -> float:
        return max((sample[column] for sample in self.samples), default=0) / MB


class Sampler:
    """Samples every added daemon every `interval_s`. The lock guards the list of daemons."""

    def __init__(self, interval_s: float = 2.0) -> None:
        self.interval_s = interval_s
        self._lock = threading.Lock()
        self._watched: dict[int, Memory] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="memory")

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def add(self, daemon: int) -> Memory:
        with self._lock:
            self._watched[daemon] = Memory()
            return self._watched[daemon]

    def remove(self, daemon: int) -> None:
        with self._lock:
            self._watched.pop(daemon, None)

    def _run(self) -> None:
        while not self._ended.wait(self.interval_s):
            with self._lock:
                watched = dict(self._watched)
            if not watched:
                continue
            for ancestor, members in trees(set(watched)).items():
                total = memory(members)
                if total.pss:
                    watched[ancestor].samples.append((time.monotonic(), *total))
