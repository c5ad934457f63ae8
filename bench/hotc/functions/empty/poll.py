"""An empty function with a minimal client of the Lambda Runtime API: one connection, and it parses only what it needs. It waits for
the answer to each of its requests, as every client does."""

import os
import socket

API = os.environ["AWS_LAMBDA_RUNTIME_API"]
NEXT = b"GET /2018-06-01/runtime/invocation/next HTTP/1.1\r\nhost: %b\r\n\r\n" % API.encode()
RESPONSE = b'POST /2018-06-01/runtime/invocation/%b/response HTTP/1.1\r\nhost: %b\r\ncontent-length: 2\r\n\r\n""'


def asked(api, request):
    """Sends a request. Returns the answer's headers by name."""
    api.sendall(request)
    received = api.recv(65536)
    while b"\r\n\r\n" not in received:
        received += more(api)
    head, _, body = received.partition(b"\r\n\r\n")
    headers = dict(line.split(b": ", 1) for line in head.lower().split(b"\r\n")[1:])
    left = int(headers.get(b"content-length", b"0")) - len(body)
    while left > 0:
        left -= len(more(api))
    return headers


def more(api):
    part = api.recv(65536)
    if not part:
        raise SystemExit(0)
    return part


def main():
    host, _, port = API.rpartition(":")
    with socket.create_connection((host, int(port))) as api:
        api.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while True:
            request_id = asked(api, NEXT)[b"lambda-runtime-aws-request-id"]
            asked(api, RESPONSE % (request_id, API.encode()))


main()
