"""The attacks. Each runs in a process of its own, so that its work in Python does not delay the measurement, and with a low priority,
because the clients of an attack would be on other machines. It prints a line when it is under way, and runs until it is ended.

    python -m neighbours.attacks NAME PORT CONTROL_SOCKET
"""

from __future__ import annotations

import os
import resource
import selectors
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

from .floods import CONNECTIONS, FLOODS, READS, read_again

# Another address of this machine than the honest clients have.
ATTACKER = "127.0.0.2"
TRICKLERS = 1024
PATIENCE_S = 0.5


def connect(port: int, receive_bytes: int | None = None) -> socket.socket:
    client = socket.socket()
    if receive_bytes:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    client.bind((ATTACKER, 0))
    client.settimeout(5)
    client.connect(("127.0.0.1", port))
    return client


def request(
    name: str, body: bytes = b"{}", length: int | None = None, path: str = "/2015-03-31/functions/{}/invocations"
) -> bytes:
    head = f"POST {path.format(name)} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length or len(body)}\r\n\r\n"
    return head.encode() + body


def under_way() -> None:
    print("under way", flush=True)


def calling(name: str, connections: int) -> Callable[[int], None]:
    """Calls a function on so many connections at a time, without reading; calls again on those that were closed or answered."""

    def attack(port: int) -> None:
        open_ones = [call(port) for _ in range(connections)]
        under_way()
        while True:
            time.sleep(PATIENCE_S)
            for at, client in enumerate(open_ones):
                if is_over(client):
                    client.close()
                    open_ones[at] = call(port)

    def call(port: int) -> socket.socket:
        client = connect(port, receive_bytes=4096)
        client.sendall(request(name))
        client.setblocking(False)
        return client

    def is_over(client: socket.socket) -> bool:
        """Ended, or answered with something short. A long answer stays unread."""
        try:
            seen = client.recv(2048, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True
        return not seen or (name != "long" and b"\r\n\r\n" in seen)

    return attack


def trickle(port: int) -> None:
    """1,024 connections that send a head byte by byte. Those that are closed are opened again."""
    clients: list[socket.socket | None] = [None] * TRICKLERS
    head = b"POST /2015-03-31/functions/neighbour/invocations HTTP/1.1\r\nHost: localhost\r\nX-Padding: " + b"x" * 10_000
    sent = [0] * TRICKLERS
    told = False
    while True:
        for at, client in enumerate(clients):
            try:
                if client is None:
                    client = clients[at] = connect(port)
                    sent[at] = 0
                client.send(head[sent[at] : sent[at] + 1])
                sent[at] += 1
            except OSError:
                if client is not None:
                    client.close()
                clients[at] = None
        if not told:
            under_way()
            told = True
        time.sleep(1)


def uploads(port: int) -> None:
    """64 bodies of 6 MB that arrive slowly: more than the memory for bodies, if announcements counted."""
    clients: list[socket.socket | None] = [None] * 64
    told = False
    while True:
        for at, client in enumerate(clients):
            try:
                if client is None:
                    client = clients[at] = connect(port)
                    client.sendall(request("neighbour", b'"', 6_000_000))
                client.sendall(b"x" * 20_000)
            except OSError:
                if client is not None:
                    client.close()
                clients[at] = None
        if not told:
            under_way()
            told = True
        time.sleep(0.2)


def streaming(length: int) -> Callable[[int], None]:
    """Three clients of a program that streams pieces of this length, which read them."""

    def attack(port: int) -> None:
        selector = selectors.DefaultSelector()

        def add() -> None:
            client = connect(port)
            client.sendall(
                request("pieces", str(length).encode(), path="/2021-11-15/functions/{}/response-streaming-invocations")
            )
            selector.register(client, selectors.EVENT_READ)

        for _ in range(CONNECTIONS):
            add()
        under_way()
        while True:
            for key, _ in selector.select():
                client = key.fileobj
                assert isinstance(client, socket.socket)
                try:
                    ended = not client.recv(1 << 18)
                except OSError:
                    ended = True
                if ended:
                    selector.unregister(client)
                    client.close()
                    add()

    return attack


ATTACKS: dict[str, Callable[[int], None]] = {
    "printing": calling("printing", 4),
    "trickle": trickle,
    "unread": calling("long", 40),
    "partial": calling("partial", 40),
    "uploads": uploads,
    "forking": calling("forking", 2),
    "memory": calling("hog", 4),
    "pieces, 1 byte": streaming(1),
    "pieces, 64 bytes": streaming(64),
    "pieces, 1 KiB": streaming(1024),
    "pieces, none": streaming(0),
    "everything": calling("everything", 1),
    "everything, no limit of CPU": calling("everything-unlimited", 1),
}
CLIENTS = [*ATTACKS, *FLOODS, *READS]


def main() -> None:
    name, port, control = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    os.nice(19)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if name in FLOODS:
        FLOODS[name](lambda: connect(port), under_way)
    elif name in READS:
        read_again(READS[name], control, under_way)
    else:
        ATTACKS[name](port)


if __name__ == "__main__":
    main()
