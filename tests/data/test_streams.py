"""Inputs with `stream`: the handler is called as soon as the store has answered, and reads while the rest arrives."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import http.server
import io
import json
import os
import re
import socketserver
import subprocess
import threading
import time
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from conftest import HERE, KEY_ID, SECRET, Bucket
from pilot_daemon import Daemon, binary
from test_inputs import MIB, invoke, timing

BODY = os.urandom(3 * MIB)


@dataclass
class Answer:
    """One answer of the origin. An event among its parts is waited for."""

    parts: list[bytes | threading.Event]
    length: int | None  # None: it is not announced
    etag: str | None = None
    is_cut: bool = False  # the connection breaks after the parts
    is_endless: bool = False  # zeros follow, until the client leaves
    has_ranges: bool = False  # it can send the end of its first part
    left: threading.Event = field(default_factory=threading.Event)  # the client has left


class Origin:
    """A server whose objects arrive when the test lets them."""

    def __init__(self) -> None:
        self.answers: dict[str, list[Answer]] = {}
        self.ranges: list[str | None] = []  # that were asked for
        origin = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                waiting = origin.answers.get(self.path.rpartition("/")[2], [])
                if not waiting:
                    self.send_error(404)
                    return
                answer = waiting.pop(0)
                if answer.etag and self.headers.get("If-None-Match") == f'"{answer.etag}"':
                    self.send_response(304)
                    self.end_headers()
                    return
                origin.ranges.append(self.headers.get("Range"))
                first = self._first(answer)
                self.send_response(206 if first else 200)
                if answer.etag:
                    self.send_header("ETag", f'"{answer.etag}"')
                if first and answer.length:
                    self.send_header("Content-Range", f"bytes {first}-{answer.length - 1}/{answer.length}")
                    answer.length -= first
                    answer.parts = [part[first:] for part in answer.parts if isinstance(part, bytes)]
                if answer.length is None:
                    self.send_header("Transfer-Encoding", "chunked")
                else:
                    self.send_header("Content-Length", str(answer.length))
                self.end_headers()
                try:
                    self._send(answer)
                except OSError:
                    answer.left.set()
                    self.close_connection = True

            def _first(self, answer: Answer) -> int:
                """The first byte that is asked for, if it is a range of this object."""
                asked = self.headers.get("Range", "")
                is_same = self.headers.get("If-Range") == f'"{answer.etag}"'
                return int(asked[len("bytes=") : -1]) if asked and is_same and answer.has_ranges else 0

            def _send(self, answer: Answer) -> None:
                for part in answer.parts:
                    if isinstance(part, threading.Event):
                        part.wait(30)
                    else:
                        self._part(part, answer)
                while answer.is_endless:
                    self._part(bytes(1 << 16), answer)
                if answer.is_cut:
                    self.close_connection = True
                elif answer.length is None:
                    self.wfile.write(b"0\r\n\r\n")

            def _part(self, part: bytes, answer: Answer) -> None:
                self.wfile.write(part if answer.length is not None else b"%x\r\n%b\r\n" % (len(part), part))
                self.wfile.flush()

            def log_message(self, *_: object) -> None:
                pass

        class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
            daemon_threads = True

        self.server = Server(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def put(self, key: str, *answers: Answer) -> None:
        self.answers[key] = list(answers)

    def whole(self, key: str, body: bytes, etag: str | None = None) -> None:
        self.put(key, Answer([body], len(body), etag))


@pytest.fixture(scope="module")
def origin() -> Iterator[Origin]:
    origin = Origin()
    yield origin
    origin.server.shutdown()


@contextlib.contextmanager
def started(home: Path, name: str, origin: Origin, bucket: Bucket, limits: str) -> Iterator[Daemon]:
    place = home / f"streams-{name}"
    (place / "files").mkdir(parents=True)
    secret = place / "secret"
    secret.write_text(SECRET)
    secret.chmod(0o600)
    config = place / "pilotd.toml"
    config.write_text(
        f"""
[data]
{limits}
[stores.origin]
functions = ["*"]
kind = "http"
url = "http://127.0.0.1:{origin.server.server_address[1]}"
[stores.disk]
functions = ["*"]
kind = "file"
path = "{place / "files"}"
[stores.photos]
functions = ["*"]
kind = "s3"
endpoint = "{bucket.endpoint}"
region = "us-east-1"
access_key_id = "{KEY_ID}"
secret_access_key_file = "{secret}"
"""
    )
    daemon = Daemon(place, "--config", str(config))
    try:
        done = daemon.up(HERE / "streams")
        assert done.returncode == 0, f"{done.stdout}{done.stderr}\n{daemon.log.read_text()}"
        yield daemon
    finally:
        daemon.stop()


@pytest.fixture(scope="module")
def streams(home: Path, origin: Origin, bucket: Bucket) -> Iterator[Daemon]:
    with started(home, "plain", origin, bucket, "memory_mb = 64\nfunction_mb = 32\ninput_mb = 24") as daemon:
        yield daemon


def described(data: bytes) -> dict[str, object]:
    return {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}


def last(daemon: Daemon, function: str) -> Any:
    description = json.loads(daemon.request("GET", f"/_pilot/v1/functions/{function}").read())
    return description["last"]


def wait_for_last(daemon: Daemon, function: str, is_it: Any) -> Any:
    """The last invocation of a function, when it is recorded: that may be after its answer."""
    deadline = time.monotonic() + 20
    while True:
        found = last(daemon, function)
        if found and is_it(found):
            return found
        assert time.monotonic() < deadline, found
        time.sleep(0.02)


@pytest.mark.parametrize("length", [len(BODY), None], ids=["announced", "unknown"])
def test_a_handler_reads_while_the_rest_arrives(streams: Daemon, origin: Origin, length: int | None) -> None:
    key = f"live-{length}"
    more, rest = threading.Event(), threading.Event()
    first, second, third = BODY[:1000], BODY[1000:MIB], BODY[MIB:]
    origin.put(key, Answer([first, more, second, rest, third], length))
    try:
        response = streams.request("GET", "/fn/echo/", **{"X-Key": key})
        # The origin sends no more until this is read: it came through the handler, without the rest.
        assert response.status == 200 and response.read(len(first)) == first
        more.set()
        assert response.read(len(second)) == second
    finally:
        more.set()
        rest.set()
    assert response.read() == third
    found = wait_for_last(streams, "echo", lambda found: found["transfers"][0]["from"].endswith(key))
    (transfer,) = found["transfers"]
    assert transfer["bytes"] == len(BODY) and transfer["streamed"]["whole"], transfer
    timeline = found["timeline"]
    # The handler was called after the head, and long before the end.
    assert transfer["streamed"]["head"] <= timeline["started"] < transfer["ended"]
    assert timeline["inputs_ready"] < transfer["ended"]
    endpoint = f"unix:{streams.data / 'control.sock'}"
    said = subprocess.run([binary(), "describe", "echo", "--endpoint", endpoint], capture_output=True, text=True, timeout=60)
    assert re.search(r"video .* 3(\.\d+)? MB.* streamed", said.stdout), said.stdout + said.stderr


def archive() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as writer:
        writer.writestr("a.txt", b"a" * 100_000)
        writer.writestr("b.txt", b"b")
    return file.getvalue()


@pytest.mark.parametrize("how", ["read", "view", "path", "copy", "threads", "twice", "seek", "zip"])
def test_every_way_to_use_it_gets_the_whole(streams: Daemon, origin: Origin, how: str) -> None:
    body = archive() if how == "zip" else BODY
    rest = threading.Event()
    origin.put(how, Answer([body[:1000], rest, body[1000:]], len(body)))
    timer = threading.Timer(0.05, rest.set)
    timer.start()
    _, answer = invoke(streams, "use", {"key": how, "how": how})
    expected: Any = described(body)
    if how == "threads":
        expected = [expected] * 4
    elif how == "twice":
        expected = [expected] * 3
    elif how == "zip":
        expected = {"a.txt": described(b"a" * 100_000), "b.txt": described(b"b")}
    elif how == "seek":
        expected = [body[:4].hex(), body[-4:].hex(), body[2:4].hex(), 14]
    assert answer == expected


def test_every_store_but_redis_streams(streams: Daemon, origin: Origin, bucket: Bucket) -> None:
    folder = streams.data.parent / "files"
    for key, body in {"s-empty": b"", "s-one": b"1", "s-large": os.urandom(20 * MIB)}.items():
        bucket.put(key, body)
        (folder / key).write_bytes(body)
        origin.whole(key, body)
        for function in ("use", "use-s3", "use-disk"):
            response, answer = invoke(streams, function, {"key": key})
            assert answer == described(body), (function, key)
            fetch = timing(response)["fetch.video"]
            assert fetch["bytes"] == len(body) and (key != "s-large" or "streamed" in fetch), fetch
        assert invoke(streams, "use-s3", {"key": key, "how": "view"})[1] == described(body)
    response, error = invoke(streams, "use-s3", {"key": "not-there"})
    assert error["errorType"] == "Input.NotFound", "the handler is not called"


def broken(gate: threading.Event, etag: str | None) -> Answer:
    """The connection breaks in the middle, after the gate has opened."""
    return Answer([BODY[:1000], gate, BODY[1000:100_000]], len(BODY), etag, is_cut=True)


def watched(daemon: Daemon, origin: Origin, key: str, first: Answer, *more: Answer) -> Any:
    """How an input ends for the one who has read the beginning of the first answer."""
    origin.put(key, first, *more)
    (gate,) = [part for part in first.parts if isinstance(part, threading.Event)]
    try:
        response = daemon.request("GET", "/fn/watch/", **{"X-Key": key})
        assert response.read(1000) == BODY[:1000]
    finally:
        gate.set()
    return json.loads(response.read())


def test_a_transfer_that_fails_midway_is_an_exception_with_the_reason(streams: Daemon, origin: Origin) -> None:
    end = watched(streams, origin, "cut", broken(threading.Event(), None))
    assert end["type"] == "BrokenInput" and end["lookup"] and end["said"].startswith("input 'video': "), end
    found = wait_for_last(streams, "watch", lambda found: found["transfers"][0]["from"].endswith("cut"))
    (transfer,) = found["transfers"]
    assert transfer["error"] in end["said"] and not transfer["streamed"]["whole"], transfer
    # Who does not catch it fails alone.
    gate = threading.Event()
    origin.put("cut", broken(gate, None))
    response = streams.request("GET", "/fn/echo/", **{"X-Key": "cut"})
    assert response.read(1000) == BODY[:1000]
    gate.set()
    with pytest.raises(http.client.IncompleteRead):
        response.read()
    assert wait_for_last(streams, "echo", lambda found: found["outcome"] == "function_error")
    origin.whole("cut", BODY)
    assert invoke(streams, "use", {"key": "cut"})[1] == described(BODY)


def test_an_object_of_unknown_length_has_the_length_that_inputs_may_have(streams: Daemon, origin: Origin) -> None:
    end = watched(streams, origin, "endless", Answer([BODY[:1000], threading.Event()], None, is_endless=True))
    assert "data.input_mb" in end["said"], end


def test_what_breaks_off_goes_on_if_it_is_the_same_object(streams: Daemon, origin: Origin) -> None:
    origin.ranges.clear()
    gone, whole = threading.Event(), Answer([BODY], len(BODY), "1")
    gone.set()
    end = watched(streams, origin, "again", broken(threading.Event(), "1"), broken(gone, "1"), whole)
    assert end == {"sha256": hashlib.sha256(BODY).hexdigest()}
    assert sum(asked is not None for asked in origin.ranges) == 2, "the rest is asked for, and all is taken"
    origin.ranges.clear()
    ranged = Answer([BODY], len(BODY), "1", has_ranges=True)
    end = watched(streams, origin, "ranged", broken(threading.Event(), "1"), ranged)
    assert end == {"sha256": hashlib.sha256(BODY).hexdigest()}
    _, asked = origin.ranges
    assert asked is not None and ranged.length == len(BODY) - int(asked[len("bytes=") : -1]), "only the rest was sent"
    other = bytes(len(BODY))
    end = watched(streams, origin, "changed", broken(threading.Event(), "1"), Answer([other], len(other), "2"))
    assert "it changed while it was read" in end["said"], end
    # Without a tag, nobody knows whether it is the same.
    end = watched(streams, origin, "untagged", broken(threading.Event(), None), Answer([other], len(other), None))
    assert end["type"] == "BrokenInput", end


def test_a_streamed_input_is_handed_on_when_it_is_whole(streams: Daemon, origin: Origin) -> None:
    rest = threading.Event()
    origin.put("relayed", Answer([BODY[:1000], rest, BODY[1000:]], len(BODY)))
    threading.Timer(0.05, rest.set).start()
    assert invoke(streams, "relay", {"key": "relayed"})[1] == described(BODY)


def test_a_worker_cannot_change_what_still_arrives(streams: Daemon, origin: Origin) -> None:
    rest = threading.Event()
    origin.put("attacked", Answer([BODY[:4096], rest, BODY[4096:MIB]], MIB))
    try:
        response = streams.request("GET", "/fn/hostile/", **{"X-Key": "attacked"})
        assert response.readline() == b"tried\n"
    finally:
        rest.set()
    assert response.readline() == b"tried\n"
    assert response.read().decode() == hashlib.sha256(BODY[:MIB]).hexdigest()


def test_who_leaves_early_ends_the_transfer(streams: Daemon, origin: Origin) -> None:
    answer = Answer([b"x" * 16], 20 * MIB, is_endless=True)
    origin.put("long", answer)
    # It is longer than announced, which nobody may notice: the handler leaves before.
    gate = threading.Event()
    answer.parts.append(gate)
    assert invoke(streams, "first", {"key": "long"})[1] == {"start": 16, "kept": 0}
    gate.set()
    assert answer.left.wait(20), "the store still sends"
    (transfer,) = last(streams, "first")["transfers"]
    assert not transfer["streamed"]["whole"] and "error" not in transfer, transfer


def test_a_part_that_a_function_keeps_counts_as_its_share(streams: Daemon, origin: Origin) -> None:
    def part() -> Answer:
        return Answer([b"x" * 16, threading.Event()], 20 * MIB)

    streams.retire("first")
    keeps = part()
    origin.put("kept", keeps)
    assert invoke(streams, "first", {"key": "kept", "keep": True})[1]["kept"] == 1
    # 20 of its 32 MB are in use, so it waits for room. Another function has its own.
    origin.put("more", part(), part())
    waiting = threading.Thread(target=lambda: waited.append(invoke(streams, "first", {"key": "more"})[1]))
    waited: list[Any] = []
    waiting.start()
    origin.whole("other", BODY)
    assert invoke(streams, "use", {"key": "other"})[1] == described(BODY)
    assert not waited
    streams.retire("first")
    waiting.join(20)
    assert waited and waited[0]["start"] == 16, waited


def test_invocations_at_the_same_time_read_one_transfer(streams: Daemon, origin: Origin) -> None:
    rest = threading.Event()
    answer = Answer([BODY[:1000], rest, BODY[1000:]], len(BODY), "shared")
    origin.put("shared", answer)
    found: list[Any] = []

    def one() -> None:
        found.append(invoke(streams, "use", {"key": "shared"})[1])

    first = threading.Thread(target=one)
    first.start()
    try:
        deadline = time.monotonic() + 20
        while origin.answers["shared"]:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        origin.put("shared", *(Answer([BODY], len(BODY), "shared") for _ in range(3)))
        others = [threading.Thread(target=one) for _ in range(3)]
        for other in others:
            other.start()
    finally:
        rest.set()
    for thread in (first, *others):
        thread.join(30)
    assert found == [described(BODY)] * 4


def test_over_the_memory_it_is_read_from_the_disk_while_it_arrives(home: Path, origin: Origin, bucket: Bucket) -> None:
    limits = "memory_mb = 16\nfunction_mb = 16\ninput_mb = 16\ncache_mb = 0\nspill_mb = 64"
    with started(home, "spill", origin, bucket, limits) as daemon:
        held = Answer([b"x" * 16, threading.Event()], 12 * MIB)
        origin.put("held", held)
        invoke(daemon, "first", {"key": "held", "keep": True})
        rest = threading.Event()
        body = os.urandom(8 * MIB)
        origin.put("spilled", Answer([body[:1000], rest, body[1000:]], len(body)))
        try:
            response = daemon.request("GET", "/fn/echo/", **{"X-Key": "spilled"})
            assert response.read(1000) == body[:1000]
        finally:
            rest.set()
        assert response.read() == body[1000:]
        origin.put("attacked", Answer([BODY[:MIB]], 9 * MIB, is_endless=True))
        response = daemon.request("GET", "/fn/hostile/", **{"X-Key": "attacked"})
        assert response.readline() == b"tried\n"


def test_it_can_be_switched_off_and_redis_is_refused(home: Path, origin: Origin, bucket: Bucket, tmp_path: Path) -> None:
    with started(home, "off", origin, bucket, "stream = false") as daemon:
        origin.whole("plain", BODY)
        assert invoke(daemon, "starts", {"key": "plain"})[1] == {"whole": True}
        assert "streamed" not in last(daemon, "starts")["transfers"][0]
        assert invoke(daemon, "use", {"key": "plain"})[1]["errorType"] == "Input.NotFound"
        for location, runtime, said in [
            ("redis://cache/x", "python", "stream is not for Redis"),
            ("s3://photos/x", "provided", "stream needs runtime"),
        ]:
            (tmp_path / "pilot.toml").write_text(
                f'[functions.no]\nruntime = "{runtime}"\nhandler = "app.handler"\n'
                f'[functions.no.inputs]\nx = {{ from = "{location}", stream = true }}\n'
            )
            done = daemon.up(tmp_path)
            assert done.returncode != 0 and said in done.stdout + done.stderr


def test_what_was_streamed_is_kept_for_the_next_one(streams: Daemon, origin: Origin) -> None:
    origin.put("object", *(Answer([BODY], len(BODY), "kept") for _ in range(2)))
    assert invoke(streams, "use", {"key": "object"})[1] == described(BODY)
    response, answer = invoke(streams, "use", {"key": "object"})
    assert answer == described(BODY)
    assert "desc=cached" in (response.getheader("server-timing") or ""), "it was whole, and asked for once more"
