"""Real servers of S3, Redis and HTTPS, a folder, and a daemon whose functions may read from them."""

from __future__ import annotations

import contextlib
import functools
import http.server
import os
import shutil
import socket
import socketserver
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import boto3
import pytest
from botocore.config import Config
from pilot_daemon import ROOT, Daemon, free_port

HERE = Path(__file__).resolve().parent
KEY_ID, SECRET = "AKIAPILOT", "a secret for tests"
T = TypeVar("T")


def eventually(what: str, look: Callable[[], T | None], within_s: float = 90) -> T:
    deadline = time.monotonic() + within_s
    while True:
        if found := look():
            return found
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.1)


def versitygw() -> Path:
    path = Path(os.environ.get("PILOT_TEST_VERSITYGW", ROOT / "target" / "tools" / "versitygw"))
    if not path.exists():
        pytest.exit(f"there is no S3 server at {path}: run scripts/test data, which builds it, or set PILOT_TEST_VERSITYGW", 3)
    return path


@dataclass
class Bucket:
    """A server with S3's API, and its bucket `photos`."""

    endpoint: str
    client: Any
    folder: Path

    def put(self, key: str, body: bytes) -> None:
        self.client.put_object(Bucket="photos", Key=key, Body=body)

    def put_many(self, keys: list[str], body: bytes) -> None:
        """Objects with the same content, which is once on the disk."""
        first = self.folder / keys[0]
        self.put(keys[0], body)
        for key in keys[1:]:
            os.link(first, self.folder / key)


@pytest.fixture(scope="session")
def bucket() -> Iterator[Bucket]:
    home = Path(tempfile.mkdtemp(prefix="pilot-s3-"))
    (home / "objects").mkdir()
    port = free_port()
    command = [versitygw(), "--access", KEY_ID, "--secret", SECRET, "--port", f"127.0.0.1:{port}", "posix", home / "objects"]
    with (home / "log").open("wb") as log:
        server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=home)
    endpoint = f"http://127.0.0.1:{port}"
    client = boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id=KEY_ID,
        aws_secret_access_key=SECRET,
        config=Config(retries={"total_max_attempts": 1}, proxies={}),
    )
    try:
        deadline = time.monotonic() + 20
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                if server.poll() is not None or time.monotonic() > deadline:
                    pytest.exit(f"the S3 server did not come up:\n{(home / 'log').read_text()}", 3)
                time.sleep(0.02)
        client.create_bucket(Bucket="photos")
        yield Bucket(endpoint, client, home / "objects" / "photos")
    finally:
        server.terminate()
        server.wait(10)
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(scope="session")
def sqs(home: Path) -> Iterator[Any]:
    """A client of a server with SQS's API."""
    port = free_port()
    with (home / "moto.log").open("wb") as log:
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
        server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    client = boto3.client(
        "sqs",
        endpoint_url=f"http://127.0.0.1:{port}",
        region_name="us-east-1",
        aws_access_key_id=KEY_ID,
        aws_secret_access_key=SECRET,
        config=Config(retries={"total_max_attempts": 1}, proxies={}),
    )

    def is_up() -> bool:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return True
        except OSError:
            assert server.poll() is None, (home / "moto.log").read_text()
            return False

    try:
        eventually("the SQS server", is_up, 60)
        yield client
    finally:
        server.terminate()
        server.wait(10)


class Echo(socketserver.BaseRequestHandler):
    """A server that greets, and then answers in capitals. It answers `wait` when it may, which `go` says."""

    may_answer = threading.Event()
    open = 0
    lock = threading.Lock()

    def handle(self) -> None:
        with self.lock:
            type(self).open += 1
        # The other end may be gone.
        with contextlib.suppress(OSError):
            self.request.sendall(b"220 ready\r\n")
            while part := self.request.recv(1000):
                if part == b"go":
                    self.may_answer.set()
                if part == b"wait":
                    self.may_answer.wait(30)
                self.request.sendall(part.upper())
        with self.lock:
            type(self).open -= 1


@pytest.fixture(scope="session")
def echo() -> Iterator[str]:
    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Echo)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"tcp://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


@dataclass
class Folder:
    """A folder whose files an HTTPS server shows, too."""

    path: Path
    url: str
    certificate: Path

    def put(self, key: str, body: bytes) -> None:
        path = self.path / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)


@dataclass
class Redis:
    """A Redis that wants TLS and a password."""

    port: int
    context: ssl.SSLContext

    def put(self, key: str, body: bytes) -> None:
        self.ask(b"SET", key.encode(), body)

    def ask(self, *words: bytes) -> bytes:
        """One command, after AUTH, and the beginning of its answer (RESP)."""
        with socket.create_connection(("localhost", self.port), 10) as plain:
            with self.context.wrap_socket(plain, server_hostname="localhost") as connection:
                for command in ((b"AUTH", SECRET.encode()), words):
                    parts = b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in command)
                    connection.sendall(b"*%d\r\n%b" % (len(command), parts))
                    answer = connection.recv(4096)
                    assert not answer.startswith(b"-"), answer
                return answer


class Quiet(http.server.SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="session")
def certificate(home: Path) -> tuple[Path, Path]:
    """A certificate for `localhost` that is its own authority, and its key."""
    certificate, key = home / "certificate.pem", home / "key.pem"
    new = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    names = [
        "-subj",
        "/CN=localhost",
        "-addext",
        "subjectAltName=DNS:localhost",
        "-addext",
        "basicConstraints=critical,CA:FALSE",
    ]
    subprocess.run([*new, *names, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    return certificate, key


@pytest.fixture(scope="session")
def redis(home: Path, certificate: tuple[Path, Path]) -> Iterator[Redis]:
    port = free_port()
    context = ssl.create_default_context(cafile=str(certificate[0]))
    tls = [
        "--tls-port",
        str(port),
        "--tls-cert-file",
        certificate[0],
        "--tls-key-file",
        certificate[1],
        "--tls-auth-clients",
        "no",
    ]
    command = ["redis-server", "--port", "0", *tls, "--requirepass", SECRET, "--save", "", "--dir", home, "--bind", "127.0.0.1"]
    with (home / "redis.log").open("wb") as log:
        server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    redis = Redis(port, context)
    try:
        deadline = time.monotonic() + 20
        while True:
            try:
                redis.ask(b"PING")
                break
            except OSError:
                if server.poll() is not None or time.monotonic() > deadline:
                    pytest.exit(f"redis-server did not come up:\n{(home / 'redis.log').read_text()}", 3)
                time.sleep(0.02)
        yield redis
    finally:
        server.terminate()
        server.wait(10)


@pytest.fixture(scope="session")
def folder(home: Path, certificate: tuple[Path, Path]) -> Iterator[Folder]:
    path = home / "files"
    path.mkdir()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(path)))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield Folder(path, f"https://localhost:{server.server_port}", certificate[0])
    finally:
        server.shutdown()


@pytest.fixture(scope="session")
def home() -> Iterator[Path]:
    home = Path(tempfile.mkdtemp(prefix="pilot-data-"))
    yield home
    shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(scope="session")
def daemon(bucket: Bucket, folder: Folder, redis: Redis, sqs: Any, home: Path) -> Iterator[Daemon]:
    secret = home / "secret"
    secret.write_text(SECRET)
    secret.chmod(0o600)
    wrong = home / "wrong"
    wrong.write_text("another secret")
    wrong.chmod(0o600)
    store = f"""
kind = "s3"
endpoint = "{bucket.endpoint}"
region = "us-east-1"
access_key_id = "{KEY_ID}"
secret_access_key_file = "{secret}"
"""
    config = home / "pilotd.toml"
    config.write_text(
        f"""
[data]
memory_mb = 512
function_mb = 130
input_mb = 110
initscript_networks = ["127.0.0.1/32"]

[stores.photos]
functions = ["digest", "slow-start", "maybe", "holds-on", "client-*"]
{store}
[stores.wrong]
functions = ["*"]
bucket = "photos"
{store.replace(str(secret), str(wrong))}
[stores.site]
functions = ["digest-*", "guest"]
kind = "http"
url = "{folder.url}"
ca_file = "{folder.certificate}"
[stores.untrusted]
functions = ["guest"]
kind = "http"
url = "{folder.url}"
[stores.cache]
functions = ["digest-redis", "guest", "client-*"]
kind = "redis"
url = "rediss://localhost:{redis.port}/0"
password_file = "{secret}"
ca_file = "{folder.certificate}"
[stores.wrong-cache]
functions = ["guest"]
kind = "redis"
url = "rediss://localhost:{redis.port}/0"
password_file = "{wrong}"
ca_file = "{folder.certificate}"
[stores.disk]
functions = ["digest-*"]
kind = "file"
path = "{folder.path}"
[stores.nobody]
functions = ["*"]
kind = "s3"
endpoint = "http://127.0.0.1:1"
credentials = "anonymous"
[connections.jobs]
functions = ["client-*"]
kind = "sqs"
url = "{sqs.meta.endpoint_url}/123456789012"
access_key_id = "{KEY_ID}"
secret_access_key_file = "{secret}"
"""
    )
    daemon = Daemon(home, "--config", str(config))
    try:
        done = daemon.up(HERE / "functions")
        if done.returncode != 0:
            pytest.exit(f"deploy failed:\n{done.stdout}{done.stderr}\n{daemon.log.read_text()}", 3)
        yield daemon
    finally:
        daemon.stop()
