"""Floods: clients that send what costs the daemon more than it costs them, as fast as it is taken. Three connections each.

`attacks` runs them.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import struct
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

CONNECTIONS = 3
READERS = 16
# One send has so many messages.
BATCH = 2000

Open = Callable[[], socket.socket]


def websocket(connect: Open) -> socket.socket:
    client = connect()
    client.sendall(
        b"GET /fn/websocket/ HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    answer = client.recv(1000)
    assert answer.startswith(b"HTTP/1.1 101"), answer
    return client


def chunked(connect: Open) -> socket.socket:
    client = connect()
    client.sendall(
        b"POST /2015-03-31/functions/flooded/invocations HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    return client


def http2(connect: Open) -> socket.socket:
    client = connect()
    client.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS))
    return client


def frame(kind: int, payload: bytes = b"", flags: int = 0) -> bytes:
    """On stream 0 (RFC 9113, section 4.1)."""
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", 0) + payload


SETTINGS, PING = 4, 6
# Final and masked with zeros (RFC 6455, section 5.2).
MASK = bytes(4)
WS_TEXT_1 = b"\x81\x81" + MASK + b"x"
WS_PING, WS_PONG = b"\x89\x80" + MASK, b"\x8a\x80" + MASK
# RFC 9112, section 7.1.
CHUNK_1, CHUNK_64 = b"1\r\n \r\n", b"40\r\n" + b" " * 64 + b"\r\n"
CALL = b"POST /2015-03-31/functions/flooded/invocations HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}"


def flood(opens: Callable[[Open], socket.socket], message: bytes, connect: Open, under_way: Callable[[], None]) -> None:
    """Sends `message` again and again on each connection, and reads what is answered. Opens again what is closed."""
    selector = selectors.DefaultSelector()
    block = message * BATCH

    def add() -> None:
        client = opens(connect)
        client.setblocking(False)
        selector.register(client, selectors.EVENT_READ | selectors.EVENT_WRITE, [0])

    for _ in range(CONNECTIONS):
        add()
    under_way()
    while True:
        for key, ready in selector.select():
            client, at = key.fileobj, key.data
            assert isinstance(client, socket.socket)
            try:
                if ready & selectors.EVENT_READ and not client.recv(1 << 20):
                    raise ConnectionResetError
                if ready & selectors.EVENT_WRITE:
                    at[0] = (at[0] + client.send(block[at[0] :])) % len(block)
            except BlockingIOError:
                continue
            except OSError:
                selector.unregister(client)
                client.close()
                add()


def read_again(path: str, control: Path, under_way: Callable[[], None]) -> None:
    """Clients of the control API that ask for the same long answer, each again as soon as it has it."""

    def ask() -> None:
        while True:
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as client:
                client.connect(str(control))
                client.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
                while client.recv(1 << 20):
                    pass

    threads = [threading.Thread(target=ask) for _ in range(READERS)]
    for thread in threads:
        thread.start()
    under_way()
    for thread in threads:
        thread.join()


FLOODS: dict[str, Callable[[Open, Callable[[], None]], None]] = {
    "pipelined calls": partial(flood, lambda connect: connect(), CALL),
    "chunks, 1 byte": partial(flood, chunked, CHUNK_1),
    "chunks, 64 bytes": partial(flood, chunked, CHUNK_64),
    "HTTP/2 pings": partial(flood, http2, frame(PING, bytes(8))),
    "HTTP/2 settings": partial(flood, http2, frame(SETTINGS)),
    "WebSocket pings": partial(flood, websocket, WS_PING),
    "WebSocket pongs": partial(flood, websocket, WS_PONG),
    "WebSocket messages": partial(flood, websocket, WS_TEXT_1),
}
READS = {
    "logs": "/_pilot/v1/functions/says/logs?lines=100000",
    "asynchronous invocations": "/_pilot/v1/async?limit=1000",
}
