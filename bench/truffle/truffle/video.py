"""The paper's Figure 10: streaming, decoding and recognition of a clip. The decoder hands the frames to eight invocations and gathers their
answers. All workers are cold. The sides and the ways are those of `chained`.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from benchlib.daemon import invoke_path
from benchlib.report import Bar, Report
from benchlib.stats import Estimate
from benchlib.store import BUCKET, signed

from .cells import HEADER, RATIO_MAX, Cell, turn_order
from .setting import Setting
from .world import DIRECT, FUNCTIONS, KVS, LOCATIONS, SIDES, STORES, Seen, World, retire

STEPS = ("streaming", "decode", "recognise")
REQUIREMENTS = b"av==15.1.0\nnumpy==2.3.5\n"
# Seconds of the clip; its bytes follow from the rate.
CLIPS, BITS_PER_S = (4, 16), 4_000_000


def measure(setting: Setting) -> Report:
    report = Report("video", "streaming, decoding and recognition of a clip", ["way, clip", "after", "overlap", HEADER[5]])
    lengths = (1,) if setting.is_smoke else CLIPS
    cells = {(way, length): Cell({"way": way, "seconds": length}) for way in STORES for length in lengths}
    frames: dict[int, set[str]] = {length: set() for length in lengths}
    with setting.world() as world:
        for side in SIDES:
            deploy(world, side)
        clips = {length: film(world, length) for length in lengths}
        for turn in range(setting.turns):
            for (way, length), cell in cells.items():
                for side in turn_order(turn):
                    took, answer = analyse(world, side, way, f"clip-{length}")
                    cell.sides[side].append(Seen(took, 0.0, 0.0, 0.0))
                    frames[length].add(str(answer))
            print(f"… turn {turn + 1} of {setting.turns}", file=sys.stderr, flush=True)
    # Every way finds the same.
    if any(len(answers) != 1 for answers in frames.values()):
        raise RuntimeError(f"the answers differ: {frames}")
    for (way, length), cell in cells.items():
        ratio = cell.ratio()
        after, overlap = (Estimate.of([one.total for one in cell.sides[side]]).text(1) for side in ("after", "overlap"))
        what = f"{way}, {length} s of video, {clips[length] / 1e6:.1f} MB"
        report.rows.append([what, f"{after} ms", f"{overlap} ms", f"{ratio.text()}, {ratio.n}"])
        report.bars.append(Bar(f"{what}: ratio", f"≤ {RATIO_MAX}", f"{ratio.mean:.3f}", ratio.mean <= RATIO_MAX))
    report.notes.append("the whole at the client, means with 95 % intervals; all ways found the same classes")
    report.data = [{**cell.to_json(), "clip_bytes": clips[length]} for (_, length), cell in cells.items()]
    return report


def name_of(step: str, way: str) -> str:
    return f"{step}-{way}"


def deploy(world: World, side: str) -> None:
    daemon = world.daemon(side)
    folder = FUNCTIONS / "video"
    for way in STORES:
        of_way = event_of(world, side, way)
        for step in STEPS:
            files = {"passing.py": (FUNCTIONS / "passing.py").read_bytes(), "app.py": (folder / f"{step}.py").read_bytes()}
            spec: dict[str, Any] = {"timeout_s": 120, "memory_mb": 1024, "network": "host", "invokes": ["*"]}
            if step == "streaming":
                spec["inputs"] = {"clip": LOCATIONS["s3"]}
            else:
                files["requirements.txt"] = REQUIREMENTS
                spec["inputs"] = {} if way == DIRECT and side == "overlap" else {"x": LOCATIONS[way]}
            if step == "decode" and of_way["way"] == "http":
                spec["environment"] = {"EVENT": json.dumps(of_way)}
            daemon.upload(name_of(step, way), files, spec)


def event_of(world: World, side: str, way: str) -> dict[str, Any]:
    """What the functions have to know about a way."""
    names = {step: name_of(step, way) for step in STEPS}
    event: dict[str, Any] = {**names, "way": way, "redis": world.redis.port, "s3": world.store.port}
    if way == DIRECT:
        event["way"] = "reference" if side == "overlap" else "http"
        event["port"] = world.daemon(side).port
        event["paths"] = {name: invoke_path(name) for name in names.values()}
    return event


def film(world: World, seconds: int) -> int:
    """Makes a clip. Returns its length."""
    daemon = world.daemon("after")
    folder = FUNCTIONS / "video"
    files = {"passing.py": (FUNCTIONS / "passing.py").read_bytes(), "app.py": (folder / "film.py").read_bytes()}
    spec = {"timeout_s": 120, "memory_mb": 1024, "network": "host", "invokes": ["*"]}
    daemon.upload("film", {**files, "requirements.txt": REQUIREMENTS}, spec)
    event = {"seconds": seconds, "bits_per_s": BITS_PER_S, "s3": world.store.port, **put_of(world, f"clip-{seconds}")}
    answer = daemon.invoke("film", event)
    if not isinstance(answer, dict) or "bytes" not in answer:
        raise RuntimeError(f"film: {answer!r}")
    return int(answer["bytes"])


def put_of(world: World, key: str) -> dict[str, Any]:
    """A PUT of an object."""
    path = f"/{BUCKET}/{key}"
    return {"key": key, "path": path, "headers": signed(f"127.0.0.1:{world.store.port}", path, time.gmtime())}


def analyse(world: World, side: str, way: str, clip: str) -> tuple[float, Any]:
    """Milliseconds, and the classes of the frames."""
    daemon = world.daemon(side)
    for step in STEPS:
        retire(daemon, name_of(step, way))
    number = time.monotonic_ns()
    puts = {name: put_of(world, f"{name}-{number}" if way != KVS else name) for name in ("clip", "frames")}
    began = time.perf_counter()
    answer = daemon.invoke(name_of("streaming", way), {**event_of(world, side, way), "key": clip, "puts": puts})
    took = (time.perf_counter() - began) * 1000
    if not isinstance(answer, dict) or not answer.get("classes"):
        raise RuntimeError(f"{way}, {side}: {answer!r}")
    return took, answer
