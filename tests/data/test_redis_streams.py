"""Entries of a stream of Redis as an input: a real server, with TLS and a password."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import SECRET, Redis
from pilot_daemon import Daemon

pytestmark = pytest.mark.timeout(240)

CODE = """
import json


def handler(event, context):
    entries = json.loads(bytes(context.inputs["entries"]))
    if event.get("short"):
        return [len(entries), [one["id"] for one in entries[:1] + entries[-1:]], sum(len(str(one["fields"])) for one in entries)]
    return entries


def decoded(event, context):
    return context.inputs["entries"].value
"""
MANIFEST = """
[functions.reads]
handler = "app.handler"
timeout_s = 60
memory_mb = 512
inputs = { entries = "rediss://cache/{event.key}?stream{event.range}" }

[functions.value]
handler = "app.handler"
inputs = { entries = "rediss://cache/{event.key}" }

[functions.after]
handler = "app.decoded"

[functions.after.inputs]
entries = { from = "rediss://cache/orders?stream&after={event.after}&first=2", decode = "json" }
"""


@pytest.fixture(scope="module")
def streams(home: Path, redis: Redis, certificate: tuple[Path, Path]) -> Iterator[Daemon]:
    folder = home / "redis-streams"
    code = folder / "code"
    code.mkdir(parents=True)
    (code / "app.py").write_text(CODE)
    (code / "pilot.toml").write_text(MANIFEST)
    secret = folder / "secret"
    secret.write_text(SECRET)
    secret.chmod(0o600)
    (folder / "pilotd.toml").write_text(
        f"""
[data]
memory_mb = 160
function_mb = 80
input_mb = 40

[stores.cache]
functions = ["*"]
kind = "redis"
url = "rediss://localhost:{redis.port}/0"
password_file = "{secret}"
ca_file = "{certificate[0]}"
"""
    )
    daemon = Daemon(folder, "--config", str(folder / "pilotd.toml"))
    try:
        done = daemon.up(code)
        assert done.returncode == 0, f"{done.stdout}{done.stderr}"
        yield daemon
    finally:
        daemon.stop()


def invoke(daemon: Daemon, event: dict[str, Any], function: str = "reads") -> Any:
    if function == "reads":
        # The location says that it is a stream, see below.
        key, _, range_ = event["key"].partition("?stream")
        event = {**event, "key": key, "range": range_}
    return json.loads(daemon.request("POST", f"/2015-03-31/functions/{function}/invocations", event, 90).read())


def fill(redis: Redis, stream: str, entries: int, length: int) -> None:
    """Entries `1-0`, `2-0` and so on."""
    redis.ask(b"DEL", stream.encode())
    script = b"for n = 1, ARGV[1] do redis.call('XADD', KEYS[1], n .. '-0', 'n', n, 'x', string.rep('a', ARGV[2])) end"
    redis.ask(b"EVAL", script, b"1", stream.encode(), b"%d" % entries, b"%d" % length)


def ids(answer: Any) -> list[str]:
    return [entry["id"] for entry in answer]


def test_the_entries_of_a_stream_are_json(streams: Daemon, redis: Redis) -> None:
    redis.ask(b"DEL", b"orders")
    redis.ask(b"XADD", b"orders", b"1-1", b"item", "t\u00e9a".encode(), b"n", b"2")
    redis.ask(b"XADD", b"orders", b"1-2", b"raw", b"\xff\x00", b"item", b'"')
    for number in range(2, 6):
        redis.ask(b"XADD", b"orders", b"%d-0" % number, b"n", b"%d" % number)
    answer = invoke(streams, {"key": "orders?stream"})
    assert answer[0] == {"id": "1-1", "fields": {"item": "t\u00e9a", "n": "2"}}
    assert answer[1] == {"id": "1-2", "fields": {"item": '"'}, "binaryFields": {"raw": "/wA="}}
    assert ids(answer) == ["1-1", "1-2", "2-0", "3-0", "4-0", "5-0"]
    for query, found in (
        ("&from=1-2&to=3", ["1-2", "2-0", "3-0"]),
        ("&after=1-2&to=3-0", ["2-0", "3-0"]),
        ("&after=1-2&first=1", ["2-0"]),
        ("&last=2", ["4-0", "5-0"]),
        ("&to=3&last=2", ["2-0", "3-0"]),
        ("&after=4&last=100", ["5-0"]),
        ("&last=100&first=100", None),
        ("&after=5-0", []),
        ("&from=7", []),
    ):
        answer = invoke(streams, {"key": f"orders?stream{query}"})
        assert (ids(answer) if isinstance(answer, list) else None) == found, (query, answer)
    answer = invoke(streams, {"after": "1-2"}, "after")
    assert answer == [{"id": "2-0", "fields": {"n": "2"}}, {"id": "3-0", "fields": {"n": "3"}}]


def test_what_is_no_stream_or_no_range_is_said(streams: Daemon, redis: Redis) -> None:
    redis.put("plain", b"text")
    fill(redis, "one", 1, 1)
    for key, kind, said in (
        ("plain?stream", "Input.KeyError", "it is a string, and ?stream is for streams"),
        ("nothing?stream", "Input.NotFound", "there is no such key"),
        ("one?stream&after=x", "Input.KeyError", 'after is "x", must be the id of an entry'),
        ("one?stream&count=3", "Input.KeyError", '"count" is unknown: after ?stream come'),
    ):
        error = invoke(streams, {"key": key})
        assert error["errorType"] == kind and said in error["errorMessage"], error
    for key, said in (
        ("one", "it is a stream: put ?stream behind the key"),
        ("one?stream&last=1", "a value of it ends in ?stream"),
    ):
        error = invoke(streams, {"key": key}, "value")
        assert error["errorType"] == "Input.KeyError" and said in error["errorMessage"], error
    # A value cannot ask for more than the location says.
    error = invoke(streams, {"after": "1-0&first=9"}, "after")
    assert error["errorType"] == "Input.KeyError" and "first is there twice" in error["errorMessage"], error


def test_a_long_stream_is_read_in_parts_in_order(streams: Daemon, redis: Redis) -> None:
    fill(redis, "many", 20_000, 100)
    fields = sum(len(str({"n": str(number), "x": "a" * 100})) for number in range(1, 20_001))
    assert invoke(streams, {"key": "many?stream", "short": True}) == [20_000, ["1-0", "20000-0"], fields]
    answer = invoke(streams, {"key": "many?stream&last=9000", "short": True})
    assert answer[:2] == [9000, ["11001-0", "20000-0"]]
    # A part of as many entries would be longer than an answer may be.
    fill(redis, "wide", 20, 1 << 20)
    assert invoke(streams, {"key": "wide?stream", "short": True})[:2] == [20, ["1-0", "20-0"]]
    assert invoke(streams, {"key": "wide?stream&last=3", "short": True})[:2] == [3, ["18-0", "20-0"]]


def test_a_stream_has_the_limits_of_an_input(streams: Daemon, redis: Redis) -> None:
    fill(redis, "too-many", 50, 1 << 20)
    error = invoke(streams, {"key": "too-many?stream", "short": True})
    assert error["errorType"] == "Input.TooLarge", error
    fill(redis, "too-wide", 1, 5 << 20)
    error = invoke(streams, {"key": "too-wide?stream", "short": True})
    assert error["errorType"] == "Input.StoreUnavailable" and "an entry has at most 4 MiB" in error["errorMessage"], error
    for stream in ("too-many", "too-wide", "wide", "many"):
        redis.ask(b"DEL", stream.encode())


def test_the_last_entries_are_found_within_limits(streams: Daemon, redis: Redis) -> None:
    def asked() -> int:
        """How often the server was asked for entries."""
        lines = redis.ask(b"INFO", b"commandstats").decode().splitlines()
        counts = [line for line in lines if line.startswith(("cmdstat_xrange:", "cmdstat_xrevrange:"))]
        return sum(int(line.split("calls=")[1].split(",")[0]) for line in counts)

    fill(redis, "last", 100_000, 10)
    for query, count, most in (
        # They are short: they are read once, from the end.
        ("&last=3", 3, 1),
        ("&last=1000", 1000, 6),
        ("&from=99990&last=1000", 11, 2),
        # They are read twice.
        ("&last=50000", 50_000, 60),
    ):
        redis.ask(b"CONFIG", b"RESETSTAT")
        answer = invoke(streams, {"key": f"last?stream{query}", "short": True})
        assert answer[:2] == [count, [f"{100_001 - count}-0", "100000-0"]], (query, answer)
        assert 0 < asked() <= most, query
    fill(redis, "long", 60, 1 << 20)
    began = time.monotonic()
    error = invoke(streams, {"key": "long?stream&last=60", "short": True})
    assert error["errorType"] == "Input.TooLarge" and "data.input_mb" in error["errorMessage"], error
    assert time.monotonic() - began < 30
    for stream in ("last", "long"):
        redis.ask(b"DEL", stream.encode())


def test_a_range_that_is_always_wrong_is_refused_by_the_deployment(streams: Daemon, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("def handler(event, context):\n    pass\n")
    for key, said in (
        ("orders?stream&after=x", 'after is \\"x\\", must be the id of an entry'),
        ("{event.key}?stream&last=none", "must be a number of entries"),
        ("orders?stream&from={event.a}&after={event.b}", "exclude each other"),
    ):
        (tmp_path / "pilot.toml").write_text(f'[functions.wrong]\nhandler = "app.handler"\ninputs = {{ entries = "rediss://cache/{key}" }}\n')
        done = streams.up(tmp_path)
        assert done.returncode != 0, done.stdout
        assert said.replace("\\", "") in done.stderr + done.stdout, (done.stdout, done.stderr)
    # What a value may make of it is known when it is there.
    (tmp_path / "pilot.toml").write_text(
        '[functions.fine]\nhandler = "app.handler"\ninputs = { entries = "rediss://cache/orders?stream{event.more}" }\n'
    )
    assert streams.up(tmp_path).returncode == 0
