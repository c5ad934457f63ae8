"""InvokeWithResponseStream, with boto3 and with the AWS SDK for JavaScript: the same calls, and the same checks."""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from botocore.exceptions import ClientError
from clients import build

HERE = Path(__file__).resolve().parent

# The SDK may have to be installed before the first test.
pytestmark = pytest.mark.timeout(240)


@dataclass
class Said:
    """What a client gave of one call."""

    status: int
    error: str = ""
    version: str = ""
    content_type: str | None = None
    body: bytes = b""
    length: int = 0
    sha256: str = ""
    # When each piece came, seconds after the headers.
    times: tuple[float, ...] = ()
    complete: dict[str, str] | None = None

    @property
    def details(self) -> Any:
        assert self.complete is not None
        return json.loads(self.complete["ErrorDetails"])

    @property
    def log(self) -> str:
        assert self.complete is not None
        return base64.b64decode(self.complete["LogResult"]).decode()


Invoke = Callable[..., Said]


def with_boto3(client: Any, function: str, payload: str = "{}", **more: str) -> Said:
    try:
        response = client.invoke_with_response_stream(FunctionName=function, Payload=payload, **more)
    except ClientError as error:
        return Said(error.response["ResponseMetadata"]["HTTPStatusCode"], error=error.response["Error"]["Code"])
    began = monotonic()
    pieces, times, complete = [], [], None
    for event in response["EventStream"]:
        if "PayloadChunk" in event:
            pieces.append(event["PayloadChunk"]["Payload"])
            times.append(monotonic() - began)
        complete = event.get("InvokeComplete", complete)
    body = b"".join(pieces)
    return Said(
        response["StatusCode"],
        version=response["ExecutedVersion"],
        content_type=response.get("ResponseStreamContentType"),
        body=body,
        length=len(body),
        sha256=hashlib.sha256(body).hexdigest(),
        times=tuple(times),
        complete=complete,
    )


def with_javascript(folder: Path, endpoint: str, function: str, payload: str = "{}", **more: str) -> Said:
    call = {"operation": "InvokeWithResponseStream", "input": {"FunctionName": function, "Payload": payload, **more}}
    command = [build.tool("node"), HERE / "clients" / "sdk" / "invoke.js", endpoint, folder]
    done = subprocess.run(command, input=json.dumps([call]), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    if "error" in said:
        return Said(said.get("status", 0), error=said["error"])
    return Said(
        said["status"],
        version=said["version"],
        content_type=said.get("type"),
        body=said.get("body", "").encode(),
        length=said["length"],
        sha256=said["sha256"],
        times=tuple(ms / 1000 for ms in said["times_ms"]),
        complete=said.get("complete"),
    )


@pytest.fixture(scope="module", params=["boto3", "javascript"])
def invoke(request: pytest.FixtureRequest, daemon: Any, client: Any, deployed: Any) -> Iterator[Invoke]:
    deployed(HERE / "streams")
    if request.param == "boto3":
        yield lambda function, payload="{}", **more: with_boto3(client, function, payload, **more)
        return
    try:
        folder = build.BUILDS["sdk"]()
    except build.Missing as missing:
        pytest.skip(str(missing))
    yield lambda function, payload="{}", **more: with_javascript(folder, daemon.endpoint, function, payload, **more)


def test_each_piece_comes_when_it_is_written(invoke: Invoke) -> None:
    said = invoke("pieces", json.dumps({"pieces": ["one", "two", "three"], "pause_ms": 2000}))
    assert (said.status, said.version, said.body) == (200, "1", b"onetwothree")
    assert len(said.times) == 3
    assert said.times[1] - said.times[0] > 0.5, said.times
    assert said.times[2] - said.times[1] > 0.5, said.times
    assert said.complete == {} or said.complete is not None and not said.complete.get("ErrorCode")


def test_status_headers_and_cookies_come_before_the_body(invoke: Invoke) -> None:
    said = invoke("with-prelude")
    prelude, body = said.body.split(b"\0" * 8)
    head = {"statusCode": 201, "headers": {"content-type": "text/plain", "x-own": "yes"}, "cookies": ["a=1"]}
    assert (json.loads(prelude), body.decode()) == (head, "grüße 🎈")
    assert said.content_type == "application/vnd.amazon.eventstream"


def test_a_stream_without_a_byte(invoke: Invoke) -> None:
    said = invoke("nothing")
    assert (said.status, said.body) == (200, b"")
    assert said.complete is not None
    assert not said.complete.get("ErrorCode")
    assert said.content_type == "application/vnd.amazon.eventstream"


def test_many_bytes(invoke: Invoke) -> None:
    count = 20_000_000
    said = invoke("many-bytes", json.dumps({"count": count}))
    expected = (bytes(range(251)) * (count // 251 + 1))[:count]
    assert (said.length, said.sha256) == (count, hashlib.sha256(expected).hexdigest())
    assert said.complete is not None
    assert not said.complete.get("ErrorCode")


def test_an_error_before_the_first_byte(invoke: Invoke) -> None:
    said = invoke("fails-early", '{"article": "pears"}', LogType="Tail")
    assert (said.status, said.body) == (200, b"")
    assert said.complete is not None
    assert said.complete["ErrorCode"] == "OutOfStock"
    assert (said.details["errorType"], said.details["errorMessage"]) == ("OutOfStock", "no pears left")
    assert any("streams.js" in line for line in said.details["trace"])
    assert "Invoke Error" in said.log


def test_an_error_in_the_middle(invoke: Invoke) -> None:
    said = invoke("fails-late", '{"article": "pears"}', LogType="Tail")
    assert (said.status, said.body) == (200, b"begun")
    assert said.complete is not None
    assert said.complete["ErrorCode"] == "OutOfStock"
    assert said.details["errorMessage"] == "no pears left"
    assert "no pears left" in said.log
    assert "REPORT RequestId: " in said.log


def test_a_process_that_ends_in_the_middle(invoke: Invoke) -> None:
    said = invoke("exits-late", LogType="Tail")
    assert (said.status, said.body) == (200, b"begun")
    assert said.complete is not None
    assert said.complete["ErrorCode"] == "Runtime.ExitError"
    assert said.details["errorMessage"].endswith("Runtime exited with error: exit status 3")
    assert "REPORT RequestId: " in said.log


def test_a_timeout_in_the_middle(invoke: Invoke) -> None:
    said = invoke("times-out-late", LogType="Tail")
    assert (said.status, said.body) == (200, b"begun")
    assert said.complete is not None
    assert said.complete["ErrorCode"] == "Sandbox.Timedout"
    assert said.details["errorMessage"].endswith("Task timed out after 3.00 seconds")
    assert "Task timed out" in said.log


def test_the_log_is_of_the_whole_invocation(invoke: Invoke) -> None:
    event = json.dumps({"pieces": ["a"]})
    log = invoke("pieces", event, LogType="Tail").log
    for line in ("START RequestId: ", "all pieces are written", "END RequestId: ", "REPORT RequestId: "):
        assert line in log
    said = invoke("pieces", event)
    assert said.complete is not None
    assert not said.complete.get("LogResult")


def test_event_context_and_qualifier_arrive(invoke: Invoke) -> None:
    client = base64.b64encode(b'{"custom": {"a": 1}}').decode()
    said = invoke("told", '{"x": "\\u00fc"}', ClientContext=client, Qualifier="$LATEST")
    told = json.loads(said.body)
    assert (told["event"], told["client"]) == ({"x": "ü"}, {"custom": {"a": 1}})
    assert len(told["id"]) == 36


def test_a_function_that_does_not_stream(invoke: Invoke) -> None:
    said = invoke("echo", '{"a": 1}')
    assert (said.body, said.complete is not None) == (b'{"a": 1}', True)
    failed = invoke("fail", '{"article": "pears"}')
    assert failed.complete is not None
    assert (failed.body, failed.complete["ErrorCode"]) == (b"", "OutOfStock")
    assert failed.details["errorMessage"] == "no pears left"


@pytest.mark.parametrize(
    ("function", "payload", "status", "error"),
    [
        ("nobody", "{}", 404, "ResourceNotFoundException"),
        ("pieces", "{", 400, "InvalidRequestContentException"),
    ],
)
def test_what_is_refused_is_an_error_of_the_call(invoke: Invoke, function: str, payload: str, status: int, error: str) -> None:
    said = invoke(function, payload)
    assert (said.status, said.error) == (status, error)


def test_a_dry_run(invoke: Invoke) -> None:
    said = invoke("fails-early", InvocationType="DryRun")
    assert (said.status, said.body) == (204, b"")
