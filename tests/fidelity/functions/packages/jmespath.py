"""An expression of the module."""

import jmespath

NAMES = jmespath.compile("people[?age > `30`].name | sort(@)")


def work():
    return NAMES.search({"people": [{"name": "b", "age": 40}, {"name": "a", "age": 31}, {"name": "c", "age": 1}]})


def fail():
    jmespath.search("people[?", {})
