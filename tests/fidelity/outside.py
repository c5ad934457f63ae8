"""Runs a function with awslambdaric outside of Pilotlight: its own process, this machine's file system, and a Runtime API server.

The server implements what awslambdaric uses of https://docs.aws.amazon.com/lambda/latest/dg/runtimes-api.html: `next`, `response`,
`error` and `init/error`.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import threading
import time
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

API = "/2018-06-01/runtime/"
# awslambdaric and what it imports.
CLIENT = ("awslambdaric", "runtime_client", "simplejson", "snapshot_restore_py")
ANSWER_S_MAX = 120.0


@dataclass(frozen=True)
class Answer:
    """The body that the client posted, and where: `response`, `error` or `init/error`."""

    to: str
    body: Any


class Function:
    """One process of awslambdaric in the folder of the code. A context, which ends the process."""

    def __init__(self, code: Path, packages: Path | None, home: Path, environment: dict[str, str]) -> None:
        self._events: SimpleQueue[Any] = SimpleQueue()
        self._answers: SimpleQueue[Answer] = SimpleQueue()
        self._server = _Server(("127.0.0.1", 0), _requests(self._events, self._answers))
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        client = home / "client"
        offer_client(client)
        (home / "tmp").mkdir(parents=True)
        own = {
            "AWS_LAMBDA_RUNTIME_API": f"127.0.0.1:{self._server.server_port}",
            "HOME": str(home / "tmp"),
            "LAMBDA_TASK_ROOT": str(code),
            # awslambdaric is last, so that it hides nothing.
            "PYTHONPATH": os.pathsep.join(str(folder) for folder in (packages, client) if folder is not None),
            "PYTHONDONTWRITEBYTECODE": "1",
            "TMPDIR": str(home / "tmp"),
        }
        self._log = home / "log"
        with self._log.open("wb") as log:
            # -S: the machine's own packages must not be found. The interpreter is the one that the daemon uses.
            self._process = subprocess.Popen(
                ["python3", "-S", "-m", "awslambdaric", "app.handler"],
                cwd=code,
                env={**environment, "PATH": os.environ["PATH"], **own},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def __enter__(self) -> Function:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._events.put(None)
        self._server.shutdown()
        self._server.server_close()

    def call(self, event: object) -> Answer:
        self._events.put(event)
        deadline = time.monotonic() + ANSWER_S_MAX
        while True:
            try:
                return self._answers.get(timeout=0.5)
            except Empty:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise AssertionError(f"awslambdaric gave no answer:\n{self._log.read_text()}") from None


def offer_client(folder: Path) -> None:
    """A folder with awslambdaric and nothing else of the environment of the tests."""
    folder.mkdir(parents=True)
    for name in CLIENT:
        found = importlib.util.find_spec(name)
        assert found is not None and found.origin is not None, f"{name} is missing: pip install -r tests/requirements.txt"
        if found.submodule_search_locations is None:
            shutil.copy(found.origin, folder)
        else:
            shutil.copytree(Path(found.origin).parent, folder / name)


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        """A connection of the process that was ended. What is missing is noticed in `call`."""


def _requests(events: SimpleQueue[Any], answers: SimpleQueue[Answer]) -> type[BaseHTTPRequestHandler]:
    class Requests(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        count = 0

        def do_GET(self) -> None:
            assert self.path == f"{API}invocation/next", self.path
            event = events.get()
            if event is None:
                self.close_connection = True
                return
            Requests.count += 1
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Lambda-Runtime-Aws-Request-Id", f"00000000-0000-4000-8000-{Requests.count:012}")
            self.send_header("Lambda-Runtime-Deadline-Ms", str(round((time.time() + 60) * 1000)))
            self.send_header("Lambda-Runtime-Invoked-Function-Arn", "arn:aws:lambda:us-east-1:000000000000:function:f")
            self._send(json.dumps(event).encode())

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            to = self.path.removeprefix(f"{API}invocation/").partition("/")[2]
            if self.path == f"{API}init/error":
                to = "init/error"
            self.send_response(202)
            self._send(b"")
            answers.put(Answer(to, json.loads(body)))

        def _send(self, body: bytes) -> None:
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    return Requests
