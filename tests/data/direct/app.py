"""Functions that have the body of their requests as an input."""

import hashlib

import pilotlight


def said(event, context, digest, size):
    http = event.get("requestContext", {}).get("http", {})
    return {
        "bytes": size,
        "digest": digest.hexdigest(),
        "body": event.get("body"),
        "keys": len(event),
        "method": http.get("method"),
        "length": event.get("headers", {}).get("content-length"),
        "custom": getattr(context.client_context, "custom", None),
    }


def handler(event, context):
    file = context.inputs["file"]
    with open(context.inputs.path("file"), "rb") as by_path:
        assert hashlib.sha256(by_path.read()).digest() == hashlib.sha256(file).digest()
    return said(event, context, hashlib.sha256(file), len(file))


def parts(event, context):
    digest, size = hashlib.sha256(), 0
    with context.inputs.open("file") as file:
        for part in iter(lambda: file.read(1 << 20), b""):
            digest.update(part)
            size += len(part)
    return said(event, context, digest, size)


def first(event, context):
    with context.inputs.open("file") as file:
        return file.read(1).decode()


def optional(event, context):
    try:
        return len(context.inputs["file"])
    except LookupError as error:
        return str(error)


def decoded(event, context):
    return context.inputs["file"].array.tolist()


def call(event, context):
    seen = {}
    for name in ("body", "body-optional"):
        try:
            seen[name] = pilotlight.invoke(name, {}, data=b"not the body of a request")
        except pilotlight.FunctionError as error:
            seen[name] = error.error_type
    return seen


async def asgi(scope, receive, send):
    if scope["type"] != "http":
        return
    rest = await receive()
    assert not rest["body"] and not rest["more_body"], rest
    headers = [(b"x-length", value) for name, value in scope["headers"] if name == b"content-length"]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": digest_of(scope["pilot.inputs"])})


def wsgi(environ, start_response):
    assert environ["wsgi.input"].read() == b""
    start_response("200 OK", [("x-length", environ.get("CONTENT_LENGTH", ""))])
    return [digest_of(environ["pilot.inputs"])]


def digest_of(inputs):
    return hashlib.sha256(inputs["file"]).hexdigest().encode()
