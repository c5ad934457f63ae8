"""The servers that Pilotlight is compared with: uvicorn and gunicorn with the same no-op, and a fresh interpreter per request."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from benchlib.daemon import end, free_port, wait_for_port

APPS = Path(__file__).resolve().parent.parent / "apps"


class Rival:
    """A server as a child process on a free port."""

    def __init__(self, name: str, command: list[str]) -> None:
        self.name = name
        self.port = free_port()
        self.command = [part.replace("{port}", str(self.port)) for part in command]
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Rival:
        self.process = subprocess.Popen(
            self.command, cwd=APPS, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        wait_for_port(self.port, self.process)
        return self

    def __exit__(self, *_: object) -> None:
        if self.process:
            end(self.process)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"


def uvicorn(application: str) -> Rival:
    """One worker with uvloop and httptools, the fastest configuration of uvicorn."""
    options = "--port {port} --loop uvloop --http httptools --lifespan off --no-access-log --log-level error"
    return Rival("uvicorn", [sys.executable, "-m", "uvicorn", application, *options.split()])


def gunicorn(application: str) -> Rival:
    """One threaded worker. The synchronous worker closes every connection, so reconnecting would be measured."""
    options = "--bind 127.0.0.1:{port} --worker-class gthread --workers 1 --threads 16 --keep-alive 60 --log-level error"
    return Rival("gunicorn", [sys.executable, "-m", "gunicorn", application, *options.split()])


def fresh_interpreter() -> Rival:
    """A fresh interpreter with the same imports for every request, over HTTP, too."""
    return Rival("fresh interpreter", [sys.executable, str(APPS.parent / "peers" / "spawn_server.py"), "{port}"])
