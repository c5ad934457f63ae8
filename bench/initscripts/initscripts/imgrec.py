"""Image recognition that takes its task from a queue (the paper's Fig. 10, and Fig. 15 on forked workers)."""

from __future__ import annotations

import sys

from benchlib.report import Bar, Report

from . import made
from .measure import HEADER, NOTES, SIDES, Cell, geometric, turn_order
from .sebs import DISTANCES_MS, FORK_FAR_MIN, KINDS
from .world import ACCOUNT, BUCKET, QUEUE, World

FRESH_MIN = 1.81
# The paper's sizes: 13.3 MB of weights, an image of 4.9 MB.
WEIGHTS, IMAGE = 768 * 1024 + 1024 * 1254 + 1254 * 1000, (1600, 1030)
TASK = {"key": "in/photo.png", "weights": "in/weights"}


def measure(world: World) -> Report:
    # Both servers, before the daemon's configuration names their relays.
    queues, tasks = world.queues, world.tasks
    daemon = world.daemon(with_queues=True)
    world.store.put(TASK["weights"], made.weights(WEIGHTS))
    world.store.put(TASK["key"], made.image(400, 300) if world.is_smoke else made.image(*IMAGE))
    address = f"http://127.0.0.1:{tasks.port}"
    environment = {"QUEUES": address, "QUEUE": f"{address}/{ACCOUNT}/{QUEUE}"}
    for kind, template in KINDS.items():
        for side in SIDES:
            script = "imgrec" if side == "with" else None
            allow = [f"sqs://jobs/{QUEUE}", f"s3://{BUCKET}"]
            name = f"imgrec-{kind}-{side}"
            world.deploy(daemon, name, "imgrec", script, allow, template=template, environment=dict(environment))
    cells = []
    for round_trip_ms in DISTANCES_MS[1:] if world.is_smoke else DISTANCES_MS:
        world.distance(round_trip_ms)
        here = [Cell("imgrec", kind, round_trip_ms, True, {side: [] for side in SIDES}) for kind in KINDS]
        for turn in range(world.turns):
            for cell in here:
                for side in turn_order(turn):
                    queues.send(TASK)
                    seen = world.cold(daemon, f"imgrec-{cell.kind}-{side}", {})
                    by = seen.answer["claimed_by"]
                    if by != {"with": "script", "without": "function"}[side]:
                        raise RuntimeError(f"{cell.title}, {side}: the task was taken by the {by}")
                    cell.sides[side].append(seen)
            print(f"… {round_trip_ms:g} ms: turn {turn + 1} of {world.turns}", file=sys.stderr, flush=True)
        cells += here
    report = Report("imgrec", "image recognition with a task from a queue, without and with an initscript", HEADER)
    report.rows = [cell.row() for cell in cells]
    report.notes = [*NOTES, "the queue is moto's server; 13.3 MB of weights; the network is made up and runs on numpy"]
    for cell in cells:
        least = {("fresh", 10.0): FRESH_MIN, ("fresh", 0.5): FRESH_MIN, ("fork", 10.0): FORK_FAR_MIN}
        if (cell.kind, cell.round_trip_ms) in least:
            bar = least[cell.kind, cell.round_trip_ms]
            mean, _ = geometric(cell.ratios(lambda one: one.begun))
            report.bars.append(Bar(f"{cell.title}: without ÷ with", f"≥ {bar}", f"{mean:.2f}", mean >= bar))
    report.data = [cell.to_json() for cell in cells]
    return report
