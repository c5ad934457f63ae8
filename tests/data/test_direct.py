"""The body of a request as an input: it goes into memory that the handler maps, while the worker starts."""

from __future__ import annotations

import base64
import http.client
import io
import json
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy
import pytest
from conftest import HERE, eventually
from pilot_daemon import Daemon, binary, open_descriptors
from test_inputs import timing
from test_many import workers
from test_other_runtimes import BOOTSTRAP, SERVER, sha256

pytestmark = pytest.mark.timeout(240)
MIB = 1 << 20


@pytest.fixture(scope="module")
def direct(home: Path) -> Iterator[Daemon]:
    folder = home / "direct"
    code = folder / "code"
    shutil.copytree(HERE / "direct", code)
    (code / "bootstrap.py").write_text(BOOTSTRAP)
    (code / "server.py").write_text(SERVER)
    config = folder / "pilotd.toml"
    config.write_text("[data]\nmemory_mb = 160\nfunction_mb = 80\ninput_mb = 48\n")
    daemon = Daemon(folder, "--config", str(config))
    try:
        done = daemon.up(code)
        assert done.returncode == 0, f"{done.stdout}{done.stderr}\n{daemon.log.read_text()}"
        yield daemon
    finally:
        daemon.stop()


def post(daemon: Daemon, function: str, body: Any, **headers: str) -> tuple[http.client.HTTPResponse, Any]:
    response = daemon.request("POST", f"/fn/{function}/x", body, 60, **headers)
    return response, json.loads(response.read())


def invoke_with(daemon: Daemon, function: str, body: bytes, **headers: str) -> tuple[http.client.HTTPResponse, Any]:
    response = daemon.request("POST", f"/2015-03-31/functions/{function}/invocations", body, 60, **headers)
    return response, json.loads(response.read())


def described(daemon: Daemon, function: str) -> Any:
    return json.loads(daemon.request("GET", f"/_pilot/v1/functions/{function}").read())


def nothing_is_left(daemon: Daemon) -> None:
    eventually("the memory to be given back", lambda: not any("pilot-input" in file for file in open_descriptors(daemon.process.pid).values()))


@pytest.mark.parametrize("function", ["body", "body-stream", "body-node", "body-node-stream"])
def test_a_body_of_any_length_is_an_input_and_no_part_of_the_event(direct: Daemon, function: str) -> None:
    # 40 MB are more than an event may have.
    for body in (os.urandom(40 * MIB), b"", b"x", b"\xff{"):
        for response, answer in (post(direct, function, body), invoke_with(direct, function, body)):
            assert response.status == 200 and response.getheader("x-amz-function-error") is None, answer
            assert (answer["bytes"], answer["digest"], answer["body"]) == (len(body), sha256(body), None)
    (transfer,) = described(direct, function)["last"]["transfers"]
    assert (transfer["input"], transfer["from"], transfer["bytes"]) == ("file", "direct://request/body", 2)
    nothing_is_left(direct)


def test_the_event_has_the_rest_of_the_request(direct: Daemon) -> None:
    response, answer = post(direct, "body", b"four")
    assert (answer["method"], answer["length"], answer["body"]) == ("POST", "4", None)
    assert timing(response)["fetch.file"]["bytes"] == 4
    response = direct.request("GET", "/fn/body/")
    answer = json.loads(response.read())
    assert (response.status, answer["bytes"], answer["method"]) == (200, 0, "GET")
    # Invoke has no event then, but a client context.
    context = base64.b64encode(b'{"custom": {"key": "cat.jpg"}}').decode()
    _, answer = invoke_with(direct, "body", b"no JSON", **{"X-Amz-Client-Context": context})
    assert (answer["bytes"], answer["keys"], answer["custom"]) == (7, 0, {"key": "cat.jpg"})


def test_the_command_line_sends_a_file_as_the_body(direct: Daemon, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"\xff no JSON")
    command = [binary(), "invoke", "body", "--body", tmp_path / "file", "--endpoint", f"unix:{direct.data / 'control.sock'}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and json.loads(done.stdout)["digest"] == sha256(b"\xff no JSON"), done.stderr


def test_a_body_of_unknown_length_and_one_that_waits_to_be_asked_for_arrive(direct: Daemon) -> None:
    parts = [os.urandom(size) for size in (1, 3 * MIB, 70_000)]
    for function in ("body", "body-stream", "body-server"):
        connection = http.client.HTTPConnection(direct.address, timeout=60)
        connection.request(
            "POST", f"/fn/{function}/", iter(parts), encode_chunked=True, headers={"Transfer-Encoding": "chunked"}
        )
        answer = json.loads(connection.getresponse().read())
        assert answer.get("digest", answer.get("file")) == sha256(b"".join(parts))
        host, _, port = direct.address.rpartition(":")
        with socket.create_connection((host, int(port)), 60) as client:
            head = f"POST /fn/{function}/ HTTP/1.1\r\nHost: {direct.address}\r\nContent-Length: 4\r\n"
            client.sendall(f"{head}Expect: 100-continue\r\nConnection: close\r\n\r\n".encode())
            assert client.recv(1000).startswith(b"HTTP/1.1 100 ")
            client.sendall(b"body")
            answer = b"".join(iter(lambda: client.recv(65536), b""))
            assert answer.startswith(b"HTTP/1.1 200 ") and sha256(b"body").encode() in answer


def test_runtimes_servers_and_applications_have_it_too(direct: Daemon) -> None:
    body = os.urandom(8 * MIB)
    _, answer = invoke_with(direct, "body-provided", body)
    assert answer == {"file": sha256(body)}
    for function in ("body-provided", "body-server"):
        # A client cannot name a file itself.
        _, answer = post(direct, function, body, **{"Pilot-Input-File": "/etc/passwd"})
        assert answer == {"file": sha256(body)}
    _, answer = invoke_with(direct, "body-server", body)
    assert answer == {"file": sha256(body)}
    for function in ("body-asgi", "body-wsgi"):
        response = direct.request("POST", f"/fn/{function}/", body, 60)
        assert (response.read().decode(), response.getheader("x-length")) == (sha256(body), "0")


def begun(daemon: Daemon, function: str, length: int, sent: bytes = b"") -> http.client.HTTPConnection:
    connection = http.client.HTTPConnection(daemon.address, timeout=60)
    connection.putrequest("POST", f"/fn/{function}/")
    connection.putheader("Content-Length", str(length))
    connection.endheaders(sent or None)
    return connection


@pytest.mark.parametrize("function", ["body", "body-server"])
def test_a_worker_starts_while_the_body_arrives(direct: Daemon, function: str) -> None:
    direct.retire(function)
    eventually("no worker", lambda: workers(direct, function) == 0)
    connection = begun(direct, function, 4, b"ab")
    eventually("a worker", lambda: workers(direct, function) == 1)
    connection.send(b"cd")
    answer = json.loads(connection.getresponse().read())
    assert answer.get("digest", answer.get("file")) == sha256(b"abcd")


def test_a_streamed_body_is_read_while_it_arrives(direct: Daemon) -> None:
    connection = begun(direct, "body-stream", 4, b"ab")
    eventually("the handler to run", lambda: described(direct, "body-stream")["workers"]["busy"] == 1)
    connection.send(b"cd")
    answer = json.loads(connection.getresponse().read())
    assert answer["digest"] == sha256(b"abcd")
    # A handler need not wait for all of it.
    connection = begun(direct, "body-first", 40 * MIB, b"ab")
    assert connection.getresponse().read() == b"a"
    connection.close()
    nothing_is_left(direct)


@pytest.mark.parametrize("function", ["body", "body-stream", "body-server"])
def test_a_sender_that_stops_midway_fails_its_invocation_and_leaves_nothing(direct: Daemon, function: str) -> None:
    before = described(direct, function)["totals"]["invocations"]
    connection = begun(direct, function, 4 * MIB, b"ab")
    connection.close()
    eventually("the record", lambda: described(direct, function)["totals"]["invocations"] > before)
    nothing_is_left(direct)
    # A client that closes its direction only is told why.
    connection = begun(direct, function, 4 * MIB, b"ab")
    connection.sock.shutdown(socket.SHUT_WR)
    response = connection.getresponse()
    said = response.read().decode()
    if function != "body-stream":
        assert (response.status, "malformed" in said) == (400, True), said
        last = described(direct, function)["last"]
        assert last["outcome"] == "input_error" and "did not arrive" in last["transfers"][0]["error"], last
    else:
        # The handler runs already: what it reads raises.
        assert response.status == 502, said
    nothing_is_left(direct)
    # It stands in the way of nobody.
    _, answer = post(direct, function, b"fine")
    assert answer.get("digest", answer.get("file")) == sha256(b"fine")


def test_a_slow_sender_has_the_time_of_the_function(direct: Daemon) -> None:
    direct.retire("body-quick")
    eventually("no worker", lambda: workers(direct, "body-quick") == 0)
    response = begun(direct, "body-quick", 4, b"ab").getresponse()
    assert response.status == 408 and "the function's timeout" in response.read().decode()
    assert described(direct, "body-quick")["last"]["outcome"] == "input_error"
    nothing_is_left(direct)


def test_a_body_that_is_too_long_is_refused(direct: Daemon) -> None:
    for function in ("body", "body-stream", "body-server"):
        response = begun(direct, function, 49 * MIB).getresponse()
        assert response.status == 413 and "data.input_mb" in response.read().decode()
    # One that does not say its length is cut off.
    connection = http.client.HTTPConnection(direct.address, timeout=60)
    try:
        parts = (bytes(MIB) for _ in range(49))
        connection.request("POST", "/fn/body/", parts, encode_chunked=True, headers={"Transfer-Encoding": "chunked"})
        assert connection.getresponse().status == 413
    except (BrokenPipeError, ConnectionResetError):
        assert described(direct, "body")["last"]["outcome"] == "input_error"
    connection.close()
    nothing_is_left(direct)


def test_bodies_take_turns_within_the_memory_of_their_function(direct: Daemon) -> None:
    bodies = [os.urandom(30 * MIB) for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda body: post(direct, "body", body)[1], bodies))
    assert [answer["digest"] for answer in answers] == [sha256(body) for body in bodies]
    nothing_is_left(direct)


def test_a_body_is_decoded_while_the_worker_starts(direct: Daemon) -> None:
    file = io.BytesIO()
    numpy.save(file, numpy.arange(6, dtype="<i4").reshape(2, 3))
    assert post(direct, "body-npy", file.getvalue())[1] == [[0, 1, 2], [3, 4, 5]]
    response, error = post(direct, "body-npy", b"not an array")
    assert response.status == 400 and "cannot be decoded as npy" in error["Message"], error


def test_only_a_request_has_a_body(direct: Daemon) -> None:
    response = direct.request("POST", "/2015-03-31/functions/calls/invocations", {})
    answer = json.loads(response.read())
    assert answer["body"] == "Input.NotFound"
    assert "only a request to the function's URL, or by Invoke, has one" in answer["body-optional"]
    response, error = invoke_with(direct, "body", b"later", **{"X-Amz-Invocation-Type": "Event"})
    assert response.status == 501 and "InvocationType Event" in error["Message"], error
    response, error = invoke_with(direct, "calls", b"{}", **{"X-Pilot-Target": "body"})
    assert response.status == 400 and "only the first function of a chain" in error["Message"], error
    # The first one of a chain has it.
    _, answer = invoke_with(direct, "body", b"1", **{"X-Pilot-Target": "calls"})
    assert answer["body"] == "Input.NotFound"


def test_a_function_that_cannot_have_the_body_is_refused(direct: Daemon, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("def handler(event, context): pass\n")
    trigger = '[[functions.refused.triggers]]\ntype = "schedule"\ncron = "0 3 * * *"\n'
    for inputs, more, said in (
        ('a = "direct://request/body"\nb = "direct://request/body"\n', "", "which comes once"),
        ('a = "direct://body"\n', "", 'the body of the request is "direct://request/body"'),
        ('a = "direct://request/body"\n', trigger, "which invocations by triggers do not have"),
    ):
        toml = f'[functions.refused]\nhandler = "app.handler"\n{more}[functions.refused.inputs]\n{inputs}'
        (tmp_path / "pilot.toml").write_text(toml)
        done = direct.up(tmp_path)
        assert done.returncode != 0 and said in done.stdout + done.stderr, done.stdout + done.stderr
