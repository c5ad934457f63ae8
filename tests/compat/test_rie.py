"""The 13 end-to-end expectations of AWS's Runtime Interface Emulator (aws/aws-lambda-runtime-interface-emulator,
test/integration/local_lambda/test_end_to_end.py), one test each, under their names. Each says how theirs does it and, where ours is
not that, what stands for it here: there a container with `aws-lambda-rie` and AWS's Python image is made per test, here a function with
awslambdaric is deployed.

What the emulator cannot do, two invocations at once and streaming, is in test_runtime_clients.py, with every client that can.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent

# Packages may have to be installed before the first one.
pytestmark = pytest.mark.timeout(240)


@pytest.fixture(autouse=True)
def functions(deployed):
    deployed(HERE / "rie")


def body(client, name, **more):
    """The answer's body. Theirs posts `{}` to /2015-03-31/functions/function/invocations."""
    return json.loads(client.invoke(FunctionName=name, Payload=b"{}", **more)["Payload"].read())


def test_env_var_with_equal_sign(client):
    """1. `ENV MyEnv="4=4"` of the image arrives whole. Here: `environment.MyEnv`."""
    assert body(client, "env-var") == "4=4"


def test_two_invokes(client):
    """2. The same container answers a second time."""
    assert body(client, "two-invokes") == "succeeded"
    assert body(client, "two-invokes") == "succeeded"


def test_lambda_function_arn_exists(client):
    """3. The context's ARN is a function's, with its name. Region and account are the emulator's own there, and ours here."""
    assert body(client, "arn-exists") == "arn:aws:lambda:local:000000000000:function:arn-exists"


def test_lambda_function_arn_exists_with_defining_custom_name(client):
    """4. The ARN has the name that was chosen. There: AWS_LAMBDA_FUNCTION_NAME; here the manifest names the function."""
    assert body(client, "MyCoolName").endswith(":function:MyCoolName")


def test_timeout_invoke(client):
    """5. AWS_LAMBDA_FUNCTION_TIMEOUT=1: the answer is the bare text "Task timed out after 1.00 seconds". Here, as in Lambda: an error
    object with it, after time and request id."""
    response = client.invoke(FunctionName="timeout", Payload=b"{}")
    assert response["FunctionError"] == "Unhandled"
    assert json.loads(response["Payload"].read())["errorMessage"].endswith("Task timed out after 1.00 seconds")


def test_exception_returned(client):
    """6. An exception's message, type and stack are the answer."""
    error = body(client, "exception")
    assert error["errorMessage"] == "raised on purpose"
    assert error["errorType"] == "Exception"
    (frame,) = error["stackTrace"]
    assert frame.startswith('  File "/var/task/main.py", line ')
    assert 'in fail\n    raise Exception("raised on purpose")\n' in frame


def test_context_get_remaining_time_in_three_seconds(client):
    """7. AWS_LAMBDA_FUNCTION_TIMEOUT=3. Here: `timeout_s = 3`."""
    assert 1000 < body(client, "three-seconds") < 3000


def test_context_get_remaining_time_in_ten_seconds(client):
    """8. AWS_LAMBDA_FUNCTION_TIMEOUT=10. Here: `timeout_s = 10`."""
    assert 8000 < body(client, "ten-seconds") < 10_000


def test_context_get_remaining_time_in_default_deadline(client):
    """9. Without a timeout of one's own the default holds: the emulator's 300 s there, 30 s here."""
    assert 28_000 < body(client, "default-deadline") < 30_000


def test_invoke_with_pre_runtime_api_runtime(client):
    """10. A runtime from before there was a Runtime API works, too (python3.6's image, once; now the same as 2). Here: a handler that is
    called without any client of the Runtime API."""
    assert body(client, "pre-runtime-api") == "succeeded"


def test_function_name_is_overriden(client):
    """11. AWS_LAMBDA_FUNCTION_NAME, once set, is not put back to the emulator's `test_function`. Here: nor to the function's name."""
    assert body(client, "name-overridden") == ["MyCoolName", "MyCoolName"]


def test_port_override(client):
    """12. `--runtime-interface-emulator-address 0.0.0.0:8081` moves the emulator away from its usual port. Here every test's daemon is at
    a port of its own (`pilot serve --listen`); and the Runtime API is at 9001 where a worker has a network of its own, elsewhere where
    it shares the host's."""
    assert body(client, "port-usual") == "127.0.0.1:9001"
    host, port = body(client, "port-override").split(":")
    assert host == "127.0.0.1"
    assert int(port) != 9001


def test_custom_client_context(client):
    """13. X-Amz-Client-Context reaches the handler's context."""
    custom = {"foo": "bar", "baz": 123}
    context = base64.b64encode(json.dumps({"custom": custom}).encode()).decode()
    assert body(client, "custom-client-context", ClientContext=context) == custom
