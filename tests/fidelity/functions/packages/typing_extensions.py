"""Types that are inspected at run time."""

from typing_extensions import NotRequired, TypedDict, assert_never, get_type_hints


class Order(TypedDict):
    number: int
    note: NotRequired[str]


def work():
    return [sorted(Order.__required_keys__), sorted(Order.__optional_keys__), sorted(get_type_hints(Order))]


def fail():
    assert_never(1)
