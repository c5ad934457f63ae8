"""A thousand inputs at the same time: they take turns within the memory for inputs, and leave nothing."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from conftest import KEY_ID, SECRET, Bucket
from pilot_daemon import Daemon, open_descriptors
from test_inputs import invoke
from test_sharing import wait_until

MIB = 1 << 20
MEMORY_MB = 48
# More than half of what one function can have.
BIG = 24 * MIB
# There is room for three of them.
PART = 12 * MIB
MANY = 1000

pytestmark = pytest.mark.timeout(240)

MANIFEST = """
[functions.digest-s3]
handler = "app.digest"
timeout_s = 120
[functions.digest-s3.inputs]
x = "s3://photos/{event.key}"

[functions.digest-http]
handler = "app.digest"
timeout_s = 120
[functions.digest-http.inputs]
x = "http://site/{event.key}"

[functions.other-http]
handler = "app.digest"
timeout_s = 60
[functions.other-http.inputs]
x = "http://site/{event.key}"

[functions.hangs]
handler = "app.digest"
timeout_s = 60
[functions.hangs.inputs]
x = "http://site/{event.key}"

[functions.holds]
handler = "app.hold"
timeout_s = 60
[functions.holds.inputs]
x = "http://site/{event.key}"

[functions.other-holds]
handler = "app.hold"
timeout_s = 60
[functions.other-holds.inputs]
x = "http://site/{event.key}"

[functions.holds-soon]
handler = "app.hold"
timeout_s = 2
[functions.holds-soon.inputs]
x = "http://site/{event.key}"

[functions.pair]
handler = "app.pair"
timeout_s = 20
[functions.pair.inputs]
x = "http://site/{event.x}"
y = "http://site/{event.y}"

[functions.trio]
handler = "app.pair"
timeout_s = 12
[functions.trio.inputs]
x = "http://site/{event.x}"
y = "http://site/{event.y}"
z = "http://site/{event.z}"

[functions.pair-or-one]
handler = "app.pair"
[functions.pair-or-one.inputs]
x = "http://site/{event.x}"
y = { from = "http://site/{event.y}", optional = true }
"""

APP = """
import hashlib

held = []


def digest(event, context):
    return hashlib.sha256(context.inputs["x"]).hexdigest()


def pair(event, context):
    return [key in context.inputs and len(context.inputs[key]) for key in "xy"]


def hold(event, context):
    held.append(context.inputs["x"])
    return len(held[-1])
"""


class Site:
    """A server that answers with a MiB which begins with the path, or with `BIG` or `PART` bytes, and counts. For `late`, it waits."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.open = 0
        self.open_max = 0
        self.sending = 0
        self.asked: list[str] = []
        self.goes_on = asyncio.Event()
        self.rest = os.urandom(MIB)
        started = threading.Event()

        def run() -> None:
            asyncio.set_event_loop(self.loop)
            self.server = self.loop.run_until_complete(asyncio.start_server(self.serve, "127.0.0.1", 0))
            started.set()
            self.loop.run_forever()

        self.thread = threading.Thread(target=run, daemon=True)
        self.thread.start()
        started.wait(10)
        self.port = self.server.sockets[0].getsockname()[1]

    def body(self, key: str) -> bytes:
        beginning = f"/{key}".encode()
        body = beginning + self.rest[len(beginning) :]
        lengths = {"big": BIG, "chunked": BIG, "part": PART, "some": 4 * MIB}
        return body * (lengths.get(key.partition("-")[0], MIB) // MIB)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        self.open_max = max(self.open_max, self.open)
        try:
            while line := await reader.readline():
                while (await reader.readline()).strip():
                    pass
                key = line.split()[1].decode().removeprefix("/")
                body = self.body(key)
                self.asked.append(key)
                if key.startswith("late"):
                    await self.goes_on.wait()
                self.sending += 1
                try:
                    if key.startswith("chunked"):
                        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
                        writer.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body))
                    else:
                        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
                    await writer.drain()
                finally:
                    self.sending -= 1
        except OSError:
            pass
        finally:
            self.open -= 1
            writer.close()

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(10)


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    site = Site()
    yield site
    site.stop()


@pytest.fixture(scope="module")
def many(bucket: Bucket, site: Site, home: Path) -> Iterator[Daemon]:
    folder = home / "many"
    folder.mkdir()
    secret = folder / "secret"
    secret.write_text(SECRET)
    secret.chmod(0o600)
    (folder / "pilotd.toml").write_text(
        f"""
[limits]
queue = {2 * MANY}
connections = {2 * MANY}
connections_per_address = {2 * MANY}
[data]
memory_mb = {MEMORY_MB}
function_mb = {MEMORY_MB - 8}
cache_mb = 0
[stores.photos]
functions = ["digest-s3"]
kind = "s3"
endpoint = "{bucket.endpoint}"
region = "us-east-1"
access_key_id = "{KEY_ID}"
secret_access_key_file = "{secret}"
[stores.site]
functions = ["*"]
kind = "http"
url = "http://127.0.0.1:{site.port}"
"""
    )
    code = folder / "code"
    code.mkdir()
    (code / "pilot.toml").write_text(MANIFEST)
    (code / "app.py").write_text(APP)
    daemon = Daemon(folder, "--config", str(folder / "pilotd.toml"))
    try:
        done = daemon.up(code)
        assert done.returncode == 0, f"{done.stdout}{done.stderr}\n{daemon.log.read_text()}"
        yield daemon
    finally:
        daemon.stop()


class Watch:
    """Looks at the memory of the daemon's inputs, all the time.

    A look is not done at one moment, and what was given back may not be freed yet. So only what two looks have seen counts.
    """

    def __init__(self, daemon: Daemon) -> None:
        self.folder = Path(f"/proc/{daemon.process.pid}/fd")
        self.most = 0
        self.seen = 0
        self.ends = threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)

    def run(self) -> None:
        before: dict[int, int] = {}
        while not self.ends.is_set():
            sizes = self.sizes()
            self.most = max(self.most, sum(min(size, before.get(file, 0)) for file, size in sizes.items()))
            self.seen += sum(size > 0 for size in sizes.values())
            before = sizes
            time.sleep(0.02)

    def sizes(self) -> dict[int, int]:
        sizes = {}
        for number in os.listdir(self.folder):
            path = self.folder / number
            try:
                if os.readlink(path).startswith("/memfd:pilot-input"):
                    found = os.stat(path)
                    sizes[found.st_ino] = found.st_blocks * 512
            except OSError:
                continue
        return sizes

    def __enter__(self) -> Watch:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ends.set()
        self.thread.join()


async def ask(daemon: Daemon, function: str, key: str) -> Any:
    host, _, port = daemon.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    body = json.dumps({"key": key}).encode()
    head = f"POST /2015-03-31/functions/{function}/invocations HTTP/1.1\r\nHost: {daemon.address}\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body)
    await writer.drain()
    answer = await reader.read()
    writer.close()
    return json.loads(answer.partition(b"\r\n\r\n")[2])


def ask_all(daemon: Daemon, function: str, keys: list[str]) -> list[Any]:
    async def run() -> list[Any]:
        return await asyncio.gather(*(ask(daemon, function, key) for key in keys))

    return asyncio.run(run())


@pytest.mark.parametrize("store", ["s3", "http"])
def test_a_thousand_inputs_at_a_time_take_turns_and_leave_nothing(many: Daemon, bucket: Bucket, site: Site, store: str) -> None:
    function = f"digest-{store}"
    keys = [f"many-{number}" for number in range(MANY)]
    if store == "s3":
        body = os.urandom(MIB)
        bucket.put_many(keys, body)
        digests = [hashlib.sha256(body).hexdigest()] * MANY
    else:
        digests = [hashlib.sha256(site.body(key)).hexdigest() for key in keys]
    left = None
    seen = 0
    for round in (keys, keys[:200]):
        with Watch(many) as watch:
            answers = ask_all(many, function, round)
        assert answers == digests[: len(round)]
        assert watch.most <= MEMORY_MB * MIB, watch.most
        seen += watch.seen
        # Nothing of the inputs is left, and in the end no more open files than after the first round.
        wait_until(lambda: not any("pilot-input" in file for file in open_descriptors(many.process.pid).values()))
        many.retire(function)
        wait_until(lambda: workers(many, function) == 0)
        if left is None:
            left = files(many)
    wait_until(lambda: files(many) <= left)
    assert seen, "the looks are at the right files"
    if store == "http":
        # 128, and those that the server has not seen closed.
        assert site.open_max <= 256, "the daemon opens a bounded number of connections to a server"


def test_a_store_that_does_not_answer_one_function_is_there_for_others(many: Daemon, site: Site) -> None:
    async def hang() -> None:
        calls = [asyncio.create_task(ask(many, "hangs", f"late-hangs-{number}")) for number in range(200)]
        try:
            # Half of the places, and each of the others waits for one.
            while sum(key.startswith("late-hangs") for key in site.asked) < 64:
                await asyncio.sleep(0.02)
            answer = await asyncio.wait_for(ask(many, "other-http", "beside"), 20)
            assert answer == hashlib.sha256(site.body("beside")).hexdigest()
            assert sum(key.startswith("late-hangs") for key in site.asked) == 64
        finally:
            site.loop.call_soon_threadsafe(site.goes_on.set)
            await asyncio.gather(*calls)
            site.loop.call_soon_threadsafe(site.goes_on.clear)

    asyncio.run(hang())


def workers(daemon: Daemon, function: str) -> int:
    workers = json.loads(daemon.request("GET", f"/_pilot/v1/functions/{function}").read())["workers"]
    return sum(int(workers[name]) for name in ("starting", "idle", "busy"))


def files(daemon: Daemon) -> int:
    """Open files but sockets: connections to stores are kept for a while."""
    return sum(not file.startswith("socket:") for file in open_descriptors(daemon.process.pid).values())


def test_who_has_no_room_waits_alone_and_without_a_connection(many: Daemon, site: Site) -> None:
    assert invoke(many, "holds", {"key": "big-1"})[1] == BIG
    # Its worker keeps the input. So there is no room for another one, for this function.
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(invoke, many, "holds", {"key": "big-2"})
        wait_until(lambda: "big-2" in site.asked)
        wait_until(lambda: site.sending == 0)
        for number in range(5):
            key = f"other-{number}"
            assert invoke(many, "other-http", {"key": key})[1] == hashlib.sha256(site.body(key)).hexdigest()
        assert not waiting.done()
        many.retire("holds")
        assert waiting.result()[1] == BIG
    assert site.asked.count("big-2") == 2
    many.retire("holds")


def ask_pairs(daemon: Daemon, events: list[dict[str, str]], function: str = "pair") -> list[Any]:
    with ThreadPoolExecutor(len(events)) as pool:
        return [answer for _, answer in pool.map(lambda event: invoke(daemon, function, event), events)]


def test_who_has_one_of_two_inputs_does_not_wait_for_others_that_have_one(many: Daemon) -> None:
    events = [{"x": f"part-x{number}", "y": f"part-y{number}"} for number in range(12)]
    with Watch(many) as watch:
        assert ask_pairs(many, events) == [[PART, PART]] * len(events)
    assert watch.most <= (MEMORY_MB - 8) * MIB, watch.most
    many.retire("pair")


def test_who_has_a_part_of_an_input_does_not_wait_for_others_that_have_one(many: Daemon, site: Site) -> None:
    keys = [f"chunked-{number}" for number in range(6)]
    digests = [hashlib.sha256(site.body(key)).hexdigest() for key in keys]
    with Watch(many) as watch:
        assert ask_all(many, "digest-http", keys) == digests
    assert watch.most <= (MEMORY_MB - 8) * MIB, watch.most
    many.retire("digest-http")


def test_who_waits_for_a_slow_store_takes_no_room_from_other_functions(many: Daemon, site: Site) -> None:
    """The turn of the total is left by an invocation that lacks no room any more."""
    assert invoke(many, "holds", {"key": "big-1"})[1] == BIG
    # 8 MB are left. So one of the two inputs waits, and the other one is there.
    assert invoke(many, "holds-soon", {"key": "part-1"})[1] == PART
    assert invoke(many, "other-holds", {"key": "some-1"})[1] == 4 * MIB
    with ThreadPoolExecutor(2) as pool:
        slow = pool.submit(invoke, many, "trio", {"x": "some-x", "y": "part-y", "z": "late-z"})
        wait_until(lambda: site.asked.count("part-y") == 1 and site.sending == 0)
        many.retire("holds")
        wait_until(lambda: site.asked.count("part-y") == 2 and site.sending == 0)
        # Now that one has all but what is late.
        pair = pool.submit(invoke, many, "pair", {"x": "part-px", "y": "part-py"})
        wait_until(lambda: {"part-px", "part-py"} <= set(site.asked))
        time.sleep(0.5)
        assert not pair.done() and not slow.done()
        many.retire("holds-soon")
        assert pair.result()[1] == [PART, PART]
        assert not slow.done()
        answer = slow.result()[1]
        assert answer["errorType"] == "Input.TimedOut", answer
        assert "it was not here after 12 s" in answer["errorMessage"], answer
    site.loop.call_soon_threadsafe(site.goes_on.set)
    for function in ("pair", "trio", "other-holds"):
        many.retire(function)


def test_inputs_that_exceed_the_share_together_are_refused_at_once(many: Daemon) -> None:
    began = time.monotonic()
    event = {"x": "big-x", "y": "big-y"}
    answer = invoke(many, "pair", event)[1]
    assert answer["errorType"] == "Input.TooLarge", answer
    assert f"exceeds {MEMORY_MB - 8} MB, the function's share" in answer["errorMessage"], answer
    assert "data.function_mb in pilotd.toml" in answer["errorMessage"], answer
    # The one that is not optional may be the second to arrive, and then it is the one that fails.
    answer = invoke(many, "pair-or-one", event)[1]
    assert answer == [BIG, False] or answer["errorType"] == "Input.TooLarge", answer
    # The same object is one buffer.
    assert invoke(many, "pair", {"x": "big-x", "y": "big-x"})[1] == [BIG, BIG]
    assert time.monotonic() - began < 15
    many.retire("pair")


def test_who_waits_for_room_in_vain_is_told_so(many: Daemon) -> None:
    assert invoke(many, "holds-soon", {"key": "big-1"})[1] == BIG
    answer = invoke(many, "holds-soon", {"key": "big-2"})[1]
    assert answer["errorType"] == "Input.TimedOut", answer
    assert "there was no room for it for 2 s" in answer["errorMessage"], answer
    assert "see data.function_mb in pilotd.toml" in answer["errorMessage"], answer
    many.retire("holds-soon")
