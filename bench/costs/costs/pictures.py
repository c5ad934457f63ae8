"""The pictures of the experiments."""

from __future__ import annotations

from typing import Any

from benchlib.pictures import Pictures, pyplot
from benchlib.report import Report

from .quota import amounts_ms


def axes_of(columns: int = 1) -> tuple[Any, Any]:
    figure, axes = pyplot.subplots(1, columns, figsize=(6.5 * columns, 4.4), layout="constrained", squeeze=False)
    return figure, axes[0]


# The models that the paper's Figure 2 shows, and what it calls the consumption.
MODELS = ("aws-lambda-x86", "huawei", "gcp-request", "azure-consumption", "cloudflare")


def distribution(axes: tuple[Any, Any], told: dict[str, Any]) -> None:
    """Figure 2: how many of the requests are billed at most so much memory, and so much CPU time."""
    shares = [percent / 100 for percent in told["percents"]]
    curves = [("used", told["used"], {"color": "black", "linestyle": "--"})]
    curves += [(one["name"], one, {}) for one in told["platforms"] if one["id"] in MODELS]
    for axis, key, unit, label in (
        (axes[0], "memory_kb_ms", 2**-20 / 1000, "memory, GB-s"),
        (axes[1], "cpu_ns", 1e-9, "CPU time, vCPU-s"),
    ):
        for name, amounts, style in curves:
            if amounts[key]:
                axis.plot([value * unit for value in amounts[key]], shares, label=name, **style)
        axis.set_xscale("log")
        axis.set_xlabel(f"{label} per request")
        axis.set_ylabel("share of the requests")
        axis.legend(fontsize=6)


def billable(report: Report) -> Any:
    means, told = report.data["means"], report.data["distributions"]
    figure, axes = axes_of(2 + len(told))
    distribution((axes[0], axes[1]), told["generated"])
    for axis, name in zip(axes[2:], told):
        rows = [row for row in means if row["trace"] == name]
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


def concurrency(report: Report) -> Any:
    figure, axes = axes_of(3)
    for label, points in report.data["curves"].items():
        rates, means = [point["rps"] for point in points], [point["mean_ms"] for point in points]
        halves = [mean["half_95"] or 0 for mean in means]
        axes[0].errorbar(rates, [mean["mean"] for mean in means], yerr=halves, marker="o", capsize=2, label=label)
    for name, points in report.data["published"].items():
        axes[1].plot([point["rps"] for point in points], [point["mean_ms"] for point in points], marker="o", label=name)
    for axis, title in zip(axes, ("here", "the paper's data")):
        axis.set_xlabel("requests per second")
        axis.set_ylabel("mean duration, ms")
        axis.set_ylim(bottom=0)
        axis.set_title(title, fontsize=9)
        axis.legend(fontsize=7)
    steady = report.data["steady"]
    calls = sorted(steady["calls"])
    axes[2].plot([at for at, _, _ in calls], [ms for _, ms, _ in calls], ".", markersize=2, label="duration")
    axes[2].set_xlabel("s")
    axes[2].set_ylabel("duration, ms")
    axes[2].set_title(f"here, {steady['rps']} requests per second, {steady['limit']} per worker", fontsize=9)
    workers = axes[2].twinx()
    times, counts = [at for at, _ in steady["workers"]], [count for _, count in steady["workers"]]
    workers.step(times, counts, where="post", color="black", linewidth=0.8)
    workers.set_ylabel("workers")
    return figure


def overhead(report: Report) -> Any:
    figure, axes = axes_of(2)
    for name, calls in report.data.items():
        cumulated(axes[0], [one["phases_ms"]["handler"] for one in calls], name)
        cumulated(axes[1], [one["total_ms"] for one in calls], name)
    for axis in axes:
        axis.set_xscale("log")
        axis.legend(fontsize=7)
    axes[0].axvline(5.93, color="black", linewidth=0.6, linestyle=":")
    axes[0].set_xlabel("duration, ms (dotted: the paper's largest mean)")
    axes[1].set_xlabel("at the client, ms")
    return figure


def keepalive(report: Report) -> Any:
    figure, axes = axes_of(2)
    for name, by in report.data["cold"].items():
        axes[0].plot([float(idle) for idle in by], list(by.values()), marker="o", markersize=3, label=name)
    axes[0].set_title(f"here, idle_s = {report.data['idle_s']:g}", fontsize=9)
    for name, points in report.data["published"].items():
        axes[1].plot([idle for idle, _ in points], [share for _, share in points], marker="o", markersize=3, label=name)
    axes[1].set_title("the paper's data", fontsize=9)
    for axis in axes:
        axis.set_xlabel("idle, s")
        axis.set_ylabel("share of cold starts")
        axis.legend(fontsize=7)
    return figure


def frozen(report: Report) -> Any:
    figure, axes = axes_of(2)
    labels = [f"{one['kind']}\nswap: {one['swap']}" for one in report.data]
    places = list(range(len(labels)))
    for at, (when, label) in enumerate((("before", "frozen"), ("after", "reclaimed"))):
        sizes = [one[when]["pss"] / 2**20 for one in report.data]
        axes[0].barh([place + 0.4 * at for place in places], sizes, 0.4, label=label)
    axes[0].set_xlabel("PSS, MB")
    axes[0].set_yticks([place + 0.2 for place in places], labels, fontsize=6)
    axes[0].legend(fontsize=7)
    wakes = [[wake["wake_ms"] for wake in one["wakes"]] for one in report.data]
    axes[1].boxplot(wakes, orientation="horizontal", whis=(1, 99))
    axes[1].set_yticks([place + 1 for place in places], labels, fontsize=6)
    axes[1].axvline(2, color="red", linewidth=0.8)
    axes[1].set_xlabel("thaw to the answer, without the client, ms")
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
    """A row for each setting: measured here, as the model says, and as in the published log."""
    models, logs = report.data["model"], report.data["published"]
    figure, grid = pyplot.subplots(len(models), 3, figsize=(19.5, 3.4 * len(models)), layout="constrained", squeeze=False)
    for axes, model, log in zip(grid, models, logs):
        setting = (model["period_us"], model["quota_us"])
        measured = [one["log"] for one in report.data["runs"] if (one["period_us"], one["quota_us"]) == setting]
        for label, runs, style in (
            ("here", measured, "-"),
            ("model", [model["log"]], "--"),
            ("the paper's log", log["runs"], ":"),
        ):
            found: dict[str, list[float]] = {}
            for run in runs:
                for name, values in amounts_ms(run).items():
                    found.setdefault(name, []).extend(values)
            for axis, values in zip(axes, found.values()):
                if values:
                    cumulated(axis, values, label, linestyle=style)
        for axis, name in zip(axes, ("interval, ms", "length, ms", "obtained CPU, ms")):
            axis.set_xlabel(f"P {setting[0] / 1000:g}, Q {setting[1] / 1000:g} ms: {name}")
            axis.legend(fontsize=7)
    return figure


DRAWN: Pictures = {
    "billable": billable,
    "utilisation": utilisation,
    "coldstart": coldstart,
    "fees": fees,
    "rounding": rounding,
    "concurrency": concurrency,
    "overhead": overhead,
    "keepalive": keepalive,
    "frozen": frozen,
    "durations": durations,
    "periods": periods,
    "logs": logs,
    "throttles": throttles,
}
