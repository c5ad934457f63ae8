"""The first function of a chain: it has data, and hands them to the second one, `way` by `way`. Returns how long that took, ms, with the
answer of the second one.
"""

import json
import time

import pilotlight
from passing import redis_set, send


def handler(event, context):
    way, size, second = event["way"], event["size"], event["second"]
    if way == "reference":
        with pilotlight.buffer(size) as buffer:
            buffer.write(bytes(size))
            began = time.perf_counter()
            answer = pilotlight.invoke(second, data=buffer)
    else:
        data = bytes(size)
        data.count(1)  # its pages are there
        began = time.perf_counter()
        if way == "http":
            answer = json.loads(send(event["port"], "POST", event["path"], data, {}))
        else:
            if way == "kvs":
                redis_set(event["port"], event["key"], data)
            else:
                send(event["port"], "PUT", event["path"], data, event["headers"])
            answer = pilotlight.invoke(second, {"key": event["key"]})
    assert answer["bytes"] == size, answer
    return {"ms": (time.perf_counter() - began) * 1e3}
