"""A client of a Docker Engine's API on a Unix socket. It imports images, and starts containers without Pilotlight. All its containers
and images are labelled and named `pilot-hotc-…`, and removed at the end."""

from __future__ import annotations

import http.client
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

PREFIX = "pilot-hotc-"
DEFAULT = "unix:///var/run/docker.sock"
TIMEOUT_S = 300


class EngineError(RuntimeError):
    """The engine refused a request."""


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("engine", timeout=TIMEOUT_S)
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


class Engine:
    def __init__(self, address: str) -> None:
        self.address = address
        self.socket = address.removeprefix("unix://")
        self.images: set[str] = set()
        self.containers: set[str] = set()

    @staticmethod
    def find() -> tuple[Engine | None, str]:
        """The engine at DOCKER_HOST, or the reason why there is none."""
        address = os.environ.get("DOCKER_HOST") or DEFAULT
        if not address.startswith("unix:///"):
            return None, f"DOCKER_HOST is {address}, not a socket of this machine"
        engine = Engine(address)
        try:
            status, _ = engine.call("GET", "/_ping")
        except OSError as error:
            return None, f"no engine answers at {address} ({error})"
        return (engine, "") if status == 200 else (None, f"the engine at {address} answers {status} to a ping")

    def call(self, method: str, path: str, body: Any = None, content_type: str = "application/json") -> tuple[int, bytes]:
        connection = _Connection(self.socket)
        try:
            if body is not None and content_type == "application/json":
                body = json.dumps(body).encode()
            connection.request(method, path, body, {"content-type": content_type} if body is not None else {})
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def must(self, method: str, path: str, body: Any = None) -> Any:
        status, answer = self.call(method, path, body)
        if status >= 400:
            raise EngineError(f"{method} {path}: {status} {answer.decode(errors='replace').strip()}")
        return json.loads(answer) if answer.strip() else None

    def import_image(self, name: str, tar: Path) -> str:
        """Imports an image with one layer. Returns its name with the tag."""
        repository = PREFIX + name
        with tar.open("rb") as file:
            status, answer = self.call(
                "POST", f"/images/create?fromSrc=-&repo={quote(repository)}&tag=1", file, "application/x-tar"
            )
        if status != 200 or b'"error"' in answer:
            raise EngineError(f"import of {repository}: {status} {answer.decode(errors='replace').strip()}")
        self.images.add(f"{repository}:1")
        return f"{repository}:1"

    def start(self, image: str, network: str) -> tuple[str, float]:
        """Starts a container that sleeps. Returns its id, and the time to create and start it, ms."""
        began = time.monotonic()
        settings = {
            "Image": image,
            "Cmd": ["/bin/busybox", "sleep", "1000"],
            "Labels": {"pilot-hotc": "1"},
            "HostConfig": {"NetworkMode": network},
        }
        made = self.must("POST", "/containers/create", settings)["Id"]
        self.containers.add(made)
        self.must("POST", f"/containers/{made}/start")
        return made, (time.monotonic() - began) * 1e3

    def remove(self, container: str) -> None:
        self.must("DELETE", f"/containers/{container}?force=true&v=true")
        self.containers.discard(container)

    @contextmanager
    def proxy(self, image: str) -> Iterator[str]:
        """A container whose network other containers join."""
        container, _ = self.start(image, "bridge")
        try:
            yield f"container:{container}"
        finally:
            self.remove(container)

    def clear(self) -> None:
        """Removes everything that this object created."""
        for container in list(self.containers):
            self.call("DELETE", f"/containers/{container}?force=true&v=true")
        for image in list(self.images):
            self.call("DELETE", f"/images/{quote(image, safe='')}?force=true")
        self.containers.clear()
        self.images.clear()
