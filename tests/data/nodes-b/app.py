"""Functions that another node invokes."""

import hashlib
import os
import time

import pilotlight


def handler(event, context):
    if event.get("do") == "raise":
        raise ValueError("as was asked for")
    data = context.inputs["data"] if "data" in context.inputs else None
    return {
        "event": event,
        "bytes": len(data) if data is not None else None,
        "got": hashlib.sha256(data).hexdigest() if data is not None else None,
        "left_ms": context.get_remaining_time_in_millis(),
        "pid": os.getpid(),
    }


def hangs(event, context):
    print("it hangs", flush=True)
    time.sleep(60)


def back(event, context):
    try:
        return pilotlight.invoke("first", {"to": "far-back"})
    except pilotlight.Refused as error:
        return ["refused", error.reason, error.problem]


def large(event, context):
    return "x" * event["size"]


def site(environ, start_response):
    start_response("200 OK", [])
    return [b"a site"]
