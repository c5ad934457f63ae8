"""Tables as text."""

from tabulate import tabulate

ROWS = [["a", 1], ["bb", 22.5]]


def work():
    return [tabulate(ROWS, headers=["x", "y"], tablefmt="github"), tabulate(ROWS, tablefmt="html")]


def fail():
    tabulate(5)
