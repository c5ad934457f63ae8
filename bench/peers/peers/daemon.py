"""`pilot serve` as a child on a free port, driven over its HTTP interfaces, and the memory of its processes."""

from __future__ import annotations

import http.client
import io
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

ROOT = Path(__file__).resolve().parents[3]


def find_binary(given: Path | None) -> Path:
    """The release build, else the debug build."""
    candidates = [given] if given else [ROOT / "target" / kind / "pilot" for kind in ("release", "debug")]
    for path in candidates:
        if path.exists():
            return path.resolve()
    raise SystemExit("there is no pilot binary: run `cargo build --release -p pilot`")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


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
    """SIGTERM, then SIGKILL after a while."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class Daemon:
    def __init__(self, binary: Path, home: Path) -> None:
        self.binary = binary
        self.data = home / "data"
        self.log = home / "daemon.log"
        self.config = home / "pilotd.toml"
        # The bursts and the 200 functions are about speed and memory, not about how many may wait.
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
        """The newest of what the daemon wrote."""
        return f"--- the daemon's log:\n{self.log.read_text(errors='replace')[-1500:]}---"

    def restore(self, keep: set[str]) -> None:
        """Brings it back to what it was before a row: running, with these functions alone."""
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

    def start(self) -> None:
        command = [str(self.binary), "serve", "--listen", self.address]
        command += ["--data-dir", str(self.data), "--config", str(self.config)]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
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
        try:
            connection.request(method, path, body or None, {"content-type": content_type})
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def deploy(self, name: str, code: str, requirements: str = "", **spec: Any) -> dict[str, Any]:
        """Uploads one Python function. The report."""
        files = {"app.py": code.encode(), "requirements.txt": requirements.encode()}
        return self.upload(name, {path: content for path, content in files.items() if content}, spec)

    def upload(self, name: str, files: dict[str, bytes], spec: dict[str, Any]) -> dict[str, Any]:
        """Uploads one function through the control API; every file may be executed. The report."""
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

    def scale(self, name: str, workers: int) -> dict[str, Any]:
        status, answer = self.call("POST", scale_path(name), json.dumps({"workers": workers}).encode())
        if status != 200:
            raise RuntimeError(f"scale {name} {workers}: {status} {answer!r}")
        return dict(json.loads(answer))

    def workers(self, name: str) -> dict[str, Any]:
        return dict(json.loads(self.call("GET", f"/_pilot/v1/functions/{name}")[1])["workers"])

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


def scale_path(name: str) -> str:
    return f"/_pilot/v1/functions/{name}/scale"


def pss_bytes(pid: int) -> int:
    """Proportional set size; 0 for a process that has gone."""
    try:
        with open(f"/proc/{pid}/smaps_rollup") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith("Pss:"))
    except (OSError, StopIteration):
        return 0


def descendants(ancestor: int) -> list[int]:
    parents: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                parents[int(name)] = int(Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    found = []
    for pid in parents:
        above = pid
        while above in parents and above != ancestor:
            above = parents[above]
        if above == ancestor and pid != ancestor:
            found.append(pid)
    return found


def tree_pss_bytes(daemon: Daemon) -> int:
    return sum(pss_bytes(pid) for pid in [daemon.pid, *descendants(daemon.pid)])
