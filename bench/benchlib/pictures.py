"""Writes a PNG per experiment, which the benchmark draws. Does nothing if matplotlib is not installed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from .report import Report

# The function that draws the figure of a report, by experiment.
Pictures = Mapping[str, Callable[[Report], Any]]


def _pyplot() -> Any:
    try:
        import_module("matplotlib").use("Agg")
        return import_module("matplotlib.pyplot")
    except ImportError:
        return None


pyplot = _pyplot()


def draw(report: Report, folder: Path, pictures: Pictures) -> None:
    """Draws into the folder, with the report's name, if there is something to draw."""
    if pyplot is None or report.name not in pictures or report.error or not report.data:
        return
    figure = pictures[report.name](report)
    figure.suptitle(report.title, fontsize=10)
    figure.savefig(folder / f"{report.name}.png", dpi=120)
    pyplot.close(figure)
