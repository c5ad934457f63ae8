"""The pictures of the experiments."""

from __future__ import annotations

from typing import Any

from benchlib.pictures import Pictures, pyplot
from benchlib.report import Report

COLOURS = {"new": "#8d96a3", "cleaned": "#edae49", "kept": "#d1495b"}


def panels(report: Report, key: str = "kind") -> tuple[Any, list[tuple[Any, str, list[dict[str, Any]]]]]:
    """A panel per kind, with its records."""
    names = list(dict.fromkeys(record[key] for record in report.data))
    figure, axes = pyplot.subplots(1, len(names), figsize=(6.5 * len(names), 4.2), layout="constrained", squeeze=False)
    chosen = [[record for record in report.data if record[key] == name] for name in names]
    for axis, name in zip(axes[0], names):
        axis.set_title(name, fontsize=9)
    return figure, list(zip(axes[0], names, chosen))


def groups(report: Report) -> Any:
    """Bars per label for all ways."""
    figure, found = panels(report)
    for axis, _, records in found:
        ways = [way for way in COLOURS if any(record.get(way) is not None for record in records)]
        for at, way in enumerate(ways):
            places = [place + 0.8 * at / len(ways) for place in range(len(records))]
            axis.bar(places, [record.get(way) or 0 for record in records], 0.8 / len(ways), label=way, color=COLOURS[way])
        axis.set_xticks([place + 0.3 for place in range(len(records))], [record["label"] for record in records])
        axis.set_ylabel("ms")
        axis.set_yscale("log")
        axis.legend(fontsize=7)
    return figure


def by_round(report: Report) -> Any:
    """Mean latency per round with a line per way and series, and the numbers of requests behind it."""
    figure, found = panels(report)
    for axis, _, records in found:
        for way, colour in COLOURS.items():
            for series in sorted({record["series"] for record in records}):
                line = [record for record in records if (record["way"], record["series"]) == (way, series)]
                times = [one["mean_ms"] for one in line]
                label = None if series else way
                axis.plot([one["number"] for one in line], times, color=colour, marker=".", linewidth=0.8, label=label)
        counts = {record["number"]: record["count"] for record in records}
        behind = axis.twinx()
        behind.bar(list(counts), list(counts.values()), color="#00000012")
        behind.set_ylabel("requests", fontsize=8)
        axis.set_yscale("log")
        axis.set_xticks([number for number in counts if number % 2 == 0])
        axis.set_xlabel("round")
        axis.set_ylabel("mean ms")
        axis.legend(fontsize=7)
    return figure


def in_order(report: Report) -> Any:
    """The latency of each request, with a line per way."""
    figure, found = panels(report)
    for axis, _, records in found:
        styles = dict(zip(dict.fromkeys(record.get("language", "") for record in records), ("-", "--", ":")))
        for record in records:
            language = record.get("language", "")
            label = f"{language} {record['way']}".strip()
            axis.plot(record["ms"], color=COLOURS[record["way"]], linestyle=styles[language], marker=".", label=label)
        axis.set_yscale("log")
        axis.set_xlabel("request")
        axis.set_ylabel("ms")
        axis.legend(fontsize=7)
    return figure


def threads(report: Report) -> Any:
    figure, found = panels(report)
    for axis, _, records in found:
        for record in records:
            for number, times in enumerate(thread for series in record["series_ms"] for thread in series):
                label = record["way"] if number == 0 else None
                axis.plot(times, color=COLOURS[record["way"]], linewidth=0.8, alpha=0.7, label=label)
        axis.set_yscale("log")
        axis.set_xlabel("request of a thread")
        axis.set_ylabel("ms")
        axis.legend(fontsize=7)
    return figure


def distributions(report: Report) -> Any:
    """Sorted times: the share of the starts that took at most this time."""
    figure, axis = pyplot.subplots(figsize=(7, 4.2), layout="constrained")
    for record in report.data:
        times = sorted(record.get("ms") or record.get("took_ms") or [])
        if times:
            shares = [(place + 1) / len(times) for place in range(len(times))]
            axis.step(times, shares, where="post", label=f"{record.get('kind', '')} {record['label']}".strip())
    axis.set_xscale("log")
    axis.set_xlabel("ms")
    axis.set_ylabel("share")
    axis.legend(fontsize=7)
    return figure


def memory(report: Report) -> Any:
    figure, found = panels(report, "panel")
    for axis, _, points in found:
        live = [point["live"] for point in points]
        axis.plot(live, [point["pss"] for point in points], marker="o", color=COLOURS["kept"], label="PSS, MB")
        axis.plot(
            live, [point["used"] - points[0]["used"] for point in points], marker="o", color=COLOURS["new"], label="machine, MB"
        )
        cpu = axis.twinx()
        cpu.plot(live, [100 * point["cpu"] for point in points], marker=".", color=COLOURS["cleaned"], label="CPU, %")
        cpu.set_ylim(0, 100)
        cpu.set_ylabel("CPU, %", fontsize=8)
        axis.set_xlabel("live runtimes")
        axis.set_ylabel("MB")
        axis.legend(handles=[*axis.get_lines(), *cpu.get_lines()], fontsize=7)
    return figure


def forecasts(report: Report) -> Any:
    """The paper's jump: the samples, smoothing alone, and smoothing with the chain."""
    drawn = [record for record in report.data if "correction" in record]
    figure, axes = pyplot.subplots(len(drawn) // 2, 2, figsize=(12, 2.4 * len(drawn) // 2), layout="constrained", squeeze=False)
    for axis, record in zip(axes.flat, drawn):
        samples = record["correction"]
        axis.plot([sample["observed"] for sample in samples], color="black", label="real")
        axis.plot([sample["smoothed"] for sample in samples], color=COLOURS["cleaned"], label="ES")
        axis.plot([sample["forecast"] for sample in samples], color=COLOURS["kept"], label="ES + M, correction")
        literal = [sample["forecast"] for sample in record["literal"]]
        axis.plot(literal, color=COLOURS["new"], linestyle=":", label="ES + M, literal")
        beginning = "historical" if record["initial"] is None else "random"
        axis.set_title(f"{record['series']}, α {record['alpha']}, {beginning}", fontsize=8)
    axes[0][0].legend(fontsize=6)
    return figure


def serving(report: Report) -> Any:
    figure, axis = pyplot.subplots(figsize=(8, 3.5), layout="constrained")
    rows = [row for row in report.data["rows"] if row.get("measured")]
    axis.barh(
        [row["architecture"] for row in rows], [row["measured"]["round_us"]["p50"] for row in rows], color=COLOURS["kept"]
    )
    axis.set_xlabel("round trip p50, µs")
    return figure


DRAWN: Pictures = {
    "languages": groups,
    "networks": groups,
    "web": in_order,
    "serial": in_order,
    "parallel": threads,
    "linear": by_round,
    "exponential": by_round,
    "bursts": by_round,
    "forecast": forecasts,
    "overhead": memory,
    "handover": distributions,
    "node": distributions,
    "serving": serving,
}
