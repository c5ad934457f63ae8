"""Functions that say what they were given."""

import hashlib
import os

_held = []


def read(event, context):
    view = context.inputs["x"]
    return {"sha256": hashlib.sha256(view).hexdigest(), "inode": os.fstat(context.inputs.raw("x").fileno()).st_ino}


def all_of_them(event, context):
    return {name: bytes(context.inputs[name]).decode() for name in context.inputs}


def hold(event, context):
    view = context.inputs["x"]
    path = context.inputs.path("x")
    _held.append(view)
    written = []
    for attempt in (lambda: view.__setitem__(0, 1), lambda: os.truncate(path, 0), lambda: os.open(path, os.O_RDWR)):
        try:
            attempt()
            written.append("written")
        except (OSError, TypeError):
            pass
    with context.inputs.open("x") as file:
        sha256 = hashlib.sha256(file.read()).hexdigest()
    return {"sha256": sha256, "mapped": hashlib.sha256(view).hexdigest(), "written": written, "held": len(_held)}
