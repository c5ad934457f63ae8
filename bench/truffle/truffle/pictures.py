"""The pictures of the experiments, with the paper's figures beside where it gives numbers."""

from __future__ import annotations

from statistics import median
from typing import Any

from benchlib.pictures import Pictures, pyplot
from benchlib.report import Report

NAMES = {"after": "fetch after the start", "overlap": "fetch during the start"}
# The whole invocation with Truffle and without, seconds at 0 s and 10 s of added delay, 100 MB in Redis (section VI-D of the paper).
PAPER_KVS = {"after": (3.7, 14.0), "overlap": (1.6, 12.0)}


def totals(cell: dict[str, Any], side: str) -> list[float]:
    return [one["total"] for one in cell["invocations"][side]]


def grid(report: Report) -> Any:
    """One panel for each link: the ratio by size, one line for each kind of worker."""
    links = list(dict.fromkeys(cell["link"] for cell in report.data))
    figure, axes = pyplot.subplots(
        1, len(links), figsize=(4.4 * len(links), 4.2), layout="constrained", squeeze=False, sharey=True
    )
    for axis, link in zip(axes[0], links):
        cells = [cell for cell in report.data if cell["link"] == link]
        sizes = list(dict.fromkeys(cell["size"] for cell in cells))
        for worker in dict.fromkeys(cell["worker"] for cell in cells):
            axis.plot(sizes, [cell["ratio"] for cell in cells if cell["worker"] == worker], "o-", markersize=3, label=worker)
        axis.axhline(1.02, color="gray", linestyle=":", linewidth=1)
        axis.set_title(link, fontsize=9)
        axis.set_ylabel("during ÷ after, whole invocation")
        axis.legend(fontsize=7)
    return figure


def life_cycle(report: Report) -> Any:
    """Figures 7 and 8: one bar for each side, in steps."""
    figure, axis = pyplot.subplots(figsize=(8, 4.6), layout="constrained")
    bars = [
        (f"{cell['worker']}, {cell['store']}, {side}", cell["invocations"][side])
        for cell in report.data
        for side in ("after", "overlap")
    ]
    names, left = [name for name, _ in bars], [0.0] * len(bars)
    start = [median(one["start"] for one in seen) for _, seen in bars]
    waited = [median(one["transfer"] - one["hidden"] for one in seen) for _, seen in bars]
    rest = [max(0.0, median(one["total"] for one in seen) - a - b) for (_, seen), a, b in zip(bars, start, waited)]
    for name, widths in (("start", start), ("transfer that is not hidden", waited), ("the rest", rest)):
        axis.barh(names, widths, left=left, label=name)
        left = [at + width for at, width in zip(left, widths)]
    axis.invert_yaxis()
    axis.set_xlabel("ms, medians")
    axis.legend(fontsize=7)
    return figure


def by_size(report: Report) -> Any:
    """Figure 9."""
    panels = list(dict.fromkeys((cell["worker"], cell["way"]) for cell in report.data))
    columns = len(dict.fromkeys(way for _, way in panels))
    rows = -(-len(panels) // columns)
    figure, axes = pyplot.subplots(rows, columns, figsize=(3.6 * columns, 3 * rows), layout="constrained", squeeze=False)
    for axis, (worker, way) in zip(axes.flat, panels):
        cells = [cell for cell in report.data if (cell["worker"], cell["way"]) == (worker, way)]
        for side, name in (("after", "without"), ("overlap", "by reference" if way == "direct" else "fetch during the start")):
            axis.plot(
                [cell["MB"] for cell in cells], [median(totals(cell, side)) for cell in cells], "o-", markersize=3, label=name
            )
        axis.set_title(f"{way}, {worker}", fontsize=9)
        axis.set_xlabel("MB")
        axis.set_ylabel("ms")
        axis.legend(fontsize=7)
    return figure


def by_clip(report: Report) -> Any:
    """Figure 10."""
    ways = list(dict.fromkeys(cell["way"] for cell in report.data))
    figure, axes = pyplot.subplots(1, len(ways), figsize=(3.6 * len(ways), 3.4), layout="constrained", squeeze=False)
    for axis, way in zip(axes[0], ways):
        cells = [cell for cell in report.data if cell["way"] == way]
        for side, name in (("after", "without"), ("overlap", "by reference" if way == "direct" else "fetch during the start")):
            axis.plot(
                [cell["clip_bytes"] / 1e6 for cell in cells], [median(totals(cell, side)) for cell in cells], "o-", label=name
            )
        axis.set_title(way, fontsize=9)
        axis.set_xlabel("clip, MB")
        axis.set_ylabel("ms")
        axis.legend(fontsize=7)
    return figure


def by_delay(report: Report) -> Any:
    """Figure 11."""
    stores = list(dict.fromkeys(cell["store"] for cell in report.data))
    figure, axes = pyplot.subplots(1, len(stores), figsize=(5 * len(stores), 4.2), layout="constrained", squeeze=False)
    for axis, store in zip(axes[0], stores):
        cells = [cell for cell in report.data if cell["store"] == store]
        for side, name in NAMES.items():
            line = axis.plot(
                [float(cell["delay"].split()[0]) for cell in cells],
                [median(totals(cell, side)) / 1000 for cell in cells],
                "o-",
                label=name,
            )
            if store == "kvs":
                axis.plot([0, 10], PAPER_KVS[side], ":", color=line[0].get_color(), label=f"{name} (paper)")
        axis.set_title(store, fontsize=9)
        axis.set_xlabel("delay added to the start, s")
        axis.set_ylabel("s, medians")
        axis.legend(fontsize=7)
    return figure


DRAWN: Pictures = {"grid": grid, "lifecycle": life_cycle, "chained": by_size, "video": by_clip, "delay": by_delay}
