"""Image recognition that takes its task from a queue (the paper's Fig. 10): in Python on onnxruntime, and as WebAssembly in Node.js."""

from __future__ import annotations

import sys

from benchlib.report import Bar, Report

from . import made
from .measure import HEADER, NOTES, SIDES, Cell, turn_order
from .sebs import DISTANCES_MS, FORK_FAR_MIN
from .world import ACCOUNT, BUCKET, CONTAINER, FORK, FRESH, KINDS, MODEL_PACKAGES, NODE, QUEUE, World, network

BOTH_MIN = 1.81
# The paper's size, 4.9 MB. An odd width, so that no place of the small image is on the border of two pixels.
IMAGE = (1601, 1030)
IMAGE_KEY, WEIGHTS_KEYS = "in/photo.png", {"imgrec-py": "in/weights.onnx", "imgrec-wasm": "in/weights"}


def measure(world: World) -> Report:
    # Both servers, before the daemon's configuration names their relays.
    queues, address = world.queues, f"http://127.0.0.1:{world.tasks.port}"
    numbers = made.weights()
    world.store.put(WEIGHTS_KEYS["imgrec-wasm"], numbers)
    world.store.put(WEIGHTS_KEYS["imgrec-py"], made.network(numbers))
    world.store.put(IMAGE_KEY, made.image(400, 300) if world.is_smoke else made.image(*IMAGE))
    kinds = world.kinds((FORK, NODE) if world.is_smoke else KINDS)
    if CONTAINER in kinds:
        world.make_image(["requirements.txt", MODEL_PACKAGES])
    for kind in kinds:
        for side in SIDES:
            world.deploy(
                world.daemon(kind, with_queues=True),
                f"imgrec-{kind}-{side}",
                "imgrec",
                "imgrec" if side == "with" else None,
                [f"sqs://jobs/{QUEUE}", f"s3://{BUCKET}"],
                kind=kind,
                files={"network.wasm": network().read_bytes()} if kind == NODE else {},
                environment={"QUEUES": address, "QUEUE": f"{address}/{ACCOUNT}/{QUEUE}"},
            )
    cells = []
    for round_trip_ms in DISTANCES_MS[1:] if world.is_smoke else DISTANCES_MS:
        world.distance(round_trip_ms)
        here = [Cell(name_of(kind), kind, round_trip_ms, True, {side: [] for side in SIDES}) for kind in kinds]
        for turn in range(world.turns):
            for cell in here:
                for side in turn_order(turn):
                    queues.send({"key": IMAGE_KEY, "weights": WEIGHTS_KEYS[cell.name]})
                    seen = world.cold(world.daemon(cell.kind), f"imgrec-{cell.kind}-{side}", {})
                    by = seen.answer["claimed_by"]
                    if by != {"with": "script", "without": "function"}[side]:
                        raise RuntimeError(f"{cell.title}, {side}: the task was taken by the {by}")
                    cell.sides[side].append(seen)
            print(f"… {round_trip_ms:g} ms: turn {turn + 1} of {world.turns}", file=sys.stderr, flush=True)
        cells += here
    return reported(world, cells)


def name_of(kind: str) -> str:
    return "imgrec-wasm" if kind == NODE else "imgrec-py"


def reported(world: World, cells: list[Cell]) -> Report:
    classes = {seen.answer["result"] for cell in cells for side in SIDES for seen in cell.sides[side]}
    if len(classes) != 1:
        raise RuntimeError(f"the image is of several classes: {sorted(classes)}")
    report = Report("imgrec", "image recognition with a task from a queue, without and with an initscript", HEADER)
    report.rows = [cell.row() for cell in cells]
    report.notes = [
        *NOTES,
        "the queue is moto's server. imgrec-py: onnxruntime, 13.3 MB of weights. imgrec-wasm: the same network and a decoder of PNG, compiled "
        "from Rust to WebAssembly, in a worker of Node.js. All of them found the same class",
        *world.skips,
    ]
    least = {(FORK, 10.0): FORK_FAR_MIN}
    least |= {(kind, distance): BOTH_MIN for kind in (FRESH, CONTAINER, NODE) for distance in DISTANCES_MS}
    for cell in cells:
        if (cell.kind, cell.round_trip_ms) in least:
            bar = least[cell.kind, cell.round_trip_ms]
            mean = cell.begun_ratio()
            report.bars.append(Bar(f"{cell.title}: without ÷ with", f"≥ {bar}", f"{mean:.2f}", mean >= bar))
    report.data = [cell.to_json() for cell in cells]
    return report
