"""Functions with inputs from the bucket `photos`."""

import hashlib
import os
import subprocess

_kept = []


def private_kib():
    """Memory of this process that it shares with nobody, KiB."""
    with open("/proc/self/smaps_rollup") as lines:
        return sum(int(line.split()[1]) for line in lines if line.startswith(("Private_Clean", "Private_Dirty")))


def digest(event, context):
    before = private_kib()
    view = context.inputs["image"]
    grown = private_kib() - before
    try:
        view[0] = 1
        written = "written"
    except TypeError:
        written = "read-only"
    path = context.inputs.path("image")
    try:
        os.truncate(path, 0)
        written = "truncated"
    except OSError:
        pass
    return {"sha256": hashlib.sha256(view).hexdigest(), "bytes": len(view), "grown_kib": grown, "memory": written, "pid": os.getpid()}


def by_program(event, context):
    """What a program reads that the function starts."""
    done = subprocess.run(["sha256sum", context.inputs.path("image")], capture_output=True, text=True)
    return {"sha256": done.stdout.split(" ")[0], "problem": done.stderr}


def maybe(event, context):
    try:
        context.inputs["mask"]
        mask = "here"
    except LookupError as error:
        mask = str(error)
    return {"image": bytes(context.inputs["image"]).decode(), "mask": mask, "names": list(context.inputs)}


def keep(event, context):
    if event.get("forget"):
        _kept.clear()
    else:
        _kept.append(context.inputs["image"])
    return len(_kept)
