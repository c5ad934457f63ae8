"""Documents with aliases, and an error with its place."""

import yaml

TEXT = "a: &x [1, 2.5, null]\nb: *x\nc: 2026-01-02\n"


def work():
    return [yaml.dump(yaml.safe_load(TEXT), sort_keys=True), yaml.__with_libyaml__]


def fail():
    yaml.safe_load("a: [1, 2")
