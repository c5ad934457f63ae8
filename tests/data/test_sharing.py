"""Fetches and buffers that invocations share, inputs that a request names, and inputs that exceed the memory."""

from __future__ import annotations

import hashlib
import http.client
import http.server
import json
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from conftest import HERE, KEY_ID, SECRET, Bucket
from pilot_daemon import Daemon

MIB = 1 << 20


class Site:
    """A server with entity tags that counts what it sends, and can hold it back."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.sent: list[str] = []
        self.unchanged: list[str] = []
        self.flows = threading.Event()
        self.flows.set()
        site = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                body = site.objects.get(self.path)
                if body is None:
                    self.send_error(404)
                    return
                tag = f'"{hashlib.sha256(body).hexdigest()}"'
                if self.headers.get("If-None-Match") == tag:
                    site.unchanged.append(self.path)
                    self.send_response(304)
                    self.end_headers()
                    return
                site.sent.append(self.path)
                self.send_response(200)
                self.send_header("ETag", tag)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                try:
                    self.wfile.write(body[: len(body) // 2])
                    self.wfile.flush()
                    site.flows.wait(20)
                    self.wfile.write(body[len(body) // 2 :])
                except OSError:
                    self.close_connection = True

            def log_message(self, *_: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def put(self, key: str, body: bytes) -> None:
        self.objects[f"/{key}"] = body


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    site = Site()
    yield site
    site.server.shutdown()


@pytest.fixture(scope="module")
def stores(bucket: Bucket, site: Site, home: Path) -> str:
    secret = home / "key"
    secret.write_text(SECRET)
    secret.chmod(0o600)
    (home / "shared").mkdir(exist_ok=True)
    return f"""
[stores.photos]
functions = ["*"]
kind = "s3"
endpoint = "{bucket.endpoint}"
region = "us-east-1"
access_key_id = "{KEY_ID}"
secret_access_key_file = "{secret}"
[stores.site]
functions = ["from-site", "sibling", "stranger"]
kind = "http"
url = "http://127.0.0.1:{site.server.server_port}"
[stores.disk]
functions = ["from-disk"]
kind = "file"
path = "{home / "shared"}"
"""


def started(home: Path, name: str, config: str) -> Daemon:
    folder = home / name
    folder.mkdir(exist_ok=True)
    (folder / "pilotd.toml").write_text(config)
    daemon = Daemon(folder, "--config", str(folder / "pilotd.toml"))
    done = daemon.up(HERE / "sharing")
    if done.returncode != 0:
        daemon.stop()
        pytest.fail(f"deploy failed:\n{done.stdout}{done.stderr}\n{daemon.log.read_text()}")
    return daemon


@pytest.fixture(scope="module")
def sharing(home: Path, stores: str) -> Iterator[Daemon]:
    daemon = started(home, "sharing", f"[data]\nmemory_mb = 256\n{stores}")
    yield daemon
    daemon.stop()


def invoke(daemon: Daemon, function: str, event: object = None, *inputs: str) -> tuple[http.client.HTTPResponse, Any]:
    connection = http.client.HTTPConnection(daemon.address, timeout=60)
    connection.putrequest("POST", f"/2015-03-31/functions/{function}/invocations")
    body = json.dumps(event if event is not None else {}).encode()
    for text in inputs:
        connection.putheader("X-Pilot-Input", text.encode())
    connection.putheader("Content-Length", str(len(body)))
    connection.endheaders(body)
    response = connection.getresponse()
    return response, json.loads(response.read())


def way(response: http.client.HTTPResponse) -> str:
    """Where the input `x` came from: `fetched`, `shared` or `cached`."""
    (entry,) = [part for part in (response.getheader("server-timing") or "").split(", ") if part.startswith("fetch.x;")]
    told = dict(part.split("=", 1) for part in entry.split(";")[1:])
    return told.get("desc", "fetched")


def sha256(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def test_an_object_that_has_not_changed_is_not_transferred_again(sharing: Daemon, bucket: Bucket, site: Site) -> None:
    for function, put in (("from-s3", bucket.put), ("from-site", site.put)):
        first, second = os.urandom(MIB), os.urandom(MIB)
        put("again.bin", first)
        response, answer = invoke(sharing, function, {"key": "again.bin"})
        assert (way(response), answer["sha256"]) == ("fetched", sha256(first))
        inode = answer["inode"]
        response, answer = invoke(sharing, function, {"key": "again.bin"})
        assert (way(response), answer["sha256"], answer["inode"]) == ("cached", sha256(first), inode)
        description = json.loads(sharing.request("GET", f"/_pilot/v1/functions/{function}").read())
        assert description["last"]["transfers"][0]["way"] == "cached"
        put("again.bin", second)
        response, answer = invoke(sharing, function, {"key": "again.bin"})
        assert (way(response), answer["sha256"]) == ("fetched", sha256(second))


def test_a_file_that_has_not_changed_is_not_read_again(sharing: Daemon, home: Path) -> None:
    path = home / "shared" / "file.bin"
    path.write_bytes(b"one")
    deadline = time.monotonic() + 20
    while True:
        # A file that was changed a moment ago could change once more without a trace.
        response, answer = invoke(sharing, "from-disk", {"key": "file.bin"})
        assert answer["sha256"] == sha256(b"one")
        if way(response) == "cached":
            break
        assert time.monotonic() < deadline
        time.sleep(0.2)
    path.write_bytes(b"two")
    response, answer = invoke(sharing, "from-disk", {"key": "file.bin"})
    assert (way(response), answer["sha256"]) == ("fetched", sha256(b"two"))


def test_a_burst_is_one_transfer_into_the_same_memory(sharing: Daemon, site: Site) -> None:
    body = os.urandom(2 * MIB)
    site.put("burst.bin", body)
    site.flows.clear()
    try:
        with ThreadPoolExecutor(12) as pool:
            functions = ["from-site", "sibling"] * 6
            calls = [pool.submit(invoke, sharing, function, {"key": "burst.bin"}) for function in functions]
            wait_until(lambda: site.unchanged.count("/burst.bin") >= 1)
            site.flows.set()
            answers = [call.result() for call in calls]
    finally:
        site.flows.set()
    assert {answer["sha256"] for _, answer in answers} == {sha256(body)}
    assert len({answer["inode"] for _, answer in answers}) == 1
    assert site.sent.count("/burst.bin") == 1
    # Another owner's function has memory of its own.
    response, answer = invoke(sharing, "stranger", {"key": "burst.bin"})
    assert way(response) == "fetched" and answer["inode"] not in {answer["inode"] for _, answer in answers}


def test_who_hangs_up_disturbs_nobody(sharing: Daemon, site: Site) -> None:
    body = os.urandom(2 * MIB)
    site.put("leaves.bin", body)
    site.flows.clear()
    try:
        gone = http.client.HTTPConnection(sharing.address, timeout=60)
        gone.request("POST", "/2015-03-31/functions/from-site/invocations", json.dumps({"key": "leaves.bin"}))
        wait_until(lambda: "/leaves.bin" in site.sent)
        with ThreadPoolExecutor(1) as pool:
            stays = pool.submit(invoke, sharing, "sibling", {"key": "leaves.bin"})
            wait_until(lambda: "/leaves.bin" in site.unchanged)
            gone.close()
            wait_until(lambda: last_outcome(sharing, "from-site") == "cancelled")
            site.flows.set()
            response, answer = stays.result()
    finally:
        site.flows.set()
    assert (way(response), answer["sha256"]) == ("shared", sha256(body))
    assert site.sent.count("/leaves.bin") == 1


def last_outcome(daemon: Daemon, function: str) -> str | None:
    last = json.loads(daemon.request("GET", f"/_pilot/v1/functions/{function}").read()).get("last")
    return last and str(last["outcome"])


def wait_until(happens: Any) -> None:
    deadline = time.monotonic() + 20
    while not happens():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_request_names_inputs_where_the_function_allows_it(sharing: Daemon, bucket: Bucket) -> None:
    bucket.put("own.txt", b"own")
    bucket.put("ä {x}.txt", b"asked for")
    response, answer = invoke(sharing, "asked", {}, "more=s3://photos/ä {x}.txt", "own-copy = s3://photos/own.txt")
    assert answer == {"own": "own", "more": "asked for", "own-copy": "own"}
    assert "fetch.more;" in (response.getheader("server-timing") or "")
    # What is between may put two headers into one.
    _, answer = invoke(sharing, "asked", {}, "a=s3://photos/own.txt, b=s3://photos/ä {x}.txt")
    assert answer == {"own": "own", "a": "own", "b": "asked for"}
    bucket.put("a, b=c.txt", b"with a comma")
    assert invoke(sharing, "asked", {}, "a=s3://photos/a, b=c.txt")[1] == {"own": "own", "a": "with a comma"}
    for texts, said in (
        (["own=s3://photos/own.txt"], "declares the input"),
        (["more"], "write NAME=SCHEME://STORE/KEY"),
        (["more=s3://photos/a", "more=s3://photos/b"], "is there twice"),
    ):
        response, answer = invoke(sharing, "asked", {}, *texts)
        assert response.status == 400 and said in answer["Message"], answer
    response, answer = invoke(sharing, "from-s3", {"key": "own.txt"}, "more=s3://photos/own.txt")
    assert response.status == 400 and "inputs_by_request = true" in answer["Message"], answer
    for text, kind in (
        ("more=http://site/x", "Input.StoreForbidden"),
        ("more=s3://nowhere/x", "Input.StoreForbidden"),
        ("more=s3://photos/../x", "Input.KeyError"),
        ("more=s3://photos/not-there", "Input.NotFound"),
    ):
        response, answer = invoke(sharing, "asked", {}, text)
        assert (response.status, answer["errorType"]) == (200, kind), answer
    # By the function's URL, too.
    connection = http.client.HTTPConnection(sharing.address, timeout=60)
    connection.request("GET", "/fn/asked/", headers={"X-Pilot-Input": "more=s3://photos/own.txt"})
    assert json.loads(connection.getresponse().read()) == {"own": "own", "more": "own"}


def test_over_the_memory_inputs_go_to_the_disk(home: Path, stores: str, bucket: Bucket) -> None:
    config = f"[data]\nmemory_mb = 48\nfunction_mb = 48\ncache_mb = 0\nspill_mb = 160\n{stores}"
    daemon = started(home, "spill", config)
    try:
        for number in range(4):
            body = os.urandom(40 * MIB)
            bucket.put(f"part-{number}", body)
            _, answer = invoke(daemon, "holds", {"key": f"part-{number}"})
            if number == 3:
                # One function has half of the disk.
                assert answer["errorType"] == "Input.TimedOut", answer
                continue
            assert answer == {"sha256": sha256(body), "mapped": sha256(body), "written": [], "held": number + 1}
        assert not any((daemon.data / "spill").iterdir())
        daemon.retire("holds")
        assert invoke(daemon, "holds", {"key": "part-3"})[1]["held"] == 1
    finally:
        daemon.stop()


def test_a_full_disk_is_said(home: Path, stores: str, bucket: Bucket) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small disk")
    spill = home / "full" / "data" / "spill"
    spill.mkdir(parents=True)
    spill.parent.chmod(0o700)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m,mode=700", "none", spill], check=True)
    try:
        daemon = started(home, "full", f"[data]\nmemory_mb = 48\nfunction_mb = 48\ncache_mb = 0\nspill_mb = 160\n{stores}")
        try:
            bucket.put("part", os.urandom(40 * MIB))
            bucket.put("more", os.urandom(40 * MIB))
            assert invoke(daemon, "holds", {"key": "part"})[1]["held"] == 1
            _, answer = invoke(daemon, "holds", {"key": "more"})
            assert answer["errorType"] == "Input.StoreUnavailable", answer
            assert "No space left on device" in answer["errorMessage"] and "data.spill_mb" in answer["errorMessage"]
            daemon.retire("holds")
            # Its worker ends, and then there is memory.
            wait_until(lambda: invoke(daemon, "holds", {"key": "more"})[1].get("held") == 1)
        finally:
            daemon.stop()
    finally:
        subprocess.run(["umount", spill], check=True)


def test_the_mechanisms_can_be_switched_off(home: Path, stores: str, bucket: Bucket) -> None:
    daemon = started(home, "plain", f"[data]\noverlap = false\nsingle_flight = false\ncache_mb = 0\n{stores}")
    try:
        bucket.put("plain.txt", b"x")
        response, _ = invoke(daemon, "from-s3", {"key": "plain.txt"})
        assert response.getheader("x-pilot-start") == "cold" and way(response) == "fetched"
        last = json.loads(daemon.request("GET", "/_pilot/v1/functions/from-s3").read())["last"]
        assert last["transfers"][0]["began"] >= last["timeline"]["initialised"]
        assert "hidden=0.000" in (response.getheader("server-timing") or "")
        response, _ = invoke(daemon, "from-s3", {"key": "plain.txt"})
        assert (response.getheader("x-pilot-start"), way(response)) == ("warm", "fetched")
        _, answer = invoke(daemon, "from-s3", {"key": "not-there"})
        assert answer["errorType"] == "Input.NotFound"
        response, _ = invoke(daemon, "from-s3", {"key": "plain.txt"})
        assert response.getheader("x-pilot-start") == "warm", "the worker went back"
    finally:
        daemon.stop()
