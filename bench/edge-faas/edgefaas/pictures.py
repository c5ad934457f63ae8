"""The pictures of the experiments."""

from __future__ import annotations

from statistics import geometric_mean
from typing import Any

from benchlib.pictures import Pictures, pyplot
from benchlib.report import Report

COLOURS = {"auto": "#d1495b", "cusum": "#edae49", "adaptive-cusum": "#66a182", "arima": "#8d96a3", "reactive": "#00798c"}
COLOURS |= {"static:15": "#2e4057", "static:1": "#b5b5b5"}


def bars(report: Report) -> Any:
    """Requests over 700 ms, cold starts and cold wait by policy, with a row of panels per start cost."""
    starts = sorted({cell["start_ms"] for cell in report.data})
    keys = [("over_700", "over 700 ms"), ("cold", "cold starts"), ("cold_wait_s", "cold wait, s"), ("pss_mb", "mean PSS, MB")]
    figure, axes = pyplot.subplots(len(starts), len(keys), figsize=(13, 3 * len(starts)), layout="constrained", squeeze=False)
    for row, start in zip(axes, starts):
        cells = [cell for cell in report.data if cell["start_ms"] == start]
        for axis, (key, label) in zip(row, keys):
            _columns(axis, cells, key)
            axis.set_title(f"{label}; start {start} ms" if start else f"{label}; start as it is", fontsize=8)
    return figure


def _columns(axis: Any, cells: list[dict[str, Any]], key: str) -> None:
    names = [cell["policy"] for cell in cells]
    halves = [min(cell[key]["half_95"] or 0, 10 * cell[key]["mean"] + 1) for cell in cells]
    colours = [COLOURS.get(name, "#999999") for name in names]
    axis.bar(range(len(cells)), [cell[key]["mean"] for cell in cells], yerr=halves, color=colours, capsize=3)
    axis.set_xticks(range(len(cells)), names, rotation=35, ha="right", fontsize=7)
    axis.set_ylim(0, None if any(cell[key]["mean"] for cell in cells) else 1)


def lines(report: Report) -> Any:
    """The figures over the interval W, with a column of panels per start cost."""
    starts = sorted({cell["start_ms"] for cell in report.data})
    keys = [("over_700", "over 700 ms"), ("cold", "cold starts"), ("cold_wait_s", "cold wait, s")]
    figure, axes = pyplot.subplots(
        len(keys), len(starts), figsize=(4 * len(starts) + 1, 9), layout="constrained", squeeze=False
    )
    for column, start in enumerate(starts):
        for row, (key, label) in enumerate(keys):
            axis = axes[row][column]
            for policy in dict.fromkeys(cell["policy"] for cell in report.data):
                cells = [cell for cell in report.data if (cell["policy"], cell["start_ms"]) == (policy, start)]
                found = sorted(
                    (int(cell["workload"].rpartition("=")[2]), cell[key]["mean"], cell[key]["half_95"] or 0) for cell in cells
                )
                if found:
                    axis.errorbar(
                        *zip(*[(w, y) for w, y, _ in found]),
                        yerr=[half for *_, half in found],
                        label=policy,
                        marker="o",
                        capsize=3,
                        color=COLOURS.get(policy),
                    )
            axis.set_title(f"{label}; start {start or 'as it is'}{' ms' if start else ''}", fontsize=8)
            axis.set_xlabel("W, s", fontsize=8)
            axis.set_ylim(bottom=0)
    axes[0][0].legend(fontsize=7)
    return figure


def pareto(report: Report) -> Any:
    """Memory against cold starts, PSS beside RSS."""
    figure, axes = pyplot.subplots(1, 2, figsize=(11, 4.5), layout="constrained")
    for axis, key in zip(axes, ("pss_mb", "rss_mb")):
        for cell in report.data:
            if cell.get("alone"):
                continue
            x, y = cell[key], cell["cold"]
            axis.errorbar(
                x["mean"],
                y["mean"],
                xerr=x["half_95"] or 0,
                yerr=y["half_95"] or 0,
                fmt="o",
                label=cell["policy"],
                color=COLOURS.get(cell["policy"]),
                capsize=3,
            )
        axis.set_xlabel(f"mean {key[:3].upper()}, MB")
        axis.set_ylabel("cold starts (the platform's word)")
    axes[0].legend(fontsize=7)
    return figure


def decisions(report: Report) -> Any:
    figure, axis = pyplot.subplots(figsize=(8, 4), layout="constrained")
    for offset, key in ((-0.2, "p50"), (0.2, "p99")):
        axis.bar(
            [x + offset for x in range(len(report.data))], [row[f"tick_ns_{key}"] / 1e3 for row in report.data], 0.4, label=key
        )
    axis.set_xticks(range(len(report.data)), [row["policy"] for row in report.data], rotation=25, ha="right")
    axis.axhline(5, color="grey", linestyle=":")
    axis.set_yscale("log")
    axis.set_ylabel("µs per decision")
    axis.legend()
    return figure


def trade(report: Report) -> Any:
    """Cold wait against memory of every policy, with a panel per start cost. The values are geometric means over the workloads;
    otherwise the traces, which are a thousand times longer, would dominate."""
    starts = list(dict.fromkeys(cell["start"] for cell in report.data["cells"]))
    figure, axes = pyplot.subplots(1, len(starts), figsize=(4.5 * len(starts), 4.5), layout="constrained", squeeze=False)
    for axis, start in zip(axes[0], starts):
        for policy in dict.fromkeys(cell["policy"] for cell in report.data["cells"]):
            cells = [cell for cell in report.data["cells"] if (cell["policy"], cell["start"]) == (policy, start)]
            x, y = (geometric_mean(max(cell[key], 1e-3) for cell in cells) for key in ("gb_s", "cold_wait_s"))
            axis.scatter(x, y, color=COLOURS.get(policy))
            axis.annotate(policy, (x, y), fontsize=7)
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.set_xlabel("GB·s, geometric mean")
        axis.set_ylabel("cold wait, s, geometric mean")
        axis.set_title(f"start {start}", fontsize=8)
    return figure


def agreement(report: Report) -> Any:
    figure, axis = pyplot.subplots(figsize=(6, 6), layout="constrained")
    for cell in report.data:
        axis.errorbar(
            cell["daemon"]["mean"],
            cell["simulator"]["mean"],
            xerr=cell["daemon"]["half_95"],
            fmt="o",
            color=COLOURS.get(cell["policy"]),
            capsize=3,
        )
    most = max(max(cell["daemon"]["mean"], cell["simulator"]["mean"]) for cell in report.data) * 1.1
    axis.plot([0, most], [0, most], color="grey", linestyle=":")
    axis.set_xlabel("cold starts, daemon")
    axis.set_ylabel("cold starts, simulator")
    return figure


def turns(report: Report) -> Any:
    figure, axis = pyplot.subplots(figsize=(7, 4), layout="constrained")
    for side, values in report.data["p50_us"].items():
        axis.plot(values, marker="o", label=f"forecasters: {side}")
    axis.set_xlabel("turn")
    axis.set_ylabel("p50, µs")
    axis.set_ylim(bottom=0)
    axis.legend()
    return figure


DRAWN: Pictures = {
    "cold-starts": bars,
    "template-off": bars,
    "step": bars,
    "busiest-ten": bars,
    "smoke": bars,
    "interval": lines,
    "memory": pareto,
    "ticks": decisions,
    "simulate": trade,
    "validation": agreement,
    "path": turns,
}
