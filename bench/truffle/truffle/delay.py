"""The paper's Figure 11: 100 MB from S3 and Redis to workers whose start is delayed, over a link with 1 Gbit/s."""

from __future__ import annotations

import os
import sys

from benchlib.report import Report

from .cells import HEADER, NOTES, Cell, turn_order
from .setting import Setting
from .world import FORK, GIGABIT, KVS, LOOPBACK, MIB, S3, SIDES, Worker, cold

DELAYS_S = (0.0, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0)


def measure(setting: Setting) -> Report:
    report = Report("delay", "100 MB by the delay that is added to the start", HEADER)
    size = (1 if setting.is_smoke else 100) * MIB
    delays = (0.0, 0.05) if setting.is_smoke else DELAYS_S
    cells = {(delay, store): Cell({"store": store, "delay": f"{delay:g} s more"}) for store in (S3, KVS) for delay in delays}
    with setting.world(LOOPBACK if setting.is_smoke else GIGABIT) as world:
        world.put("large", os.urandom(size))
        names = {
            (delay, store): [world.deploy(side, Worker(FORK, delay), store) for side in SIDES][0] for delay, store in cells
        }
        for turn in range(setting.turns):
            for at, cell in cells.items():
                for side in turn_order(turn):
                    cell.sides[side].append(cold(world.daemon(side), names[at], "large", size))
            print(f"… turn {turn + 1} of {setting.turns}", file=sys.stderr, flush=True)
    for (delay, store), cell in cells.items():
        report.rows.append(cell.row())
        # Where the start is much shorter than the transfer, little can be hidden; so the bar is that of delayed starts.
        report.bars += cell.bars(is_long=store == S3 and 0.5 <= delay <= 2.0 and not setting.is_smoke)
    report.notes += NOTES
    report.data = [cell.to_json() for cell in cells.values()]
    return report
