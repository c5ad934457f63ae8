"""Unmodified third-party clients of the Lambda Runtime API in `runtime = "provided"`: awslambdaric (Python), `lambda_runtime` (Rust),
aws-lambda-go and aws-lambda-ric (Node.js). Each client has one function (README.md), and one with `concurrency = 2`, for which these
clients poll twice.
"""

from __future__ import annotations

import base64
import json
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from clients import build

HERE = Path(__file__).resolve().parent
CLIENTS = {"awslambdaric": "python", "lambda_runtime": "rust", "aws-lambda-go": "go", "aws-lambda-ric": "node"}

# Clients may have to be built before the first test.
pytestmark = pytest.mark.timeout(build.BUILD_S_MAX)


@pytest.fixture(scope="session")
def client_deployed(deployed, tmp_path_factory):
    """Builds and deploys the functions of a client when it is needed for the first time."""
    folders: dict[str, Path] = {}

    def deploy(client: str) -> None:
        name = CLIENTS[client]
        if name not in folders:
            folders[name] = folder_of(name, tmp_path_factory.mktemp(name) / name)
        deployed(folders[name])

    return deploy


def folder_of(name: str, folder: Path) -> Path:
    """The project with its build. Skips with the reason if the machine lacks something."""
    source = HERE / "clients" / name
    if name == "python":
        return source
    try:
        built = build.BUILDS[name]()
    except build.Missing as missing:
        if build.needed(name):
            pytest.fail(str(missing), pytrace=False)
        pytest.skip(f"the client for {name} was not built: {missing}")
    except build.Failed as failed:
        pytest.fail(str(failed), pytrace=False)
    folder.mkdir()
    shutil.copy(source / "pilot.toml", folder)
    if name == "node":
        for file in ("app.js", ".pilotignore"):
            shutil.copy(source / file, folder)
        # The other files were only needed for the build.
        package = "aws-lambda-ric"
        shutil.copytree(built / package, folder / "node_modules" / package, ignore=shutil.ignore_patterns("deps"))
    else:
        shutil.copy(built, folder / "bootstrap")
    return folder


@pytest.fixture(scope="module", params=CLIENTS)
def function(request, client_deployed):
    client_deployed(request.param)
    return request.param


@pytest.fixture
def ask(client):
    """Invokes a function. Returns the response and its payload."""

    def ask(function: str, what: str, value: object = None, **more: str) -> dict:
        response = client.invoke(FunctionName=function, Payload=json.dumps({"do": what, "value": value}), **more)
        return {**response, "Payload": json.loads(response["Payload"].read())}

    return ask


def answer(response: dict) -> object:
    assert "FunctionError" not in response, response["Payload"]
    return response["Payload"]


def error(response: dict) -> dict:
    assert response.get("FunctionError") == "Unhandled", response["Payload"]
    return response["Payload"]


def test_an_event_comes_back(function, ask):
    for event in ({"a": [1, 2.5, None, True], "text": "grüße 🎈 \u0000", "deep": {"er": {}}}, None, 7, "text", []):
        assert answer(ask(function, "echo", event)) == event


def test_what_it_raises_is_the_functions_error(function, ask):
    raised = error(ask(function, "raise"))
    assert raised["errorType"] == "OutOfStock"
    assert raised["errorMessage"] == "no pears left"
    assert answer(ask(function, "echo", "the next one")) == "the next one"


def test_five_megabytes_go_and_come(function, ask):
    large = base64.b64encode(bytes(range(256)) * 15_360).decode()
    assert len(large) == 5 << 20
    # Not an assertion of pytest, which would print the large values.
    assert (answer(ask(function, "echo", large)) == large) is True


def test_what_it_prints_is_in_the_log_of_its_invocation(function, ask):
    response = ask(function, "print", f"a line of {function}", LogType="Tail")
    assert answer(response) == "printed"
    assert f"a line of {function}" in base64.b64decode(response["LogResult"]).decode()


def test_it_is_told_of_invocation_and_function(function, ask):
    context = base64.b64encode(json.dumps({"custom": {"till": "3"}}).encode()).decode()
    before = time.time() * 1000
    response = ask(function, "context", ClientContext=context)
    told = answer(response)
    assert told["request_id"] == response["ResponseMetadata"]["RequestId"]
    assert told["arn"] == f"arn:aws:lambda:us-east-1:000000000000:function:{function}"
    # timeout_s is 2, and the clients add less than that.
    assert before < told["deadline_ms"] < before + 60_000
    assert told["name"] == function
    assert told["memory"] == "192"
    assert told["custom"] == {"till": "3"}
    assert answer(ask(function, "context"))["request_id"] != told["request_id"]


def test_a_timeout_ends_it_and_the_next_is_served(function, ask):
    assert error(ask(function, "sleep", 25))["errorMessage"].endswith("Task timed out after 2.00 seconds")
    assert answer(ask(function, "echo", "the next one")) == "the next one"


def test_an_end_in_mid_invocation_is_the_functions_error(function, ask):
    ended = error(ask(function, "exit", 9))
    assert ended["errorType"] == "Runtime.ExitError"
    assert "status 9" in ended["errorMessage"]
    assert answer(ask(function, "echo", "the next one")) == "the next one"


def test_two_invocations_at_once_in_one_worker(function, ask):
    with ThreadPoolExecutor(2) as threads:
        met = list(threads.map(lambda _: ask(f"{function}-pair", "meet", 2), range(2)))
    # Each returns its count, and there is only one worker.
    assert [answer(response) for response in met] == [2, 2]


@pytest.mark.parametrize(
    ("client", "function"),
    [
        ("lambda_runtime", "lambda_runtime-pair"),
        ("aws-lambda-go", "aws-lambda-go-pair"),
        ("aws-lambda-ric", "aws-lambda-ric-streamed"),
    ],
)
def test_a_streamed_answer_arrives_while_it_is_made(client, function, client_deployed, daemon):
    client_deployed(client)
    response = daemon.request("GET", f"/fn/{function}/?do=stream")
    assert response.status == 201, response.read()
    assert response.headers["X-Made"] == "here"
    assert response.readline() == b"one\n"
    # "two" is not sent before this invocation, which runs in the same worker at the same time.
    assert daemon.request("GET", f"/fn/{function}/?do=release").status in (200, 201)
    assert response.read() == b"two\n"


def test_an_extension_hears_of_every_invocation(client_deployed, ask):
    client_deployed("awslambdaric")
    for _ in range(2):
        response = ask("awslambdaric-extended", "extension")
        heard = json.loads(answer(response))
        assert heard["eventType"] == "INVOKE"
        assert heard["requestId"] == response["ResponseMetadata"]["RequestId"]
        assert heard["invokedFunctionArn"].endswith(":function:awslambdaric-extended")
        assert heard["function"] == "awslambdaric-extended"


def test_sigterm_comes_to_a_function_that_has_registered_for_it(client_deployed, ask, daemon, watch):
    client_deployed("aws-lambda-go")
    function = "aws-lambda-go-watched"
    assert answer(ask(function, "watch", watch.port)) == "watched"
    assert watch.last_words(daemon, function) == b"SIGTERM"


@pytest.mark.parametrize("client", ["awslambdaric", "aws-lambda-ric"])
def test_a_failed_initialisation_is_told_by_the_deployment(client, client_deployed, daemon, tmp_path):
    client_deployed(client)
    name = CLIENTS[client]
    folder = folder_of(name, tmp_path / name)
    broken = tmp_path / "broken"
    shutil.copytree(folder, broken)
    manifest = (folder / "pilot.toml").read_text().split("\n\n")[0]
    (broken / "pilot.toml").write_text(manifest.replace(client + "]", "broken]").replace("app.handler", "nowhere.handler"))
    done = daemon.up(broken)
    assert done.returncode != 0
    assert "nowhere" in done.stdout + done.stderr
