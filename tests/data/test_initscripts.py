"""Initscripts: WebAssembly programs that fetch what a function needs while its worker starts."""

from __future__ import annotations

import base64
import hashlib
import http.server
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import KEY_ID, SECRET, Bucket, eventually
from pilot_daemon import ROOT, Daemon, binary
from test_inputs import MIB, invoke, timing
from wasm import module, needs_rust, nested_loops

HERE = Path(__file__).resolve().parent
FUNCTION = """
[functions.client-{name}]
handler = "app.{handler}"
network = "host"
timeout_s = 20
{more}
[functions.client-{name}.environment]
AWS_ENDPOINT_URL = "{endpoint}"
AWS_DEFAULT_REGION = "us-east-1"
{environment}
[functions.client-{name}.initscript]
module = "{module}.wasm"
timeout_ms = 20000
allow = {allow}
"""
CREDENTIALS = f'AWS_ACCESS_KEY_ID = "{KEY_ID}"\nAWS_SECRET_ACCESS_KEY = "{SECRET}"'
PHOTOS = '["s3://photos/scripts/"]'
CAT = b"GET scripts/cat"
CONNECT = ("connect", b"s3://photos")


class Site(http.server.BaseHTTPRequestHandler):
    """Counts what it is asked. `/old` says that it is elsewhere."""

    asked: list[tuple[str, str, bytes]] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        self.asked.append((self.command, self.path, body))
        answer = b"moved" if self.path == "/old" else b"task 7"
        self.send_response(302 if self.path == "/old" else 200)
        self.send_header("location", "http://169.254.169.254/latest/meta-data/")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    do_GET = do_POST

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Site)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


@pytest.fixture(scope="module")
def scripted(daemon: Daemon, bucket: Bucket, site: str, home: Path) -> Daemon:
    modules = {
        "cat": module(CONNECT, ("send_rpc", 0, 1, CAT), ("send_reply", 0, 0, 1)),
        # Its whole memory, after the reply has come.
        "memory": module(
            CONNECT,
            ("send_rpc", 0, 1, CAT),
            ("recv_rpc_reply", 0, 1),
            ("reply_read", 0, 0, 40_000, 100),
            ("send_reply", 0, 0, 1),
            ("send_msg", 1, 0, 65_536),
        ),
        "missing": module(CONNECT, ("send_rpc", 0, 1, b"GET scripts/none"), ("send_reply", 0, 0, 1), ("send_msg", 1, b"here")),
        "foreign": module(
            ("connect", b"s3://wrong"), CONNECT, ("send_rpc", 0, 1, b"GET private/cat"), ("send_msg", 1, b"here")
        ),
        "hung": module(("send_msg", 1, b"here"), loops=True),
        "web": module(
            ("connect", site.encode()),
            ("send_rpc", 0, 1, b"POST /tasks?max=1\ncontent-type: text/plain\n\nworker 1"),
            ("send_rpc", 0, 2, b"GET /old"),
            ("send_reply", 1, 0, 1),
            ("send_reply", 2, 0, 2),
        ),
    }
    #: name, handler, module, allow, further keys, variables
    functions = [
        ("scripted", "objects", "cat", PHOTOS, "", CREDENTIALS),
        ("scripted-fresh", "objects", "cat", PHOTOS, 'template = "off"', CREDENTIALS),
        ("scripted-alone", "objects", "cat", PHOTOS, "", ""),
        ("memory", "messages", "memory", PHOTOS, "", ""),
        ("missing", "messages", "missing", PHOTOS, "", ""),
        ("foreign", "messages", "foreign", PHOTOS, "", ""),
        ("hung", "messages", "hung", PHOTOS, "", ""),
        ("web", "messages", "web", f'["{site}"]', "", ""),
    ]
    folder = home / "scripted"
    shutil.copytree(HERE / "scripted", folder)
    shutil.copy(HERE / "clients" / "requirements.txt", folder)
    for name, content in modules.items():
        (folder / f"{name}.wasm").write_bytes(content)
    manifest = [
        FUNCTION.format(
            name=name, handler=handler, module=file, allow=allow, more=more, environment=environment, endpoint=bucket.endpoint
        )
        for name, handler, file, allow, more, environment in functions
    ]
    (folder / "pilot.toml").write_text("".join(manifest))
    done = daemon.up(folder)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}\n{daemon.log.read_text()}"
    return daemon


def cold(daemon: Daemon, function: str, event: object) -> tuple[Any, Any]:
    """An invocation that waits for a start: the response and its value."""
    daemon.retire(f"client-{function}")
    response, value = invoke(daemon, f"client-{function}", event)
    assert response.getheader("x-amz-function-error") is None, value
    assert response.getheader("x-pilot-start") == "cold"
    return response, value


def logs(daemon: Daemon, function: str) -> str:
    command = [binary(), "logs", f"client-{function}", "--endpoint", f"unix:{daemon.data / 'control.sock'}"]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout


def logged(daemon: Daemon, function: str, text: str) -> None:
    """A script that goes on may end, and say so, a moment after the answer."""
    eventually(f"{text!r} in the log", lambda: text in logs(daemon, function))


def sha256(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


@pytest.mark.parametrize("function", ["scripted", "scripted-fresh"])
def test_an_unmodified_function_gets_what_its_initscript_fetched(scripted: Daemon, bucket: Bucket, function: str) -> None:
    body = os.urandom(2 * MIB)
    bucket.put("scripts/cat", body)
    bucket.put("scripts/dog", b"a dog")
    response, told = cold(scripted, function, {"keys": ["scripts/cat", "scripts/dog"]})
    # The other object is not one that the script fetched: it comes from the store.
    assert told == [["init.0", sha256(body)], [None, sha256(b"a dog")]]
    entries = timing(response)
    script, fetch = entries["fetch.init.script"], entries["fetch.init.0"]
    assert script["bytes"] == fetch["bytes"] == 2 * MIB
    # Both run beside the start.
    assert fetch["hidden"] > 0 and script["begin"] <= fetch["begin"]
    shown = scripted.request("GET", f"/_pilot/v1/functions/client-{function}").read().decode()
    assert '"init.script"' in shown and '"script"' in shown
    # A warm invocation runs no script.
    response, told = invoke(scripted, f"client-{function}", {"keys": ["scripts/cat"]})
    assert told == [[None, sha256(body)]] and "fetch.init.script" not in timing(response)


def test_a_cold_start_needs_no_credentials_for_what_the_script_fetched(scripted: Daemon, bucket: Bucket) -> None:
    bucket.put("scripts/cat", b"a cat")
    _, told = cold(scripted, "scripted-alone", {"keys": ["scripts/cat"]})
    assert told == [["init.0", sha256(b"a cat")]]


def test_the_stores_secret_is_not_in_the_scripts_memory(scripted: Daemon, bucket: Bucket) -> None:
    bucket.put("scripts/cat", b"a cat")
    _, told = cold(scripted, "memory", {"ids": [0, 1]})
    assert told["0"] == [True, base64.b64encode(b"a cat").decode()]
    memory = base64.b64decode(told["1"][1])
    assert len(memory) == 65_536 and b"a cat" in memory
    assert SECRET.encode() not in memory and KEY_ID.encode() not in memory


def test_a_script_that_fails_is_left_behind_and_the_log_says_why(scripted: Daemon) -> None:
    here = [True, base64.b64encode(b"here").decode()]
    for function, missing, said in [
        ("missing", "there is no such object", "message 0, s3://photos/scripts/none: there is no such object"),
        ("foreign", "did not send it", "s3://wrong is not in initscript.allow of pilot.toml"),
        ("foreign", "did not send it", "s3://photos/private/cat: initscript.allow of pilot.toml has no beginning of this key"),
        ("hung", "it computed for more than 250 ms", "it computed for more than 250 ms"),
    ]:
        _, told = cold(scripted, function, {"ids": [0, 1]})
        assert told["1"] == here and missing in told["0"], told
        logged(scripted, function, said)
    assert scripted.process.poll() is None


def test_http_goes_to_the_allowed_server_and_no_redirect_is_followed(scripted: Daemon) -> None:
    Site.asked.clear()
    _, told = cold(scripted, "web", {"ids": [1, 2]})
    assert [base64.b64decode(told[id][1]) for id in ("1", "2")] == [b"task 7", b"moved"]
    assert sorted(Site.asked) == [("GET", "/old", b""), ("POST", "/tasks?max=1", b"worker 1")]


@pytest.mark.parametrize(
    ("content", "allow", "problem"),
    [
        (b"\0asm\x01\0\0\0no", "[]", "it cannot be compiled"),
        (b"\x7fELF\x02\x01\x01\0", "[]", "is native code, which is never accepted"),
        (module(), '["s3://other"]', 'there is no store "other"'),
        (module(), '["s3://disk"]', "is not for function"),
        (module(), '["http://10.0.0.1"]', "data.initscript_networks"),
        (module(), '["http://169.254.169.254"]', "where clouds serve a machine's credentials"),
    ],
)
def test_a_bad_script_is_refused_when_it_is_deployed(
    daemon: Daemon, tmp_path: Path, content: bytes, allow: str, problem: str
) -> None:
    (tmp_path / "app.py").write_text("def handler(event, context): pass\n")
    (tmp_path / "init.wasm").write_bytes(content)
    (tmp_path / "pilot.toml").write_text(
        f'[functions.client-bad]\nhandler = "app.handler"\n[functions.client-bad.initscript]\nmodule = "init.wasm"\nallow = {allow}\n'
    )
    done = daemon.up(tmp_path)
    assert done.returncode != 0 and problem in done.stdout + done.stderr, done.stdout + done.stderr


def test_a_module_that_keeps_the_compiler_busy_is_refused(daemon: Daemon, tmp_path: Path) -> None:
    shutil.copy(HERE / "scripted" / "app.py", tmp_path)
    (tmp_path / "init.wasm").write_bytes(nested_loops(2000, 2000))
    (tmp_path / "pilot.toml").write_text(
        '[functions.client-busy]\nhandler = "app.messages"\n[functions.client-busy.initscript]\nmodule = "init.wasm"\n'
    )
    done = daemon.up(tmp_path)
    assert done.returncode != 0 and "the compiler takes more than" in done.stdout + done.stderr, done.stdout + done.stderr


def test_the_example_of_the_sdk_is_small_and_fetches_two_objects(daemon: Daemon, bucket: Bucket, tmp_path: Path) -> None:
    needs_rust()
    target = ROOT / "target" / "initscript"
    subprocess.run(
        ["cargo", "build", "--release", "--locked", "--quiet", "--example", "two_objects", "--target-dir", target],
        cwd=ROOT / "sdk" / "initscript",
        check=True,
        timeout=300,
    )
    script = target / "wasm32-unknown-unknown" / "release" / "examples" / "two_objects.wasm"
    assert script.stat().st_size <= 20 * 1024
    shutil.copy(script, tmp_path / "init.wasm")
    shutil.copy(HERE / "scripted" / "app.py", tmp_path)
    shutil.copy(HERE / "clients" / "requirements.txt", tmp_path)
    manifest = FUNCTION.format(
        name="sdk",
        handler="messages",
        module="init",
        allow='["s3://photos"]',
        more="",
        environment="",
        endpoint=bucket.endpoint,
    )
    (tmp_path / "pilot.toml").write_text(manifest)
    done = daemon.up(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    bucket.put("scripts/of the event", b"a cat")
    bucket.put("models/labels.json", b"[]")
    _, told = cold(daemon, "sdk", {"key": "scripts/of the event", "ids": [0, 1]})
    assert [base64.b64decode(told[id][1]) for id in ("0", "1")] == [b"a cat", b"[]"]
    # Without a key in the event, the script ends and the function does not.
    _, told = cold(daemon, "sdk", {"ids": [0]})
    assert "status 1" in told["0"]
    logged(daemon, "sdk", "no string, number or boolean there")
