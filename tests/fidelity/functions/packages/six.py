"""A class with a metaclass, and an exception with another's trace."""

import sys

import six


class Meta(type):
    def __new__(mcs, name, bases, members):
        return super().__new__(mcs, name, bases, {**members, "made": name})


@six.add_metaclass(Meta)
class Own:
    pass


def work():
    return [Own.made, six.PY3, six.moves.urllib.parse.quote("ü"), six.ensure_str(b"a")]


def fail():
    try:
        six.ensure_str(1)
    except TypeError:
        six.reraise(*sys.exc_info())
