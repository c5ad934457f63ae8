"""On the fastest setup, workers that are forked from a template (the paper's Fig. 15): an input that the request names, and weights that all
requests share.
"""

from __future__ import annotations

import base64
import sys
from dataclasses import dataclass, field
from typing import Any

from benchlib.report import Bar, Report

from . import made
from .measure import HEADER, NOTES, SIDES, Cell, turn_order
from .world import BUCKET, FORK, World, script_of

INPUT_MIN, SHARED_MIN = 1.48, 5.0
ROUND_TRIP_MS = 10.0
WEIGHTS_KEY, IMAGE_KEY, LARGE_KEY = "in/weights.onnx", "in/photo.png", "in/large.png"
# The paper's 10 MB, and its 4.9 MB.
LARGE, IMAGE = (1871, 1782), (1601, 1030)
ALLOW = [f"s3://{BUCKET}"]


@dataclass(frozen=True)
class Case:
    """A function, what its scripts fetch, and the bar."""

    name: str
    code: str
    event: dict[str, Any]
    bar: float
    has_own: bool = True
    is_shared: bool = False
    files: dict[str, bytes] = field(default_factory=dict)


def measure(world: World) -> Report:
    weights = made.network(made.weights())
    small = made.image(64, 48)
    cases = [
        Case(
            "recognise: an image of 10 MB",
            "recognise",
            {"object": {"key": LARGE_KEY}},
            INPUT_MIN,
            files={"weights.onnx": weights},
        ),
        Case("classify: shared weights", "classify", {"image": base64.b64encode(small).decode()}, SHARED_MIN, False, True),
        Case("classify: shared weights, an image of 4.9 MB", "classify", {"object": {"key": IMAGE_KEY}}, INPUT_MIN, True, True),
    ]
    cases = cases[1:2] if world.is_smoke else cases
    world.store.put(WEIGHTS_KEY, weights)
    world.store.put(IMAGE_KEY, small if world.is_smoke else made.image(*IMAGE))
    world.store.put(LARGE_KEY, small if world.is_smoke else made.image(*LARGE))
    for at, case in enumerate(cases):
        for side in SIDES:
            deploy(world, f"template-{at}-{side}", case, side == "with")
    world.distance(ROUND_TRIP_MS)
    cells = [Cell(case.name, FORK, ROUND_TRIP_MS, True, {side: [] for side in SIDES}) for case in cases]
    # The first invocation of each shared script runs it. It is measured, but it is not of a turn.
    shared_runs = {
        case.name: world.cold(world.daemon(), f"template-{at}-with", case.event).to_json()
        for at, case in enumerate(cases)
        if case.is_shared
    }
    for turn in range(world.turns):
        for at, (case, cell) in enumerate(zip(cases, cells)):
            for side in turn_order(turn):
                seen = world.cold(world.daemon(), f"template-{at}-{side}", case.event)
                wanted = {"with": "script", "without": "function"}[side] if case.is_shared else "import"
                if seen.answer["weights_by"] != wanted:
                    raise RuntimeError(f"{cell.title}, {side}: the weights are by the {seen.answer['weights_by']}")
                cell.sides[side].append(seen)
        print(f"… turn {turn + 1} of {world.turns}", file=sys.stderr, flush=True)
    report = Report("template", "on workers forked from a template, without and with initscripts", HEADER)
    report.rows = [cell.row() for cell in cells]
    first = ", ".join(f"{run['begun']:.0f} ms ({name})" for name, run in shared_runs.items())
    report.notes = [
        *NOTES,
        "recognise: the model was loaded by the template. classify: 13.3 MB of weights of S3, by a shared script or by the function itself; "
        "the image is in the event or in S3",
        f"the run of a shared script, once per node, is not in the ratios: begun after {first}",
    ]
    for cell, case in zip(cells, cases):
        mean = cell.begun_ratio()
        report.bars.append(Bar(f"{cell.title}: without ÷ with", f"≥ {case.bar:g}", f"{mean:.2f}", mean >= case.bar))
    report.data = [cell.to_json() | {"shared_run": shared_runs.get(cell.name)} for cell in cells]
    return report


def deploy(world: World, name: str, case: Case, with_scripts: bool) -> None:
    files = dict(case.files)
    spec: dict[str, Any] = {}
    if with_scripts and case.is_shared:
        files["shared.wasm"] = script_of("weights").read_bytes()
        spec["shared_initscript"] = {"module": "shared.wasm", "allow": ALLOW, "timeout_ms": 30_000, "max_age_s": 3600}
    script = "objects" if with_scripts and case.has_own else None
    world.deploy(world.daemon(), name, case.code, script, ALLOW, files=files, **spec)
