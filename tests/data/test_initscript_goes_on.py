"""Initscripts that go on while the handler runs, and connections that they hand over."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import Bucket, Echo, eventually
from pilot_daemon import ROOT, Daemon
from test_initscript_kit import deploy, encoded, ran
from test_initscripts import cold, logged, site
from test_inputs import invoke, timing
from wasm import module, needs_rust

__all__ = ["site"]
#: What `id_of("download", "photos", "ä/cat.jpg")` is, everywhere.
CALL, CALL_ID = ["download", "photos", "ä/cat.jpg"], 7836995769431138693

MANIFEST = """
[functions.client-{name}]
handler = "app.{handler}"
timeout_s = 20
network = "none"
[functions.client-{name}.initscript]
module = "init.wasm"
timeout_ms = 20000
during = "{during}"
allow = {allow}
"""


def function(name: str, handler: str, during: str, *allow: str) -> str:
    return MANIFEST.format(name=name, handler=handler, during=during, allow=list(allow)).replace("'", '"')


@pytest.mark.parametrize("during", ["start", "invocation"])
def test_a_function_without_a_network_gets_a_live_connection(daemon: Daemon, echo: str, tmp_path: Path, during: str) -> None:
    hello = [("connect", echo.encode()), ("send_rpc", 0, 1, b"LINES 1\n\nhello"), ("send_reply", 5, 0, 1)]
    taken = [("transfer_conn", 3, echo.encode(), 0), ("connect", echo.encode()), ("transfer_conn", 4, echo.encode(), 1)]
    name = f"live-{during}"
    deploy(daemon, tmp_path, function(name, "connections", during, echo), init=module(*hello, *taken))
    elsewhere = echo.replace("127.0.0.1", "localhost")
    ask = [[3, elsewhere, "", 0], [3, echo, "more", 9], [3, echo, "", 0], [9, echo, "", 0]]
    _, told = cold(daemon, name, {"ask": ask[:2]})
    # The script has read the greeting; the answers to its `hello` and to the function's `more` are the function's.
    assert told == {"3": "HELLOMORE"}, told
    _, told = cold(daemon, name, {"ask": [ask[0], ask[3]]})
    assert f"it leads to {echo}, and not to {elsewhere}" in told["3"]
    assert "connection 9: the initscript did not hand it over" == told["9"]
    # What nobody has taken is closed with the invocation.
    eventually("the end of all connections", lambda: Echo.open == 0)
    # A warm invocation has none.
    _, told = invoke(daemon, f"client-{name}", {"ask": ask[:1]})
    assert "no initscript ran" in told["3"]


def test_a_connection_stays_the_workers(daemon: Daemon, echo: str, tmp_path: Path) -> None:
    script = module(("connect", echo.encode()), ("send_rpc", 0, 0, b"LINES 1\n\n"), ("transfer_conn", 0, echo.encode(), 0))
    deploy(daemon, tmp_path, function("kept", "kept", "start", echo), init=script)
    assert cold(daemon, "kept", {"address": echo, "text": "one"})[1] == "ONE"
    assert invoke(daemon, "client-kept", {"text": "two"})[1] == "TWO"
    daemon.retire("client-kept")
    eventually("the end of the connection", lambda: Echo.open == 0)


def test_only_raw_connections_are_handed_over(daemon: Daemon, echo: str, tmp_path: Path) -> None:
    other = "tcp://127.0.0.1:1"
    script = module(
        ("connect", b"s3://photos"),
        ("transfer_conn", 0, b"s3://photos", 0),
        ("connect", echo.encode()),
        ("transfer_conn", 1, other.encode(), 1),
        ("transfer_conn", 2, echo.encode(), 1),
        ("send_rpc", 1, 0, b"READ 1\n\n"),
        ("connect", other.encode()),
        ("transfer_conn", 3, other.encode(), 2),
        ("connect", b"tcp://127.0.0.1:2"),
    )
    deploy(daemon, tmp_path, function("raw", "connections", "start", echo, other, "s3://photos"), init=script)
    ask = [[at, echo, "", 0] for at in range(4)]
    _, told = cold(daemon, "raw", {"ask": ask})
    # The script has failed, as connection 3 says.
    assert "connection 3, tcp://127.0.0.1:1: " in told["0"] and told["0"][12:] == told["1"][12:]
    assert told["2"] == "" and "refused" in told["3"].lower(), told
    logged(daemon, "raw", "tcp://127.0.0.1:2 is not in initscript.allow")


def test_a_handler_waits_for_a_message_of_a_script_that_goes_on(daemon: Daemon, echo: str, tmp_path: Path) -> None:
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
    deploy(daemon, tmp_path, function("early", "early", "invocation", echo), init=script)
    response, told = cold(daemon, "early", {"go": echo, "ids": [0, 1, 2, 3]})
    messages = told["messages"]
    assert (messages["0"], messages["1"], messages["2"]) == (encoded(b"at once"), encoded(b"WAIT"), encoded(b"at last"))
    assert messages["3"] == "message 3: the initscript did not send it"
    assert told["known"] == [0, 1, 2]
    entries = timing(response)
    assert {"fetch.init.script", "fetch.init.0", "fetch.init.1", "fetch.init.2"} <= set(entries)
    ran(daemon, "early", {"ok": 1})


def test_a_script_that_fails_while_the_handler_waits_says_why(daemon: Daemon, tmp_path: Path) -> None:
    scripts = {
        "exit": (module(("send_msg", 0, b"here"), ("exit", 7)), "it exited with status 7"),
        "trap": (module(("send_msg", 0, b"here"), ("send_msg", 1, 65_000, 5_000)), "an address outside of its memory"),
        "loop": (module(("send_msg", 0, b"here"), loops=True), "it computed for"),
    }
    for script, problem in scripts.values():
        deploy(daemon, tmp_path, function("traps", "early", "invocation"), init=script)
        _, told = cold(daemon, "traps", {"ids": [0, 1]})
        assert told["messages"]["0"] == encoded(b"here")
        assert problem in told["messages"]["1"], told
        logged(daemon, "traps", problem)


def test_a_script_ends_with_its_invocation(daemon: Daemon, echo: str, tmp_path: Path) -> None:
    Echo.may_answer.clear()
    script = module(
        ("connect", echo.encode()),
        ("send_rpc", 0, 1, b"LINES 1\n\n"),
        ("send_rpc", 0, 2, b"READ 4\n\nwait"),
        ("recv_rpc_reply", 0, 2),
    )
    deploy(daemon, tmp_path, function("left", "early", "invocation", echo), init=script)
    response, _ = cold(daemon, "left", {"ids": []})
    logged(daemon, "left", "the invocation ended before it")
    assert "fetch.init.script" in timing(response)
    Echo.may_answer.set()
    eventually("the end of the connection", lambda: Echo.open == 0)


def test_a_crash_of_the_function_ends_its_script_and_its_connections(daemon: Daemon, echo: str, tmp_path: Path) -> None:
    """Either side may crash; the daemon goes on."""
    Echo.may_answer.clear()
    (tmp_path / "app.py").write_text("import os\n\ndef handler(event, context):\n    os._exit(3)\n")
    (tmp_path / "requirements.txt").write_text("")
    script = module(
        ("connect", echo.encode()),
        ("transfer_conn", 0, echo.encode(), 0),
        ("connect", echo.encode()),
        ("send_rpc", 1, 2, b"READ 40\n\nwait"),
        ("recv_rpc_reply", 1, 2),
    )
    deploy(daemon, tmp_path, function("crash", "handler", "invocation", echo), init=script)
    daemon.retire("client-crash")
    response, _ = invoke(daemon, "client-crash", {})
    assert response.getheader("x-amz-function-error")
    Echo.may_answer.set()
    eventually("the end of all connections", lambda: Echo.open == 0)
    assert daemon.process.poll() is None


#: Says that it runs, gets message 5 of 5 bytes, and sends it back as message 6.
ECHO_OF_5 = [("send_msg", 0, b"ready"), ("recv_msg", 5, 0, 60_000, 5), ("send_msg", 6, 60_000, 5)]


def test_a_script_gets_what_its_function_sends_whoever_is_first(daemon: Daemon, echo: str, tmp_path: Path) -> None:
    """A handler that waits for `ready` is behind its script, one that does not may be before it."""
    deploy(daemon, tmp_path, function("sends", "sends", "invocation"), init=module(*ECHO_OF_5))
    # The last one is never sent, so the handler waits for the script's end.
    _, told = cold(daemon, "sends", {"do": [0, [5, "hello", 1], 6, 99]})
    assert told[:3] == ["ready", "sent", "hello"]
    _, told = cold(daemon, "sends", {"do": [[7, "other", 1], [5, "again", 1], 6, 0, 99]})
    assert told[:4] == ["sent", "sent", "again", "ready"]
    # A conversation: each answer needs the one before. The longest message there is does not fit into the script's memory.
    rounds = [call for id in range(3) for call in (("recv_msg", id, 0, 60_000, 1), ("send_msg", id, 60_000, 1))]
    long = [("recv_msg", 9, (1 << 20) - 3, 60_000, 99), ("send_msg", 9, 60_000, 3)]
    deploy(daemon, tmp_path, function("sends", "sends", "invocation"), init=module(*rounds, *long))
    _, told = cold(daemon, "sends", {"do": [[0, "a", 1], 0, [1, "b", 1], 1, [2, "c", 1], 2, [9, "xyz!", 1 << 18], 9, 99]})
    assert told[:8] == ["sent", "a", "sent", "b", "sent", "c", "sent", "yz!"]
    ran(daemon, "sends", {"ok": 3})


def test_a_script_in_rust_asks_its_function(daemon: Daemon, bucket: Bucket, tmp_path: Path) -> None:
    needs_rust()
    bucket.put("index", b"talk/cat.jpg")
    bucket.put("talk/cat.jpg", b"a cat")
    target = ROOT / "target" / "initscript"
    build = ["cargo", "build", "--release", "--locked", "--quiet", "--example", "conversation", "--target-dir", target]
    subprocess.run([*build, "--target", "wasm32-unknown-unknown"], cwd=ROOT / "sdk" / "initscript", check=True, timeout=300)
    script = target / "wasm32-unknown-unknown" / "release" / "examples" / "conversation.wasm"
    deploy(daemon, tmp_path, function("talks", "sends", "invocation", "s3://photos"), init=script.read_bytes())
    _, told = cold(daemon, "talks", {"do": [0, [1, "talk/cat.jpg", 1], 2]})
    assert told == ["talk/cat.jpg", "sent", "a cat"]
    # What is no text is the script's own error.
    _, told = cold(daemon, "talks", {"do": [0, [1, "x", 2000], 2]})
    assert told[2] == "message 2: it exited with status 1"
    logged(daemon, "talks", "a text does not fit")


def test_what_a_script_cannot_get_is_not_sent(daemon: Daemon, tmp_path: Path) -> None:
    deploy(daemon, tmp_path, function("refused", "sends", "invocation"), init=module(*ECHO_OF_5))
    large, many = [1, "x", (1 << 20) + 1], [[id, "x", 1] for id in range(10, 26)]
    _, told = cold(daemon, "refused", {"do": [large, [1, "x", 1], [1, "y", 1], *many, [30, "x", 1]]})
    assert "it has 1048577 bytes, and a message to the initscript has at most 1048576" in told[0]
    assert told[1] == "sent" and told[2] == "message 1: a message with this id was sent before"
    assert told[3:18] == ["sent"] * 15
    assert all("the initscript is full: it gets at most 16 messages" in one for one in told[18:]), told
    # After its end, and in an invocation without one.
    _, told = cold(daemon, "refused", {"do": [[5, "hello", 1], 99, [1, "x", 1]]})
    assert told[2] == "message 1: the initscript has ended"
    _, told = invoke(daemon, "client-refused", {"do": [[1, "x", 1]]})
    assert "message 1: no initscript runs beside the handler" in told[0]
    # One that ends before the handler is called: neither side waits.
    deploy(daemon, tmp_path, function("refused", "sends", "start"), init=module(*ECHO_OF_5))
    _, told = cold(daemon, "refused", {"do": [[1, "x", 1], 0]})
    assert "message 1: no initscript runs beside the handler" in told[0] and told[1] == "ready"


def test_a_message_that_is_never_sent_ends_the_script_at_its_time(daemon: Daemon, tmp_path: Path) -> None:
    manifest = function("waits", "sends", "invocation").replace("timeout_ms = 20000", "timeout_ms = 300")
    deploy(daemon, tmp_path, manifest, init=module(*ECHO_OF_5))
    _, told = cold(daemon, "waits", {"do": [6, [5, "hello", 1]]})
    assert "it was not ready after" in told[0] and "the initscript has ended: it was not ready after" in told[1]
    ran(daemon, "waits", {"timeout": 1})


def test_a_crash_of_either_side_ends_their_messages(daemon: Daemon, tmp_path: Path) -> None:
    crash = module(("recv_msg", 5, 0, 60_000, 5), ("exit", 7))
    deploy(daemon, tmp_path, function("breaks", "sends", "invocation"), init=crash)
    _, told = cold(daemon, "breaks", {"do": [[5, "hello", 1], 6, [1, "x", 1]]})
    assert told == [
        "sent",
        "message 6: it exited with status 7",
        "message 1: the initscript has ended: it exited with status 7",
    ]
    # The function dies while its script waits for message 5. The daemon, and the next invocation, go on.
    deploy(daemon, tmp_path, function("breaks", "sends", "invocation"), init=module(*ECHO_OF_5))
    daemon.retire("client-breaks")
    response, _ = invoke(daemon, "client-breaks", {"do": [0], "die_after": 0})
    assert response.getheader("x-amz-function-error")
    # Its script learns that nothing comes any more and goes on to its end, or the invocation ends before. It does not wait on.
    logged(daemon, "breaks", "exit status 3")
    assert cold(daemon, "breaks", {"do": [[5, "hello", 1], 6]})[1] == ["sent", "hello"]


def test_a_hostile_function_loses_its_socket_and_its_script_goes_on(daemon: Daemon, tmp_path: Path) -> None:
    """What it sends is read as far as the limits, and no further."""
    script = module(("recv_msg", 5, 0, 60_000, 5), ("send_msg", 6, b"on"))
    deploy(daemon, tmp_path, function("floods", "floods", "invocation"), init=script)
    floods = {
        "a length beyond the limit": ((7).to_bytes(8, "little") + b"\xff" * 4, b"x"),
        "one id for all": (b"", (7).to_bytes(8, "little") + bytes(4)),
        "noise": (b"", bytes(range(256))),
        "too many": (b"".join(id.to_bytes(8, "little") + bytes(4) for id in range(100, 200)), b"x"),
    }
    for first, then in floods.values():
        _, told = cold(daemon, "floods", {"first": first.hex(), "then": then.hex(), "id": 6})
        assert told == "on"
    ran(daemon, "floods", {"ok": len(floods)})


def test_an_unmodified_function_gets_what_its_script_asked_a_server(daemon: Daemon, site: str, tmp_path: Path) -> None:
    script = module(
        ("connect", site.encode()),
        ("send_rpc", 0, 1, b"POST /tasks?max=1\ncontent-type: text/plain\n\nworker 1"),
        ("send_rpc", 0, 2, b"GET /old"),
        ("send_rpc", 0, 3, b"GET /config"),
        ("send_reply", 1, 0, 1),
        ("send_reply", 2, 0, 2),
        ("send_reply", 3, 0, 3),
    )
    manifest = function("unmodified", "web", "start", site).replace('"none"', '"host"')
    deploy(daemon, tmp_path, manifest, init=script)
    ask = [
        ["GET", f"{site}/config", None],
        ["POST", f"{site}/tasks?max=1", "worker 1"],
        ["POST", f"{site}/tasks?max=1", "worker 1"],
        ["GET", f"{site}/old", None],
    ]
    _, told = cold(daemon, "unmodified", {"ask": ask})
    # The second equal call goes to the server, and so does what is a redirect.
    assert told == [[200, "task 7", "init.3"], [200, "task 7", "init.1"], [200, "task 7", None], [302, "moved", None]]
    _, told = invoke(daemon, "client-unmodified", {"ask": ask[:1]})
    assert told == [[200, "task 7", None]]


def test_an_id_follows_from_the_arguments_of_a_call(daemon: Daemon, tmp_path: Path) -> None:
    script = module(("send_msg", CALL_ID, b"the picture"))
    deploy(daemon, tmp_path, function("named", "by_call", "start"), init=script)
    assert cold(daemon, "named", {"arguments": CALL})[1] == "the picture"


def test_ids_of_calls_are_the_same_in_all_languages(tmp_path: Path) -> None:
    expression = f"[{', '.join(json.dumps(argument) for argument in CALL)}]"
    python = f"from pilot_worker.sdk import init; print(init.id_of(*{expression}))"
    found = [subprocess.run([sys.executable, "-c", python], cwd=ROOT / "python", capture_output=True, text=True, check=True)]
    if shutil.which("node"):
        node = f"""
        const sdk = require({json.dumps(str(ROOT / "node" / "lib" / "sdk.js"))});
        sdk.install();
        console.log(String(require('pilotlight').init.idOf(...{expression})));
        """
        found.append(subprocess.run(["node", "-e", node], capture_output=True, text=True, check=True))
    if shutil.which("gcc"):
        arguments = expression.replace("[", "{").replace("]", "}").replace("\\u00e4", "\u00e4")
        (tmp_path / "id.c").write_text(
            f"""
#define _POSIX_C_SOURCE 200809L
#include <inttypes.h>
#include "pilotlight_init.h"
int main(void) {{
    const char *const arguments[] = {arguments};
    printf("%" PRIu64 "\\n", pilotlight_init_id_of(arguments, 3));
    return 0;
}}
"""
        )
        subprocess.run(["gcc", "-std=c99", "-I", ROOT / "sdk" / "c", tmp_path / "id.c", "-o", tmp_path / "id"], check=True)
        found.append(subprocess.run([tmp_path / "id"], capture_output=True, text=True, check=True))
    if shutil.which("rustc"):
        library = (ROOT / "sdk" / "initscript" / "src" / "lib.rs").read_text()
        written = re.search(r"^pub fn id_of.*?^}", library, re.DOTALL | re.MULTILINE)
        assert written
        (tmp_path / "id.rs").write_text(
            f'{written[0]}\nfn main() {{ println!("{{}}", id_of(&{expression})); }}'.replace("\\u00e4", "ä")
        )
        subprocess.run(["rustc", "--edition", "2024", tmp_path / "id.rs", "-o", tmp_path / "id-rust"], check=True)
        found.append(subprocess.run([tmp_path / "id-rust"], capture_output=True, text=True, check=True))
    assert [one.stdout.strip() for one in found] == [str(CALL_ID)] * len(found)
