"""Functions that hand data to another function, which says which memory it has."""

import hashlib
import os

import pilotlight

_kept = []


def handler(event, context):
    if "size" in event:
        data = os.urandom(event["size"])
        sent = hashlib.sha256(data).hexdigest()
        memory = None
    else:
        data = context.inputs["body"]
        sent = hashlib.sha256(data).hexdigest()
        memory = os.stat(context.inputs.path("body")).st_ino
    try:
        answers = pilotlight.map(event.get("to", "takes"), [{"keep": event.get("keep")} for _ in range(event.get("times", 1))], data=data)
    except pilotlight.MapError as error:
        return ["failed", *(str(one) for one in error.errors.values())]
    return {"sent": sent, "memory": memory, "answers": answers}


def takes(event, context):
    data = context.inputs["data"]
    try:
        data[0] = 1
        is_read_only = False
    except TypeError:
        is_read_only = True
    if event.get("keep"):
        _kept.append(data)
    memory = os.stat(context.inputs.path("data")).st_ino
    return {"got": hashlib.sha256(data).hexdigest(), "bytes": len(data), "memory": memory, "read_only": is_read_only}
