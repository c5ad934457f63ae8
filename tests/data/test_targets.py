"""Functions one after the other: by the header `X-Pilot-Target`, and by boto3's Lambda client in a handler."""

from __future__ import annotations

import http.client
import json
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config
from conftest import HERE
from pilot_daemon import Daemon, binary
from test_many import workers
from test_sharing import Site, wait_until

# Packages may have to be installed before the first test.
pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def targets(home: Path) -> Iterator[Daemon]:
    folder = home / "targets"
    folder.mkdir()
    daemon = Daemon(folder)
    try:
        done = daemon.up(HERE / "targets")
        assert done.returncode == 0, f"{done.stdout}{done.stderr}\n{daemon.log.read_text()}"
        yield daemon
    finally:
        daemon.stop()


def invoke(
    daemon: Daemon, function: str, event: Any, *chain: str, token: str | None = None
) -> tuple[http.client.HTTPResponse, Any]:
    connection = http.client.HTTPConnection(daemon.address, timeout=60)
    connection.putrequest("POST", f"/2015-03-31/functions/{function}/invocations")
    body = json.dumps(event).encode()
    if token is not None:
        connection.putheader("Authorization", f"Bearer {token}")
    for names in chain:
        connection.putheader("X-Pilot-Target", names)
    connection.putheader("Content-Length", str(len(body)))
    connection.endheaders(body)
    response = connection.getresponse()
    return response, json.loads(response.read())


def count(daemon: Daemon, function: str) -> int:
    """Invocations of a function so far."""
    description = json.loads(daemon.request("GET", f"/_pilot/v1/functions/{function}").read())
    return int(description["totals"]["invocations"])


def test_each_function_gets_the_answer_of_the_one_before(targets: Daemon) -> None:
    response, answer = invoke(targets, "chain-first", {"n": 1}, "chain-next, chain-last:$LATEST", "chain-next")
    assert answer == {"n": 1, "by": ["chain-first", "chain-next", "chain-last", "chain-next"]}
    assert response.getheader("x-pilot-target") == "chain-next" and response.getheader("x-amz-function-error") is None
    # What is streamed is collected for the next one.
    assert invoke(targets, "chain-streams", {}, "chain-next")[1] == {"by": ["chain-streams", "chain-next"]}
    response, _ = invoke(targets, "chain-first", {})
    assert response.getheader("x-pilot-target") is None


def test_the_first_function_that_fails_ends_the_chain(targets: Daemon) -> None:
    before = count(targets, "chain-last")
    response, answer = invoke(targets, "chain-first", {}, "chain-fails", "chain-last")
    assert (response.status, response.getheader("x-amz-function-error")) == (200, "Unhandled")
    assert (answer["errorType"], answer["errorMessage"]) == ("ValueError", "nothing after chain-first")
    assert response.getheader("x-pilot-target") == "chain-fails"
    assert count(targets, "chain-last") == before


def test_an_answer_that_is_not_json_ends_the_chain(targets: Daemon) -> None:
    assert invoke(targets, "chain-says", {"says": '{"n": 1}'}, "chain-next")[1] == {"n": 1, "by": ["chain-next"]}
    before = count(targets, "chain-next")
    for says in ("not json", '{"n": 1', "\x1b"):
        response, answer = invoke(targets, "chain-says", {"says": says}, "chain-next")
        assert response.status == 400 and "the answer of 'chain-says' cannot be the event" in answer["Message"], answer
    assert count(targets, "chain-next") == before


def test_a_chain_with_a_wrong_name_does_not_begin(targets: Daemon) -> None:
    before = count(targets, "chain-first")
    response, answer = invoke(targets, "chain-first", {}, "chain-next", "chain-none")
    assert response.status == 404 and "chain-none" in answer["Message"], answer
    for wrong, said in (
        ("a/b", "is not a function name"),
        ("", "is not a function name"),
        (", ".join(["chain-next"] * 16), "more than 15"),
    ):
        response, answer = invoke(targets, "chain-first", {}, wrong)
        assert response.status == 400 and "X-Pilot-Target: " in answer["Message"] and said in answer["Message"], answer
    assert count(targets, "chain-first") == before


def test_a_token_must_be_for_each_function_of_a_chain(home: Path, tmp_path: Path) -> None:
    (tmp_path / "pilotd.toml").write_text('invocations = "token"\n')
    code = tmp_path / "code"
    code.mkdir()
    (code / "app.py").write_text((HERE / "targets" / "app.py").read_text())
    names = ("chain-next", "chain-last")
    (code / "pilot.toml").write_text("".join(f'[functions.{name}]\nhandler = "app.after"\n' for name in names))
    daemon = Daemon(tmp_path, "--config", str(tmp_path / "pilotd.toml"))
    try:
        done = daemon.up(code)
        assert done.returncode == 0, done.stdout + done.stderr

        def token(*functions: str) -> str:
            only = [word for function in functions for word in ("--function", function)]
            create = [binary(), "token", "create", f"for-{len(functions)}", "--role", "invoke", "--json", *only]
            control = ["--endpoint", f"unix:{daemon.data / 'control.sock'}"]
            made = subprocess.run([*create, *control], capture_output=True, text=True, check=True)
            return str(json.loads(made.stdout)["token"])

        one, both = token("chain-next"), token(*names)
        response, answer = invoke(daemon, "chain-next", {}, "chain-last", token=one)
        assert response.status == 403, answer
        assert (count(daemon, "chain-next"), count(daemon, "chain-last")) == (0, 0)
        assert invoke(daemon, "chain-next", {}, "chain-next", token=one)[0].status == 200
        assert invoke(daemon, "chain-next", {}, "chain-last", token=both)[1] == {"by": list(names)}
    finally:
        daemon.stop()


def test_all_functions_of_a_chain_start_at_once(targets: Daemon) -> None:
    site = Site()
    site.put("wait", b"12")
    site.flows.clear()
    for function in ("chain-next", "chain-last"):
        targets.retire(function)
        wait_until(lambda function=function: workers(targets, function) == 0)
    wait = {"wait": f"http://127.0.0.1:{site.server.server_port}/wait"}
    try:
        with ThreadPoolExecutor(1) as pool:
            chain = pool.submit(invoke, targets, "chain-first", wait, "chain-next", "chain-last")
            # While the first one runs, there are workers of both others.
            wait_until(lambda: workers(targets, "chain-next") and workers(targets, "chain-last"))
            assert not chain.done()
            site.flows.set()
            assert chain.result()[1]["by"] == ["chain-first", "chain-next", "chain-last"]
    finally:
        site.flows.set()
        site.server.shutdown()


def test_boto3_can_send_the_header(targets: Daemon) -> None:
    config = Config(retries={"total_max_attempts": 1}, proxies={})
    keys = {"aws_access_key_id": "x", "aws_secret_access_key": "x"}
    client = boto3.client("lambda", endpoint_url=targets.endpoint, region_name="us-east-1", config=config, **keys)

    def chain(params: dict[str, Any], **_: object) -> None:
        params["headers"]["X-Pilot-Target"] = "chain-next"

    client.meta.events.register("before-call.lambda.Invoke", chain)
    answer = client.invoke(FunctionName="chain-first", Payload=b'{"n": 2}')
    assert json.loads(answer["Payload"].read()) == {"n": 2, "by": ["chain-first", "chain-next"]}


def call(daemon: Daemon, caller: str = "caller", **parameters: Any) -> Any:
    return invoke(daemon, caller, parameters)[1]


def test_boto3_in_a_handler_invokes_what_the_function_may_invoke(targets: Daemon) -> None:
    answered = {"status": 200, "error": None, "version": "$LATEST", "payload": {"n": 1, "by": ["chain-next"]}}
    for name in ("chain-next", "chain-next:$LATEST", "arn:aws:lambda:us-east-1:000000000000:function:chain-next"):
        assert call(targets, FunctionName=name, Payload='{"n": 1}') == answered
    assert call(targets, FunctionName="chain-next")["payload"] == {"by": ["chain-next"]}
    failed = call(targets, FunctionName="chain-fails", Payload='{"by": ["x"]}')
    assert failed["error"] == "Unhandled" and failed["payload"]["errorMessage"] == "nothing after x"


def test_boto3_in_a_handler_gets_lambdas_errors(targets: Daemon) -> None:
    kind, status, message = call(targets, FunctionName="caller")
    assert (kind, status) == ("ClientError", 403) and "add it to invokes" in message
    kind, status, message = call(targets, FunctionName="chain-none")
    assert (kind, status) == ("ResourceNotFoundException", 404) and "chain-none" in message
    for parameters, said in (
        ({"InvocationType": "Event"}, "InvocationType Event is not supported"),
        ({"Qualifier": "7"}, "qualifier"),
        ({"Payload": "{"}, "not JSON"),
    ):
        answer = call(targets, FunctionName="chain-next", **parameters)
        assert answer[:2] == ["InvalidParameterValueException", 400] and said in answer[2], answer


def test_another_endpoint_and_no_drop_ins_mean_the_network(targets: Daemon) -> None:
    assert call(targets, "caller-elsewhere", FunctionName="chain-next") == ["EndpointConnectionError"]
    # Functions have no network here.
    assert call(targets, "caller-off", FunctionName="chain-next") == ["EndpointConnectionError"]


def test_a_chain_cannot_be_asynchronous(targets: Daemon) -> None:
    connection = http.client.HTTPConnection(targets.address, timeout=60)
    headers = {"X-Pilot-Target": "chain-next", "X-Amz-Invocation-Type": "Event"}
    connection.request("POST", "/2015-03-31/functions/chain-first/invocations", b"{}", headers)
    response = connection.getresponse()
    assert response.status == 400
    assert "a chain cannot be asynchronous" in response.read().decode()
