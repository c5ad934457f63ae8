"""Services that are written for shared memory (the paper's Fig. 13 and 14): a shard of a vector database and one of a cache, which take
their state from a peer. With a script, the state is used where it lies, or copied.
"""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass
from typing import Any

from benchlib.daemon import free_port
from benchlib.report import Bar, Report

from . import made
from .measure import HEADER, NOTES, Cell
from .sebs import DISTANCES_MS
from .world import CONTAINER, PROGRAM, Seen, World, service

MIN = 1.75
SHARED, COPIED, WITHOUT = WAYS = ("shared", "copied", "without")


@dataclass(frozen=True)
class Service:
    """A program, what it asks its peer for, the peer's shard, and an event."""

    name: str
    path: str
    shard: bytes
    event: dict[str, Any]


def measure(world: World) -> Report:
    few = world.is_smoke
    some = random.Random(7)
    # The paper's sizes: 9.2 MB and 15 MB.
    vectors = made.vectors(100 if few else 4480, 512)
    entries = [(b"key-%d" % at, some.randbytes(1000)) for at in range(100 if few else 14_500)]
    services = [
        Service("vecdb", "/shard-0", made.shard([(b"shard-0", vectors)]), {"seed": 7}),
        Service("cached", "/shard", made.shard(entries), {"entry": 42}),
    ]
    services = services[:1] if few else services
    # The engine before the relays and the daemons, which it outlives.
    kinds = world.kinds((PROGRAM, CONTAINER))
    if CONTAINER in kinds:
        world.make_image(services=True)
    for one in services:
        deploy(world, one, kinds)
    seen: dict[tuple[str, str, float, str], list[Seen]] = {}
    for round_trip_ms in DISTANCES_MS[1:] if few else DISTANCES_MS:
        world.distance(round_trip_ms)
        for turn in range(world.turns):
            for one in services:
                for kind in kinds:
                    for way in (*WAYS[turn % 3 :], *WAYS[: turn % 3]):
                        cold = world.cold(world.daemon(kind), f"{one.name}-{kind}-{way}", one.event)
                        check(cold, way)
                        seen.setdefault((one.name, kind, round_trip_ms, way), []).append(cold)
            print(f"… {round_trip_ms:g} ms: turn {turn + 1} of {world.turns}", file=sys.stderr, flush=True)
    return reported(world, seen)


def deploy(world: World, one: Service, kinds: list[str]) -> None:
    """The peer, and the service in each kind and way."""
    shard = world.home / f"{one.name}.shard"
    shard.write_bytes(one.shard)
    port = free_port()
    world.start([service("cached"), str(port), shard], port)
    peer = f"127.0.0.1:{world.relay(port).port}"
    for kind in kinds:
        for way in WAYS:
            world.deploy(
                world.daemon(kind),
                f"{one.name}-{kind}-{way}",
                one.name,
                None if way == WITHOUT else "shard",
                [f"http://{peer}"],
                kind=kind,
                script_input=f"http://{peer} {one.path}",
                environment={"PEER": peer, **({"COPY": "1"} if way == COPIED else {})},
            )


def check(seen: Seen, way: str) -> None:
    if seen.answer["by"] != ("service" if way == WITHOUT else "script"):
        raise RuntimeError(f"{way}: the state is by the {seen.answer['by']}")


def reported(world: World, seen: dict[tuple[str, str, float, str], list[Seen]]) -> Report:
    for name in {name for name, *_ in seen}:
        results = {str(one.answer["result"]) for key, values in seen.items() if key[0] == name for one in values}
        if len(results) != 1:
            raise RuntimeError(f"{name} has answered differently: {results}")
    report = Report("services", "services that are written for shared memory, without and with an initscript", HEADER)
    for (name, kind, round_trip_ms, way), with_script in seen.items():
        if way == WITHOUT:
            continue
        sides = {"with": with_script, "without": seen[name, kind, round_trip_ms, WITHOUT]}
        cell = Cell(f"{name}, {way}", kind, round_trip_ms, True, sides)
        report.rows.append(cell.row())
        report.data = [*(report.data or []), cell.to_json()]
        if way == SHARED:
            mean = cell.begun_ratio()
            report.bars.append(Bar(f"{cell.title}: without ÷ with", f"≥ {MIN}", f"{mean:.2f}", mean >= MIN))
    report.notes = [
        *NOTES,
        "shared: the message is used where it lies; copied: each vector or entry becomes an allocation. The peer of both is a cached behind "
        "the relay",
        *loads(seen),
        *world.skips,
    ]
    return report


def loads(seen: dict[tuple[str, str, float, str], list[Seen]]) -> list[str]:
    """What copying costs, over all kinds and distances: copied ÷ shared."""
    said = []
    for name in dict.fromkeys(name for name, *_ in seen):
        loaded: dict[str, list[float]] = {way: [] for way in WAYS}
        for (of, _, _, way), values in seen.items():
            if of == name:
                loaded[way] += [one.answer["measurement"]["load_time"] / 1000 for one in values]
        middle = {way: sorted(values)[len(values) // 2] for way, values in loaded.items()}
        said.append(
            f"{name}: loading takes {middle[SHARED]:.3f} ms from shared memory, {middle[COPIED]:.2f} ms with copies (medians)"
        )
    return said
