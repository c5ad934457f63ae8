"""One daemon for the whole run, with a free port, its own data directory and the functions of `functions/`. Other projects are deployed
when the first test needs them."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import boto3
import pytest
from botocore.config import Config
from pilot_daemon import Daemon

HERE = Path(__file__).resolve().parent

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
