"""A link in user space between a client and a server, with a distance and a rate: [`Relay`]. The process of its own is this file, too:

    relay.py LISTEN_PORT SERVER_PORT

A line `MS MBITS` on its standard input sets the round trip of the connections that come from then on, and what all of them together carry
per second in each direction (0: no limit). It is answered by `ok`. Bytes wait half of the round trip in each direction, and those of a new
connection one round trip more, as for a handshake. Nothing is lost.
"""

from __future__ import annotations

import queue
import socket
import subprocess
import sys
import threading
import time

# About 2 ms at 1 Gbit/s.
PART_LEN, PARTS_MAX = 1 << 18, 64
Parts = queue.Queue[tuple[float, bytes]]


class Relay:
    """A link before a server of this machine: connect to `port`."""

    def __init__(self, server_port: int) -> None:
        from benchlib.daemon import free_port

        self.port = free_port()
        command = [sys.executable, __file__, str(self.port), str(server_port)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> Relay:
        self.set(0)
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()

    def set(self, round_trip_ms: float, megabits: float = 0) -> None:
        assert self.process.stdin and self.process.stdout
        print(round_trip_ms, megabits, file=self.process.stdin, flush=True)
        if self.process.stdout.readline() != "ok\n":
            raise RuntimeError("the relay has ended")


class Line:
    """One direction of the link: when its last byte will have been carried."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.free_at = 0.0

    def carried(self, from_s: float, size: int, bytes_per_s: float) -> float:
        """When a part has been carried that is there at this time."""
        if not bytes_per_s:
            return from_s
        with self.lock:
            self.free_at = max(self.free_at, from_s) + size / bytes_per_s
            return self.free_at


class Process:
    def __init__(self, listen_port: int, server_port: int) -> None:
        self.server_port = server_port
        self.round_trip_s, self.bytes_per_s = 0.0, 0.0
        self.lines = (Line(), Line())
        self.listener = socket.create_server(("127.0.0.1", listen_port), backlog=256)

    def serve(self) -> None:
        while True:
            client, _ = self.listener.accept()
            threading.Thread(target=self.connect, args=(client, self.round_trip_s, self.bytes_per_s), daemon=True).start()

    def connect(self, client: socket.socket, round_trip_s: float, bytes_per_s: float) -> None:
        opened = time.monotonic() + round_trip_s
        try:
            server = socket.create_connection(("127.0.0.1", self.server_port))
        except OSError:
            client.close()
            return
        for end in (client, server):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for source, sink, line in ((client, server, self.lines[0]), (server, client, self.lines[1])):
            parts: Parts = queue.Queue(PARTS_MAX)
            arguments = (source, parts, line, opened, round_trip_s / 2, bytes_per_s)
            threading.Thread(target=read, args=arguments, daemon=True).start()
            threading.Thread(target=write, args=(sink, parts), daemon=True).start()


def read(source: socket.socket, parts: Parts, line: Line, opened: float, delay_s: float, bytes_per_s: float) -> None:
    """Notes for each part when it is due. An empty part is the end."""
    while True:
        try:
            part = source.recv(PART_LEN)
        except OSError:
            part = b""
        sent = max(time.monotonic(), opened)
        parts.put((line.carried(sent, len(part), bytes_per_s) + delay_s, part))
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


def main() -> None:
    relay = Process(int(sys.argv[1]), int(sys.argv[2]))
    threading.Thread(target=relay.serve, daemon=True).start()
    for line in sys.stdin:
        round_trip_ms, megabits = map(float, line.split())
        relay.round_trip_s, relay.bytes_per_s = round_trip_ms / 1000, megabits * 125_000
        print("ok", flush=True)


if __name__ == "__main__":
    main()
