"""Initscripts that take tasks from a queue: a server with SQS's API (moto)."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from conftest import KEY_ID, SECRET, Bucket
from pilot_daemon import ROOT, Daemon
from test_initscript_kit import deploy, encoded
from test_initscripts import HERE, cold, logged
from test_inputs import invoke, timing
from wasm import module, needs_rust

MANIFEST = """
[functions.client-{name}]
handler = "app.messages"
timeout_s = 20
# A second worker could be there for the next invocation, whose script then does not run.
scale.max = 1
[functions.client-{name}.initscript]
module = "init.wasm"
timeout_ms = 20000
allow = {allow}
"""
CLIENT = """
[functions.client-{name}]
runtime = "{runtime}"
handler = "{handler}"
network = "host"
timeout_s = 20
scale.max = 1
[functions.client-{name}.environment]
AWS_ENDPOINT_URL = "{server}"
AWS_REGION = "us-east-1"
AWS_DEFAULT_REGION = "us-east-1"
AWS_ACCESS_KEY_ID = "{key}"
AWS_SECRET_ACCESS_KEY = "{secret}"
[functions.client-{name}.initscript]
module = "init.wasm"
timeout_ms = 20000
allow = ["sqs://jobs/{name}"]
"""
# It knows of no script.
NODE = """
const { DeleteMessageCommand, ReceiveMessageCommand, SendMessageCommand, SQSClient } = require('@aws-sdk/client-sqs');

const client = new SQSClient({});
const COMMANDS = { receive_message: ReceiveMessageCommand, send_message: SendMessageCommand };

exports.queue = async ({ calls, queue: QueueUrl, deletes }) => {
  const told = [];
  for (const [call, asked] of calls) {
    const answer = await client.send(new COMMANDS[call]({ QueueUrl, ...asked }));
    const [message] = answer.Messages ?? [];
    if (deletes && message) await client.send(new DeleteMessageCommand({ QueueUrl, ReceiptHandle: message.ReceiptHandle }));
    told.push([answer.$metadata.requestId === 'PILOTLIGHT' ? 'script' : null, message?.Body ?? answer.MessageId]);
  }
  return told;
};
"""
RECEIVE = b'ReceiveMessage scripted\n\n{"MaxNumberOfMessages": 1, "QueueUrl": "%s"}'


def new_queue(sqs: Any, name: str, *bodies: str) -> str:
    url: str = sqs.create_queue(QueueName=name, Attributes={"VisibilityTimeout": "600"})["QueueUrl"]
    for body in bodies:
        sqs.send_message(QueueUrl=url, MessageBody=body)
    return url


def counts(sqs: Any, queue: str) -> tuple[str, str]:
    """How many messages wait, and how many are taken."""
    names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
    attributes = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=names)["Attributes"]
    return attributes[names[0]], attributes[names[1]]


def test_a_script_takes_a_task_and_fetches_the_object_that_it_names(
    daemon: Daemon, bucket: Bucket, sqs: Any, tmp_path: Path
) -> None:
    needs_rust()
    target = ROOT / "target" / "initscript"
    build = ["cargo", "build", "--release", "--locked", "--quiet", "--example", "task", "--target-dir", target]
    subprocess.run(build, cwd=ROOT / "sdk" / "initscript", check=True, timeout=300)
    script = target / "wasm32-unknown-unknown" / "release" / "examples" / "task.wasm"
    assert script.stat().st_size <= 20 * 1024
    shutil.copy(script, tmp_path / "init.wasm")
    deploy(daemon, tmp_path, MANIFEST.format(name="task", allow='["sqs://jobs/tasks", "s3://photos"]'))
    bucket.put('scripts/of "the" task', b"a cat")
    queue = new_queue(sqs, "tasks", json.dumps({"key": 'scripts/of "the" task'}))
    response, told = cold(daemon, "task", {"ids": [0, 1]})
    assert told["1"] == encoded(b"a cat")
    task = json.loads(base64.b64decode(told["0"][1]))["Messages"][0]
    # The task is the function's now, until it deletes it.
    assert counts(sqs, queue) == ("0", "1")
    sqs.delete_message(QueueUrl=queue, ReceiptHandle=task["ReceiptHandle"])
    assert counts(sqs, queue) == ("0", "0")
    # The second request follows from the first one, and both run beside the start.
    entries = timing(response)
    assert entries["fetch.init.0"]["begin"] <= entries["fetch.init.1"]["begin"]
    assert entries["fetch.init.0"]["hidden"] > 0
    # Without a task, the script ends and the function does not.
    _, told = cold(daemon, "task", {"ids": [0, 1]})
    assert "status 1" in told["1"]
    logged(daemon, "task", "the reply has no string, number or boolean there")


SENDS = """
#![no_std]
use initscript::{Error, Sqs};
initscript::main!(init);
fn init() -> Result<(), Error> {
    let mut receipt = [0; 2048];
    let jobs = Sqs::connect("jobs")?;
    let taken = jobs.receive(0, "sends", 0)?.wait()?;
    jobs.delete(1, "sends", taken.value("Messages.0.ReceiptHandle", &mut receipt)?)?.wait()?;
    jobs.send(2, "sends", "a \\"quoted\\"\\n\\u{1} ä")?.hand_over(0)
}
"""
CRATE = """
[workspace]
[package]
name = "init"
version = "0.1.0"
edition = "2024"
[lib]
crate-type = ["cdylib"]
[dependencies]
pilotlight-initscript = {{ path = "{sdk}" }}
[profile.release]
panic = "abort"
"""


def test_the_sdk_deletes_and_sends_messages(daemon: Daemon, sqs: Any, tmp_path: Path) -> None:
    needs_rust()
    crate = tmp_path / "crate"
    (crate / "src").mkdir(parents=True)
    (crate / "src" / "lib.rs").write_text(SENDS)
    (crate / "Cargo.toml").write_text(CRATE.format(sdk=ROOT / "sdk" / "initscript"))
    build = ["cargo", "build", "--release", "--offline", "--quiet", "--target", "wasm32-unknown-unknown"]
    subprocess.run(build, cwd=crate, check=True, timeout=300)
    folder = tmp_path / "function"
    folder.mkdir()
    shutil.copy(crate / "target" / "wasm32-unknown-unknown" / "release" / "init.wasm", folder)
    deploy(daemon, folder, MANIFEST.format(name="sends", allow='["sqs://jobs/sends"]'))
    queue = new_queue(sqs, "sends", "a task")
    _, told = cold(daemon, "sends", {"ids": [0]})
    assert "MessageId" in json.loads(base64.b64decode(told["0"][1])), told
    (message,) = sqs.receive_message(QueueUrl=queue, MaxNumberOfMessages=10)["Messages"]
    assert message["Body"] == 'a "quoted"\n\x01 ä'
    assert counts(sqs, queue) == ("0", "1")


def test_a_script_reaches_only_the_queues_that_it_may_and_never_the_secret(daemon: Daemon, sqs: Any, tmp_path: Path) -> None:
    scripted = new_queue(sqs, "scripted", "a task")
    other = new_queue(sqs, "other", "not yours")
    requests = [
        RECEIVE % other.encode(),
        b"ReceiveMessage other",
        b"PurgeQueue scripted",
        b"ReceiveMessage scripted/../other",
        b"ReceiveMessage scripted-none",
        b"ReceiveMessage scripted\nx: y",
    ]
    sent = [("send_rpc", 0, at, request) for at, request in enumerate(requests)]
    # A request that is refused at once cannot be handed over: its message is sent by the one after it.
    handed = [("send_reply", at, 0, at) for at in (0, 2, 3, 4, 5)]
    content = module(
        ("connect", b"sqs://jobs"),
        *sent,
        *handed,
        ("recv_rpc_reply", 0, 0),
        ("reply_read", 0, 0, 40_000, 500),
        ("send_msg", 9, 0, 65_536),
    )
    deploy(daemon, tmp_path, MANIFEST.format(name="queues", allow='["sqs://jobs/scripted"]'), init=content)
    _, told = cold(daemon, "queues", {"ids": [0, 2, 3, 4, 5, 9]})
    assert json.loads(base64.b64decode(told["0"][1]))["Messages"][0]["Body"] == "a task"
    assert (counts(sqs, scripted), counts(sqs, other)) == (("0", "1"), ("1", "0"))
    logged(daemon, "queues", "sqs://jobs/other: initscript.allow of pilot.toml has no beginning of this key")
    for id, problem in [
        ("2", '"PurgeQueue" is not for initscripts'),
        ("3", 'has an empty, "." or ".." part'),
        ("4", "the server answers 400"),
        ("5", "has no headers"),
    ]:
        assert problem in told[id], told
    memory = base64.b64decode(told["9"][1])
    assert b"a task" in memory and SECRET.encode() not in memory and KEY_ID.encode() not in memory


@pytest.mark.timeout(300)  # packages may have to be installed
@pytest.mark.parametrize("runtime", ["python", "node"])
def test_an_unmodified_function_gets_once_what_its_script_received_and_sent(
    daemon: Daemon, sqs: Any, tmp_path: Path, runtime: str
) -> None:
    name = f"unmodified-{runtime}"
    if runtime == "node":
        if shutil.which("npm") is None:
            pytest.skip("a queue's client in Node.js is not tested: there is no npm on PATH")
        (tmp_path / "index.js").write_text(NODE)
        shutil.copy(HERE / "node" / "package.json", tmp_path)
    script = module(
        ("connect", b"sqs://jobs"),
        ("send_rpc", 0, 0, f'ReceiveMessage {name}\n\n{{"WaitTimeSeconds": 0, "MaxNumberOfMessages": 1}}'.encode()),
        ("send_rpc", 0, 1, f'SendMessage {name}\n\n{{"MessageBody": "done: \\u00e4"}}'.encode()),
        # Two messages have the same reply: it answers one call.
        *[("send_reply", message, 0, rpc) for message, rpc in [(0, 0), (1, 1), (2, 0), (3, 1)]],
    )
    handler = {"python": "app.queue", "node": "index.queue"}[runtime]
    values = {"name": name, "runtime": runtime, "handler": handler, "key": KEY_ID, "secret": SECRET}
    queue = new_queue(sqs, name, "first", "second")
    deploy(daemon, tmp_path, CLIENT.format(**values, server=sqs.meta.endpoint_url), init=script)
    take: list[object] = ["receive_message", {"MaxNumberOfMessages": 1, "WaitTimeSeconds": 0}]
    others: list[object] = ["receive_message", {"MaxNumberOfMessages": 1}]
    send: list[object] = ["send_message", {"MessageBody": "done: ä"}]
    event = {"queue": queue, "deletes": True, "calls": [others, take, take, send, send]}
    _, told = cold(daemon, name, event)
    by_script = [by is not None for by, _ in told]
    assert by_script == [False, True, False, True, False], told
    # Each message was got once, whether the script took it or the function: also the one that the script sent.
    assert sorted(text for _, text in told[:3]) == ["done: ä", "first", "second"], told
    assert told[3][1] != told[4][1], told
    # Of both equal messages, the function sent the other one. It has deleted what it got.
    (last,) = sqs.receive_message(QueueUrl=queue, MaxNumberOfMessages=10)["Messages"]
    assert last["Body"] == "done: ä"
    # A warm invocation has no script.
    sqs.send_message(QueueUrl=queue, MessageBody="third")
    _, told = invoke(daemon, f"client-{name}", {"queue": queue, "calls": [take]})
    assert told == [[None, "third"]]


def test_a_connection_that_is_not_for_the_function_is_refused_when_it_is_deployed(daemon: Daemon, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("def handler(event, context): pass\n")
    (tmp_path / "init.wasm").write_bytes(module())
    manifest = (
        '[functions.{}]\nhandler = "app.handler"\n[functions.{}.initscript]\nmodule = "init.wasm"\nallow = ["sqs://{}"]\n'
    )
    for function, connection in [("stranger", "jobs"), ("client-bad-queue", "none")]:
        (tmp_path / "pilot.toml").write_text(manifest.format(function, function, connection))
        done = daemon.up(tmp_path)
        said = done.stdout + done.stderr
        assert done.returncode != 0 and f'no connection of the kind sqs is called "{connection}"' in said, said
