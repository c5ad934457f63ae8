"""Servers that lie to the daemon: triggers, destinations and stores. What they can make it hold and do is bounded."""

from __future__ import annotations

import http.server
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import eventually
from pilot_daemon import Daemon

pytestmark = pytest.mark.timeout(240)

MIB = 1 << 20
# What may lie in the buffers of both sockets of a connection, in addition to what the daemon takes.
IN_SOCKETS = 16 * MIB
ENDLESS_BYTES = 200 * MIB


class HostileRedis:
    """A server with Redis's protocol that answers some commands as it likes."""

    def __init__(self, answers: dict[bytes, bytes]) -> None:
        self.answers = answers
        self.asked: list[bytes] = []
        # How much of an endless answer was taken, per connection that asked for one.
        self.taken: list[int] = []
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.port = self.listening.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self) -> None:
        while True:
            try:
                connection, _ = self.listening.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(connection,), daemon=True).start()

    def serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as requests:
            while line := requests.readline():
                words = []
                for _ in range(int(line[1:])):
                    length = int(requests.readline()[1:])
                    words.append(requests.read(length + 2)[:-2])
                command = words[0].upper()
                self.asked.append(command)
                answer = self.answers.get(command, b"+OK\r\n")
                try:
                    connection.sendall(answer)
                    if answer.startswith(b"$") and b"\r\n" in answer and len(answer) < 20 and int(answer[1:-2]) > MIB:
                        return self.pour(connection)
                except OSError:
                    return

    def pour(self, connection: socket.socket) -> None:
        at = len(self.taken)
        self.taken.append(0)
        part = bytes(MIB)
        while self.taken[at] < ENDLESS_BYTES:
            self.taken[at] += connection.send(part)

    def close(self) -> None:
        self.listening.close()


class HostileSqs:
    """A server with SQS's API whose messages are these bytes."""

    def __init__(self, messages: bytes) -> None:
        self.polls = 0
        hostile = self

        class Answers(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["content-length"]))
                action = self.headers["x-amz-target"]
                hostile.polls += action.endswith("ReceiveMessage")
                body = messages if action.endswith("ReceiveMessage") else b'{"Attributes": {}}'
                self.send_response(200)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}/1"

    def close(self) -> None:
        self.server.shutdown()


Start = Callable[[str], Daemon]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a daemon with this configuration."""
    started: list[Daemon] = []

    def start(text: str) -> Daemon:
        config = tmp_path / "pilotd.toml"
        config.write_text(text)
        started.append(Daemon(tmp_path, "--config", str(config)))
        return started[0]

    yield start
    for daemon in started:
        daemon.stop()


def redis_connection(server: HostileRedis) -> str:
    return f'[connections.main]\nfunctions = ["*"]\nkind = "redis"\nurl = "redis://127.0.0.1:{server.port}/0"\n'


STREAM = '[[functions.odd.triggers]]\ntype = "redis"\nconnection = "main"\nstream = "s"\ngroup = "g"\n'


def deploy(daemon: Daemon, folder: Path, keys: str) -> None:
    project = folder / "project"
    project.mkdir()
    (project / "app.py").write_text("def handler(event, context):\n    return event\n")
    (project / "pilot.toml").write_text(f'[functions.odd]\nhandler = "app.handler"\n{keys}')
    done = daemon.up(project)
    assert done.returncode == 0, done.stdout + done.stderr + daemon.log.read_text()


def trigger(daemon: Daemon) -> Any:
    response = daemon.request("GET", "/_pilot/v1/functions/odd")
    return json.loads(response.read())["triggers"][0]


def invoked(daemon: Daemon, event: object) -> tuple[int, Any]:
    response = daemon.request("POST", "/2015-03-31/functions/odd/invocations", event)
    return response.status, json.loads(response.read())


def test_an_answer_of_a_redis_stream_without_end_is_not_kept(start: Start, tmp_path: Path) -> None:
    server = HostileRedis({b"XREADGROUP": b"$1000000000\r\n"})
    daemon = start(redis_connection(server))
    deploy(daemon, tmp_path, STREAM)
    eventually("the limit", lambda: "lower batch_size" in trigger(daemon).get("last_error", ""))
    # The connection is closed, so it has taken what it will take.
    assert 0 < server.taken[0] < 12 * MIB + IN_SOCKETS, server.taken
    assert daemon.ready() and invoked(daemon, 1) == (200, 1)
    server.close()


def test_a_redis_stream_that_does_not_wait_is_not_asked_without_end(start: Start, tmp_path: Path) -> None:
    # Also one whose entries of others have no end: each part names another one.
    server = HostileRedis({b"XREADGROUP": b"*0\r\n", b"XAUTOCLAIM": b"*2\r\n$3\r\n5-0\r\n*0\r\n", b"XINFO": b"*0\r\n"})
    daemon = start(redis_connection(server))
    deploy(daemon, tmp_path, STREAM)
    eventually("the first requests", lambda: b"XAUTOCLAIM" in server.asked)
    before, began = len(server.asked), time.monotonic()
    time.sleep(2)
    asked, took_s = len(server.asked) - before, time.monotonic() - began
    # Two requests each 10 ms.
    assert asked < 300 * took_s, (asked, took_s)
    server.answers[b"XAUTOCLAIM"] = b"*2\r\n$3\r\n0-0\r\n*0\r\n"
    eventually("the reads", lambda: b"XREADGROUP" in server.asked[before + 1 :])
    before, began = len(server.asked), time.monotonic()
    time.sleep(2)
    after, took_s = len(server.asked), time.monotonic() - began
    assert after - before < 10 * took_s, (server.asked[before:after], took_s)
    server.close()


def test_a_value_of_a_redis_store_is_no_longer_than_it_was_said_to_be(start: Start, tmp_path: Path) -> None:
    server = HostileRedis({b"TYPE": b"+string\r\n", b"STRLEN": b":1000\r\n", b"GETRANGE": b"$1000000000\r\n"})
    daemon = start(f'[stores.lies]\nfunctions = ["*"]\nkind = "redis"\nurl = "redis://127.0.0.1:{server.port}/0"\n')
    deploy(daemon, tmp_path, '[functions.odd.inputs]\nstate = "redis://lies/{event.key}"\n')
    status, answer = invoked(daemon, {"key": "a"})
    assert "more than it was asked for" in json.dumps(answer), (status, answer)
    assert server.taken and max(server.taken) < 5 * MIB + IN_SOCKETS, server.taken
    assert daemon.ready()
    server.close()


def test_a_queue_that_does_not_wait_is_not_asked_without_end(start: Start, tmp_path: Path) -> None:
    server = HostileSqs(b"{}")
    daemon = start(f'[connections.main]\nfunctions = ["*"]\nkind = "sqs"\nurl = "{server.url}"\ncredentials = "anonymous"\n')
    deploy(daemon, tmp_path, f'[[functions.odd.triggers]]\ntype = "sqs"\nqueue = "{server.url}/q"\n')
    eventually("the first poll", lambda: server.polls > 0)
    before, began = server.polls, time.monotonic()
    time.sleep(3)
    polls, took_s = server.polls - before, time.monotonic() - began
    assert polls < 3.5 * took_s, (polls, took_s)
    assert trigger(daemon)["state"] == "active"
    server.close()


def test_an_answer_of_a_queue_with_countless_values_is_not_read(start: Start, tmp_path: Path) -> None:
    server = HostileSqs(b'{"Messages": [' + b"[]," * (6 * MIB) + b"[]]}")
    daemon = start(f'[connections.main]\nfunctions = ["*"]\nkind = "sqs"\nurl = "{server.url}"\ncredentials = "anonymous"\n')
    deploy(daemon, tmp_path, f'[[functions.odd.triggers]]\ntype = "sqs"\nqueue = "{server.url}/q"\n')
    eventually("the limit", lambda: "values" in trigger(daemon).get("last_error", ""))
    highest = next(line for line in Path(f"/proc/{daemon.process.pid}/status").read_text().splitlines() if "VmHWM" in line)
    # The answer has 18 MB. Read, it would take ten times as much.
    assert int(highest.split()[1]) < 180 * 1024, highest
    server.close()


class HostileS3:
    """A server that answers every GET with these bytes, head included, and then perhaps zeros without end."""

    def __init__(self, answer: bytes, endless: bool = False) -> None:
        self.asked = 0
        self.taken = 0
        self.answer, self.endless = answer, endless
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listening.getsockname()[1]}"
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self) -> None:
        while True:
            try:
                connection, _ = self.listening.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(connection,), daemon=True).start()

    def serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as lines:
            while lines.readline().strip():
                pass
            self.asked += 1
            try:
                connection.sendall(self.answer)
                # The body comes in two parts.
                time.sleep(0.2)
                part = bytes(MIB)
                connection.sendall(b"more")
                while self.endless and self.taken < ENDLESS_BYTES:
                    self.taken += connection.send(part)
            except OSError:
                pass

    def close(self) -> None:
        self.listening.close()


def s3_store(server: HostileS3) -> str:
    return (
        f'[stores.lies]\nfunctions = ["*"]\nkind = "s3"\nbucket = "b"\nendpoint = "{server.url}"\ncredentials = "anonymous"\n'
    )


S3_INPUT = '[functions.odd.inputs]\nstate = "s3://lies/{event.key}"\n'


def test_a_refusal_of_a_store_with_an_absurd_length_does_not_end_the_daemon(start: Start, tmp_path: Path) -> None:
    # 64 TiB, which no machine can reserve.
    server = HostileS3(b"HTTP/1.1 404 Not Found\r\ncontent-length: 70368744177664\r\n\r\n<Error><Code>NoSuchKey</Code></Error>")
    daemon = start(s3_store(server))
    deploy(daemon, tmp_path, S3_INPUT)
    status, answer = invoked(daemon, {"key": "a"})
    assert "there is no such object" in json.dumps(answer), (status, answer)
    assert daemon.process.poll() is None and daemon.ready()
    server.close()


def test_a_refusal_of_a_store_without_end_is_not_kept(start: Start, tmp_path: Path) -> None:
    server = HostileS3(b"HTTP/1.1 403 Forbidden\r\n\r\n<Error><Code>AccessDenied</Code></Error>", endless=True)
    daemon = start(s3_store(server))
    deploy(daemon, tmp_path, S3_INPUT)
    status, answer = invoked(daemon, {"key": "a"})
    assert "AccessDenied" in json.dumps(answer), (status, answer)
    assert server.taken < IN_SOCKETS, server.taken
    server.close()


def test_a_store_cannot_send_the_daemon_to_another_server(start: Start, tmp_path: Path) -> None:
    other = HostileS3(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nsecret")
    server = HostileS3(f"HTTP/1.1 302 Found\r\nlocation: {other.url}/latest\r\ncontent-length: 4\r\n\r\n".encode())
    daemon = start(s3_store(server))
    deploy(daemon, tmp_path, S3_INPUT)
    status, answer = invoked(daemon, {"key": "a"})
    assert "302" in json.dumps(answer) and server.asked > 0, (status, answer)
    assert other.asked == 0
    server.close()
    other.close()
