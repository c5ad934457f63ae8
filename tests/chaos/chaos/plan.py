"""Which faults happen when: a pure function of the seed and the length of a run, so that a run can be repeated."""

from __future__ import annotations

import random
from dataclasses import dataclass

# How often each kind occurs among all, and how long it lasts (s, from and to). 0: it is over at once.
KINDS: dict[str, tuple[int, float, float]] = {
    "kill": (8, 0, 0),
    "stop": (4, 0.3, 4),
    "daemon-kill": (3, 0, 0),
    "daemon-stop": (1, 0.2, 2),
    "disk-full": (2, 1, 4),
    "disk-slow": (2, 1, 4),
    "disk-error": (1, 0.5, 2),
    "clock": (1, 1, 4),
    "memory": (1, 1, 3),
    "store": (3, 1, 4),
}

# Which processes are killed and stopped (chaos/machine.py tells them apart). The spawner's end is the daemon's end.
ROLES = {"worker": 5, "template": 3, "init": 3, "leaf": 3, "program": 2, "spawner": 1}
STORE = ["cut", "stall", "truncate", "refuse"]
# These end the daemon. They stop in the middle of a run, so that one daemon lives through the other half and what it leaks is seen.
ENDS = 0.5


@dataclass(frozen=True)
class Fault:
    """One fault. `pick` (0 to 1) chooses among the processes that there are; `amount` depends on the kind."""

    at_s: float
    kind: str
    role: str
    pick: float
    lasts_s: float
    amount: float

    def ends_the_daemon(self) -> bool:
        return self.kind == "daemon-kill" or (self.kind == "kill" and self.role == "spawner")


def plan(seed: int, seconds: float, only: list[str] | None = None) -> list[Fault]:
    """The faults of a run, in order. Each kind comes once; then they come as often as their weights say."""
    rng = random.Random(f"plan {seed}")
    kinds = {kind: row for kind, row in KINDS.items() if only is None or kind in only}
    # The daemon is killed once in any case.
    faults = [Fault(seconds * ENDS / 2, "daemon-kill", "", 0, 0, 0)] if "daemon-kill" in kinds else []
    deck: list[str] = []
    first = [*kinds]
    at = 0.5
    while True:
        # One or two faults per second, often several at the same time, because most of them last longer.
        at += rng.expovariate(1.6)
        if at >= seconds:
            return sorted(faults, key=lambda fault: fault.at_s)
        if not deck:
            deck = first or [kind for kind, (weight, _, _) in kinds.items() for _ in range(weight)]
            first = []
            rng.shuffle(deck)
        kind = deck.pop()
        _, shortest, longest = kinds[kind]
        fault = Fault(at, kind, _role(rng, kind), rng.random(), rng.uniform(shortest, longest), rng.random())
        if fault.ends_the_daemon() and at > seconds * ENDS:
            continue
        faults.append(fault)


def _role(rng: random.Random, kind: str) -> str:
    if kind in ("kill", "stop"):
        return rng.choices([*ROLES], [*ROLES.values()])[0]
    return rng.choice(STORE) if kind == "store" else ""
