"""Messages of initscripts in functions that are not Python: Node.js, and programs in C behind the Lambda Runtime API."""

from __future__ import annotations

import base64
import os
import shutil
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


def test_a_program_in_c_maps_messages(daemon: Daemon, bucket: Bucket, tmp_path: Path) -> None:
    if shutil.which("gcc") is None:
        pytest.skip("messages of programs in C are not tested: there is no gcc on PATH")
    options = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-O1", "-I", ROOT / "sdk" / "c"]
    subprocess.run(["gcc", *options, HERE / "c" / "bootstrap.c", "-o", tmp_path / "bootstrap"], check=True)
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


def test_a_program_in_c_gets_a_live_connection(daemon: Daemon, echo: str, tmp_path: Path) -> None:
    if shutil.which("gcc") is None:
        pytest.skip("connections of programs in C are not tested: there is no gcc on PATH")
    options = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-O1", "-I", ROOT / "sdk" / "c", f'-DADDRESS="{echo}"']
    subprocess.run(["gcc", *options, HERE / "c" / "bootstrap.c", "-o", tmp_path / "bootstrap"], check=True)
    function = '[functions.client-c-live]\nruntime = "provided"\n'
    deploy(daemon, tmp_path, function + CONNECTIONS.format(name="c-live", echo=echo), handing(echo))
    _, told = cold(daemon, "c-live", {})
    assert told[0] == "HELLO" and told[1] == "taken", told
    assert "refused" in told[2].lower()
    eventually("the end of all connections", lambda: Echo.open == 0)
