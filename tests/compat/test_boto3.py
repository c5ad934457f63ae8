"""boto3's Lambda client."""

from __future__ import annotations

import base64
import json
import re
from concurrent.futures import ThreadPoolExecutor

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

ARN = "arn:aws:lambda:us-east-1:000000000000:function:echo"


def payload(response):
    return json.loads(response["Payload"].read())


def encoded(context):
    return base64.b64encode(json.dumps(context).encode()).decode()


def test_an_event_comes_back(client):
    event = {"a": [1, 2.5, None, True], "text": "grüße 🎈 \u0000", "deep": {"er": {}}}
    response = client.invoke(FunctionName="echo", Payload=json.dumps(event))
    assert response["StatusCode"] == 200
    assert "FunctionError" not in response
    assert response["ExecutedVersion"] == "1"
    assert re.fullmatch(r"[0-9a-f-]{36}", response["ResponseMetadata"]["RequestId"])
    assert payload(response) == event


@pytest.mark.parametrize("event", [None, True, 7, "text", [], {}, 1e300, "x" * 1000])
def test_every_kind_of_json(client, event):
    assert payload(client.invoke(FunctionName="echo", Payload=json.dumps(event))) == event


def test_a_payload_of_bytes_and_of_a_file(client, tmp_path):
    assert payload(client.invoke(FunctionName="echo", Payload=b'{"k": "\xc3\xbc"}')) == {"k": "ü"}
    path = tmp_path / "event.json"
    path.write_text('{"from": "a file"}')
    with path.open("rb") as file:
        assert payload(client.invoke(FunctionName="echo", Payload=file)) == {"from": "a file"}


def test_no_payload(client):
    assert payload(client.invoke(FunctionName="echo")) in ({}, None)


@pytest.mark.parametrize("size", [100_000, 1_000_000, 4_000_000])
def test_a_large_payload_goes_and_comes(client, size):
    binary = base64.b64encode(bytes(range(256)) * (size // 256)).decode()
    assert payload(client.invoke(FunctionName="echo", Payload=json.dumps(binary))) == binary


def test_the_context(client):
    response = client.invoke(FunctionName="tell", Payload="{}")
    told = payload(response)
    assert told["name"] == told["variable"] == "tell"
    assert told["request_id"] == response["ResponseMetadata"]["RequestId"]
    assert told["arn"].endswith(":function:tell")
    assert told["memory"] == "256"
    assert told["custom"] is None


def test_the_client_context(client):
    context = encoded({"custom": {"till": "3"}, "client": {"app_title": "shop"}})
    told = payload(client.invoke(FunctionName="tell", Payload="{}", ClientContext=context))
    assert told["custom"] == {"till": "3"}
    assert told["title"] == "shop"


def test_the_logs_tail(client):
    response = client.invoke(FunctionName="tell", Payload="{}", LogType="Tail")
    log = base64.b64decode(response["LogResult"]).decode()
    request = response["ResponseMetadata"]["RequestId"]
    for line in ("a line of output", "a line of errors", f"START RequestId: {request}", f"REPORT RequestId: {request}"):
        assert line in log
    assert "LogResult" not in client.invoke(FunctionName="tell", Payload="{}", LogType="None")


def test_a_dry_run(client):
    response = client.invoke(FunctionName="fail", Payload="{}", InvocationType="DryRun")
    assert response["StatusCode"] == 204
    assert response["Payload"].read() == b""


def test_an_event_is_accepted(client):
    response = client.invoke(FunctionName="echo", Payload="{}", InvocationType="Event")
    assert response["StatusCode"] == 202
    assert response["Payload"].read() == b""
    assert len(response["ResponseMetadata"]["RequestId"]) == 36


def test_an_exception_is_a_function_error(client):
    response = client.invoke(FunctionName="fail", Payload='{"article": "pears"}', LogType="Tail")
    assert response["StatusCode"] == 200
    assert response["FunctionError"] == "Unhandled"
    error = payload(response)
    assert error["errorType"] == "OutOfStock"
    assert error["errorMessage"] == "no pears left"
    assert any("app.py" in line for line in error["stackTrace"])
    assert "OutOfStock" in base64.b64decode(response["LogResult"]).decode()


def test_a_timeout_is_a_function_error(client):
    response = client.invoke(FunctionName="slow", Payload="{}")
    assert response["FunctionError"] == "Unhandled"
    assert payload(response)["errorMessage"].endswith("Task timed out after 1.00 seconds")


@pytest.mark.parametrize("name", ["echo", ARN, "000000000000:function:echo", f"{ARN}:$LATEST", f"{ARN}:1"])
def test_every_form_of_a_name(client, name):
    assert payload(client.invoke(FunctionName=name, Payload="1")) == 1


def test_a_qualifier_is_executed_and_said(client):
    response = client.invoke(FunctionName="echo", Qualifier="1", Payload="1")
    assert response["ExecutedVersion"] == "1"
    assert client.invoke(FunctionName="echo", Qualifier="$LATEST", Payload="1")["ExecutedVersion"] == "1"


@pytest.mark.parametrize(("name", "qualifier"), [("nobody", None), ("echo", "99"), (ARN.replace("echo", "nobody"), None)])
def test_what_is_not_there(client, name, qualifier):
    with pytest.raises(client.exceptions.ResourceNotFoundException) as caught:
        client.invoke(FunctionName=name, Payload="{}", **({"Qualifier": qualifier} if qualifier else {}))
    response = caught.value.response
    assert response["ResponseMetadata"]["HTTPStatusCode"] == 404
    assert "not found" in response["Error"]["Message"].lower()


@pytest.mark.parametrize("body", [b"{", b"nope", b'"\xff"'])
def test_a_payload_that_is_not_json(client, body):
    with pytest.raises(client.exceptions.InvalidRequestContentException) as caught:
        client.invoke(FunctionName="echo", Payload=body)
    assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 400


def test_a_payload_over_the_limit(client):
    with pytest.raises(ClientError) as caught:
        client.invoke(FunctionName="echo", Payload=b'"' + b"x" * (8 << 20) + b'"')
    assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 413
    assert caught.value.response["Error"]["Code"].startswith("RequestTooLarge")


def test_an_invocation_type_that_is_none(client):
    with pytest.raises(ClientError) as caught:
        client.invoke(FunctionName="echo", Payload="{}", InvocationType="Sometimes")
    assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 400


def test_a_streaming_invocation_of_a_function_that_does_not_stream(client):
    response = client.invoke_with_response_stream(FunctionName="echo", Payload='{"a": 1}', LogType="Tail")
    assert (response["StatusCode"], response["ExecutedVersion"]) == (200, "1")
    chunk, complete = response["EventStream"]
    assert json.loads(chunk["PayloadChunk"]["Payload"]) == {"a": 1}
    assert "ErrorCode" not in complete["InvokeComplete"]
    assert b"REPORT RequestId: " in base64.b64decode(complete["InvokeComplete"]["LogResult"])


def test_many_at_once_from_one_client(daemon):
    client = boto3.client(
        "lambda", endpoint_url=daemon.endpoint, region_name="us-east-1", config=Config(max_pool_connections=16)
    )

    def one(number):
        return payload(client.invoke(FunctionName="echo", Payload=json.dumps(number)))

    with ThreadPoolExecutor(16) as threads:
        assert list(threads.map(one, range(200))) == list(range(200))


def test_only_so_many_wait_and_the_rest_are_told_so(daemon, client):
    """`narrow` has one worker: either all requests wait and are served, or some are refused with AWS's error."""

    def one(_):
        try:
            return payload(client.invoke(FunctionName="narrow", Payload="0.05"))
        except client.exceptions.TooManyRequestsException as refused:
            assert refused.response["ResponseMetadata"]["HTTPStatusCode"] == 429
            assert refused.response["Reason"]
            return "refused"

    with ThreadPoolExecutor(10) as threads:
        said = list(threads.map(one, range(30)))
    assert set(said) <= {"rested", "refused"}
    assert "rested" in said
