"""`pilot serve` as a child on a free port, driven over its HTTP interfaces."""

from __future__ import annotations

import contextlib
import http.client
import io
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import tarfile
import time
import uuid
from pathlib import Path
from typing import Any

_numbers = itertools.count()
_names: list[socket.socket] = []


def free_port() -> int:
    """A port that is free at the moment, below those that the kernel gives to clients (`ip_local_port_range`, ip(7)): no connection of
    another program can take it before its server does. Each process begins somewhere else."""
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


def wait_for_port(port: int, process: subprocess.Popen[bytes], limit_s: float = 20.0) -> None:
    deadline = time.monotonic() + limit_s
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{process.args!r} does not listen on {port}") from None
            time.sleep(0.002)


def end(process: subprocess.Popen[bytes]) -> None:
    """Sends SIGTERM, and SIGKILL after a while."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class Daemon:
    def __init__(self, binary: Path, home: Path, environment: dict[str, str] | None = None) -> None:
        self.binary = binary
        self.environment = environment
        self.data = home / "data"
        self.log = home / "daemon.log"
        self.config = home / "pilotd.toml"
        # The default limits stay: bursts and many functions are measured for speed and memory.
        self.config.write_text('[log]\nlevel = "warn"\n')
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Daemon:
        self.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if self.process:
            end(self.process)
        if kind:
            print(self.log_tail(), file=sys.stderr)

    def log_tail(self) -> str:
        """The end of the daemon's log."""
        return f"--- the daemon's log:\n{self.log.read_text(errors='replace')[-1500:]}---"

    def restore(self, keep: set[str]) -> None:
        """Restores the state before a row: the daemon runs, with only these functions."""
        if self.process is None or self.process.poll() is not None:
            self.start()
        for function in json.loads(self.call("GET", "/_pilot/v1/functions")[1]):
            if function["name"] not in keep:
                self.call("DELETE", f"/_pilot/v1/functions/{function['name']}")

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def endpoint(self) -> str:
        return f"http://{self.address}"

    @property
    def control_endpoint(self) -> str:
        """Where the command line finds the control API."""
        control = self.data / "control.sock"
        return f"unix:{control}" if control.exists() else self.endpoint

    def start(self) -> None:
        command = [str(self.binary), "serve", "--listen", self.address]
        command += ["--data-dir", str(self.data), "--config", str(self.config)]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.environment)
        wait_for_port(self.port, self.process)
        deadline = time.monotonic() + 20
        while self.call("GET", "/readyz")[0] != 200:
            if time.monotonic() > deadline:
                raise RuntimeError("the daemon is not ready after 20 s")
            time.sleep(0.002)

    def kill(self) -> None:
        assert self.process
        self.process.kill()
        self.process.wait()

    @property
    def pid(self) -> int:
        assert self.process
        return self.process.pid

    def call(self, method: str, path: str, body: bytes = b"", content_type: str = "application/json") -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        control = self.data / "control.sock"
        # A build that has no control socket serves the control API on its address.
        if path.startswith("/_pilot/") and control.exists():
            connection.sock = socket.socket(socket.AF_UNIX)
            connection.sock.settimeout(120)
            connection.sock.connect(str(control))
        try:
            connection.request(method, path, body or None, {"content-type": content_type})
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def deploy(self, name: str, code: str, requirements: str = "", **spec: Any) -> dict[str, Any]:
        """Uploads one Python function. Returns the report."""
        files = {"app.py": code.encode(), "requirements.txt": requirements.encode()}
        return self.upload(name, {path: content for path, content in files.items() if content}, spec)

    def upload(self, name: str, files: dict[str, bytes], spec: dict[str, Any]) -> dict[str, Any]:
        """Uploads one function through the control API. All files are executable. Returns the report."""
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w:gz", compresslevel=1) as tar:
            for path, content in files.items():
                info = tarfile.TarInfo(path)
                info.size, info.mode = len(content), 0o755
                tar.addfile(info, io.BytesIO(content))
        boundary = uuid.uuid4().hex
        body = b"".join(
            b'--%s\r\ncontent-disposition: form-data; name="%s"; filename="%s"\r\ncontent-type: %s\r\n\r\n%s\r\n'
            % (boundary.encode(), part, part, kind, content)
            for part, kind, content in (
                (b"spec", b"application/json", json.dumps(spec).encode()),
                (b"code", b"application/gzip", archive.getvalue()),
            )
        )
        body += b"--%s--\r\n" % boundary.encode()
        status, answer = self.call("PUT", f"/_pilot/v1/functions/{name}", body, f"multipart/form-data; boundary={boundary}")
        event: dict[str, Any] = json.loads(answer.splitlines()[-1])
        if status != 200 or event.get("event") != "done":
            raise RuntimeError(f"deploy of {name}: {status} {event}")
        return event

    def scale(self, name: str, workers: int) -> None:
        self._set(name, {"workers": workers})

    def choose(self, name: str, policy: str) -> None:
        """Changes the policy that sizes its pool."""
        self._set(name, {"policy": policy})

    def _set(self, name: str, scale: dict[str, Any]) -> None:
        status, answer = self.call("POST", f"/_pilot/v1/functions/{name}/scale", json.dumps(scale).encode())
        if status != 200:
            raise RuntimeError(f"scale {name} {scale}: {status} {answer!r}")

    def describe(self, name: str) -> dict[str, Any]:
        return dict(json.loads(self.call("GET", f"/_pilot/v1/functions/{name}")[1]))

    def workers(self, name: str) -> dict[str, Any]:
        return dict(self.describe(name)["workers"])

    def wait_for_idle(self, name: str, workers: int, limit_s: float = 20.0) -> None:
        deadline = time.monotonic() + limit_s
        while (status := self.workers(name))["idle"] != workers or status["starting"]:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{name} has {status}, not {workers} idle workers")
            time.sleep(0.01)

    def invoke(self, name: str, event: object) -> Any:
        status, answer = self.call("POST", invoke_path(name), json.dumps(event).encode())
        if status != 200:
            raise RuntimeError(f"invoke {name}: {status} {answer!r}")
        return json.loads(answer)


def invoke_path(name: str) -> str:
    return f"/2015-03-31/functions/{name}/invocations"
