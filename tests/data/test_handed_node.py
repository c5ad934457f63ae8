"""Data that functions in Node.js hand to others, and that functions of all runtimes get."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from conftest import HERE
from pilot_daemon import Daemon
from test_handed import DATA, MIB, handed_bytes, invoke, memories, passes_on, pilot, started
from test_sharing import wait_until

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def hands(home: Path) -> Iterator[Daemon]:
    folder = home / "named"
    folder.mkdir()
    (folder / "one.txt").write_text("of the folder")
    store = f'[stores.folder]\nkind = "file"\npath = "{folder}"\nfunctions = ["*"]\n'
    daemon = started(home / "handed-node", DATA + store)
    try:
        done = daemon.up(HERE / "handed-node")
        assert done.returncode == 0, f"{done.stdout}{done.stderr}\n{daemon.log.read_text()}"
        yield daemon
    finally:
        daemon.stop()


def node(daemon: Daemon, how: str, function: str = "node-hands", **event: Any) -> Any:
    return invoke(daemon, function, {"how": how, **event})


def test_node_hands_bytes_to_functions_of_each_runtime(hands: Daemon) -> None:
    for to in ("takes", "node-takes", "program-takes"):
        for size in (0, 1, 3 * MIB + 5):
            assert memories(node(hands, "bytes", to=to, size=size), size)
    # One copy for all.
    size = 2 * MIB
    assert len(set(memories(node(hands, "bytes", to="takes", size=size, times=20), size))) == 1
    assert len(set(memories(node(hands, "bytes", "node-hands-copies", to="takes", size=size, times=3), size))) == 3
    wait_until(lambda: handed_bytes(hands) == 0)


def test_python_hands_data_to_node_and_to_programs(hands: Daemon) -> None:
    for to in ("node-takes", "program-takes"):
        size = 2 * MIB + 1
        answer = invoke(hands, "hands", {"size": size, "times": 3, "to": to})
        assert len(set(memories(answer, size))) == 1
    wait_until(lambda: handed_bytes(hands) == 0)


@pytest.mark.parametrize("how", ["inPlace", "program", "parts"])
def test_memory_is_filled_in_place_by_streams_and_by_other_programs(hands: Daemon, how: str) -> None:
    size = 4 * MIB
    for to in ("takes", "node-takes"):
        assert len(set(memories(node(hands, how, to=to, size=size), size))) == 1
    wait_until(lambda: handed_bytes(hands) == 0)


def test_after_the_hand_over_nothing_can_be_written(hands: Daemon) -> None:
    answer = node(hands, "late", to="takes", size=100_000)
    assert memories(answer, 100_000)
    assert answer["codes"][:2] == ["EPERM", "EPERM"] and answer["codes"][2] in ("ENOENT", "EACCES"), answer


def test_an_input_is_handed_on_without_a_copy(hands: Daemon) -> None:
    body = b"pixels" * 100_000
    answer = passes_on(hands, "node-hands-on", body)
    assert set(memories(answer, len(body))) == {answer["memory"]}
    wait_until(lambda: handed_bytes(hands) == 0)


def test_errors_are_those_of_python(hands: Daemon) -> None:
    for event, kind, reason, said in (
        ({"to": "hands"}, "Refused", "Forbidden", "function 'node-hands' may not invoke 'hands'"),
        ({"to": "none"}, "Refused", "NotFound", "none"),
        ({"to": "node-raises"}, "FunctionError", "RangeError", "function 'node-raises' failed: RangeError: as was asked for"),
        ({"to": "takes", "size": 21 * MIB}, "Refused", "TooLarge", "data.input_mb"),
        ({"to": "node-own", "size": 1}, "Refused", "NotSupported", 'declares an input "DATA" itself'),
        ({"to": "takes", "how": "largePayload"}, "Refused", "TooLarge", "hand it over as data"),
    ):
        answer = node(hands, **{"how": "refused", **event})
        assert (answer["name"], answer["reason"]) == (kind, reason) and said in answer["message"], answer
    assert node(hands, "many") == [16, "NoRoom", 1]
    wait_until(lambda: handed_bytes(hands) == 0)


def test_what_a_handler_leaves_ends_with_its_invocation(hands: Daemon) -> None:
    for _ in range(4):  # more than its share together
        assert node(hands, "leaves", size=15 * MIB) == 15 * MIB
        wait_until(lambda: handed_bytes(hands) == 0)
    room = node(hands, "bytes", to="takes", size=15 * MIB)
    assert memories(room, 15 * MIB)


def test_invocations_at_the_same_time_each_have_their_calls(hands: Daemon) -> None:
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(node, hands, "bytes", "node-hands-several", to="node-takes", size=100_000 + n) for n in range(24)]
        for n, answer in enumerate(asked):
            assert memories(answer.result(), 100_000 + n)
    wait_until(lambda: handed_bytes(hands) == 0)


def test_it_is_shown_as_any_transfer(hands: Daemon) -> None:
    node(hands, "bytes", to="node-takes", size=5)
    description = json.loads(hands.request("GET", "/_pilot/v1/functions/node-takes").read())
    (transfer,) = description["last"]["transfers"]
    assert (transfer["input"], transfer["from"], transfer["bytes"]) == ("data", "function:node-hands", 5)
    assert "0.0 MB, handed" in pilot(hands, "describe", "node-takes").stdout


def test_a_request_names_inputs_of_other_runtimes_too(hands: Daemon) -> None:
    def asked(function: str, *names: str) -> tuple[int, Any]:
        connection = http.client.HTTPConnection(hands.address, timeout=60)
        connection.putrequest("POST", f"/2015-03-31/functions/{function}/invocations")
        for name in names:
            connection.putheader("X-Pilot-Input", f"{name}=file://folder/one.txt")
        connection.putheader("Content-Length", "2")
        connection.endheaders(b"{}")
        response = connection.getresponse()
        return response.status, json.loads(response.read())

    assert asked("node-asked", "more") == (200, {"more": "of the folder"})
    assert asked("program-asked", "more") == (200, {"pilot-input-more": "of the folder"})
    for function in ("node-asked", "program-asked"):
        status, answer = asked(function, "more", "MORE")
        assert status == 400 and "is there twice" in answer["Message"], answer
    status, answer = asked("node-takes", "more")
    assert status == 400 and "inputs_by_request = true" in answer["Message"], answer
