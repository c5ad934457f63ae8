"""The functions under load. Each answer has the token of its request, so that a wrong answer is seen."""

import hashlib
import json
import os
import random
import socket
import time

NUMBER = 0


def echo(event, context):
    time.sleep(event.get("ms", 0) / 1000)
    return {"token": event["token"], "padding": "x" * event.get("padding", 0)}


def _say(witness, words):
    """Tells the witness, which outlives the daemon, and waits until it has noted it."""
    witness.sendall(" ".join(words).encode() + b"\n")
    if witness.recv(3) != b"ok\n":
        raise OSError("the witness is gone")


def note(event, context):
    """An asynchronous invocation: the witness learns its beginning and its end."""
    with socket.create_connection(("127.0.0.1", int(os.environ["WITNESS"])), 5) as witness:
        _say(witness, ["begin", event["token"], context.aws_request_id])
        time.sleep(random.random() * event.get("ms", 0) / 1000)
        _say(witness, ["end", event["token"], context.aws_request_id])
    return {"token": event["token"]}


def digest(event, context):
    seen = hashlib.sha256()
    with context.inputs.open("data") as file:
        for part in iter(lambda: file.read(65536), b""):
            seen.update(part)
    return {"token": event["token"], "digest": seen.hexdigest()}


def number(event, context):
    return {"token": event["token"], "number": NUMBER}


def hog(event, context):
    """Uses memory for a while."""
    taken = bytearray(event["mb"] << 20)
    for at in range(0, len(taken), 4096):
        taken[at] = 1
    time.sleep(event["s"])
    return {"token": event["token"]}


async def stream(scope, receive, send):
    """An ASGI application whose body has many parts, with pauses."""
    if scope["type"] != "http":
        return
    import asyncio
    from urllib.parse import parse_qs

    query = parse_qs(scope["query_string"].decode())
    token, parts = query["token"][0], int(query["parts"][0])
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
    for part in range(parts):
        await send({"type": "http.response.body", "body": f"{token} {part}\n".encode(), "more_body": True})
        await asyncio.sleep(0.01)
    await send({"type": "http.response.body", "body": b"end\n"})


def url(event, context):
    query = event.get("queryStringParameters") or {}
    return {
        "statusCode": 200,
        "headers": {"x-token": query.get("token", "")},
        "body": json.dumps({"token": query.get("token")}),
    }
