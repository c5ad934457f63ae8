"""One daemon for the whole run, with a free port, its own data directory and the functions of `functions/`. Other projects are deployed
when the first test needs them."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import boto3
import pytest
from botocore.config import Config

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent

# The machine's AWS configuration must not reach the clients, and there must be no proxy.
CLIENT_ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    "AWS_MAX_ATTEMPTS": "1",
    "AWS_PAGER": "",
    "NO_PROXY": "127.0.0.1",
    "no_proxy": "127.0.0.1",
}


def binary() -> Path:
    if given := os.environ.get("PILOT_BIN"):
        return Path(given).resolve()
    built = [path for kind in ("release", "debug") if (path := ROOT / "target" / kind / "pilot").exists()]
    if not built:
        pytest.exit("there is no pilot binary: run `cargo build -p pilot`, or set PILOT_BIN", returncode=3)
    return max(built, key=lambda path: path.stat().st_mtime)


class Daemon:
    """`pilot serve`, which is ended by its process id."""

    def __init__(self, home: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        self.endpoint = f"http://{self.address}"
        self.log = home / "daemon.log"
        command = [binary(), "serve", "--listen", self.address, "--data-dir", home / "data"]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        deadline = time.monotonic() + 20
        while not self.ready():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                pytest.exit(f"the daemon did not come up:\n{self.log.read_text()}", returncode=3)
            time.sleep(0.02)

    def ready(self) -> bool:
        try:
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(f"{self.endpoint}/readyz", timeout=2):
                return True
        except (urllib.error.URLError, OSError):
            return False

    def up(self, folder: Path) -> subprocess.CompletedProcess[str]:
        """Runs `pilot up`. It may have to install packages first."""
        return subprocess.run(
            [binary(), "up", folder, "--endpoint", self.endpoint], capture_output=True, text=True, timeout=200
        )

    def request(self, method: str, path: str, body: object = None, **headers: str) -> http.client.HTTPResponse:
        """One request on its own connection, up to the response's head. A body that is not bytes is sent as JSON."""
        connection = http.client.HTTPConnection(self.address, timeout=30)
        if body is not None and not isinstance(body, bytes):
            body, headers = json.dumps(body).encode(), {"Content-Type": "application/json", **headers}
        connection.request(method, path, body, headers)
        return connection.getresponse()

    def retire(self, function: str) -> None:
        """Ends the function's idle workers."""
        response = self.request("POST", f"/_pilot/v1/functions/{function}/scale", {"workers": 0})
        assert response.status == 200, response.read()

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(15)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


@pytest.fixture(scope="session")
def daemon():
    home = Path(tempfile.mkdtemp(prefix="pilot-compat-"))
    daemon = Daemon(home)
    try:
        done = daemon.up(HERE / "functions")
        if done.returncode != 0:
            pytest.exit(f"deploy failed:\n{done.stdout}{done.stderr}\n{daemon.log.read_text()}", returncode=3)
        yield daemon
    finally:
        daemon.stop()
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(scope="session")
def deployed(daemon):
    """Deploys a project when it is needed for the first time. If that fails, every test that needs it fails."""
    results: dict[Path, subprocess.CompletedProcess[str]] = {}

    def deploy(folder: Path) -> None:
        if folder not in results:
            results[folder] = daemon.up(folder)
        done = results[folder]
        if done.returncode != 0:
            pytest.fail(f"deploying {folder.name} failed:\n{done.stdout}{done.stderr}", pytrace=False)

    return deploy


@dataclass
class Watch:
    """Receives a report of how a function ends. The function shares the host's network and connects to `port`."""

    listener: socket.socket

    @property
    def port(self) -> int:
        return self.listener.getsockname()[1]

    def last_words(self, daemon: Daemon, function: str) -> bytes:
        """Ends the function's worker, which has connected. Returns everything that it sends before its end."""
        connection, _ = self.listener.accept()
        said = b""
        with connection:
            connection.settimeout(1)
            for _ in range(20):
                # The worker may still have been busy the first time.
                daemon.retire(function)
                try:
                    while some := connection.recv(100):
                        said += some
                    return said
                except TimeoutError:
                    continue
        pytest.fail(f"{function} did not end; it said {said!r}")


@pytest.fixture
def watch() -> Iterator[Watch]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(20)
        yield Watch(listener)


@pytest.fixture(scope="session", autouse=True)
def client_environment():
    before = dict(os.environ)
    os.environ.update(CLIENT_ENVIRONMENT)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(scope="session")
def client(daemon, client_environment):
    return boto3.client(
        "lambda",
        endpoint_url=daemon.endpoint,
        region_name="us-east-1",
        config=Config(retries={"total_max_attempts": 1}, read_timeout=30, connect_timeout=5),
    )


@pytest.fixture
def aws(daemon, tmp_path):
    """Runs the aws CLI with these arguments. Returns the finished process."""
    program = Path(sys.executable).parent / "aws"
    if not program.exists():
        pytest.skip("the aws CLI is not installed beside this Python: pip install -r tests/compat/requirements.txt")

    def run(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, program, "--endpoint-url", daemon.endpoint, "--output", "json", *arguments],
            capture_output=True,
            text=True,
            timeout=50,
            cwd=tmp_path,
            env={**os.environ, **CLIENT_ENVIRONMENT},
        )
        if check:
            assert done.returncode == 0, done.stdout + done.stderr
        return done

    return run
