"""Functions on two nodes: real daemons in two network namespaces, joined by a virtual cable, with mutual TLS."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from conftest import HERE, eventually
from pilot_daemon import Daemon, UnixConnection
from test_many import workers
from two_nodes import Authority, Cable

pytestmark = [
    pytest.mark.timeout(240),
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root"),
]

MIB = 1 << 20
PORT = 7443
# A link may be silent for so long. A busy machine may be slow, but a cable that is unplugged stays so.
SILENCE_S = 3
DATA = "[data]\nmemory_mb = 320\nfunction_mb = 160\ninput_mb = 128\n"
ALL = '["next", "far-*"]'


@dataclass
class Nodes:
    cable: Cable
    authority: Authority
    a: Daemon
    b: Daemon
    start_b: Callable[[], Daemon]

    def invoke(self, function: str, event: Any, timeout_s: float = 100) -> Any:
        return invoke(self.a, function, event, timeout_s)


def invoke(daemon: Daemon, function: str, event: Any, timeout_s: float = 100) -> Any:
    response = daemon.request("POST", f"/2015-03-31/functions/{function}/invocations", event, timeout_s)
    return json.loads(response.read())


def described(daemon: Daemon, function: str) -> dict[str, Any]:
    description: dict[str, Any] = json.loads(daemon.request("GET", f"/_pilot/v1/functions/{function}").read())
    return description


def handed(daemon: Daemon) -> int:
    """Bytes of the buffers that functions hand over."""
    for line in daemon.request("GET", "/metrics").read().decode().splitlines():
        if line.startswith("pilot_handover_bytes"):
            return int(float(line.split()[-1]))
    raise AssertionError("there is no such metric")


def nothing_is_left(*daemons: Daemon) -> None:
    for daemon in daemons:
        eventually("the buffers to be given back", lambda daemon=daemon: handed(daemon) == 0, 20)


def started(home: Path, cable: Cable, end: str, text: str, *folders: str) -> Daemon:
    home.mkdir(exist_ok=True)
    config = home / "pilotd.toml"
    config.write_text(f'[log]\nlevel = "debug"\n{DATA}{text}')
    daemon = Daemon(home, "--config", str(config), within=cable.names[end])
    for folder in folders:
        done = daemon.up(HERE / folder)
        if done.returncode != 0:
            daemon.stop()
            raise AssertionError(f"{done.stdout}{done.stderr}\n{daemon.log.read_text()}")
    return daemon


def for_b(authority: Authority, port: int = PORT, name: str = "b") -> str:
    return f"""
[nodes]
listen = "10.99.0.2:{port}"
silence_s = {SILENCE_S}
{authority.keys(name)}
[nodes.a]
url = "https://10.99.0.1:{PORT}"
functions = ["first", "node-first"]
may_invoke = {ALL}
"""


def for_a(authority: Authority, others: str) -> str:
    return f"""
[nodes]
listen = "10.99.0.1:{PORT}"
silence_s = {SILENCE_S}
{authority.keys("a")}
{others}
"""


def other(name: str, port: int = PORT, functions: str = ALL) -> str:
    return f'[nodes.{name}]\nurl = "https://10.99.0.2:{port}"\nfunctions = {functions}\nmay_invoke = ["first"]\n'


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("nodes")
    folder.chmod(0o755)
    return folder


@pytest.fixture(scope="module")
def nodes(folder: Path) -> Iterator[Nodes]:
    authority = Authority(folder)
    running: list[Daemon] = []
    with Cable() as cable:

        def start_b() -> Daemon:
            daemon = started(folder / "b", cable, "b", for_b(authority), "nodes-b")
            running.append(daemon)
            return daemon

        try:
            b = start_b()
            a = started(folder / "a", cable, "a", for_a(authority, other("b")), "nodes-a")
            running.append(a)
            yield Nodes(cable, authority, a, b, start_b)
        finally:
            for daemon in running:
                daemon.stop()


@pytest.fixture(autouse=True)
def plugged(nodes: Nodes) -> Iterator[None]:
    yield
    nodes.cable.rate(None)
    nodes.cable.plug("up")


def test_a_function_hands_100_mb_to_one_on_another_node(nodes: Nodes) -> None:
    for size in (100 * MIB, 0, 1, 3 * MIB + 1):
        said = nodes.invoke("first", {"to": "next", "size": size, "n": size})
        (answer,) = said["answers"]
        assert answer["got"] == said["sent"], said
        assert answer["event"] == {"n": size}
        # The other node knows when the caller is ended.
        assert 0 < answer["left_ms"] <= 60_000
        (transfer,) = described(nodes.b, "next")["last"]["transfers"]
        assert (transfer["from"], transfer["bytes"]) == ("function:first@a", size)
    # Without data.
    assert nodes.invoke("first", {"to": "next"})["answers"][0]["bytes"] is None
    nothing_is_left(nodes.a, nodes.b)


def test_functions_in_node_js_hand_data_to_other_nodes_and_get_it_there(nodes: Nodes) -> None:
    (answer,) = nodes.invoke("first", {"to": "far-node"})["answers"]
    assert answer == {"node": True, "event": {}, "bytes": None, "got": None}
    for function, to in (("first", "far-node"), ("node-first", "far-node"), ("node-first", "next")):
        for size in (1, 20 * MIB + 1):
            said = nodes.invoke(function, {"to": to, "size": size})
            assert said["answers"][0]["got"] == said["sent"], said
    said = nodes.invoke("node-first", {"to": "next", "size": 5 * MIB, "parts": True})
    assert said["answers"][0]["got"] == said["sent"], said
    assert nodes.invoke("node-first", {"to": "far-none", "size": 5})[:2] == ["Refused", "NotFound"]
    nothing_is_left(nodes.a, nodes.b)


def test_the_target_starts_while_its_data_arrives(nodes: Nodes) -> None:
    nodes.b.retire("next")
    eventually("no worker", lambda: workers(nodes.b, "next") == 0)
    # 32 MB would take 13 s.
    nodes.cable.rate(20)
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(nodes.invoke, "first", {"to": "next", "size": 32 * MIB})
        eventually("a worker before the data", lambda: described(nodes.b, "next")["workers"]["idle"] == 1)
        assert not call.done()
        nodes.cable.rate(None)
        said = call.result()
    assert said["answers"][0]["got"] == said["sent"]


def test_a_part_is_on_its_way_while_the_next_one_is_made(nodes: Nodes) -> None:
    nodes.invoke("first", {"to": "next", "size": 1})  # workers and the connection are there
    # 20 MiB take 4.2 s on the link, and 4 s until they are made. One after the other, the second call would take 4 s more than the first.
    nodes.cable.rate(40)
    took = []
    for pause_s in (0, 0.2):
        began = time.monotonic()
        said = nodes.invoke("first", {"to": "next", "parts": 20, "pause_s": pause_s})
        took.append(time.monotonic() - began)
        assert said["answer"]["got"] == said["made"] and said["answer"]["bytes"] == 20 * MIB, said
    assert took[1] < took[0] + 2.5, took
    # The function there is not called with a part of it.
    last = described(nodes.b, "next")["last"]["id"]
    said = nodes.invoke("first", {"to": "next", "parts": 4, "pause_s": 0.05, "fails": True})
    assert said == ["raised", "no more of it"]
    after = described(nodes.b, "next")["last"]
    assert after["id"] == last or after["timeline"]["started"] is None, after
    nothing_is_left(nodes.a, nodes.b)


def test_what_fails_there_is_the_callers_exception(nodes: Nodes) -> None:
    said = nodes.invoke("first", {"to": "next", "do": "raise", "size": MIB})
    assert said == ["failed", "next", "ValueError", "as was asked for"]
    # What the other node does not have, what takes no events, and what nobody has.
    kind, reason, problem = nodes.invoke("first", {"to": "far-none"})
    assert (kind, reason) == ("refused", "NotFound") and "node 'b'" in problem and "far-none" in problem
    kind, reason, problem = nodes.invoke("first", {"to": "far-site", "size": 1})
    assert (kind, reason) == ("refused", "NotSupported") and "does not take events" in problem
    kind, reason, problem = nodes.invoke("first", {"to": "first"})
    assert (kind, reason) == ("refused", "Forbidden")
    # More than the other node takes.
    kind, reason, problem = nodes.invoke("first", {"to": "next", "size": 129 * MIB})
    assert (kind, reason) == ("refused", "TooLarge"), problem
    nothing_is_left(nodes.a, nodes.b)


def test_a_chain_of_functions_has_an_end_across_nodes(nodes: Nodes) -> None:
    # first on a, far-back on b, first on a, and so on.
    assert '"TooDeep"' in json.dumps(nodes.invoke("first", {"to": "far-back"}))


def chained(nodes: Nodes, event: Any, targets: str) -> tuple[Any, Any]:
    connection = UnixConnection(nodes.a.data / "control.sock", 60)
    body, headers = json.dumps(event).encode(), {"X-Pilot-Target": targets}
    connection.request("POST", "/2015-03-31/functions/echo/invocations", body, headers)
    response = connection.getresponse()
    return response, json.loads(response.read())


def test_a_chain_by_header_goes_through_another_node(nodes: Nodes) -> None:
    response, answer = chained(nodes, {"n": 1}, "next, echo")
    assert answer["event"] == {"n": 1, "by": ["echo"]} and answer["by"] == ["echo"], answer
    assert response.getheader("x-pilot-target") == "echo"
    response, answer = chained(nodes, {"n": 2}, "next")
    assert answer["event"] == {"n": 2, "by": ["echo"]} and response.getheader("x-pilot-target") == "next"
    # What fails there ends the chain.
    response, answer = chained(nodes, {"do": "raise"}, "next, echo")
    assert (response.status, response.getheader("x-amz-function-error")) == (200, "Unhandled")
    assert answer["errorMessage"] == "as was asked for" and response.getheader("x-pilot-target") == "next"
    response, answer = chained(nodes, {}, "far-none")
    assert response.status == 404 and "node 'b'" in answer["Message"], answer
    response, answer = chained(nodes, {}, "next:3")
    assert response.status == 400 and "leave out the qualifier" in answer["Message"], answer


def test_a_caller_that_has_ended_ends_its_call(nodes: Nodes) -> None:
    answer = nodes.invoke("hurried", {"to": "far-hangs"})
    # Both have the same deadline: its call may end first, and then it has a moment to answer.
    expected = "timed out" if isinstance(answer, dict) else "no answer before the caller's deadline"
    assert expected in json.dumps(answer), answer
    eventually("the call to be ended", lambda: described(nodes.b, "far-hangs")["workers"]["busy"] == 0, 20)


def test_a_cable_that_is_unplugged_midway_is_told_within_a_limited_time(nodes: Nodes) -> None:
    nodes.cable.rate(20)
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(nodes.invoke, "first", {"to": "next", "size": 64 * MIB})
        eventually("the data to arrive", lambda: handed(nodes.b) >= 64 * MIB)
        nodes.cable.plug("down")
        kind, reason, problem = call.result()
    assert (kind, reason) == ("refused", "Unavailable")
    assert "node 'b': the link was lost while the call was sent" in problem
    # The receiver notices by itself.
    nothing_is_left(nodes.a, nodes.b)
    # Nobody can be reached now.
    kind, reason, problem = nodes.invoke("first", {"to": "next", "size": MIB})
    assert (kind, reason) == ("refused", "Unavailable") and "10.99.0.2:7443" in problem
    nodes.cable.rate(None)
    nodes.cable.plug("up")
    assert nodes.invoke("first", {"to": "next", "size": MIB})["answers"]


def test_a_call_of_a_node_that_is_killed_midway_goes_to_another_one(nodes: Nodes, folder: Path) -> None:
    second = started(folder / "c", nodes.cable, "b", for_b(nodes.authority, PORT + 1, "c"), "nodes-b")
    # One is tried first and then the other, in turns.
    config = for_a(nodes.authority, other("b") + other("c", PORT + 1)).replace(f"10.99.0.1:{PORT}", f"10.99.0.1:{PORT + 2}")
    first = started(folder / "a2", nodes.cable, "a", config, "nodes-a")
    try:
        nodes.cable.rate(20)
        with ThreadPoolExecutor(1) as pool:
            call = pool.submit(invoke, first, "first", {"to": "next", "size": 32 * MIB})
            eventually("the data to arrive", lambda: handed(nodes.b) + handed(second) >= 32 * MIB)
            killed, left = (nodes.b, second) if handed(nodes.b) else (second, nodes.b)
            killed.process.kill()
            killed.process.wait()
            nodes.cable.rate(None)
            said = call.result()
        assert said["answers"][0]["got"] == said["sent"]
        assert described(left, "next")["totals"]["invocations"] >= 1
        # Also when it is not there from the beginning, whoever's turn it is.
        said = invoke(first, "first", {"to": "next", "times": 4, "size": MIB})
        assert len(said["answers"]) == 4, said
        # A call that may have run is not sent to another node.
        with ThreadPoolExecutor(1) as pool:
            call = pool.submit(invoke, first, "first", {"to": "far-hangs"})
            eventually("it to run", lambda: described(left, "far-hangs")["workers"]["busy"] == 1)
            left.process.kill()
            left.process.wait()
            kind, reason, problem = call.result()
        assert (kind, reason) == ("refused", "Unavailable") and "may have run" in problem
    finally:
        first.stop()
        second.stop()
        nodes.b.stop()
        nodes.b = nodes.start_b()
    # The other caller finds the node again.
    assert nodes.invoke("first", {"to": "next"})["answers"]


def client(nodes: Nodes, *files: Path) -> subprocess.CompletedProcess[str]:
    """A client of b's address for nodes that asks what a node asks first. It is in a's namespace."""
    program = """
import socket, ssl, sys
context = ssl.create_default_context(cafile=sys.argv[1])
context.set_alpn_protocols(["h2"])
if sys.argv[2:]:
    context.load_cert_chain(*sys.argv[2:])
stream = context.wrap_socket(socket.create_connection(("10.99.0.2", 7443), 10), server_hostname="b")
stream.sendall(b"PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
print(stream.recv(9).hex())
"""
    command = ["nsenter", f"--net=/run/netns/{nodes.cable.names['a']}", "python3", "-c", program]
    return subprocess.run([*command, nodes.authority.certificate, *files], capture_output=True, text=True, timeout=30)


def test_only_a_node_with_a_certificate_of_the_authority_is_obeyed(nodes: Nodes, folder: Path) -> None:
    assert client(nodes, *nodes.authority.issue("a")).stdout, "our own certificate is taken"
    elsewhere = Authority(folder, "elsewhere")
    for files in ((), elsewhere.issue("a")):
        refused = client(nodes, *files)
        assert refused.stdout in ("", "\n") and "alert" in refused.stderr, refused
    assert "refused a connection to nodes.listen" in nodes.b.log.read_text()
    # The same from a daemon: the other's authority, and a name that the other does not know.
    for authority, name, told in ((elsewhere, "a", "invalid peer certificate"), (nodes.authority, "x", "is none of [nodes]")):
        config = for_a(nodes.authority, other("b")).replace(f"10.99.0.1:{PORT}", f"10.99.0.1:{PORT + 3}")
        config = config.replace(nodes.authority.keys("a"), authority.keys(name))
        stranger = started(folder / f"a-{authority.name}-{name}", nodes.cable, "a", config, "nodes-a")
        try:
            kind, reason, problem = invoke(stranger, "first", {"to": "next", "size": MIB})
            assert (kind, reason) == ("refused", "Unavailable") and told in problem, problem
        finally:
            stranger.stop()
    assert nodes.invoke("first", {"to": "next"})["answers"], "everybody else is served"


def test_clients_that_say_nothing_are_no_harm(nodes: Nodes) -> None:
    assert nodes.invoke("first", {"to": "next"})["answers"]
    program = "import socket, sys\nheld = [socket.create_connection(('10.99.0.2', 7443)) for _ in range(40)]\nprint()\nsys.stdout.flush()\ninput()"
    command = ["nsenter", f"--net=/run/netns/{nodes.cable.names['a']}", "python3", "-c", program]
    silent = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert silent.stdout and silent.stdout.readline()
        assert nodes.invoke("first", {"to": "next"})["answers"], "an open link is not affected"
    finally:
        silent.communicate(b"\n", timeout=20)


def test_a_function_that_a_node_may_not_invoke_is_refused(nodes: Nodes, folder: Path) -> None:
    config = for_b(nodes.authority, PORT + 4, "d").replace(ALL, '["far-none"]')
    strict = started(folder / "d", nodes.cable, "b", config, "nodes-b")
    config = for_a(nodes.authority, other("d", PORT + 4)).replace(f"10.99.0.1:{PORT}", f"10.99.0.1:{PORT + 5}")
    first = started(folder / "a-d", nodes.cable, "a", config, "nodes-a")
    try:
        kind, reason, problem = invoke(first, "first", {"to": "next", "size": MIB})
        assert (kind, reason) == ("refused", "Forbidden") and "add it to may_invoke of [nodes.a]" in problem
        assert described(strict, "next")["totals"]["invocations"] == 0
    finally:
        first.stop()
        strict.stop()


#: A node that calls a function nine times on one connection and opens no window for the answers (RFC 9113, sections 6.5.2 and 6.9).
HOARDER = """
import socket, ssl, struct, sys, time
context = ssl.create_default_context(cafile=sys.argv[1])
context.set_alpn_protocols(["h2"])
context.load_cert_chain(sys.argv[2], sys.argv[3])
stream = context.wrap_socket(socket.create_connection(("10.99.0.2", 7443), 10), server_hostname="b")

def frame(kind, flags, number, content):
    return struct.pack(">I", len(content))[1:] + bytes([kind, flags]) + struct.pack(">I", number) + content

def field(name, value):
    return b"\\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value

event = b'{"size": 5500000}'
head = {
    b":method": b"POST", b":scheme": b"https", b":authority": b"b", b":path": b"/v1/functions/far-large/call",
    b"pilot-caller": b"first", b"pilot-depth": b"2", b"pilot-left-ms": b"60000", b"pilot-event-bytes": b"%d" % len(event),
}
block = b"".join(field(*one) for one in head.items())
no_window = struct.pack(">HI", 4, 0)
stream.sendall(b"PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n" + frame(4, 0, 0, no_window))
for number in range(1, 19, 2):
    stream.sendall(frame(1, 4, number, block) + frame(0, 1, number, event))
print("asked", flush=True)
while stream.recv(65536):
    pass
print("cut off", flush=True)
"""


def test_a_node_that_does_not_take_its_answers_holds_up_nobody(nodes: Nodes) -> None:
    files = nodes.authority.issue("a")
    command = ["nsenter", f"--net=/run/netns/{nodes.cable.names['a']}", "python3", "-c", HOARDER]
    hoarder = subprocess.Popen([*command, nodes.authority.certificate, *files], stdout=subprocess.PIPE, text=True)
    try:
        assert hoarder.stdout and hoarder.stdout.readline() == "asked\n"
        # The share of the function is eight of these answers. One that finds it taken waits until the other node is cut off.
        for _ in range(3):
            assert len(invoke(nodes.b, "far-large", {"size": 5_500_000}, 50)) == 5_500_000
        assert hoarder.stdout.readline() == "cut off\n"
    finally:
        hoarder.kill()
        hoarder.communicate()
    assert nodes.invoke("first", {"to": "next"})["answers"]
