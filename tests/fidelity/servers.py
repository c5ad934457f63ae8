"""Real servers for functions that connect at import: HTTP, HTTPS, Redis and PostgreSQL, each on a free port of 127.0.0.1.

Redis and PostgreSQL are the programs of the machine. A test whose server is not installed is skipped, and says so. All are ended
by their process id. `cut` of a server ends all connections that are open, as a restart does, and keeps the server running.
"""

from __future__ import annotations

import http.server
import json
import os
import shutil
import signal
import socket
import socketserver
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from pilot_daemon import free_port

PASSWORD = "secret"
UP_S_MAX = 30


class Web:
    """HTTP/1.1 with keep-alive. The answer to `/WORD` has the word and the number of the connection. With a certificate: TLS."""

    def __init__(self, certificate: Path | None = None) -> None:
        numbers = count(1)
        web = self

        class Exchange(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True  # otherwise the second part waits 40 ms

            def setup(self) -> None:
                self.number = next(numbers)
                web.connections.add(self.request)
                super().setup()

            def do_GET(self) -> None:
                body = json.dumps({"token": self.path[1:], "connection": self.number}).encode()
                self.send_response(200)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                # In two parts, so that the answers to two processes on one connection would be mixed.
                self.wfile.flush()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        class Server(socketserver.ThreadingTCPServer):
            daemon_threads = True
            request_queue_size = 64

            def get_request(self) -> tuple[socket.socket, object]:
                connection, peer = super().get_request()
                if web.context is not None:  # the handshake is made by the connection's own thread, with its first read
                    connection = web.context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
                return connection, peer

            def shutdown_request(self, request: socket.socket) -> None:
                web.connections.discard(request)
                super().shutdown_request(request)

            def handle_error(self, request: object, client_address: object) -> None:
                error = sys.exc_info()[1]
                if isinstance(error, ssl.SSLError):
                    web.errors.append(error)

        self.connections: set[socket.socket] = set()
        self.errors: list[ssl.SSLError] = []
        self.context: ssl.SSLContext | None = None
        if certificate is not None:
            self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self.context.load_cert_chain(certificate)
        self.server = Server(("127.0.0.1", 0), Exchange)
        self.port = self.server.server_address[1]
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05})
        self.thread.start()

    def cut(self) -> None:
        for connection in list(self.connections):
            # Not SSLSocket.shutdown, which would wait for the connection's own thread.
            socket.socket.shutdown(connection, socket.SHUT_RDWR)
        until(lambda: not self.connections)

    def stop(self) -> None:
        self.cut()
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


class Program:
    """A server of the machine, in a folder that is removed afterwards."""

    def __init__(self, command: list[str | Path], log: Path, user: str | None = None) -> None:
        with log.open("wb") as file:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, **as_user(user))
        self.log = log

    def wait_for(self, is_up: Callable[[], bool]) -> None:
        try:
            until(lambda: self.process.poll() is not None or is_up())
            assert self.process.poll() is None
        except AssertionError:
            self.stop()
            pytest.fail(f"a server did not come up:\n{self.log.read_text()}", pytrace=False)

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)  # PostgreSQL: fast shutdown, without waiting for its clients
            try:
                self.process.wait(15)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


class Redis(Program):
    def __init__(self, folder: Path) -> None:
        program = shutil.which("redis-server")
        if program is None:
            pytest.skip("Redis is not tested: there is no redis-server on PATH (Debian: apt-get install redis-server)")
        self.port = free_port()
        words = {"port": self.port, "bind": "127.0.0.1", "save": "", "appendonly": "no", "dir": folder}
        options = [word for key, value in words.items() for word in (f"--{key}", str(value))]
        super().__init__([program, *options], folder / "redis.log")
        self.wait_for(lambda: self.ask("PING").startswith("+PONG"))

    def ask(self, command: str) -> str:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
                connection.sendall(command.encode() + b"\r\n")
                return connection.recv(1 << 16).decode()
        except OSError:
            return ""

    def cut(self) -> None:
        assert self.ask("CLIENT KILL TYPE normal SKIPME yes").startswith(":")


class Postgres(Program):
    """It refuses to run as root. Then it runs as the user of Debian's package."""

    def __init__(self, folder: Path) -> None:
        found = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: float(path.parent.name))
        programs = found[-1] if found else Path(shutil.which("postgres") or "").parent
        user = "postgres" if os.geteuid() == 0 else None
        if not (programs / "initdb").exists():
            pytest.skip("PostgreSQL is not tested: there is no postgres (Debian: apt-get install postgresql)")
        data = folder / "postgres"
        data.mkdir()
        if user is not None:
            shutil.chown(data, user)
        (data / "password").write_text(PASSWORD)
        initdb: list[str | Path] = [
            programs / "initdb",
            "--pgdata",
            data / "data",
            "--no-sync",
            "--auth",
            "scram-sha-256",
            "--username",
            "test",
        ]
        made = subprocess.run(
            [*initdb, "--pwfile", data / "password"], capture_output=True, text=True, cwd=data, **as_user(user)
        )
        assert made.returncode == 0, made.stdout + made.stderr
        self.port = free_port()
        self.tool: list[str | Path] = [
            programs / "psql",
            "-h",
            "127.0.0.1",
            "-p",
            str(self.port),
            "-U",
            "test",
            "-d",
            "postgres",
            "-Atc",
        ]
        settings = {"listen_addresses": "127.0.0.1", "unix_socket_directories": "", "fsync": "off", "max_connections": "100"}
        options = [word for key, value in settings.items() for word in ("-c", f"{key}={value}")]
        command: list[str | Path] = [programs / "postgres", "-D", data / "data", "-p", str(self.port), *options]
        super().__init__(command, folder / "postgres.log", user)
        self.wait_for(lambda: self.ask("select 1") == "1\n")

    def ask(self, query: str) -> str:
        done = subprocess.run([*self.tool, query], capture_output=True, text=True, env={**os.environ, "PGPASSWORD": PASSWORD})
        return done.stdout

    def cut(self) -> None:
        others = "from pg_stat_activity where backend_type = 'client backend' and pid <> pg_backend_pid()"
        self.ask(f"select pg_terminate_backend(pid) {others}")
        until(lambda: self.ask(f"select count(*) {others}") == "0\n")


def certificate(folder: Path) -> Path:
    """A new certificate for 127.0.0.1, signed by itself, with its key."""
    if shutil.which("openssl") is None:
        pytest.skip("TLS is not tested: there is no openssl on PATH (Debian: apt-get install openssl)")
    request = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    names = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", "key.pem", "-out", "ca.pem"]
    subprocess.run([*request, *names], cwd=folder, check=True, capture_output=True)
    both = folder / "server.pem"
    both.write_text((folder / "key.pem").read_text() + (folder / "ca.pem").read_text())
    return both


def as_user(user: str | None) -> dict[str, Any]:
    return {} if user is None else {"user": user, "group": user, "extra_groups": []}


def until(is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + UP_S_MAX
    while not is_true():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)
