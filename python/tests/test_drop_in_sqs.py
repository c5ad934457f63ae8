"""The drop-in for boto3's SQS client, with the real client and a server that says what it was asked."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest
from conftest import Functions
from harness import invoke_meta
from test_drop_ins import SITE_PACKAGES
from test_inputs import memory, send

CODE = """
import boto3
from concurrent.futures import ThreadPoolExecutor

KEY = dict(region_name="us-east-1", aws_access_key_id="a", aws_secret_access_key="b")
clients = {}

def ask(server, queue, call, arguments):
    if server not in clients:
        clients[server] = boto3.client("sqs", endpoint_url=server, **KEY)
    answer = getattr(clients[server], call)(QueueUrl=queue, **arguments)
    whose = "script" if answer["ResponseMetadata"].get("RequestId") == "PILOTLIGHT" else "server"
    return [whose, [one["ReceiptHandle"] for one in answer.get("Messages", ())]]

def handler(event, context):
    if event["at_once"]:
        with ThreadPoolExecutor(8) as pool:
            return list(pool.map(lambda call: ask(*call), event["calls"]))
    return [ask(*call) for call in event["calls"]]
"""


class Queue(BaseHTTPRequestHandler):
    """Has a message with the receipt `new` for everybody."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        action = self.headers["x-amz-target"].partition(".")[2]
        answer = {"Messages": [message("new")]} if action == "ReceiveMessage" else {"MessageId": "server"}
        text = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("content-type", "application/x-amz-json-1.0")
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Queue)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def message(receipt: str) -> dict[str, str]:
    return {"MessageId": "1", "ReceiptHandle": receipt, "Body": "a task"}


Got = tuple[dict[str, Any], dict[str, Any]]
Ask = Callable[..., Any]


@pytest.fixture
def ask(functions: Functions) -> Ask:
    if SITE_PACKAGES is None:
        pytest.skip("drop-ins are not tested with real clients: PILOT_TEST_SITE_PACKAGES is not set")
    worker = functions.worker(CODE, sys_path=[str(functions.directory), SITE_PACKAGES], drop_ins=["sqs"])

    def ask(got: list[Got], *calls: Any, at_once: bool = False) -> Any:
        bodies = [json.dumps(body).encode() for _, body in got]
        described = [
            {"name": f"init.{at}", "kind": "memory", "len": len(body), "store": store}
            for at, ((store, _), body) in enumerate(zip(got, bodies))
        ]
        meta = invoke_meta(**({"inputs": described} if described else {}))
        event = json.dumps({"calls": calls, "at_once": at_once}).encode()
        send(worker, 1, meta, event, [memory(body) for body in bodies])
        return json.loads(worker.frame()[3])

    return ask


def received(queue: str, *receipts: str, **arguments: Any) -> Got:
    """What a script got that has asked for messages."""
    answer = {"Messages": [message(receipt) for receipt in receipts]} if receipts else {}
    return other(queue, "ReceiveMessage", answer, **arguments)


def other(queue: str, action: str, answer: dict[str, Any], **arguments: Any) -> Got:
    text = json.dumps(arguments, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return {
        "kind": "sqs",
        "url": queue,
        "action": action,
        "arguments_sha256": hashlib.sha256(text.encode()).hexdigest(),
    }, answer


def test_a_message_is_an_answer_once(ask: Ask, server: str) -> None:
    queue = f"{server}/1/tasks"
    call = [server, queue, "receive_message", {}]
    got = [received(queue, "one"), received(queue, "two")]
    assert ask(got, call, call, call) == [["script", ["one"]], ["script", ["two"]], ["server", ["new"]]]
    # Also of calls at the same time, and nothing is left for the next invocation.
    answers = ask(got, *[call] * 16, at_once=True)
    assert sorted(receipt for _, (receipt,) in answers) == ["new"] * 14 + ["one", "two"]
    assert ask([], call) == [["server", ["new"]]]


def test_a_call_that_differs_goes_to_the_queue(ask: Ask, server: str) -> None:
    queue = f"{server}/1/tasks"
    same = {"MaxNumberOfMessages": 2, "WaitTimeSeconds": 1, "MessageAttributeNames": ["a", "b"]}
    got = received(queue, "one", "two", **same)
    assert ask([got], [server, queue, "receive_message", same]) == [["script", ["one", "two"]]]
    changes: list[tuple[list[str], dict[str, Any]]] = [
        ([server, queue], {"MaxNumberOfMessages": 1}),
        ([server, queue], {"MaxNumberOfMessages": 10}),
        ([server, queue], {"WaitTimeSeconds": 2}),
        ([server, queue], {"VisibilityTimeout": 60}),
        ([server, queue], {"MessageAttributeNames": ["a"]}),
        ([server, queue], {"ReceiveRequestAttemptId": "1"}),
        ([server, f"{server}/1/other"], {}),
        # The queue is named as if it was on another server than that which is asked.
        ([server, queue.replace("127.0.0.1", "localhost")], {}),
        ([server.replace("127.0.0.1", "localhost"), queue], {}),
    ]
    for place, change in changes:
        assert ask([got], [*place, "receive_message", {**same, **change}]) == [["server", ["new"]]], change


def test_that_there_was_no_message_is_an_answer_once(ask: Ask, server: str) -> None:
    queue = f"{server}/1/tasks"
    call = [server, queue, "receive_message", {}]
    assert ask([received(queue)], call, call) == [["script", []], ["server", ["new"]]]


def test_what_a_script_has_sent_is_not_sent_again_and_what_it_deletes_is(ask: Ask, server: str) -> None:
    queue = f"{server}/1/tasks"
    sent = {"MessageBody": 'a "task"\n\u0001 ä', "MessageAttributes": {"b": {"StringValue": "1", "DataType": "String"}}}
    got = [other(queue, "SendMessage", {"MessageId": "1"}, **sent), other(queue, "DeleteMessage", {}, ReceiptHandle="one")]
    send, delete = [server, queue, "send_message", sent], [server, queue, "delete_message", {"ReceiptHandle": "one"}]
    assert [whose for whose, _ in ask(got, send, send, delete)] == ["script", "server", "server"]
    assert [whose for whose, _ in ask(got, [*send[:3], {"MessageBody": "another"}])] == ["server"]


def test_what_the_function_has_changed_is_asked_of_the_queue(ask: Ask, server: str) -> None:
    queue = f"{server}/1/tasks"
    names = {"AttributeNames": ["All"]}
    got = [received(queue, "one"), other(queue, "GetQueueAttributes", {"Attributes": {}}, **names)]
    attributes, receive = [server, queue, "get_queue_attributes", names], [server, queue, "receive_message", {}]

    def who(*calls: list[Any]) -> list[str]:
        return [whose for whose, _ in ask(got, *calls)]

    assert who(attributes, receive) == ["script", "script"]
    assert who(receive, attributes) == ["script", "server"]
    assert who([server, queue, "delete_message", {"ReceiptHandle": "x"}], attributes, receive) == ["server", "server", "script"]
    assert who([server, queue, "purge_queue", {}], receive) == ["server", "server"]
    assert who([server, f"{server}/1/other", "purge_queue", {}], attributes, receive) == ["server", "script", "script"]
