"""AWS clients that sign with an access key: boto3, botocore's own signer with other libraries, and the aws CLI.

Its daemon requires tokens. That a client with any credentials is served where none is required is what the other files test.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import http.client
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import urllib.parse
from pathlib import Path
from unittest import mock

import boto3
import botocore.auth
import pytest
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import Credentials
from botocore.exceptions import ClientError
from pilot_daemon import Daemon, binary

HERE = Path(__file__).resolve().parent
INVOKE = "/2015-03-31/functions/{}/invocations"


class Guarded(Daemon):
    """A daemon that requires tokens, and the access keys of three of them."""

    def __init__(self, home: Path) -> None:
        (home / "pilotd.toml").write_text('invocations = "token"\n')
        self.home = home
        super().__init__(home, "--config", str(home / "pilotd.toml"))

    def pilot(self, *arguments: str) -> str:
        command = [binary(), *arguments, "--endpoint", f"unix:{self.data / 'control.sock'}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=100)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def key(self, name: str, *options: str) -> Credentials:
        lines = self.pilot("token", "create", name, "--role", "invoke", "--aws", *options).split()
        pairs = dict(line.split("=", 1) for line in lines if "=" in line)
        return Credentials(pairs["AWS_ACCESS_KEY_ID"], pairs["AWS_SECRET_ACCESS_KEY"])


@pytest.fixture(scope="module")
def guarded():
    home = Path(tempfile.mkdtemp(prefix="pilot-signed-"))
    daemon = Guarded(home)
    try:
        done = daemon.up(HERE / "functions")
        assert done.returncode == 0, done.stdout + done.stderr
        daemon.credentials = daemon.key("sdk")
        daemon.limited = daemon.key("limited", "--function", "nothing")
        yield daemon
    finally:
        daemon.stop()
        shutil.rmtree(home, ignore_errors=True)


def client(daemon, credentials, region="eu-central-1", **options):
    return boto3.client(
        "lambda",
        endpoint_url=daemon.endpoint,
        region_name=region,
        aws_access_key_id=credentials.access_key,
        aws_secret_access_key=credentials.secret_key,
        config=Config(retries={"total_max_attempts": 1}, **options),
    )


def refusal(call):
    with pytest.raises(ClientError) as error:
        call()
    response = error.value.response
    return response["ResponseMetadata"]["HTTPStatusCode"], response["Error"]["Code"], response["Error"]["Message"]


def test_boto3_is_known_by_its_signature(guarded):
    lambda_ = client(guarded, guarded.credentials)
    for event in ({"a": "grüße"}, [], "x" * 1_000_000):
        response = lambda_.invoke(FunctionName="echo", Payload=json.dumps(event))
        assert json.loads(response["Payload"].read()) == event
    arn = "arn:aws:lambda:us-east-1:000000000000:function:echo:1"
    assert json.loads(lambda_.invoke(FunctionName=arn, Payload=b"7")["Payload"].read()) == 7
    response = lambda_.invoke(FunctionName="echo", Qualifier="$LATEST", LogType="Tail", ClientContext="e30=", Payload=b"7")
    assert json.loads(response["Payload"].read()) == 7
    assert client(guarded, guarded.credentials, region="us-west-2").invoke(FunctionName="echo")["StatusCode"] == 200


def test_a_wrong_key_is_refused_as_lambda_does(guarded):
    right = guarded.credentials
    wrong = Credentials(right.access_key, right.secret_key[:-1] + ("a" if right.secret_key[-1] != "a" else "b"))
    status, code, message = refusal(lambda: client(guarded, wrong).invoke(FunctionName="echo"))
    assert (status, code) == (403, "InvalidSignatureException")
    assert "does not match the signature you provided" in message
    unknown = Credentials("PLKAAAAAAAAAAAAAAAAA", right.secret_key)
    assert refusal(lambda: client(guarded, unknown).invoke(FunctionName="echo"))[:2] == (403, "UnrecognizedClientException")
    assert refusal(lambda: client(guarded, guarded.limited).invoke(FunctionName="echo"))[:2] == (403, "AccessDeniedException")


def test_a_wrong_date_is_refused_with_both_times(guarded):
    lambda_ = client(guarded, guarded.credentials)
    for minutes, words in ((-16, "Signature expired"), (16, "Signature not yet current")):
        shifted = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(minutes=minutes)
        naive = shifted.replace(tzinfo=None)
        with mock.patch.object(botocore.auth, "get_current_datetime", lambda naive=naive, **_: naive):
            status, code, message = refusal(lambda: lambda_.invoke(FunctionName="echo"))
        assert (status, code) == (403, "InvalidSignatureException")
        assert words in message and naive.strftime("%Y%m%dT%H%M") in message


def signed(daemon, method, path, body=b"", headers=None):
    """The headers of a signed request."""
    request = AWSRequest(method=method, url=daemon.endpoint + path, data=body, headers=headers or {})
    botocore.auth.SigV4Auth(daemon.credentials, "lambda", "eu-central-1").add_auth(request)
    return {name: value for name, value in request.prepare().headers.items() if name.lower() != "content-length"}


def send(daemon, method, path, body, headers):
    connection = http.client.HTTPConnection(daemon.address, timeout=30)
    connection.request(method, path, body, headers)
    response = connection.getresponse()
    return response.status, response.headers.get("x-amzn-errortype"), response.read()


def test_what_is_altered_on_the_way_is_refused(guarded):
    path, body = INVOKE.format("echo"), b'{"amount": 1}'
    headers = signed(guarded, "POST", path, body, {"X-Amz-Invocation-Type": "RequestResponse"})
    assert send(guarded, "POST", path, body, headers) == (200, None, body)
    assert send(guarded, "POST", path, b'{"amount": 2}', headers)[:2] == (403, "InvalidSignatureException")
    assert send(guarded, "POST", path, b"", headers)[:2] == (403, "InvalidSignatureException")
    for other in (INVOKE.format("context"), path + "?Qualifier=1", path.replace("/functions/", "/functions/./")):
        assert send(guarded, "POST", other, body, headers)[0] in (403, 404)
    assert send(guarded, "POST", path + "?Qualifier=1", body, headers)[1] == "InvalidSignatureException"
    assert send(guarded, "POST", path, body, {**headers, "X-Amz-Invocation-Type": "DryRun"})[1] == "InvalidSignatureException"
    assert send(guarded, "POST", path, body, {**headers, "X-Amz-Client-Context": "e30="})[1] == "IncompleteSignatureException"
    assert send(guarded, "POST", path, body, {})[:2] == (403, "MissingAuthenticationTokenException")


def test_a_body_that_is_hashed_in_a_header_is_compared(guarded):
    path, body = INVOKE.format("echo"), b'{"n": 1}'
    hashed = {"X-Amz-Content-SHA256": hashlib.sha256(body).hexdigest()}
    headers = signed(guarded, "POST", path, body, hashed)
    assert send(guarded, "POST", path, body, headers) == (200, None, body)
    assert send(guarded, "POST", path, b'{"n": 2}', headers)[:2] == (403, "InvalidSignatureException")
    unsigned = {"X-Amz-Content-SHA256": "UNSIGNED-PAYLOAD"}
    headers = signed(guarded, "POST", path, body, unsigned)
    assert send(guarded, "POST", path, b"[7]", headers) == (200, None, b"[7]")


def test_an_unknown_client_cannot_make_the_daemon_read_a_body(guarded):
    """It is refused by its head: the body that it announces is not waited for."""
    head = (
        f"POST {INVOKE.format('echo')} HTTP/1.1\r\nHost: {guarded.address}\r\nContent-Length: 6000000\r\n"
        f"X-Amz-Date: {datetime.datetime.now(datetime.timezone.utc):%Y%m%dT%H%M%SZ}\r\n"
        "Authorization: AWS4-HMAC-SHA256 Credential=PLKAAAAAAAAAAAAAAAAA/"
        f"{datetime.datetime.now(datetime.timezone.utc):%Y%m%d}/eu-central-1/lambda/aws4_request, SignedHeaders=host;x-amz-date, "
        f"Signature={'0' * 64}\r\n\r\n"
    )
    host, port = guarded.address.split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(head.encode())
        answer = connection.recv(65536)
    assert answer.startswith(b"HTTP/1.1 403"), answer


def test_a_presigned_url_calls_once_signed_until_it_expires(guarded):
    url = client(guarded, guarded.credentials).generate_presigned_url(
        "invoke", Params={"FunctionName": "echo"}, ExpiresIn=60, HttpMethod="POST"
    )
    parts = urllib.parse.urlsplit(url)
    target = f"{parts.path}?{parts.query}"
    assert send(guarded, "POST", target, b"", {})[0] == 200
    assert send(guarded, "POST", target, b"{}", {})[:2] == (403, "InvalidSignatureException")
    # Whoever has the URL may not go on to other functions.
    chained = send(guarded, "POST", target, b"", {"X-Pilot-Target": "context"})
    assert chained[:2] == (400, "IncompleteSignatureException")
    altered = target.replace("X-Amz-Expires=60", "X-Amz-Expires=6000")
    assert send(guarded, "POST", altered, b"", {})[:2] == (403, "InvalidSignatureException")
    past = datetime.datetime.now(datetime.timezone.utc).replace(tzinfo=None) - datetime.timedelta(seconds=90)
    with mock.patch.object(botocore.auth, "get_current_datetime", lambda **_: past):
        old = client(guarded, guarded.credentials).generate_presigned_url(
            "invoke", Params={"FunctionName": "echo"}, ExpiresIn=60, HttpMethod="POST"
        )
    parts = urllib.parse.urlsplit(old)
    assert send(guarded, "POST", f"{parts.path}?{parts.query}", b"", {})[:2] == (403, "InvalidSignatureException")


def test_a_function_url_is_signed_and_the_function_does_not_see_it(guarded):
    path = "/fn/echo/a%20b/c?x=%C3%BC&y=1"
    headers = signed(guarded, "POST", path, b"text", {"Content-Type": "text/plain"})
    status, _, event = send(guarded, "POST", path, b"text", headers)
    assert status == 200, event
    event = json.loads(event)
    assert event["body"] in ("text", "dGV4dA==")
    assert "authorization" not in event["headers"]
    assert send(guarded, "POST", path.replace("y=1", "y=2"), b"text", headers)[0] == 403


def test_a_revoked_key_is_refused_at_once(guarded):
    credentials = guarded.key("gone")
    lambda_ = client(guarded, credentials)
    assert lambda_.invoke(FunctionName="echo")["StatusCode"] == 200
    guarded.pilot("token", "revoke", "gone")
    assert refusal(lambda: lambda_.invoke(FunctionName="echo"))[:2] == (403, "UnrecognizedClientException")


def test_the_aws_cli_signs(guarded, tmp_path):
    program = Path(sys.executable).parent / "aws"
    if not program.exists():
        pytest.skip("the aws CLI is not installed beside this Python: pip install -r tests/compat/requirements.txt")
    environment = {
        **os.environ,
        "AWS_ACCESS_KEY_ID": guarded.credentials.access_key,
        "AWS_SECRET_ACCESS_KEY": guarded.credentials.secret_key,
    }
    out = tmp_path / "out.json"
    command = [sys.executable, program, "--endpoint-url", guarded.endpoint, "--region", "eu-central-1", "lambda", "invoke"]
    command += ["--function-name", "echo", "--payload", '{"n": 1}', str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(out.read_text()) == {"n": 1}


def test_the_keys_are_not_in_the_data_directory_or_the_log(guarded):
    secret = guarded.credentials.secret_key.encode()
    # Not Path.rglob: it fails if a folder goes meanwhile.
    files = [Path(folder, name) for folder, _, names in os.walk(guarded.data) for name in names]
    files = [path for path in files if path.is_file() and not path.is_symlink()]
    assert any(path.name == "tokens.json" for path in files)
    assert secret not in guarded.log.read_bytes()
    for path in files:
        with contextlib.suppress(FileNotFoundError):
            assert secret not in path.read_bytes(), path
