"""Messages of initscripts in functions that are not Python: Node.js, and programs in C behind the Lambda Runtime API."""

from __future__ import annotations

import base64
import json
import os
import shutil
import socket
import subprocess
from pathlib import Path

import pytest
from conftest import KEY_ID, SECRET, Bucket, Echo, eventually
from pilot_daemon import ROOT, Daemon
from test_initscripts import cold, sha256
from test_inputs import invoke
from wasm import module

HERE = Path(__file__).resolve().parent
# Packages may have to be installed before the first test.
pytestmark = pytest.mark.timeout(240)
SCRIPT = """
[functions.client-{name}.initscript]
module = "init.wasm"
timeout_ms = 20000
allow = ["s3://photos/scripts/"]
"""
#: One object, one that there is not, and a text.
MESSAGES = module(
    ("connect", b"s3://photos"),
    ("send_rpc", 0, 1, b"GET scripts/cat"),
    ("send_rpc", 0, 2, b"GET scripts/none"),
    ("send_reply", 0, 0, 1),
    ("send_reply", 1, 0, 2),
    ("send_msg", 3, b"here"),
)
MISSING = "there is no such object"
NODE = """
const { init } = require('pilotlight');

exports.handler = async (event, context) => {
  const told = {};
  for (const id of event.ids) {
    try {
      const chunks = [];
      for await (const chunk of init.stream(id)) chunks.push(chunk);
      const message = init.recvMsg(id);
      told[id] = [message.toString('base64'), message.equals(Buffer.concat(chunks)), init.recv_msg(id) === message];
    } catch (error) {
      told[id] = error instanceof init.NoMessage ? error.message : `${error}`;
    }
  }
  return { told, ids: init.messages(), inputs: Object.keys(context.inputs) };
};
"""


def deploy(daemon: Daemon, folder: Path, manifest: str, script: bytes = MESSAGES) -> None:
    (folder / "init.wasm").write_bytes(script)
    (folder / "pilot.toml").write_text(manifest)
    done = daemon.up(folder)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}\n{daemon.log.read_text()}"


def encoded(body: bytes) -> str:
    return base64.b64encode(body).decode()


@pytest.mark.parametrize("concurrency", [1, 4])
def test_a_node_function_receives_messages(daemon: Daemon, bucket: Bucket, tmp_path: Path, concurrency: int) -> None:
    if shutil.which("node") is None:
        pytest.skip("messages of Node.js functions are not tested: there is no node on PATH")
    (tmp_path / "index.js").write_text(NODE)
    name = f"node-messages-{concurrency}"
    function = f'[functions.client-{name}]\nruntime = "node"\nhandler = "index.handler"\nconcurrency = {concurrency}\n'
    deploy(daemon, tmp_path, function + SCRIPT.format(name=name))
    body = os.urandom(100_000)
    bucket.put("scripts/cat", body)
    _, seen = cold(daemon, name, {"ids": [0, 1, 2, 3]})
    assert seen["told"] == {
        "0": [encoded(body), True, True],
        "1": f"message 1: {MISSING}",
        "2": f"message 2: message 1, s3://photos/scripts/none: {MISSING}",
        "3": [encoded(b"here"), True, True],
    }
    assert (seen["ids"], seen["inputs"]) == ([0, 3], [])
    _, seen = invoke(daemon, f"client-{name}", {"ids": [0]})
    assert "did not wait for a worker to start" in seen["told"]["0"] and seen["ids"] == []


def test_the_sdk_for_javascript_answers_from_a_message(daemon: Daemon, bucket: Bucket, tmp_path: Path) -> None:
    if shutil.which("npm") is None:
        pytest.skip("messages of Node.js functions with a client are not tested: there is no npm on PATH")
    folder = tmp_path / "node"
    shutil.copytree(HERE / "node", folder)
    manifest = f"""
[functions.client-node-script]
runtime = "node"
handler = "index.objects"
network = "host"
timeout_s = 20
[functions.client-node-script.environment]
AWS_ENDPOINT_URL = "{bucket.endpoint}"
AWS_REGION = "us-east-1"
AWS_ACCESS_KEY_ID = "{KEY_ID}"
AWS_SECRET_ACCESS_KEY = "{SECRET}"
"""
    deploy(daemon, folder, manifest + SCRIPT.format(name="node-script"))
    body = os.urandom(100_000)
    bucket.put("scripts/cat", body)
    event = {"key": "scripts/cat", "how": "get"}
    _, seen = cold(daemon, "node-script", event)
    assert (seen["input"], seen["body"]) == (True, sha256(body))
    _, seen = invoke(daemon, "client-node-script", event)
    assert (seen["input"], seen["body"]) == (False, sha256(body))


def fnv1a(body: bytes) -> int:
    total = 2166136261
    for byte in body:
        total = ((total ^ byte) * 16777619) & 0xFFFFFFFF
    return total


def build_c(folder: Path, *more: str) -> None:
    """The program `bootstrap`, which runs with the checks of the compiler."""
    options = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-O1", "-I", ROOT / "sdk" / "c", *more]
    subprocess.run(["gcc", *options, HERE / "c" / "bootstrap.c", "-o", folder / "bootstrap"], check=True)


def test_a_program_in_c_maps_messages(daemon: Daemon, bucket: Bucket, tmp_path: Path) -> None:
    if shutil.which("gcc") is None:
        pytest.skip("messages of programs in C are not tested: there is no gcc on PATH")
    build_c(tmp_path)
    function = '[functions.client-c-messages]\nruntime = "provided"\n'
    deploy(daemon, tmp_path, function + SCRIPT.format(name="c-messages"))
    script = f"message 1, s3://photos/scripts/none: {MISSING}"
    # The second one has other paths.
    for size in (70_000, 0):
        body = os.urandom(size)
        bucket.put("scripts/cat", body)
        _, seen = cold(daemon, "c-messages", {})
        assert seen == [[size, fnv1a(body)], MISSING, script]
    _, seen = invoke(daemon, "client-c-messages", {})
    assert seen == ["no initscript ran for this invocation, because it did not wait for a worker to start"] * 3


def test_a_program_in_c_reads_variables(tmp_path: Path) -> None:
    """Of a program that runs once per invocation."""
    if shutil.which("gcc") is None:
        pytest.skip("messages of programs in C are not tested: there is no gcc on PATH")
    (tmp_path / "once.c").write_text(
        """
#define _POSIX_C_SOURCE 200809L
#include "pilotlight_init.h"
int main(void) {
    struct pilotlight_init init;
    pilotlight_init_environment(&init);
    for (uint64_t id = 0; id < 4; id++) {
        struct pilotlight_msg msg;
        if (pilotlight_init_recv_msg(&init, id, &msg) == 0) {
            printf("%zu\\n", msg.len);
            pilotlight_init_release(&msg);
        } else {
            printf("%d %s\\n", errno == ENOENT, pilotlight_init_why(&init, id));
        }
    }
    return 0;
}
"""
    )
    options = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-fsanitize=address,undefined", "-I", ROOT / "sdk" / "c"]
    subprocess.run(["gcc", *options, tmp_path / "once.c", "-o", tmp_path / "once"], check=True)
    (tmp_path / "message").write_bytes(b"12345")
    variables = {
        "PILOT_INIT_0": "message",
        "PILOT_INIT_2": "/" + "x" * 200,
        "PILOT_INIT_99999999999999999999": "/dev/null",
        "PILOT_INIT_": "/dev/null",
        "PILOT_FAILED_INIT_1": MISSING + "!" * 1000,
        "PILOT_FAILED_INIT_3": "of the other script",
        "PILOT_INIT_3": "message",
        "PILOT_FAILED_INIT_SCRIPT": "it trapped",
    }
    done = subprocess.run([tmp_path / "once"], cwd=tmp_path, env=variables, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["5", f"1 {(MISSING + '!' * 1000)[:255]}", "1 it trapped", "5"]


CONNECTIONS = """
[functions.client-{name}.initscript]
module = "init.wasm"
timeout_ms = 20000
allow = ["{echo}", "tcp://127.0.0.1:1"]
"""
NODE_CONNECTIONS = """
const { once } = require('node:events');
const { init } = require('pilotlight');

exports.handler = async (event) => {
  const told = {};
  for (const [id, address, text] of event.ask) {
    try {
      const connection = init.getConn(id, address);
      connection.write(text);
      let answer = '';
      while (answer.length < text.length) {
        answer += (await once(connection, 'data'))[0];
      }
      connection.destroy();
      told[id] = answer;
    } catch (error) {
      told[id] = error instanceof init.NoConnection ? error.message : `${error}`;
    }
  }
  return told;
};
"""


def handing(echo: str) -> bytes:
    """Connection 0 and 1 lead to the server, which has greeted, and there is no 2."""
    place, none = echo.encode(), b"tcp://127.0.0.1:1"
    calls = [
        call
        for at in (0, 1)
        for call in (("connect", place), ("send_rpc", at, 0, b"LINES 1\n\n"), ("transfer_conn", at, place, at))
    ]
    return module(*calls, ("connect", none), ("transfer_conn", 2, none, 2))


def test_a_node_function_gets_a_live_connection(daemon: Daemon, echo: str, tmp_path: Path) -> None:
    if shutil.which("node") is None:
        pytest.skip("connections of Node.js functions are not tested: there is no node on PATH")
    (tmp_path / "index.js").write_text(NODE_CONNECTIONS)
    function = '[functions.client-node-live]\nruntime = "node"\nhandler = "index.handler"\n'
    deploy(daemon, tmp_path, function + CONNECTIONS.format(name="node-live", echo=echo), handing(echo))
    other = "tcp://127.0.0.1:2"
    _, told = cold(daemon, "node-live", {"ask": [[0, echo, "hello"], [1, other, ""], [2, echo, ""], [3, echo, ""]]})
    assert told["0"] == "HELLO", told
    assert told["1"] == f"connection 1: it leads to {echo}, and not to {other}"
    assert "refused" in told["2"].lower() and "tcp://127.0.0.1:1" in told["3"]
    # Nobody has taken connection 1.
    eventually("the end of all connections", lambda: Echo.open == 0)
    _, told = invoke(daemon, "client-node-live", {"ask": [[0, echo, "hello"]]})
    assert "did not wait for a worker to start" in told["0"]


#: Says that it runs, gets message 5 of 5 bytes, and sends it back as message 6.
ECHO_OF_5 = module(("send_msg", 0, b"ready"), ("recv_msg", 5, 0, 60_000, 5), ("send_msg", 6, 60_000, 5))
GOES_ON = """
[functions.client-{name}.initscript]
module = "init.wasm"
timeout_ms = {timeout_ms}
during = "invocation"
"""


def test_a_program_in_c_talks_with_its_script(daemon: Daemon, tmp_path: Path) -> None:
    if shutil.which("gcc") is None:
        pytest.skip("messages of programs in C are not tested: there is no gcc on PATH")
    build_c(tmp_path, "-DTALKS")
    function = '[functions.client-c-talks]\nruntime = "provided"\n'
    deploy(daemon, tmp_path, function + GOES_ON.format(name="c-talks", timeout_ms=20_000), ECHO_OF_5)
    for _ in range(3):
        _, told = cold(daemon, "c-talks", {})
        assert told == ["ready", 0, "hello", "the initscript did not send it", "Message too long", "Broken pipe"]
    # A worker that did not start has none.
    _, told = invoke(daemon, "client-c-talks", {})
    assert "did not wait for a worker to start" in told[0] and told[4:] == ["No such file or directory"] * 2


def test_a_program_in_c_learns_why_its_script_failed(daemon: Daemon, tmp_path: Path) -> None:
    if shutil.which("gcc") is None:
        pytest.skip("messages of programs in C are not tested: there is no gcc on PATH")
    build_c(tmp_path, "-DTALKS")
    function = '[functions.client-c-fails]\nruntime = "provided"\n'
    manifest = function + GOES_ON.format(name="c-fails", timeout_ms=20_000)
    deploy(daemon, tmp_path, manifest, module(("send_msg", 0, b"ready"), ("exit", 7)))
    _, told = cold(daemon, "c-fails", {})
    assert told[0] == "ready" and told[2:4] == ["it exited with status 7"] * 2
    # It waits for a message that is never sent, until its time is over.
    manifest = function + GOES_ON.format(name="c-fails", timeout_ms=300)
    deploy(daemon, tmp_path, manifest, module(("recv_msg", 8, 0, 60_000, 5)))
    _, told = cold(daemon, "c-fails", {})
    assert all("it was not ready after" in told[at] for at in (0, 2, 3)), told


def test_a_program_in_c_reads_what_its_script_sends(tmp_path: Path) -> None:
    """Without a daemon, and with the compiler's checks: long and nested objects, in pieces, and an end in the middle of one."""
    if shutil.which("gcc") is None:
        pytest.skip("messages of programs in C are not tested: there is no gcc on PATH")
    (tmp_path / "reads.c").write_text(
        """
#define _POSIX_C_SOURCE 200809L
#include "pilotlight_init.h"
int main(void) {
    struct pilotlight_init init;
    const char *path;
    pilotlight_init_environment(&init);
    for (uint64_t id = 0; id < 4; id++) {
        path = pilotlight_init_path(&init, id);
        puts(path != NULL ? path : pilotlight_init_why(&init, id));
    }
    printf("%d %s\\n", pilotlight_init_get_conn(&init, 1, "tcp://db:1"), pilotlight_init_why_conn(&init, 1));
    pilotlight_init_end(&init);
    return 0;
}
"""
    )
    options = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-fsanitize=address,undefined", "-I", ROOT / "sdk" / "c"]
    subprocess.run(["gcc", *options, tmp_path / "reads.c", "-o", tmp_path / "reads"], check=True)
    store = {"url": "s3://b/k", "path": "/etc/passwd", "op": "end", "list": [{"id": "2"}, "}]{\\\"", "ä"], "long": "x" * 5000}
    notes = [
        {"op": "message", "id": "0", "len": 3, "store": store, "path": "/proc/7/fd/9"},
        {"op": "message", "id": "1", "problem": 'no "such"\nobject \x01' + "!" * 1000},
        {"op": "other", "path": "x"},
        {"op": "message", "id": "x", "path": "/proc/7/fd/8"},
        {"op": "message", "id": "2", "path": "/" + "x" * 200},
        {"op": "connection", "id": "1", "problem": "refused"},
        {"op": "end", "problem": "it trapped"},
    ]
    sent = b"".join(len(text).to_bytes(4, "little") + text for text in (json.dumps(note, ensure_ascii=False).encode() for note in notes))
    long = ('no "such" object ?' + "!" * 1000)[:255]
    cases = {
        "all": (sent, ["/proc/7/fd/9", long, "it trapped", "it trapped", "-1 refused"]),
        "cut": (sent[:200], ["the way to the initscript broke off"] * 4 + ["-1 the way to the initscript broke off"]),
        "nothing": (b"", ["the way to the initscript broke off"] * 4 + ["-1 the way to the initscript broke off"]),
        "noise": (bytes(range(4)) * 100, ["the way to the initscript broke off"] * 4 + ["-1 the way to the initscript broke off"]),
    }
    for case, (content, expected) in cases.items():
        path = tmp_path / case
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(path))
            listening.listen()
            program = subprocess.Popen(
                [tmp_path / "reads"], env={"PILOT_INIT_SCRIPT": case}, cwd=tmp_path, stdout=subprocess.PIPE, text=True
            )
            line, _ = listening.accept()
            with line:
                line.settimeout(10)
                for at in range(0, len(content), 7):
                    try:
                        line.sendall(content[at : at + 7])
                    except (BrokenPipeError, ConnectionResetError):
                        break  # it has read enough
        told, _ = program.communicate(timeout=20)
        assert (program.returncode, told.splitlines()) == (0, expected), case


def test_a_program_in_c_waits_for_a_connection(daemon: Daemon, echo: str, tmp_path: Path) -> None:
    if shutil.which("gcc") is None:
        pytest.skip("connections of programs in C are not tested: there is no gcc on PATH")
    build_c(tmp_path, f'-DADDRESS="{echo}"')
    function = '[functions.client-c-waits]\nruntime = "provided"\n'
    manifest = function + CONNECTIONS.format(name="c-waits", echo=echo) + 'during = "invocation"\n'
    deploy(daemon, tmp_path, manifest, handing(echo))
    _, told = cold(daemon, "c-waits", {})
    assert told[0] == "HELLO" and told[1] == "taken" and "refused" in told[2].lower(), told
    eventually("the end of all connections", lambda: Echo.open == 0)


def test_a_program_in_c_gets_a_live_connection(daemon: Daemon, echo: str, tmp_path: Path) -> None:
    if shutil.which("gcc") is None:
        pytest.skip("connections of programs in C are not tested: there is no gcc on PATH")
    build_c(tmp_path, f'-DADDRESS="{echo}"')
    function = '[functions.client-c-live]\nruntime = "provided"\n'
    deploy(daemon, tmp_path, function + CONNECTIONS.format(name="c-live", echo=echo), handing(echo))
    _, told = cold(daemon, "c-live", {})
    assert told[0] == "HELLO" and told[1] == "taken", told
    assert "refused" in told[2].lower()
    eventually("the end of all connections", lambda: Echo.open == 0)
