"""The tested function with awslambdaric. tests/compat/README.md describes it."""

import os
import time
from pathlib import Path


class OutOfStock(Exception):
    pass


def handler(event, context):
    return DOES[event["do"]](event.get("value"), context)


def echo(value, context):
    return value


def fail(value, context):
    raise OutOfStock("no pears left")


def write(value, context):
    print(value)
    return "printed"


def sleep(value, context):
    time.sleep(value)
    return "awake"


def end(value, context):
    os._exit(value)


def tell(value, context):
    return {
        "request_id": context.aws_request_id,
        "arn": context.invoked_function_arn,
        "deadline_ms": round(time.time() * 1000) + context.get_remaining_time_in_millis(),
        "name": context.function_name,
        "memory": context.memory_limit_in_mb,
        "custom": context.client_context.custom if context.client_context else None,
    }


def meet(many, context):
    """Waits until this number of invocations runs. They may be in separate processes."""
    meeting = Path("/tmp/meeting")
    meeting.mkdir(exist_ok=True)
    (meeting / context.aws_request_id).touch()
    while (here := len(list(meeting.iterdir()))) < many:
        time.sleep(0.005)
    return here


def told_to_extension(value, context):
    """Waits until extension.py has received this invocation, and returns what it wrote about it."""
    heard = Path("/tmp/extension")
    while True:
        lines = heard.read_text().splitlines(keepends=True) if heard.exists() else []
        mine = [line for line in lines if context.aws_request_id in line and line.endswith("\n")]
        if mine:
            return mine[0]
        time.sleep(0.005)


DOES = {
    "echo": echo,
    "raise": fail,
    "print": write,
    "sleep": sleep,
    "exit": end,
    "context": tell,
    "meet": meet,
    "extension": told_to_extension,
}
