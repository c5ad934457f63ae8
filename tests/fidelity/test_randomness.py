"""No value of any generator repeats among workers that run at the same time (SPECIFICATION, START-7)."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from pilot_daemon import Daemon

WORKERS = 200
RUNS = int(os.environ.get("PILOT_FIDELITY_RUNS", "1"))
# Until then every worker of the burst has started.
BURST_S = 12.0


def call(daemon: Daemon, event: object) -> dict[str, object]:
    response = daemon.request("POST", "/2015-03-31/functions/randomness/invocations", event)
    body = response.read()
    assert (response.status, response.headers.get("X-Amz-Function-Error")) == (200, None), body
    answer: dict[str, object] = json.loads(body)
    return answer


@pytest.mark.timeout(1200)
def test_workers_of_one_burst_share_no_value(daemon: Daemon, deploy: Callable[[str], str]) -> None:
    assert "forkable no" not in deploy("randomness")
    for run in range(RUNS):
        daemon.retire("randomness")
        event = {"until": time.time() + BURST_S, "slow": run == 0}
        with ThreadPoolExecutor(WORKERS) as callers:
            answers = list(callers.map(call, [daemon] * WORKERS, [event] * WORKERS))
        assert len({answer["pid"] for answer in answers}) == WORKERS
        for source in answers[0]["values"]:
            seen = Counter(json.dumps(answer["values"][source]) for answer in answers)
            repeated = {value: count for value, count in seen.items() if count > 1}
            assert not repeated, f"{source} in run {run + 1}: {len(repeated)} of {len(seen)} values repeat"
