"""The 13 end-to-end tests of AWS's Runtime Interface Emulator (aws/aws-lambda-runtime-interface-emulator,
test/integration/local_lambda/test_end_to_end.py), under their names. Each test describes the original and, if ours differs, its
replacement. The originals start a container with `aws-lambda-rie` and AWS's Python image per test; here a function with awslambdaric is
deployed.

test_runtime_clients.py tests what the emulator cannot do, which is two invocations at once and streaming.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent

# Packages may have to be installed before the first test.
pytestmark = pytest.mark.timeout(240)


@pytest.fixture(autouse=True)
def functions(deployed):
    deployed(HERE / "rie")


def body(client, name, **more):
    """The response's body. The original posts `{}` to /2015-03-31/functions/function/invocations."""
    return json.loads(client.invoke(FunctionName=name, Payload=b"{}", **more)["Payload"].read())


def test_env_var_with_equal_sign(client):
    """1. `ENV MyEnv="4=4"` of the image is complete. Here: `environment.MyEnv`."""
    assert body(client, "env-var") == "4=4"


def test_two_invokes(client):
    """2. The same container answers a second time."""
    assert body(client, "two-invokes") == "succeeded"
    assert body(client, "two-invokes") == "succeeded"


def test_lambda_function_arn_exists(client):
    """3. The context's ARN is that of a function, with its name. Region and account are those of the emulator, or of Pilotlight."""
    assert body(client, "arn-exists") == "arn:aws:lambda:us-east-1:000000000000:function:arn-exists"


def test_lambda_function_arn_exists_with_defining_custom_name(client):
    """4. The ARN has the chosen name. Original: AWS_LAMBDA_FUNCTION_NAME. Here: the function's name in the manifest."""
    assert body(client, "MyCoolName").endswith(":function:MyCoolName")


def test_timeout_invoke(client):
    """5. AWS_LAMBDA_FUNCTION_TIMEOUT=1: the response is the text "Task timed out after 1.00 seconds". Here, as in Lambda: an error
    object with this text after time and request id."""
    response = client.invoke(FunctionName="timeout", Payload=b"{}")
    assert response["FunctionError"] == "Unhandled"
    assert json.loads(response["Payload"].read())["errorMessage"].endswith("Task timed out after 1.00 seconds")


def test_exception_returned(client):
    """6. An exception's message, type and stack are the response."""
    error = body(client, "exception")
    assert error["errorMessage"] == "raised on purpose"
    assert error["errorType"] == "Exception"
    (frame,) = error["stackTrace"]
    assert frame.startswith('  File "/var/task/main.py", line ')
    assert 'in fail\n    raise Exception("raised on purpose")\n' in frame


def test_context_get_remaining_time_in_three_seconds(client):
    """7. AWS_LAMBDA_FUNCTION_TIMEOUT=3. Here: `timeout_s = 3`."""
    assert 0 < body(client, "three-seconds") < 3000


def test_context_get_remaining_time_in_ten_seconds(client):
    """8. AWS_LAMBDA_FUNCTION_TIMEOUT=10. Here: `timeout_s = 10`."""
    assert 5000 < body(client, "ten-seconds") < 10_000


def test_context_get_remaining_time_in_default_deadline(client):
    """9. The default timeout: 300 s in the emulator, 30 s here."""
    assert 20_000 < body(client, "default-deadline") < 30_000


def test_invoke_with_pre_runtime_api_runtime(client):
    """10. A runtime without the Runtime API works, too (originally python3.6's image; now the same as 2). Here: a handler that is called
    without a client of the Runtime API."""
    assert body(client, "pre-runtime-api") == "succeeded"


def test_function_name_is_overriden(client):
    """11. AWS_LAMBDA_FUNCTION_NAME is not reset to the emulator's `test_function`. Here: not to the function's name."""
    assert body(client, "name-overridden") == ["MyCoolName", "MyCoolName"]


def test_port_override(client):
    """12. `--runtime-interface-emulator-address 0.0.0.0:8081` changes the emulator's port. Here every daemon has its own port
    (`pilot serve --listen`). The Runtime API is at port 9001 if a worker has its own network, and at another port if it shares the
    host's network."""
    assert body(client, "port-usual") == "127.0.0.1:9001"
    host, port = body(client, "port-override").split(":")
    assert host == "127.0.0.1"
    assert int(port) != 9001


def test_custom_client_context(client):
    """13. X-Amz-Client-Context reaches the handler's context."""
    custom = {"foo": "bar", "baz": 123}
    context = base64.b64encode(json.dumps({"custom": custom}).encode()).decode()
    assert body(client, "custom-client-context", ClientContext=context) == custom
