"""A command of the module, run with a runner for tests."""

import click
from click.testing import CliRunner


@click.command()
@click.option("--count", default=1, type=click.IntRange(1, 5))
@click.argument("name")
def greet(count, name):
    click.echo(f"Hello {name}! " * count)


def work():
    runner = CliRunner()
    return [
        [found.exit_code, found.output] for found in (runner.invoke(greet, ["--count", "2", "A"]), runner.invoke(greet, []))
    ]


def fail():
    greet.main(["--count", "9", "A"], standalone_mode=False)
