"""Data that functions hand to each other on one node: by reference, or copied where that is switched off."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import HERE
from pilot_daemon import Daemon, binary
from test_sharing import wait_until

pytestmark = pytest.mark.timeout(240)

MIB = 1 << 20
DATA = "[data]\nmemory_mb = 64\nfunction_mb = 24\ninput_mb = 20\n"


def started(folder: Path, settings: str) -> Daemon:
    folder.mkdir()
    config = folder / "pilotd.toml"
    config.write_text(settings)
    daemon = Daemon(folder, "--config", str(config))
    done = daemon.up(HERE / "handed")
    assert done.returncode == 0, f"{done.stdout}{done.stderr}\n{daemon.log.read_text()}"
    return daemon


@pytest.fixture(scope="module")
def hands(home: Path) -> Iterator[Daemon]:
    daemon = started(home / "handed", DATA)
    try:
        yield daemon
    finally:
        daemon.stop()


def pilot(daemon: Daemon, *words: str) -> subprocess.CompletedProcess[str]:
    command = [binary(), *words, "--endpoint", f"unix:{daemon.data / 'control.sock'}"]
    return subprocess.run(command, capture_output=True, text=True, timeout=100)


def invoke(daemon: Daemon, function: str, event: Any) -> Any:
    return json.loads(daemon.request("POST", f"/2015-03-31/functions/{function}/invocations", event, 100).read())


def passes_on(daemon: Daemon, function: str, body: bytes) -> Any:
    return json.loads(daemon.request("POST", f"/2015-03-31/functions/{function}/invocations", body, 100).read())


def handed_bytes(daemon: Daemon) -> int:
    lines = daemon.request("GET", "/metrics").read().decode().splitlines()
    return int(float(next(line.split()[-1] for line in lines if line.startswith("pilot_handover_bytes"))))


def memories(answer: Any, size: int) -> list[int]:
    """Which memory each target had. All had the bytes that were sent."""
    for one in answer["answers"]:
        assert (one["got"], one["bytes"], one["read_only"]) == (answer["sent"], size, True), answer
    return [one["memory"] for one in answer["answers"]]


def test_by_reference_all_targets_have_one_memory_and_else_each_has_its_own(hands: Daemon) -> None:
    size = 3 * MIB + 5
    assert len(set(memories(invoke(hands, "hands", {"size": size, "times": 3}), size))) == 1
    assert len(set(memories(invoke(hands, "hands-copies", {"size": size, "times": 3}), size))) == 3
    assert memories(invoke(hands, "hands-copies", {"size": 1}), 1)
    # And nothing is left of it.
    wait_until(lambda: handed_bytes(hands) == 0)
    shown = pilot(hands, "describe", "hands-copies").stdout
    assert "data for other functions is copied" in shown, shown


def test_an_input_that_is_handed_on_is_copied_too(hands: Daemon) -> None:
    body = b"pixels" * 100_000
    answer = passes_on(hands, "hands-on", body)
    assert memories(answer, len(body)) == [answer["memory"]]
    answer = passes_on(hands, "hands-on-copies", body)
    assert answer["memory"] not in memories(answer, len(body))


def test_a_copy_counts_as_memory_of_the_target(hands: Daemon) -> None:
    size = 15 * MIB
    assert memories(invoke(hands, "hands-copies", {"size": size, "keep": True}), size)
    # There is no room for another one while the target has the first one.
    answer = invoke(hands, "hands-copies", {"size": size})
    assert answer[0] == "failed" and "NoRoom: there is no room for 15" in answer[1], answer
    # What goes by reference counts as memory of its sender.
    assert memories(invoke(hands, "hands", {"size": size}), size)
    hands.retire("takes")
    wait_until(lambda: "sent" in invoke(hands, "hands-copies", {"size": size}))
    wait_until(lambda: handed_bytes(hands) == 0)


def test_it_is_switched_off_for_all_functions(home: Path) -> None:
    daemon = started(home / "handed-copied", DATA + "by_reference = false\n")
    try:
        assert len(set(memories(invoke(daemon, "hands", {"size": MIB, "times": 3}), MIB))) == 3
    finally:
        daemon.stop()


def test_the_switch_is_refused_where_it_has_no_meaning(hands: Daemon, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("def handler(event, context):\n    pass\n")
    (tmp_path / "pilot.toml").write_text('[functions.alone]\nhandler = "app.handler"\nby_reference = false\n')
    done = pilot(hands, "deploy", str(tmp_path))
    assert done.returncode != 0 and "functions.alone.by_reference: " in done.stderr, done.stderr
    assert "invokes names none" in done.stderr, done.stderr
