"""Functions that say what they are told of their trace."""

import json
import os

import pilotlight

NAMES = ("_X_AMZN_TRACE_ID", "TRACEPARENT", "TRACESTATE")


def told(event, context):
    headers = event.get("headers") if isinstance(event, dict) else None
    return {
        "environment": {name: os.environ[name] for name in NAMES if name in os.environ},
        "context": [context.traceparent, context.tracestate],
        "headers": headers,
    }


def caller(event, context):
    return [told(event, context), pilotlight.invoke("told", {})]


def fails(event, context):
    raise ValueError("it fails")


def fed(event, context):
    return "text" in context.inputs


async def page(scope, receive, send):
    if scope["type"] == "lifespan":
        return
    headers = {name.decode(): value.decode() for name, value in scope["headers"]}
    await send({"type": "http.response.start", "status": 203, "headers": [(b"content-type", b"application/json")]})
    await send({"type": "http.response.body", "body": json.dumps(headers).encode()})
