"""Servers that functions connect to at import, and what the tests of templates with open descriptors have in common. Not a test."""

from __future__ import annotations

import http.server
import os
import socketserver
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from harness import Stream, Template

SITE = os.environ.get("PILOT_TEST_SITE_PACKAGES", "")
CALLS = 25


class Threaded(socketserver.ThreadingMixIn, socketserver.TCPServer):
    daemon_threads = True
    allow_reuse_address = True


class Echo(http.server.BaseHTTPRequestHandler):
    """Answers with the path, in two parts, so that answers that share a connection are mixed."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        text = self.path.encode()
        self.send_response(200)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.flush()
        self.wfile.write(text)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.do_GET()

    def log_message(self, *_: Any) -> None:
        pass


class Redis(socketserver.StreamRequestHandler):
    """Enough of the protocol for the client to connect, and ECHO and PING."""

    def handle(self) -> None:
        while True:
            count = self.rfile.readline()
            if not count.startswith(b"*"):
                return
            words = []
            for _ in range(int(count[1:])):
                length = int(self.rfile.readline()[1:])
                words.append(self.rfile.read(length + 2)[:-2])
            command = words[0].upper()
            if command == b"ECHO":
                self.wfile.write(b"$%d\r\n%s\r\n" % (len(words[1]), words[1]))
            elif command == b"HELLO":
                self.wfile.write(b"%1\r\n$5\r\nproto\r\n:3\r\n")
            else:
                self.wfile.write(b"+PONG\r\n" if command == b"PING" else b"+OK\r\n")


def serve(handler: Any) -> Iterator[int]:
    with Threaded(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


def needs(module: str) -> None:
    if not os.path.isdir(os.path.join(SITE, module)):
        pytest.skip(f"PILOT_TEST_SITE_PACKAGES has no {module}")


def ready(template: Template, count: int = 4) -> list[Stream]:
    workers = [template.worker() for _ in range(count)]
    for worker in workers:
        worker.ready()
    return workers


def all_at_once(workers: list[Stream], events: list[Any]) -> list[Any]:
    """The results of one invocation per worker, which run at the same time."""
    for worker, event in zip(workers, events):
        worker.ask(event)
    answers = [worker.frame() for worker in workers]
    return [(kind, body.decode()) for kind, _, _, body in answers]


def assert_no_answer_crosses(template: Template) -> None:
    workers = ready(template)
    for call in range(CALLS):
        events = [f"/{index}/{call}" for index in range(len(workers))]
        got = all_at_once(workers, events)
        assert [body for _, body in got] == [f'"{event}"' for event in events]


def findings(template: Template) -> list[tuple[str, str, str]]:
    return [(row["where"], row["what"], row["instead"]) for row in template.report["findings"]]
