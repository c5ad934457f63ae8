"""The servers around the daemon: a store, a relay before it that can disturb, and the witness of asynchronous invocations."""

from __future__ import annotations

import hashlib
import http.server
import random
import socket
import socketserver
import struct
import threading
import time
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, field

KEYS = 24


class Store:
    """An HTTP server with objects of a few bytes to two megabytes, named 0, 1 and so on."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(f"store {seed}")
        self.objects = {str(key): rng.randbytes(rng.choice([10, 3000, 70_000, 700_000, 2_000_000])) for key in range(KEYS)}
        self.digests = {key: hashlib.sha256(body).hexdigest() for key, body in self.objects.items()}
        objects = self.objects

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                body = objects.get(self.path.rpartition("/")[2])
                if body is None:
                    self.send_error(404)
                    return
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                with suppress(OSError):
                    self.wfile.write(body)

            def log_message(self, *arguments: object) -> None:
                pass

            def handle(self) -> None:
                with suppress(OSError):
                    super().handle()

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.port = self._server.server_port

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class Relay:
    """Passes connections on to the store. `mode`: pass, cut (a reset), stall, truncate (an orderly end), refuse."""

    def __init__(self, target: int) -> None:
        self.mode = "pass"
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._is_open = True
        threading.Thread(target=self._accept, daemon=True).start()

    def stop(self) -> None:
        self._is_open = False
        # Wakes the thread that accepts.
        with suppress(OSError):
            socket.create_connection(("127.0.0.1", self.port), 1).close()
        self._listener.close()

    def _accept(self) -> None:
        while self._is_open:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self.mode == "refuse":
                _reset(client)
                continue
            threading.Thread(target=self._pass, args=(client,), daemon=True).start()

    def _pass(self, client: socket.socket) -> None:
        try:
            server = socket.create_connection(("127.0.0.1", self._target), 5)
        except OSError:
            client.close()
            return
        up = threading.Thread(target=_copy_up, args=(client, server), daemon=True)
        up.start()
        try:
            while data := server.recv(16_384):
                while self.mode == "stall" and self._is_open:
                    time.sleep(0.02)
                if self.mode in ("cut", "truncate"):
                    client.sendall(data[: len(data) // 2])
                    if self.mode == "cut":
                        _reset(client)
                    break
                client.sendall(data)
        except OSError:
            pass
        for end in (client, server):
            # shutdown(2) wakes the other thread; close(2) does not.
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        up.join(10)
        client.close()
        server.close()


def _copy_up(client: socket.socket, server: socket.socket) -> None:
    with suppress(OSError):
        while data := client.recv(16_384):
            server.sendall(data)
        server.shutdown(socket.SHUT_WR)


def _reset(end: socket.socket) -> None:
    """Closes a connection with a reset."""
    with suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    end.close()


@dataclass
class Run:
    """What the witness heard of one invocation: when attempts began and ended."""

    begins: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)


class Witness:
    """Handlers tell it that they begin and that they end. It outlives the daemon."""

    def __init__(self) -> None:
        self.runs: dict[str, Run] = defaultdict(Run)
        self.tokens: dict[str, set[str]] = defaultdict(set)
        self._lock = threading.Lock()
        witness = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                with suppress(OSError):
                    for line in self.rfile:
                        if not line.endswith(b"\n"):
                            return
                        witness._hear(*line.decode().split())
                        self.wfile.write(b"ok\n")

        class Server(socketserver.ThreadingTCPServer):
            request_queue_size = 128
            daemon_threads = True

        self._server = Server(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.port = self._server.server_address[1]

    def _hear(self, what: str, token: str, request: str) -> None:
        with self._lock:
            run = self.runs[request]
            (run.begins if what == "begin" else run.ends).append(time.monotonic())
            self.tokens[request].add(token)

    def seen(self) -> dict[str, Run]:
        with self._lock:
            return {request: Run([*run.begins], [*run.ends]) for request, run in self.runs.items()}

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
