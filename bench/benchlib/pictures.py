"""A PNG per experiment; what it shows is each bench's. Does nothing where matplotlib is not installed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from .report import Report

# Of each experiment that has a picture, what draws it: a figure of a report.
Pictures = Mapping[str, Callable[[Report], Any]]


def _pyplot() -> Any:
    try:
        import_module("matplotlib").use("Agg")
        return import_module("matplotlib.pyplot")
    except ImportError:
        return None


pyplot = _pyplot()


def draw(report: Report, folder: Path, pictures: Pictures) -> None:
    """Into the folder, under the report's name, where there is something to draw."""
    if pyplot is None or report.name not in pictures or report.error or not report.data:
        return
    figure = pictures[report.name](report)
    figure.suptitle(report.title, fontsize=10)
    figure.savefig(folder / f"{report.name}.png", dpi=120)
    pyplot.close(figure)
