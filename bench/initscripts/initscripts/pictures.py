"""The pictures of the experiments."""

from __future__ import annotations

from statistics import median
from typing import Any

from benchlib.pictures import Pictures, pyplot
from benchlib.report import Report


def starts(report: Report) -> Any:
    """For each function, the time until it has its data, without and with a script. Each dot is an invocation."""
    panels = sorted({(cell["kind"], cell["round_trip_ms"]) for cell in report.data}, key=str)
    figure, axes = pyplot.subplots(1, len(panels), figsize=(4.2 * len(panels), 4.2), layout="constrained", squeeze=False)
    for axis, (kind, distance) in zip(axes[0], panels):
        cells = [cell for cell in report.data if (cell["kind"], cell["round_trip_ms"]) == (kind, distance)]
        for at, side in enumerate(("without", "with")):
            times = [[one["begun"] for one in cell["invocations"][side]] for cell in cells]
            places = [place + 0.4 * at for place in range(len(cells))]
            axis.bar(places, [median(some) for some in times], 0.4, label=f"{side} a script")
            for place, some in zip(places, times):
                axis.plot([place] * len(some), some, ".", color="black", markersize=2)
        axis.set_xticks(
            [place + 0.2 for place in range(len(cells))], [cell["function"] for cell in cells], fontsize=7, rotation=20
        )
        axis.set_title(f"{kind}, storage at {distance:g} ms", fontsize=9)
        axis.set_ylabel("until the function has its data, ms")
        axis.legend(fontsize=7)
    return figure


def cumulated(report: Report) -> Any:
    """The times until a script's first request."""
    figure, axis = pyplot.subplots(figsize=(6.5, 4.2), layout="constrained")
    for name, key in (("one at a time", "alone_ms"), ("at once", "together_ms")):
        ordered = sorted(report.data[key])
        axis.plot(ordered, [(at + 1) / len(ordered) for at in range(len(ordered))], drawstyle="steps-post", label=name)
    axis.set_xscale("log")
    axis.set_xlabel("from the request to the script's first request, ms")
    axis.set_ylabel("share of the invocations")
    axis.legend(fontsize=7)
    return figure


STEPS = {"download_time": "downloads", "copy_time": "copies", "load_time": "loads", "serve_time": "server starts"}


def phases(report: Report) -> Any:
    """Where the time until the first answer goes: medians, one bar per side."""
    panels = sorted({(cell["kind"], cell["round_trip_ms"]) for cell in report.data}, key=str)
    figure, axes = pyplot.subplots(len(panels), 1, figsize=(8, 2.4 * len(panels)), layout="constrained", squeeze=False)
    for axis, panel in zip(axes[:, 0], panels):
        cells = [cell for cell in report.data if (cell["kind"], cell["round_trip_ms"]) == panel]
        bars = [(f"{cell['function']}, {side}", cell["invocations"][side]) for cell in cells for side in ("without", "with")]
        names = [name for name, _ in bars]
        left = [0.0] * len(bars)
        parts = {"worker starts": [median(one["start"] for one in seen) for _, seen in bars]}
        for step, name in STEPS.items():
            parts[name] = [median(one["steps"].get(step, 0.0) for one in seen) for _, seen in bars]
        known = [sum(values) for values in zip(*parts.values())]
        begun = [median(one["begun"] for one in seen) for _, seen in bars]
        parts["waits for the script, and the rest"] = [max(0.0, whole - part) for whole, part in zip(begun, known)]
        for name, widths in parts.items():
            if any(widths):
                axis.barh(names, widths, left=left, label=name)
                left = [at + width for at, width in zip(left, widths)]
        axis.invert_yaxis()
        axis.tick_params(labelsize=7)
        axis.set_title(f"{panel[0]}, {panel[1]:g} ms", fontsize=9)
        axis.set_xlabel("ms from the request", fontsize=8)
        axis.legend(fontsize=7)
    return figure


def lengths(report: Report) -> Any:
    """Scripts, what they are scripts of, and the parts of the daemon."""
    figure, axis = pyplot.subplots(figsize=(8, 0.3 * len(report.data) + 1), layout="constrained")
    axis.barh(list(report.data), list(report.data.values()))
    axis.invert_yaxis()
    axis.set_xscale("log")
    axis.set_xlabel("bytes")
    axis.tick_params(labelsize=7)
    return figure


DRAWN: Pictures = {
    "sebs": starts,
    "imgrec": starts,
    "template": starts,
    "servers": phases,
    "services": phases,
    "sizes": lengths,
    "starts": cumulated,
}
