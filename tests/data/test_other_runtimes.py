"""Inputs of functions that are not Python: Node.js with and without the AWS SDK, the Lambda Runtime API, ASGI and WSGI."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from conftest import KEY_ID, SECRET, Bucket, Redis
from pilot_daemon import Daemon
from test_inputs import MIB, invoke

HERE = Path(__file__).resolve().parent
# Packages may have to be installed before the first test.
pytestmark = pytest.mark.timeout(240)
NODE = """
[functions.client-{name}]
runtime = "node"
handler = "{handler}"
timeout_s = 20
{more}
[functions.client-{name}.environment]
AWS_ENDPOINT_URL = "{endpoint}"
AWS_REGION = "us-east-1"
AWS_ACCESS_KEY_ID = "{key_id}"
AWS_SECRET_ACCESS_KEY = "{secret}"
[functions.client-{name}.inputs]
image = "s3://photos/{{event.key}}"
"""
NODE_REDIS = """
[functions.client-{name}]
runtime = "node"
handler = "redis.handler"
network = "host"
timeout_s = 20
{more}
[functions.client-{name}.environment]
REDIS_PORT = "{port}"
REDIS_PASSWORD = "{secret}"
[functions.client-{name}.inputs]
state = {{ from = "rediss://cache/{{event.key}}", optional = true }}
"""
MASK = 'mask = { from = "s3://photos/{event.mask}", optional = true }\n'


def sha256(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


@pytest.fixture(scope="session")
def node(daemon: Daemon, bucket: Bucket, redis: Redis, home: Path, certificate: tuple[Path, Path]) -> Daemon:
    if shutil.which("npm") is None:
        pytest.skip("inputs of Node.js functions are not tested: there is no npm on PATH")
    folder = home / "node"
    shutil.copytree(HERE / "node", folder)
    known = {"endpoint": bucket.endpoint, "key_id": KEY_ID, "secret": SECRET}
    manifest = [
        NODE.format(name=name, handler=handler, more=more, **known)
        for name, handler, more in [
            ("node-objects", "index.objects", 'network = "host"'),
            ("node-off", "index.objects", 'network = "host"\ndrop_ins = false'),
            ("node-module", "module.handler", ""),
            ("node-unread", "index.unread", ""),
            ("node-several", "index.objects", "concurrency = 4"),
            ("node-inputs", "index.inputs", ""),
        ]
    ]
    manifest.append(MASK)
    for name, more in (("node-redis", ""), ("node-redis-off", "drop_ins = false")):
        manifest.append(NODE_REDIS.format(name=name, more=more, port=redis.port, secret=SECRET))
    shutil.copy(certificate[0], folder / "ca.pem")
    (folder / "pilot.toml").write_text("".join(manifest))
    done = daemon.up(folder)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}\n{daemon.log.read_text()}"
    return daemon


def answer(daemon: Daemon, function: str, **event: Any) -> Any:
    response, value = invoke(daemon, f"client-{function}", event)
    assert response.getheader("x-amz-function-error") is None, value
    return value


def test_node_reads_an_input_as_a_buffer_a_stream_and_a_file(node: Daemon, bucket: Bucket) -> None:
    for turn, size in enumerate((0, 5, 30 * MIB)):
        body = os.urandom(size)
        bucket.put("node/in.bin", body)
        seen = answer(node, "node-inputs", key="node/in.bin", mask="none")
        assert seen["bytes"] == size
        assert {seen["sha256"], seen["stream"], seen["program"]} == {sha256(body)}
        assert seen["same"] and seen["names"] == ["image"] and not seen["own"]
        assert seen["mask"] == "InputError: input 'mask': there is no such object"
        assert seen["written"] == "EACCES", "an input can be written"
        # The paths of the invocations before are gone.
        assert seen["earlier"] == [False] * turn


@pytest.mark.parametrize("how", ["get", "head", "methods"])
def test_the_sdk_for_javascript_answers_from_the_input_as_the_store_would(node: Daemon, bucket: Bucket, how: str) -> None:
    body = os.urandom(300_000)
    kept = {"ContentType": "image/x-test", "Metadata": {"camera": "north"}}
    key = "node/ä b!'(c)*.bin"
    bucket.client.put_object(Bucket="photos", Key=key, Body=body, **kept)
    here = answer(node, "node-objects", key=key, how=how)
    there = answer(node, "node-off", key=key, how=how)
    assert (here.pop("input"), there.pop("input")) == (True, False)
    assert here == there
    assert here["body"] == (sha256(b"") if how == "head" else sha256(body)) and here["Metadata"] == {"camera": "north"}


def test_the_sdk_as_an_es_module_needs_no_network(node: Daemon, bucket: Bucket) -> None:
    bucket.put("node/module", b"of a module")
    assert answer(node, "node-module", key="node/module") == {"input": True, "body": "of a module"}


def test_what_only_the_store_knows_is_asked_there(node: Daemon, bucket: Bucket) -> None:
    body = bytes(range(100))
    bucket.put("node/range", body)
    tag = bucket.client.head_object(Bucket="photos", Key="node/range")["ETag"]
    for asked, piece in {"bytes=0-9": body[:10], "bytes=90-": body[90:], "bytes=-5": body[95:]}.items():
        here, there = (
            answer(node, function, key="node/range", how="get", more={"Range": asked}) for function in ("node-objects", "node-off")
        )
        assert (here.pop("input"), there.pop("input")) == (True, False)
        assert here == there and here["status"] == 206 and here["body"] == sha256(piece)
    assert answer(node, "node-objects", key="node/range", how="get", more={"IfMatch": tag})["input"]
    assert not answer(node, "node-objects", key="node/range", how="get", more={"ResponseContentType": "a/b"})["input"]
    assert answer(node, "node-objects", key="node/range", how="get", more={"IfMatch": '"other"'}) == "PreconditionFailed"
    assert answer(node, "node-objects", key="node/range", how="get", more={"Range": "bytes=100-"}) == "InvalidRange"
    written = sha256(b"written by the function")
    assert answer(node, "node-objects", key="node/range", how="write") == [True, False, written]
    assert answer(node, "node-objects", key="node/range", how="get")["body"] == written


def test_node_redis_answers_from_the_input(node: Daemon, redis: Redis) -> None:
    value = "of Redis: ä".encode()
    redis.put("node:state", value)
    for function, from_input in (("node-redis", True), ("node-redis-off", False)):
        assert answer(node, function, key="node:state") == {"input": from_input, "value": value.decode()}
        assert answer(node, function, key="node:state", how="bytes") == {"input": from_input, "value": value.hex()}
        # Only the server knows what is no input, or what the function has written.
        assert answer(node, function, key="node:state", how="other") == {"input": False, "value": None}
        assert answer(node, function, key="not there") == {"input": False, "value": None}
        written = "written by the function"
        assert answer(node, function, key="node:state", how="write") == {"input": False, "value": written}
        written = "written in a transaction"
        assert answer(node, function, key="node:state", how="pipeline") == {"input": False, "value": [written, written]}
        redis.put("node:state", value)


def test_bodies_that_nobody_reads_leave_no_open_files(node: Daemon, bucket: Bucket) -> None:
    bucket.put("node/unread", b"unread")
    first = answer(node, "node-unread", key="node/unread")
    again = [answer(node, "node-unread", key="node/unread") for _ in range(3)]
    assert max(again) <= first + 2, (first, again)


def test_concurrent_invocations_have_their_own_inputs(node: Daemon, bucket: Bucket) -> None:
    from concurrent.futures import ThreadPoolExecutor

    bodies = {f"node/several/{number}": os.urandom(1000 + number) for number in range(8)}
    for key, body in bodies.items():
        bucket.put(key, body)
    with ThreadPoolExecutor(8) as pool:
        for key, seen in zip(bodies, pool.map(lambda key: answer(node, "node-several", key=key, how="get"), bodies)):
            assert (seen["input"], seen["body"]) == (True, sha256(bodies[key]))


BOOTSTRAP = """#!/usr/bin/env python3
import hashlib, http.client, json, os

api = http.client.HTTPConnection(os.environ["AWS_LAMBDA_RUNTIME_API"])
while True:
    api.request("GET", "/2018-06-01/runtime/invocation/next")
    event = api.getresponse()
    event.read()
    seen = {}
    for name, value in event.getheaders():
        name = name.lower()
        if name.startswith("pilot-input-"):
            with open(value, "rb") as file:
                seen[name[12:]] = hashlib.sha256(file.read()).hexdigest()
        elif name.startswith("pilot-failed-input-"):
            seen[name[19:]] = value
    path = f"/2018-06-01/runtime/invocation/{event.getheader('Lambda-Runtime-Aws-Request-Id')}/response"
    api.request("POST", path, json.dumps(seen))
    api.getresponse().read()
"""


def test_a_runtime_of_its_own_gets_a_path_for_each_input(daemon: Daemon, bucket: Bucket, tmp_path: Path) -> None:
    (tmp_path / "bootstrap.py").write_text(BOOTSTRAP)
    check_runtime(daemon, bucket, tmp_path, 'runtime = "provided"\ncommand = ["python3", "bootstrap.py"]')


def check_runtime(daemon: Daemon, bucket: Bucket, folder_of_code: Path, runtime: str) -> None:
    """A function that answers with what it reads of each of its inputs."""
    # More than one message to the holder has.
    names = [f"part{number}" for number in range(20)]
    declared = "".join(f'{name} = "s3://photos/{{event.folder}}/{name}"\n' for name in names)
    (folder_of_code / "pilot.toml").write_text(
        f"[functions.client-provided]\n{runtime}\n"
        f"[functions.client-provided.inputs]\n{declared}{MASK.replace('event.mask', 'event.folder')}"
    )
    done = daemon.up(folder_of_code)
    assert done.returncode == 0, done.stdout + done.stderr
    for folder in ("one", "two"):
        bodies = {name: os.urandom(100) for name in names}
        for name, body in bodies.items():
            bucket.put(f"{folder}/{name}", body)
        seen = answer(daemon, "provided", folder=folder)
        assert seen.pop("mask") == "there is no such object"
        assert seen == {name: sha256(body) for name, body in bodies.items()}


SERVER = """#!/usr/bin/env python3
import hashlib, http.server, json, os


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        seen = {}
        for name, value in self.headers.items():
            name = name.lower()
            if name.startswith("pilot-input-"):
                with open(value, "rb") as file:
                    seen[name[12:]] = hashlib.sha256(file.read()).hexdigest()
            elif name.startswith("pilot-failed-input-"):
                seen[name[19:]] = value
        body = json.dumps(seen).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET


http.server.ThreadingHTTPServer(("", int(os.environ["PORT"])), Handler).serve_forever()
"""


def test_a_server_gets_the_paths_of_its_inputs_in_headers(daemon: Daemon, bucket: Bucket, tmp_path: Path) -> None:
    (tmp_path / "server.py").write_text(SERVER)
    check_server(daemon, bucket, tmp_path, 'runtime = "http"\ncommand = ["python3", "server.py"]\nconcurrency = 4')


def check_server(daemon: Daemon, bucket: Bucket, folder: Path, runtime: str) -> None:
    """A server that answers with what it reads of its inputs."""
    (folder / "pilot.toml").write_text(
        f"[functions.client-server]\n{runtime}\n"
        '[functions.client-server.inputs]\nimage = { from = "s3://photos/{header.x-key}", optional = true }\n'
        'fixed = "s3://photos/server/fixed"\n'
    )
    bucket.put("server/fixed", b"fixed")
    done = daemon.up(folder)
    assert done.returncode == 0, done.stdout + done.stderr
    for number in range(3):
        body = os.urandom(1000)
        bucket.put(f"server/{number}", body)
        # A client cannot name a file itself.
        headers = {"X-Key": f"server/{number}", "Pilot-Input-Image": "/etc/passwd", "Pilot-Input-Other": "/etc/passwd"}
        response = daemon.request("POST", "/fn/client-server/", b"body", **headers)
        assert json.loads(response.read()) == {"image": sha256(body), "fixed": sha256(b"fixed")}
    response = daemon.request("GET", "/fn/client-server/", **{"X-Key": "server/none", "Pilot-Input-Image": "/etc/passwd"})
    assert json.loads(response.read()) == {"image": "there is no such object", "fixed": sha256(b"fixed")}
    # By the Invoke API there are no headers of a request.
    seen = answer(daemon, "server", key="x")
    assert seen["fixed"] == sha256(b"fixed") and "{header.x-key}" in seen["image"]
    description = json.loads(daemon.request("GET", "/_pilot/v1/functions/client-server").read())
    assert [transfer["input"] for transfer in description["last"]["transfers"]] == ["fixed", "image"]
    bucket.client.delete_object(Bucket="photos", Key="server/fixed")
    response = daemon.request("GET", "/fn/client-server/", **{"X-Key": "server/0"})
    assert response.status == 502, "without its input, the server is not called"


CURIOUS = """#!/usr/bin/env python3
import http.client, json, os, signal

api = http.client.HTTPConnection(os.environ["AWS_LAMBDA_RUNTIME_API"])


def opened(path):
    try:
        with open(path, "rb") as file:
            return len(file.read())
    except OSError as error:
        return type(error).__name__


def answer(path, what):
    holder = path.split("/")[2]
    if what == "kill":
        os.kill(int(holder), signal.SIGKILL)
        while os.path.exists(f"/proc/{holder}/environ"):
            pass
        return opened(path)
    open_files = {number: os.readlink(f"/proc/{holder}/fd/{number}") for number in os.listdir(f"/proc/{holder}/fd")}
    with open(f"/proc/{holder}/status") as status:
        fields = {line.partition(":")[0]: line.partition(":")[2].strip() for line in status}
    return {
        "files": {number: target.split(":")[0].split(" ")[0] for number, target in open_files.items()},
        "environment": opened(f"/proc/{holder}/environ"),
        "is_mine": fields["Uid"].split()[0] == str(os.getuid()),
        "capabilities": int(fields["CapPrm"], 16) + int(fields["CapBnd"], 16),
        "filter": fields["Seccomp"],
        "init": opened("/proc/1/fd/0"),
        "write": writing(path),
        "program": writing(f"/proc/{holder}/exe"),
    }


def writing(path):
    try:
        open(path, "r+b").close()
        return "opened"
    except OSError as error:
        return type(error).__name__


while True:
    api.request("GET", "/2018-06-01/runtime/invocation/next")
    event = api.getresponse()
    what = json.loads(event.read())["what"]
    seen = answer(event.getheader("Pilot-Input-Image"), what)
    path = f"/2018-06-01/runtime/invocation/{event.getheader('Lambda-Runtime-Aws-Request-Id')}/response"
    api.request("POST", path, json.dumps(seen))
    api.getresponse().read()
"""


def test_the_holder_of_inputs_has_nothing_that_the_worker_may_not_have(daemon: Daemon, bucket: Bucket, tmp_path: Path) -> None:
    (tmp_path / "pilot.toml").write_text(
        '[functions.client-curious]\nruntime = "provided"\ncommand = ["python3", "bootstrap.py"]\n'
        '[functions.client-curious.inputs]\nimage = "s3://photos/curious"\n'
    )
    (tmp_path / "bootstrap.py").write_text(CURIOUS)
    done = daemon.up(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    bucket.put("curious", b"pixels")
    seen = answer(daemon, "curious", what="look")
    files = seen.pop("files")
    assert files == {"0": "/memfd", "1": "socket", "2": "/dev/null", "32": "/memfd"}
    assert seen == {
        "environment": 0, "is_mine": True, "capabilities": 0, "filter": "2",
        "init": "PermissionError", "write": "PermissionError", "program": "PermissionError",
    }  # fmt: skip
    # A worker that kills it has no input, and the next invocation has one again.
    assert answer(daemon, "curious", what="kill") == "FileNotFoundError"
    assert answer(daemon, "curious", what="look")["is_mine"]


APPLICATIONS = """
def read(inputs):
    try:
        inputs["mask"]
        mask = ""
    except LookupError as error:
        mask = str(error)
    return bytes(inputs["image"]) + mask.encode()


async def asgi(scope, receive, send):
    if scope["type"] != "http":
        return
    body = read(scope["pilot.inputs"])
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body})


def wsgi(environ, start_response):
    body = read(environ["pilot.inputs"])
    start_response("200 OK", [])
    return [body]
"""


def test_applications_have_inputs_in_their_scope_and_environ(daemon: Daemon, bucket: Bucket, tmp_path: Path) -> None:
    manifest = "".join(
        f"""
[functions.client-{interface}]
handler = "app.{interface}"
interface = "{interface}"
[functions.client-{interface}.inputs]
image = "s3://photos/{{header.x-key}}"
mask = {{ from = "s3://photos/none", optional = true }}
"""
        for interface in ("asgi", "wsgi")
    )
    (tmp_path / "pilot.toml").write_text(manifest)
    (tmp_path / "app.py").write_text(APPLICATIONS)
    done = daemon.up(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    bucket.put("applications/a", b"pixels ")
    for interface in ("asgi", "wsgi"):
        response = daemon.request("GET", f"/fn/client-{interface}/", **{"X-Key": "applications/a"})
        assert response.read() == b"pixels input 'mask': there is no such object"
        response = daemon.request("GET", f"/fn/client-{interface}/", **{"X-Key": "applications/none"})
        assert response.status == 502, "without its input, the application is not called"


def test_names_that_would_be_one_header_are_refused(daemon: Daemon, tmp_path: Path) -> None:
    inputs = 'x = "s3://photos/x"\nX = "s3://photos/y"\n'
    function = 'runtime = "node"\nhandler = "a.b"'
    (tmp_path / "pilot.toml").write_text(f"[functions.guest]\n{function}\n[functions.guest.inputs]\n{inputs}")
    done = daemon.up(tmp_path)
    assert done.returncode != 0
    assert "whose name differs from another one only in the case of letters" in done.stdout + done.stderr
