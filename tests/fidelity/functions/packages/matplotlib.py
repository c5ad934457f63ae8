"""A figure without a display."""

import io

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot  # noqa: E402 - after the choice of the backend


def work():
    figure, axes = pyplot.subplots(figsize=(2, 2))
    axes.plot([1, 2, 3], [1, 4, 9], label="squares")
    axes.legend()
    file = io.BytesIO()
    figure.savefig(file, format="png")
    pyplot.close(figure)
    return [file.getvalue()[:4].hex(), matplotlib.get_backend(), [round(x, 3) for x in axes.get_xlim()]]


def fail():
    pyplot.plot([1, 2], [1, 2, 3])
