"""The case of a function that imports no package. All others are compared with it."""


def work():
    return "plain"


def fail():
    raise ValueError("plain")
