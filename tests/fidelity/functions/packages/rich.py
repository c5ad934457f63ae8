"""A table that is printed into a text."""

import io

from rich.console import Console
from rich.table import Table


def work():
    console = Console(file=io.StringIO(), width=40)
    table = Table("a", "b")
    table.add_row("1", "[bold]2[/bold]")
    console.print(table)
    return console.file.getvalue()


def fail():
    Console(file=io.StringIO()).print("[/wrong]")
