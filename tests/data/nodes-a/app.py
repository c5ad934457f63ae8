"""Functions that invoke functions on another node."""

import hashlib
import os

import pilotlight


def handler(event, context):
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


def echo(event, context):
    return {**event, "by": [*event.get("by", []), context.function_name]}
