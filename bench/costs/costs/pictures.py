"""The pictures of the experiments."""

from __future__ import annotations

from typing import Any

from benchlib.pictures import Pictures, pyplot
from benchlib.report import Report


def axes_of(columns: int = 1) -> tuple[Any, Any]:
    figure, axes = pyplot.subplots(1, columns, figsize=(6.5 * columns, 4.4), layout="constrained", squeeze=False)
    return figure, axes[0]


def billable(report: Report) -> Any:
    names = list(dict.fromkeys(row["trace"] for row in report.data))
    figure, axes = axes_of(len(names))
    for axis, name in zip(axes, names):
        rows = [row for row in report.data if row["trace"] == name]
        for at, key in enumerate(("memory", "cpu")):
            places = [place + 0.4 * at for place in range(len(rows))]
            axis.barh(places, [(row[key] or 0) / 100 for row in rows], 0.4, label=key)
        axis.set_yticks([place + 0.2 for place in range(len(rows))], [row["platform"] for row in rows], fontsize=7)
        axis.axvline(1, color="black", linewidth=0.6)
        axis.set_xlabel("billable ÷ used")
        axis.set_title(name, fontsize=9)
        axis.legend(fontsize=7)
    return figure


def utilisation(report: Report) -> Any:
    figure, axes = axes_of(2)
    shares = report.data["shares"]
    for at, name in enumerate(("CPU", "memory")):
        cumulated(axes[0], [share[at] for share in shares], name)
    axes[0].set_xlabel("used ÷ allocated")
    axes[0].legend(fontsize=7)
    axes[1].scatter([share[0] for share in shares], [share[1] for share in shares], s=2, alpha=0.3)
    axes[1].set_xlabel("CPU")
    axes[1].set_ylabel("memory")
    return figure


def cumulated(axis: Any, values: list[float], label: str, **style: Any) -> None:
    ordered = sorted(values)
    axis.plot(
        ordered, [(place + 1) / len(ordered) for place in range(len(ordered))], drawstyle="steps-post", label=label, **style
    )


def coldstart(report: Report) -> Any:
    figure, (axis,) = axes_of()
    cumulated(axis, report.data["differences_s"], "workers")
    axis.axvline(0, color="black", linewidth=0.6)
    axis.set_xscale("symlog", linthresh=0.1)
    axis.set_xlabel("requests − start, s")
    return figure


def fees(report: Report) -> Any:
    figure, (axis,) = axes_of()
    labels = [f"{memory} MB\n{cpu / 1000:.2f} vCPU" for cpu, memory in report.data["sizes"]]
    for name, times in report.data["ms"].items():
        axis.plot(labels, times, marker="o", label=name)
    axis.set_yscale("log")
    axis.set_ylabel("ms")
    axis.legend(fontsize=6)
    return figure


def rounding(report: Report) -> Any:
    figure, (axis,) = axes_of()
    for name, values in report.data.items():
        cumulated(axis, values, name)
    axis.set_xlabel("rounded up, ms")
    axis.legend(fontsize=7)
    return figure


def durations(report: Report) -> Any:
    figure, axes = axes_of(len(report.data))
    for axis, (name, points) in zip(axes, report.data.items()):
        places = [point["milli"] / 1000 for point in points]
        for key, label, style in (
            ("measured_ms", "measured", "-"),
            ("model_mean_ns", "model", "-"),
            ("equation_2_ns", "Equation 2", ":"),
            ("ideal_ns", "ideal", "--"),
        ):
            axis.plot(places, [point[key] for point in points], style, label=label)
        axis.set_yscale("log")
        axis.set_xlabel("vCPU")
        axis.set_ylabel("ms")
        axis.set_title(name, fontsize=9)
        axis.legend(fontsize=7)
    return figure


def periods(report: Report) -> Any:
    figure, (axis,) = axes_of()
    for period, rows in report.data.items():
        axis.plot([int(milli) / 1000 for milli in rows], [ns / 1e6 for ns in rows.values()], label=f"{period} ms")
    axis.set_ylim(0, 600)
    axis.set_xlabel("vCPU")
    axis.set_ylabel("ms")
    axis.legend(fontsize=7, title="period")
    return figure


def logs(report: Report) -> Any:
    figure, (axis,) = axes_of()
    for at, key in enumerate(("intervals", "lengths", "obtained")):
        places = [place + 0.27 * at for place in range(len(report.data))]
        axis.barh(places, [found["model"]["with_latencies"][key] for found in report.data.values()], 0.27, label=key)
    axis.set_yticks([place + 0.27 for place in range(len(report.data))], list(report.data), fontsize=6)
    axis.axvline(0.1, color="red", linewidth=0.8)
    axis.legend(fontsize=7)
    return figure


def throttles(report: Report) -> Any:
    figure, axes = axes_of(3)
    settings = dict.fromkeys((one["period_us"], one["quota_us"]) for one in report.data)
    for setting in settings:
        runs = [one["log"] for one in report.data if (one["period_us"], one["quota_us"]) == setting]
        pairs = [(before, after) for run in runs for before, after in zip(run, run[1:])]
        if not pairs:
            continue
        label = f"P {setting[0] / 1000:g}, Q {setting[1] / 1000:g} ms"
        cumulated(axes[0], [(after[0] - before[0]) / 1e6 for before, after in pairs], label)
        cumulated(axes[1], [after[1] / 1e6 for _, after in pairs], label)
        cumulated(axes[2], [(after[0] - after[1] - before[0]) / 1e6 for before, after in pairs], label)
    for axis, name in zip(axes, ("interval, ms", "length, ms", "obtained CPU, ms")):
        axis.set_xlabel(name)
        axis.legend(fontsize=7)
    return figure


DRAWN: Pictures = {
    "billable": billable,
    "utilisation": utilisation,
    "coldstart": coldstart,
    "fees": fees,
    "rounding": rounding,
    "durations": durations,
    "periods": periods,
    "logs": logs,
    "throttles": throttles,
}
