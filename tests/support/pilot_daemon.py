"""A daemon for tests in Python."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# By which factor this machine is slower than usual: it may be emulated.
PATIENCE = int(os.environ.get("PILOT_TEST_PATIENCE", "1"))


def binary() -> Path:
    if given := os.environ.get("PILOT_BIN"):
        return Path(given).resolve()
    built = [path for kind in ("release", "debug") if (path := ROOT / "target" / kind / "pilot").exists()]
    if not built:
        pytest.exit("there is no pilot binary: run `cargo build -p pilot`, or set PILOT_BIN", returncode=3)
    return max(built, key=lambda path: path.stat().st_mtime)


_numbers = itertools.count()
_names: list[socket.socket] = []


def free_port() -> int:
    """A port that is free at the moment, below those that the kernel gives to clients (`ip_local_port_range`, ip(7)): no connection of
    another test can take it before its server does. Each process begins somewhere else."""
    while True:
        port = 30_000 + (37 * os.getpid() + next(_numbers)) % 2_700
        # Two processes never get the same one, also before its server has it: who has its name (unix(7)) has the port, until it ends.
        name = socket.socket(socket.AF_UNIX)
        with contextlib.suppress(OSError), socket.socket() as free:
            name.bind(f"\0pilot-test-port-{port}")
            free.bind(("127.0.0.1", port))
            _names.append(name)
            return port
        name.close()


def open_descriptors(pid: int) -> dict[int, str]:
    """What the descriptors of a process are (proc_pid_fd(5)). One that is closed meanwhile is left out."""
    found = {}
    for number in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            found[int(number)] = os.readlink(f"/proc/{pid}/fd/{number}")
    return found


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self.path))


class Daemon:
    """`pilot serve`, which is ended by its process id."""

    def __init__(self, home: Path, *options: str | Path, within: str | None = None) -> None:
        """`options` are further arguments of `pilot serve`. `within` is the network namespace that it runs in."""
        self.within = within
        self.address = f"127.0.0.1:{free_port()}"
        self.endpoint = f"http://{self.address}"
        self.log = home / "daemon.log"
        self.data = home / "data"
        command = [binary(), "serve", "--listen", self.address, "--data-dir", self.data, *options]
        if within:
            # `ip netns exec` would mount another /sys, without control groups.
            command = ["nsenter", f"--net=/run/netns/{within}", "--", *command]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        deadline = time.monotonic() + 20 * PATIENCE
        while not self.ready():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                pytest.exit(f"the daemon did not come up:\n{self.log.read_text()}", returncode=3)
            time.sleep(0.02)

    def ready(self) -> bool:
        """Asks on the control socket, because the address may have TLS, and connects to the address."""
        try:
            connection = UnixConnection(self.data / "control.sock", 2)
            connection.request("GET", "/readyz")
            if connection.getresponse().status != 200:
                return False
            if self.within:
                return True
            host, _, port = self.address.rpartition(":")
            socket.create_connection((host, int(port)), 2).close()
            return True
        except OSError:
            return False

    def up(self, folder: Path, *options: str, timeout_s: float = 200) -> subprocess.CompletedProcess[str]:
        """Runs `pilot up`. It may have to install packages first."""
        command = [binary(), "up", folder, "--endpoint", f"unix:{self.data / 'control.sock'}", *options]
        return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s)

    def request(
        self, method: str, path: str, body: object = None, timeout_s: float = 30, **headers: str
    ) -> http.client.HTTPResponse:
        """One request on its own connection, up to the response's head. A body that is not bytes is sent as JSON.

        The control API has a socket of its own, over which a daemon in a namespace is asked for everything."""
        if self.within or path.startswith("/_pilot/"):
            connection = UnixConnection(self.data / "control.sock", timeout_s)
        else:
            connection = http.client.HTTPConnection(self.address, timeout=timeout_s)
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
