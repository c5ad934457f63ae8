"""Packages of package.json in `runtime = "node"`: a CommonJS package, a pure ES module, and one that asks the runtime for the invocation."""

from __future__ import annotations

import base64
import json
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent

# Packages may have to be installed before the first test.
pytestmark = pytest.mark.timeout(240)


@pytest.fixture(autouse=True)
def npm():
    if shutil.which("npm") is None:
        pytest.skip("packages of package.json are not tested: there is no npm on PATH")


def test_a_commonjs_handler_requires_qrcode(deployed, client):
    deployed(HERE / "packages" / "cjs")
    response = client.invoke(FunctionName="package-cjs", Payload=json.dumps({"text": "https://example.org"}))
    assert json.loads(response["Payload"].read()).startswith("<svg ")


def test_a_module_imports_nanoid(deployed, client):
    deployed(HERE / "packages" / "esm")
    response = client.invoke(FunctionName="package-esm", Payload=json.dumps({"length": 30}))
    made = json.loads(response["Payload"].read())
    assert len(made["id"]) == 30
    assert made["digits"].isdigit()


@pytest.mark.parametrize("function", ["package-powertools", "package-powertools-two"])
def test_powertools_finds_the_invocation_that_runs(daemon, deployed, client, function):
    """With concurrency, it keeps the keys of each invocation apart: through `awslambda.InvokeStore`."""
    deployed(HERE / "packages" / "powertools")

    def sell(article):
        event = json.dumps({"article": article, "wait_ms": 300})
        response = client.invoke(FunctionName=function, Payload=event, LogType="Tail")
        assert "FunctionError" not in response, response["Payload"].read()
        of_context, of_store, has_trace = json.loads(response["Payload"].read())
        assert of_context == of_store == response["ResponseMetadata"]["RequestId"] and has_trace
        log = base64.b64decode(response["LogResult"]).decode().splitlines()
        return of_context, [json.loads(line) for line in log if line.startswith("{")]

    with ThreadPoolExecutor(2) as threads:
        (pears, first), (plums, second) = threads.map(sell, ["pears", "plums"])
    said = first + second
    if function == "package-powertools-two":
        # Two invocations of one worker print into one pipe: no caller gets the lines of the other.
        assert said == []
        said = [json.loads(text) for text in printed(daemon, function, 2)]
    assert {(line["function_request_id"], line["article"]) for line in said} == {(pears, "pears"), (plums, "plums")}


def printed(daemon, function, count):
    """The lines of JSON in a function's log, when there are so many."""
    until = time.monotonic() + 20
    while True:
        body = daemon.request("GET", f"/_pilot/v1/functions/{function}/logs?format=json").read()
        texts = [text for line in body.splitlines() if (text := json.loads(line)["text"]).startswith("{")]
        if len(texts) >= count:
            return texts
        assert time.monotonic() < until, body
        time.sleep(0.1)
