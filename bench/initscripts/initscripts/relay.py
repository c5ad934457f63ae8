"""A relay in user space that puts a distance between a client and a server: a process of its own.

    relay.py LISTEN_PORT SERVER_PORT

A line `MS` on its standard input sets the round trip of the connections that come from then on, and is answered by `ok`. Bytes wait half of
it in each direction, and those of a new connection one round trip more, as for a handshake. Nothing is lost, and the rate has no limit.
"""

from __future__ import annotations

import queue
import socket
import sys
import threading
import time

PART_LEN, PARTS_MAX = 1 << 18, 64
Parts = queue.Queue[tuple[float, bytes]]


class Relay:
    def __init__(self, listen_port: int, server_port: int) -> None:
        self.server_port = server_port
        self.round_trip_s = 0.0
        self.listener = socket.create_server(("127.0.0.1", listen_port), backlog=256)

    def serve(self) -> None:
        while True:
            client, _ = self.listener.accept()
            threading.Thread(target=self.connect, args=(client, self.round_trip_s), daemon=True).start()

    def connect(self, client: socket.socket, round_trip_s: float) -> None:
        opened = time.monotonic() + round_trip_s
        try:
            server = socket.create_connection(("127.0.0.1", self.server_port))
        except OSError:
            client.close()
            return
        for end in (client, server):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for source, sink in ((client, server), (server, client)):
            parts: Parts = queue.Queue(PARTS_MAX)
            threading.Thread(target=read, args=(source, parts, opened, round_trip_s / 2), daemon=True).start()
            threading.Thread(target=write, args=(sink, parts), daemon=True).start()


def read(source: socket.socket, parts: Parts, opened: float, delay_s: float) -> None:
    """Notes for each part when it is due. An empty part is the end."""
    while True:
        try:
            part = source.recv(PART_LEN)
        except OSError:
            part = b""
        parts.put((max(time.monotonic(), opened) + delay_s, part))
        if not part:
            return


def write(sink: socket.socket, parts: Parts) -> None:
    while True:
        due, part = parts.get()
        ahead = due - time.monotonic()
        if ahead > 0:
            time.sleep(ahead)
        try:
            if not part:
                sink.shutdown(socket.SHUT_WR)
                return
            sink.sendall(part)
        except OSError:
            # The other thread of this connection ends when the peer has closed. What comes until then is dropped.
            while part:
                _, part = parts.get()
            return


if __name__ == "__main__":
    relay = Relay(int(sys.argv[1]), int(sys.argv[2]))
    threading.Thread(target=relay.serve, daemon=True).start()
    for line in sys.stdin:
        relay.round_trip_s = float(line) / 1000
        print("ok", flush=True)
