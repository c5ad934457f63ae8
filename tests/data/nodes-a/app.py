"""Functions that invoke functions on another node."""

import hashlib
import os
import time

import pilotlight


def handler(event, context):
    if "parts" in event:
        return parts(event)
    size = event.get("size")
    data = os.urandom(size) if size is not None else None
    given = {key: event[key] for key in ("do", "n") if key in event}
    try:
        answers = [pilotlight.invoke(event["to"], given, data=data) for _ in range(event.get("times", 1))]
    except pilotlight.FunctionError as error:
        return ["failed", error.function, error.error_type, error.error_message]
    except pilotlight.Refused as error:
        return ["refused", error.reason, error.problem]
    return {"sent": hashlib.sha256(data).hexdigest() if data is not None else None, "answers": answers}


def parts(event):
    """Hands over parts of 1 MiB, each of which takes a while to make."""
    made = hashlib.sha256()

    def make():
        for _ in range(event["parts"]):
            time.sleep(event["pause_s"])
            part = os.urandom(1 << 20)
            made.update(part)
            yield part
        if event.get("fails"):
            raise RuntimeError("no more of it")

    try:
        answer = pilotlight.invoke(event["to"], {}, data=make(), size=event["parts"] << 20)
    except RuntimeError as error:
        return ["raised", str(error)]
    return {"made": made.hexdigest(), "answer": answer}


def echo(event, context):
    return {**event, "by": [*event.get("by", []), context.function_name]}
