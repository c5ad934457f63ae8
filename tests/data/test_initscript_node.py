"""Initscripts of functions in Node.js: those that go on while the handler runs, and HTTP clients that answer from what a script got."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from conftest import Echo, eventually
from pilot_daemon import Daemon
from test_initscript_kit import ran, runs
from test_initscripts import Site, cold, logged, site
from test_inputs import invoke, timing
from wasm import module

__all__ = ["site"]
HERE = Path(__file__).resolve().parent
# Packages may have to be installed before the first test.
pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(shutil.which("node") is None, reason="initscripts of Node.js are not tested: there is no node on PATH"),
]
MANIFEST = """
[functions.client-{name}]
runtime = "node"
handler = "index.{handler}"
timeout_s = 20
network = "{network}"
concurrency = {concurrency}
[functions.client-{name}.initscript]
module = "init.wasm"
timeout_ms = 20000
during = "{during}"
allow = {allow}
"""


def deploy(
    daemon: Daemon,
    folder: Path,
    handler: str,
    script: bytes,
    *allow: str,
    during: str = "invocation",
    network: str = "none",
    concurrency: int = 1,
    packages: bool = False,
) -> str:
    """Deploys a function with this handler. Returns its name without `client-`."""
    shutil.copy(HERE / "scripted-node" / "index.js", folder)
    if packages:
        shutil.copy(HERE / "scripted-node" / "package.json", folder)
    name = f"node-{handler}-{concurrency}"
    (folder / "init.wasm").write_bytes(script)
    values = {"name": name, "handler": handler, "network": network, "concurrency": concurrency, "during": during}
    (folder / "pilot.toml").write_text(MANIFEST.format(**values, allow=json.dumps(list(allow))))
    done = daemon.up(folder)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}\n{daemon.log.read_text()}"
    return name


@pytest.mark.parametrize("concurrency", [1, 4])
def test_a_node_handler_waits_for_a_message_of_a_script_that_goes_on(
    daemon: Daemon, echo: str, tmp_path: Path, concurrency: int
) -> None:
    """The script gets its answer only after the handler has said so: both run at the same time."""
    Echo.may_answer.clear()
    place = echo.encode()
    script = module(
        ("send_msg", 0, b"at once"),
        ("connect", place),
        ("send_rpc", 0, 1, b"LINES 1\n\n"),
        ("send_rpc", 0, 2, b"READ 4\n\nwait"),
        ("send_reply", 1, 0, 2),
        ("connect", place),
        ("send_rpc", 1, 1, b"LINES 1\n\n"),
        ("transfer_conn", 9, place, 1),
        ("recv_rpc_reply", 0, 2),
        ("send_msg", 2, b"at last"),
    )
    name = deploy(daemon, tmp_path, "early", script, echo, concurrency=concurrency)
    before = runs(daemon, name).get("ok", 0)
    response, told = cold(daemon, name, {"go": echo, "ids": [0, 1, 2, 3]})
    assert told["messages"] == {
        "0": "at once",
        "1": "WAIT",
        "2": "at last",
        "3": "message 3: the initscript did not send it",
    }
    assert told["known"] == [0, 1, 2]
    assert {"fetch.init.script", "fetch.init.0", "fetch.init.1", "fetch.init.2"} <= set(timing(response))
    ran(daemon, name, {"ok": before + 1})
    # A warm invocation has none, and waits for nothing.
    _, told = invoke(daemon, f"client-{name}", {"ids": [0]})
    assert "no initscript ran for this invocation" in told["messages"]["0"] and told["known"] == []
    eventually("the end of all connections", lambda: Echo.open == 0)


def test_a_node_handler_talks_with_its_script_whoever_is_first(daemon: Daemon, tmp_path: Path) -> None:
    echo_of_5 = [("send_msg", 0, b"ready"), ("recv_msg", 5, 0, 60_000, 5), ("send_msg", 6, 60_000, 5)]
    name = deploy(daemon, tmp_path, "sends", module(*echo_of_5))
    assert cold(daemon, name, {"do": [[5, "hello", 1], 6]})[1] == ["sent", "hello"]
    assert cold(daemon, name, {"do": [0, [5, "hello", 1], 6]})[1] == ["ready", "sent", "hello"]
    # After its end it gets nothing.
    _, told = cold(daemon, name, {"do": [[5, "hello", 1], 6, 7, [1, "x", 1]]})
    assert told[2:] == ["message 7: the initscript did not send it", "message 1: the initscript has ended"]


def test_a_node_function_learns_why_its_script_failed_and_either_side_may_crash(daemon: Daemon, tmp_path: Path) -> None:
    crash = module(("recv_msg", 5, 0, 60_000, 5), ("exit", 7))
    name = deploy(daemon, tmp_path, "sends", crash)
    _, told = cold(daemon, name, {"do": [[5, "hello", 1], 6, [1, "x", 1]]})
    assert told == [
        "sent",
        "message 6: it exited with status 7",
        "message 1: the initscript has ended: it exited with status 7",
    ]
    # The function dies while its script waits for message 5. The daemon, and the next invocation, go on.
    deploy(
        daemon, tmp_path, "sends", module(("send_msg", 0, b"ready"), ("recv_msg", 5, 0, 60_000, 5), ("send_msg", 6, 60_000, 5))
    )
    daemon.retire(f"client-{name}")
    response, _ = invoke(daemon, f"client-{name}", {"do": [0], "die_after": 0})
    assert response.getheader("x-amz-function-error")
    # Its script learns that nothing comes any more and goes on to its end, or the invocation ends before. It does not wait on.
    logged(daemon, name, "exit status 3")
    assert cold(daemon, name, {"do": [[5, "hello", 1], 6]})[1] == ["sent", "hello"]


def test_a_node_function_without_a_network_gets_connections_while_the_script_runs(
    daemon: Daemon, echo: str, tmp_path: Path
) -> None:
    hello = [("connect", echo.encode()), ("send_rpc", 0, 1, b"LINES 1\n\nhello"), ("send_reply", 5, 0, 1)]
    taken = [("transfer_conn", 3, echo.encode(), 0), ("connect", echo.encode()), ("transfer_conn", 4, echo.encode(), 1)]
    name = deploy(daemon, tmp_path, "connections", module(*hello, *taken), echo)
    elsewhere = echo.replace("127.0.0.1", "localhost")
    _, told = cold(daemon, name, {"ask": [[3, echo, "more", 9]]})
    assert told == {"3": "HELLOMORE"}
    _, told = cold(daemon, name, {"ask": [[3, elsewhere, "", 0], [9, echo, "", 0]]})
    assert told["3"] == f"connection 3: it leads to {echo}, and not to {elsewhere}"
    assert told["9"] == "connection 9: the initscript did not hand it over"
    # What nobody has taken is closed with the invocation.
    eventually("the end of all connections", lambda: Echo.open == 0)


@pytest.mark.parametrize("client", ["fetch", "request", "axios", "node-fetch", "got", "undici", "undici-fetch"])
def test_an_unmodified_node_function_gets_what_its_script_asked_a_server(
    daemon: Daemon, site: str, tmp_path_factory: pytest.TempPathFactory, client: str
) -> None:
    if shutil.which("npm") is None:
        pytest.skip("HTTP clients of Node.js are not tested: there is no npm on PATH")
    # What axios says of a text by itself.
    kind = b"application/x-www-form-urlencoded" if client == "axios" else b"text/plain"
    script = module(
        ("connect", site.encode()),
        ("send_rpc", 0, 1, b"POST /tasks?max=1\ncontent-type: " + kind + b"\n\nworker 1"),
        ("send_rpc", 0, 2, b"GET /config"),
        ("send_reply", 1, 0, 1),
        ("send_reply", 2, 0, 2),
    )
    folder = tmp_path_factory.mktemp("web")
    name = deploy(daemon, folder, "web", script, site, during="start", network="host", packages=True)
    task, config = ["POST", f"{site}/tasks?max=1", "worker 1"], ["GET", f"{site}/config", None]
    _, told = cold(daemon, name, {"client": client, "ask": [config, task, task]})
    # The second equal call goes to the server.
    assert told == [[200, "task 7", "init.2"], [200, "task 7", "init.1"], [200, "task 7", None]]
    assert Site.asked[-1] == ("POST", "/tasks?max=1", b"worker 1")
    _, told = invoke(daemon, f"client-{name}", {"client": client, "ask": [config]})
    assert told == [[200, "task 7", None]]
