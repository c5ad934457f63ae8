"""An ASGI application behind an event of API Gateway."""

from mangum import Mangum


async def application(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": scope["path"].encode()})


HANDLER = Mangum(application, lifespan="off")
CONTEXT = {"accountId": "1", "http": {"method": "GET", "path": "/a", "protocol": "HTTP/1.1", "sourceIp": "127.0.0.1"}}
EVENT = {
    "version": "2.0",
    "rawPath": "/a",
    "rawQueryString": "",
    "headers": {},
    "requestContext": CONTEXT,
    "isBase64Encoded": False,
}


def work():
    return HANDLER(EVENT, None)


def fail():
    Mangum(application, lifespan="sometimes")
