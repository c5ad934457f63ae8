"""No value of any generator repeats among workers that run at the same time (SPECIFICATION, START-7)."""

from __future__ import annotations

import json
import os
import socket
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress

import pytest
from pilot_daemon import Daemon

WORKERS = 200
RUNS = int(os.environ.get("PILOT_FIDELITY_RUNS", "1"))
# Less than the function may take.
MEET_S_MAX = 50.0


def call(daemon: Daemon, event: object) -> dict[str, object]:
    response = daemon.request("POST", "/2015-03-31/functions/randomness/invocations", event)
    body = response.read()
    assert (response.status, response.headers.get("X-Amz-Function-Error")) == (200, None), body
    answer: dict[str, object] = json.loads(body)
    return answer


def meet(place: socket.socket, calls: list[Future[dict[str, object]]]) -> None:
    """Waits until all calls have come, or one has ended, and lets them go."""
    with ExitStack() as here:
        deadline, count = time.monotonic() + MEET_S_MAX, 0
        place.settimeout(0.2)
        while count < WORKERS and time.monotonic() < deadline and not any(one.done() for one in calls):
            with suppress(TimeoutError):
                here.enter_context(place.accept()[0])
                count += 1


@pytest.mark.timeout(1200)
def test_workers_of_one_burst_share_no_value(daemon: Daemon, deploy: Callable[[str], str]) -> None:
    assert "forkable no" not in deploy("randomness")
    for run in range(RUNS):
        daemon.retire("randomness")
        with socket.create_server(("127.0.0.1", 0), backlog=WORKERS) as place, ThreadPoolExecutor(WORKERS) as callers:
            event = {"meet": place.getsockname()[1], "slow": run == 0}
            calls = [callers.submit(call, daemon, event) for _ in range(WORKERS)]
            meet(place, calls)
            answers = [one.result() for one in calls]
        assert len({answer["pid"] for answer in answers}) == WORKERS
        for source in answers[0]["values"]:
            seen = Counter(json.dumps(answer["values"][source]) for answer in answers)
            repeated = {value: count for value, count in seen.items() if count > 1}
            assert not repeated, f"{source} in run {run + 1}: {len(repeated)} of {len(seen)} values repeat"
