"""A decorator and a proxy."""

import wrapt

calls = []


@wrapt.decorator
def noted(wrapped, instance, args, kwargs):
    calls.append(wrapped.__name__)
    return wrapped(*args, **kwargs)


@noted
def double(value):
    return value * 2


PROXY = wrapt.ObjectProxy([1, 2])


def work():
    return [double(4), calls[-1], len(PROXY), type(PROXY).__name__]


def fail():
    double(None)
