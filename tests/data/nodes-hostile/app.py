"""A function that invokes one on a node that does not answer as nodes do."""

import os
import time
from concurrent.futures import ThreadPoolExecutor

import pilotlight


def handler(event, context):
    data = os.urandom(event["size"]) if "size" in event else None

    def call(_):
        try:
            return pilotlight.invoke("next", {}, data=data)
        except pilotlight.FunctionError as error:
            return ["failed", error.error_type, error.error_message]
        except pilotlight.Refused as error:
            return ["refused", error.reason, error.problem]

    began = time.monotonic()
    with ThreadPoolExecutor(event.get("calls", 1)) as pool:
        said = list(pool.map(call, range(event.get("calls", 1))))
    return {"said": said, "took_s": time.monotonic() - began}
