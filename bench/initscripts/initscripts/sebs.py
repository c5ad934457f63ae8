"""Functions in the manner of SeBS with their storage at a distance (the paper's Fig. 9), in forked workers, fresh interpreters and containers,
and one for Node.js.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import Any

from benchlib.report import Bar, Report
from benchlib.stats import Ratio

from . import made
from .measure import HEADER, NOTES, SIDES, Cell, turn_order
from .world import BUCKET, CONTAINER, FORK, FRESH, KINDS, MODEL_PACKAGES, World

DISTANCES_MS = (0.5, 10.0)
# The paper's averages, and the bars of issue 14.
FRESH_MIN, FORK_FAR_MIN, SHARE_MIN, SLOWER_MAX = 1.67, 1.48, 0.95, 1.02


@dataclass(frozen=True)
class Function:
    """A function, its event, and the objects that it needs."""

    code: str
    event: dict[str, Any]
    objects: dict[str, bytes]
    kinds: tuple[str, ...] = (FORK, FRESH, CONTAINER)


def functions(is_smoke: bool) -> list[Function]:
    image = made.image(400, 300) if is_smoke else made.image(1600, 1030)
    # The package for images is large, and imgrec is in the smoke run for Node.js, too.
    kinds = (FORK, FRESH) if is_smoke else KINDS
    few = [
        Function("thumbnail", {"bucket": BUCKET, "object": {"key": "in/image.png"}}, {"in/image.png": image}, kinds),
        Function(
            "dynamic_html", {"username": "ada", "random_len": 1000}, {}, (FORK,) if is_smoke else (FORK, FRESH, CONTAINER)
        ),
    ]
    if is_smoke:
        return few
    model = {"in/weights.onnx": made.network(made.weights()), "in/image.png": image}
    files = {f"in/file-{at}": os.urandom(1 << 20) for at in range(3)}
    return [
        *few,
        Function("compression", {"bucket": BUCKET, "object": {"keys": list(files)}}, files),
        Function("dna", {"bucket": BUCKET, "object": {"key": "in/dna.fasta"}}, {"in/dna.fasta": made.fasta(200_000)}),
        Function("graph", {"size": 10_000}, {}),
        Function("recognition", {"bucket": BUCKET, "object": {"keys": list(model)}}, model),
    ]


def measure(world: World) -> Report:
    all_functions = functions(world.is_smoke)
    kinds = world.kinds((FORK, FRESH) if world.is_smoke else KINDS)
    if CONTAINER in kinds:
        world.make_image(["requirements.txt", MODEL_PACKAGES])
    plan = [(function, kind) for function in all_functions for kind in kinds if kind in function.kinds]
    for function in all_functions:
        for key, body in function.objects.items():
            world.store.put(key, body)
    for function, kind in plan:
        for side in SIDES:
            script = "objects" if side == "with" else None
            name = name_of(function, kind, side)
            world.deploy(world.daemon(kind), name, function.code, script, [f"s3://{BUCKET}"], kind=kind)
        print(f"… {function.code}, {kind}, is deployed", file=sys.stderr, flush=True)
    cells = []
    for round_trip_ms in DISTANCES_MS[1:] if world.is_smoke else DISTANCES_MS:
        world.distance(round_trip_ms)
        here = [
            (Cell(function.code, kind, round_trip_ms, bool(function.objects), {side: [] for side in SIDES}), function.event)
            for function, kind in plan
        ]
        for turn in range(world.turns):
            for (cell, event), (function, kind) in zip(here, plan):
                for side in turn_order(turn):
                    cell.sides[side].append(world.cold(world.daemon(kind), name_of(function, kind, side), event))
            print(f"… {round_trip_ms:g} ms: turn {turn + 1} of {world.turns}", file=sys.stderr, flush=True)
        cells += [cell for cell, _ in here]
    report = Report("sebs", "start of functions in the manner of SeBS, without and with an initscript", HEADER)
    report.rows = [cell.row() for cell in cells]
    report.notes = [*NOTES, *world.skips]
    report.bars = bars(cells)
    report.data = [cell.to_json() for cell in cells]
    return report


def name_of(function: Function, kind: str, side: str) -> str:
    return f"{function.code.replace('_', '-')}-{kind}-{side}"


def bars(cells: list[Cell]) -> list[Bar]:
    """Those of the issue: means of the functions that fetch, what the longer part allows, and nothing slower."""
    found = []
    slow = [(kind, distance, FRESH_MIN) for kind in (FRESH, CONTAINER) for distance in DISTANCES_MS]
    for kind, round_trip_ms, least in [*slow, (FORK, 10.0, FORK_FAR_MIN)]:
        chosen = [cell for cell in cells if (cell.kind, cell.round_trip_ms) == (kind, round_trip_ms) and cell.fetches]
        ratios = [ratio for cell in chosen for ratio in cell.ratios(lambda one: one.begun)]
        if ratios:
            mean = Ratio.of(ratios).mean
            what = f"{kind}, {round_trip_ms:g} ms: mean of those that fetch"
            found.append(Bar(what, f"≥ {least}", f"{mean:.2f}", mean >= least))
    for cell in cells:
        ratio = Ratio.of(cell.ratios(lambda one: one.total))
        slower = 1 / ratio.mean
        # What noise explains is not slower.
        is_slower = 1 / ratio.high > SLOWER_MAX
        found.append(Bar(f"{cell.title}: with ÷ without", f"≤ {SLOWER_MAX}", f"{slower:.3f}", not is_slower))
        share = cell.share() if cell.fetches else None
        if share is not None:
            found.append(Bar(f"{cell.title}: share", f"≥ {SHARE_MIN}", f"{share:.2f}", share >= SHARE_MIN))
    return found
