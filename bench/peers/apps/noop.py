"""The same no-op three times: a Lambda handler, an ASGI and a WSGI application. Each response has 2 bytes."""

import json


def handler(event, context):
    return 1.5


async def asgi(scope, receive, send):
    if scope["type"] != "http":
        return
    await receive()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"3")]})
    await send({"type": "http.response.body", "body": b"1.5"})


async def event_over_asgi(scope, receive, send):
    """A Lambda handler behind uvicorn: parse JSON, call the handler, write JSON."""
    if scope["type"] != "http":
        return
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    answer = json.dumps(handler(json.loads(body), None)).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(answer)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": answer})


def wsgi(environ, start_response):
    start_response("200 OK", [("content-length", "3")])
    return [b"1.5"]
