"""The paper's Figure 9: a function hands 1 to 128 MB to another one, which has to start. The ways: directly, through Redis, through S3.

`after` is what functions do without Pilotlight's parts: the body of an HTTP request, or a store from which the second function reads when it
has started. `overlap` is by reference for the direct way, and the fetch during the start for the stores. The first function is warm.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from benchlib.daemon import Daemon, invoke_path
from benchlib.report import Bar, Report
from benchlib.stats import Estimate
from benchlib.store import BUCKET, signed

from .cells import HEADER, RATIO_MAX, Cell, turn_order
from .setting import Setting
from .world import DELAYED, DIRECT, FORK, FUNCTIONS, KVS, LOCATIONS, MIB, SIDES, STORES, Seen, Worker, World, retire

SIZES = (1, 16, 64, 128)
WORKERS = (Worker(FORK), Worker(FORK, 0.4))


def measure(setting: Setting) -> Report:
    header = ["second function, way, size", "after", "overlap", HEADER[5]]
    report = Report("chained", "a function hands data to another one, which has to start", header)
    workers, sizes = (WORKERS[:1], SIZES[:1]) if setting.is_smoke else (WORKERS, SIZES)
    cells = {
        (worker, way, size): Cell({"worker": worker.name, "way": way, "MB": size})
        for worker in workers
        for way in STORES
        for size in sizes
    }
    with setting.world() as world:
        for side in SIDES:
            deploy(world, side, workers)
        for turn in range(setting.turns):
            for (worker, way, size), cell in cells.items():
                for side in turn_order(turn):
                    took = hand_over(world, side, worker, way, size * MIB)
                    cell.sides[side].append(Seen(took, 0.0, 0.0, 0.0))
            print(f"… turn {turn + 1} of {setting.turns}", file=sys.stderr, flush=True)
    for cell in cells.values():
        ratio = cell.ratio()
        after, overlap = (Estimate.of([one.total for one in cell.sides[side]]).text(1) for side in ("after", "overlap"))
        title = f"{cell.title} MB"
        row = [title, f"{after} ms", f"{overlap} ms", f"{ratio.text()}, {ratio.n}"]
        report.rows.append(row)
        report.bars.append(Bar(f"{title}: ratio", f"≤ {RATIO_MAX}", f"{ratio.mean:.3f}", ratio.mean <= RATIO_MAX))
    report.notes += [
        "measured in the first function, from data in its memory to the second one's answer; means with 95 % intervals",
        "direct: the body of an HTTP request (after), by reference (overlap). Everything is on one machine",
    ]
    report.data = [cell.to_json() for cell in cells.values()]
    return report


def second(worker: Worker, way: str) -> str:
    return f"second-{round(worker.delay_s * 1000)}-{way}"


def deploy(world: World, side: str, workers: tuple[Worker, ...]) -> None:
    daemon = world.daemon(side)
    spec: dict[str, Any] = {"timeout_s": 120, "memory_mb": 1024}
    for worker in workers:
        code = (DELAYED.format(seconds=worker.delay_s) if worker.delay_s else "") + (FUNCTIONS / "second.py").read_text()
        for way in STORES:
            is_reference = way == DIRECT and side == "overlap"
            inputs = {} if is_reference else {"x": LOCATIONS[way]}
            daemon.deploy(second(worker, way), code, inputs=inputs, **spec)
    files = {"app.py": (FUNCTIONS / "first.py").read_bytes(), "passing.py": (FUNCTIONS / "passing.py").read_bytes()}
    daemon.upload("first", files, {**spec, "network": "host", "cpu": 2, "invokes": ["second-*"]})


def hand_over(world: World, side: str, worker: Worker, way: str, size: int) -> float:
    """Milliseconds. Keys are used once, so that no cache of a server knows them."""
    daemon = world.daemon(side)
    name = second(worker, way)
    retire(daemon, name)
    event: dict[str, Any] = {"way": way, "size": size, "second": name, "key": f"passed-{time.monotonic_ns()}"}
    if way == DIRECT:
        more = {"way": "reference"} if side == "overlap" else {"way": "http", "port": daemon.port, "path": invoke_path(name)}
    elif way == KVS:
        more = {"port": world.redis.port, "key": "passed"}
    else:
        path = f"/{BUCKET}/{event['key']}"
        address = f"127.0.0.1:{world.store.port}"
        more = {"port": world.store.port, "path": path, "headers": signed(address, path, time.gmtime())}
    return took(daemon, {**event, **more})


def took(daemon: Daemon, event: dict[str, Any]) -> float:
    answer = daemon.invoke("first", event)
    if not isinstance(answer, dict) or "ms" not in answer:
        raise RuntimeError(f"first with {event['way']}: {answer!r}")
    return float(answer["ms"])
