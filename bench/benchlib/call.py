"""One invocation as its client sees it."""

from __future__ import annotations

import http.client
import json
import time
from typing import Any

from benchlib.daemon import Daemon, invoke_path


def invoke(daemon: Daemon, function: str) -> dict[str, Any]:
    """The time of the whole request, ms, the answer, and what the daemon says of the start. Raises on any other answer than a success."""
    connection = http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=120)
    try:
        began = time.perf_counter()
        connection.request("POST", invoke_path(function), b"{}")
        response = connection.getresponse()
        answer = response.read()
        total = (time.perf_counter() - began) * 1e3
        if response.status != 200 or response.getheader("x-amz-function-error"):
            raise RuntimeError(f"{function}: {response.status} {answer[:300]!r}")
        return {
            "ms": total,
            "answer": json.loads(answer),
            "start": response.getheader("x-pilot-start"),
            "server_timing": response.getheader("server-timing"),
        }
    finally:
        connection.close()
