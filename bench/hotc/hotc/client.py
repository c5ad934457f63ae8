"""Requests, one after another on a connection, with their times and the daemon's headers."""

from __future__ import annotations

import http.client
import json
import time
from dataclasses import dataclass
from typing import Any

from benchlib.daemon import invoke_path

TIMEOUT_S = 180


@dataclass(frozen=True)
class Answer:
    """`start` is X-Pilot-Start; `phases` those of Server-Timing, ms."""

    ms: float
    start: str
    phases: dict[str, float]


class Client:
    """One connection to a function."""

    def __init__(self, port: int, name: str, event: Any, path: str | None) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
        self._method, self._path = ("GET", f"/fn/{name}{path}") if path else ("POST", invoke_path(name))
        self._body = None if path else json.dumps(event).encode()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def ask(self) -> Answer:
        """Raises an exception if the response is a failure."""
        began = time.monotonic()
        self._connection.request(self._method, self._path, self._body, {"content-type": "application/json"})
        response = self._connection.getresponse()
        body = response.read()
        took = (time.monotonic() - began) * 1e3
        if response.status >= 400 or response.headers.get("x-amz-function-error"):
            raise RuntimeError(f"{self._method} {self._path}: {response.status} {body[:300]!r}")
        timing = response.headers.get("server-timing", "")
        return Answer(took, response.headers.get("x-pilot-start", ""), phases(timing))


def phases(header: str) -> dict[str, float]:
    """Parses `fork;dur=1.2, init;dur=0.4` into names and milliseconds."""
    found = {}
    for entry in header.split(","):
        name, *parameters = (part.strip() for part in entry.split(";"))
        for parameter in parameters:
            if parameter.startswith("dur="):
                found[name] = float(parameter.removeprefix("dur="))
    return found
