"""Inputs of four sizes from S3 by worker and link, and the steps of a cold invocation by store."""

from __future__ import annotations

import os
import sys
from statistics import median

from benchlib.report import Report
from benchlib.timing import timing

from .cells import HEADER, NOTES, Cell, turn_order
from .setting import Setting
from .world import CONTAINER, DIRECT, FAR, FORK, GIGABIT, KIB, LOOPBACK, MIB, NODE, S3, SIDES, STORES, Worker, cold

WORKERS = [Worker(FORK), Worker(FORK, 0.1), Worker(FORK, 0.4), Worker(NODE), Worker(CONTAINER)]
SIZES = {"1 KB": KIB, "1 MB": MIB, "16 MB": 16 * MIB, "100 MB": 100 * MIB}
LARGEST = "100 MB"
SMOKE_WORKERS, SMOKE_SIZES = [Worker(FORK), Worker(FORK, 0.1)], {"1 KB": KIB, "1 MB": MIB}
# What is over a link of its own in a smoke run, which has one.
LINKS = [LOOPBACK, GIGABIT, FAR]


def measure(setting: Setting) -> Report:
    report = Report("grid", "cold invocations with an input from S3: the fetch after the start, and during it", HEADER)
    sizes = SMOKE_SIZES if setting.is_smoke else SIZES
    cells: list[Cell] = []
    for link in [LOOPBACK] if setting.is_smoke else LINKS:
        with setting.world(link) as world:
            workers = world.kinds(SMOKE_WORKERS if setting.is_smoke else WORKERS)
            for size, length in sizes.items():
                world.store.put(key_of(size), os.urandom(length))
            names = {}
            for worker in workers:
                for side in SIDES:
                    names[worker] = world.deploy(side, worker, S3)
                    cold(world.daemon(side, worker.kind), names[worker], key_of("1 KB"), KIB)
            of_link = {
                (worker, size): Cell({"worker": worker.name, "size": size, "link": link.name})
                for worker in workers
                for size in sizes
            }
            for turn in range(setting.turns):
                for (worker, size), cell in of_link.items():
                    for side in turn_order(turn):
                        seen = cold(world.daemon(side, worker.kind), names[worker], key_of(size), sizes[size])
                        cell.sides[side].append(seen)
                print(f"… {link.name}: turn {turn + 1} of {setting.turns}", file=sys.stderr, flush=True)
            for (worker, size), cell in of_link.items():
                is_slow = worker.kind == CONTAINER or worker.delay_s > 0
                report.rows.append(cell.row())
                report.bars += cell.bars(is_long=is_slow and size == LARGEST)
            cells += of_link.values()
    report.notes += NOTES
    report.data = [cell.to_json() for cell in cells]
    return report


def key_of(size: str) -> str:
    return size.replace(" ", "-")


def life_cycle(setting: Setting) -> Report:
    """The paper's Figures 1, 7 and 8: where the time of a cold invocation with 128 MB goes, by store."""
    header = [
        "worker, store, side",
        "total",
        "start",
        "transfer",
        "of it hidden",
        "waited for the input",
        "handler and answer",
        "share of I/O",
    ]
    report = Report("lifecycle", "the steps of a cold invocation with 128 MB, by store", header)
    length = MIB if setting.is_smoke else 128 * MIB
    cells: list[Cell] = []
    with setting.world(LOOPBACK if setting.is_smoke else GIGABIT) as world:
        body = os.urandom(length)
        world.put("large", body)
        workers = world.kinds([Worker(FORK)] if setting.is_smoke else [Worker(FORK), Worker(CONTAINER)])
        of_experiment = {
            (worker, store): Cell({"worker": worker.name, "store": store}) for worker in workers for store in STORES
        }
        names = {(worker, store): [world.deploy(side, worker, store) for side in SIDES][0] for worker, store in of_experiment}
        # The client's link to the daemon, for bodies.
        ports = {(side, worker): world.linked(world.daemon(side, worker.kind).port) for side in SIDES for worker in workers}
        for turn in range(setting.turns):
            for (worker, store), cell in of_experiment.items():
                for side in turn_order(turn):
                    daemon, name = world.daemon(side, worker.kind), names[worker, store]
                    port = ports[side, worker] if store == DIRECT else 0
                    sent = body if store == DIRECT else None
                    cell.sides[side].append(cold(daemon, name, "large", length, body=sent, port=port))
            print(f"… turn {turn + 1} of {setting.turns}", file=sys.stderr, flush=True)
        cells += of_experiment.values()
    for cell in cells:
        for side in SIDES:
            seen = cell.sides[side]
            phases = [timing(one.header) for one in seen]
            waited = median(phase.get("inputs", {}).get("dur", 0.0) for phase in phases)
            served = median(sum(phase.get(name, {}).get("dur", 0.0) for name in ("handler", "answer")) for phase in phases)
            total = cell.middle(side, lambda one: one.total)
            report.rows.append(
                [
                    f"{cell.title}, {side}",
                    f"{total:.1f} ms",
                    f"{cell.middle(side, lambda one: one.start):.1f} ms",
                    f"{cell.middle(side, lambda one: one.transfer):.1f} ms",
                    f"{cell.middle(side, lambda one: one.hidden):.1f} ms",
                    f"{waited:.1f} ms",
                    f"{served:.1f} ms",
                    f"{waited / total:.0%}",
                ]
            )
        report.bars += cell.bars()
    report.notes += ["medians; the share of I/O is what waiting for the input is of the whole", *NOTES]
    report.data = [cell.to_json() for cell in cells]
    return report
