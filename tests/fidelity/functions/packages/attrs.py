"""A class of the module with validators."""

import attrs


@attrs.define
class Point:
    x: int = attrs.field(validator=attrs.validators.instance_of(int))
    y: int = attrs.field(default=2, converter=int)


def work():
    return [attrs.asdict(Point(1, "3")), repr(attrs.evolve(Point(1), x=5)), Point(1) == Point(1)]


def fail():
    Point("1")
