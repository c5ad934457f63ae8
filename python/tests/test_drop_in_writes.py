"""Drop-ins answer from the inputs of the invocation that asks, and not with what the function has overwritten."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import Functions
from harness import Stream, invoke_meta
from test_drop_ins import OBJECT, SITE_PACKAGES, VALUE
from test_inputs import memory, send

from pilot_worker import output
from pilot_worker.drop_ins import http, redis, s3, sqs
from pilot_worker.drop_ins.given import Given
from pilot_worker.drop_ins.written import WRITES_MAX, Written

PAGE = {"kind": "http", "method": "GET", "url": "http://127.0.0.1:9/a/b", "status": 200, "headers": []}
CODE = """
import asyncio, concurrent.futures, threading
import boto3, redis, redis.asyncio, requests

s3 = boto3.client(
    "s3", endpoint_url="http://127.0.0.1:9", region_name="us-east-1", aws_access_key_id="k", aws_secret_access_key="s",
    config=boto3.session.Config(retries={"max_attempts": 0}),
)
once = {"port": 9, "retry": redis.retry.Retry(redis.backoff.NoBackoff(), 0)}
client = redis.Redis(**once)

def pipeline(transaction):
    pipe = client.pipeline(transaction=transaction)
    pipe.set("state", "new")
    pipe.execute()

CALLS = {
    "read s3": lambda: s3.get_object(Bucket="photos", Key="a b.png")["Body"].read().decode(),
    "read redis": lambda: client.get("state").decode(),
    "read http": lambda: requests.get("http://127.0.0.1:9/a/b").text,
    "put": lambda: s3.put_object(Bucket="photos", Key="a b.png", Body=b"new"),
    "put another": lambda: s3.put_object(Bucket="photos", Key="a b", Body=b"new"),
    "delete some": lambda: s3.delete_objects(Bucket="photos", Delete={"Objects": [{"Key": "a b.png"}]}),
    "set": lambda: client.set("state", "new"),
    "set another": lambda: client.set("other", "x" * 2000),
    "set, asyncio": lambda: asyncio.new_event_loop().run_until_complete(redis.asyncio.Redis(port=9, retry=None).set("state", "new")),
    "pipeline": lambda: pipeline(False),
    "transaction": lambda: pipeline(True),
    "flush": lambda: client.flushall(),
    "post": lambda: requests.post("http://127.0.0.1:9/a/b/c"),
    "post another": lambda: requests.post("http://127.0.0.1:9/b"),
}

def call(name):
    try:
        return CALLS[name]()
    except Exception as error:
        return type(error).__name__
"""
ONE = "def handler(event, context):\n    return call(event)\n"
TWO = """
has_asked = threading.Event()

def handler(event, context):
    if event == "other":
        told = call("read redis")
        has_asked.set()
        return told
    has_asked.wait()
    with concurrent.futures.ThreadPoolExecutor() as pool:
        return [call("read redis"), pool.submit(call, "read redis").result()]
"""
TWO_AWAITED = """
state = redis.asyncio.Redis(port=9, retry=None)

async def handler(event, context):
    global has_asked
    if event != "other":
        has_asked = asyncio.Event()
        await has_asked.wait()
    try:
        told = (await state.get("state")).decode()
    except Exception as error:
        told = type(error).__name__
    has_asked.set()
    return told if event == "other" else [told, call("read redis")]
"""
STORES: dict[str, dict[str, Any]] = {"s3": OBJECT, "redis": VALUE, "http": PAGE}


Begin = Callable[..., Stream]


@pytest.fixture
def begin(functions: Functions) -> Begin:
    if SITE_PACKAGES is None:
        pytest.skip("drop-ins are not tested with real clients: PILOT_TEST_SITE_PACKAGES is not set")
    paths = [str(functions.directory), SITE_PACKAGES]
    return lambda code, **keys: functions.worker(CODE + code, sys_path=paths, drop_ins=list(STORES), **keys)


def invoke(worker: Stream, event: str, *stores: dict[str, Any], stream: int = 1, **more: Any) -> None:
    described = [{"name": f"i{at}", "kind": "memory", "len": 6, "store": store} for at, store in enumerate(stores)]
    meta = invoke_meta(**({"inputs": described} if described else {}), **more)
    send(worker, stream, meta, json.dumps(event).encode(), [memory(b"pixels") for _ in stores])


def ask(worker: Stream, event: str, *stores: dict[str, Any]) -> Any:
    invoke(worker, event, *stores)
    return json.loads(worker.frame()[3])


@pytest.mark.parametrize(
    ("kind", "writes", "others"),
    [
        ("s3", ["put", "delete some"], ["put another", "flush"]),
        ("redis", ["set", "set, asyncio", "pipeline", "transaction", "flush"], ["set another", "put"]),
        ("http", ["post"], ["post another", "set"]),
    ],
)
def test_what_an_invocation_writes_is_no_answer_for_the_next_one_if_it_was_read_before(
    begin: Begin, kind: str, writes: list[str], others: list[str]
) -> None:
    worker = begin(ONE)

    def read(asked_ns: int) -> Any:
        return ask(worker, f"read {kind}", {**STORES[kind], "asked_ns": asked_ns})

    for write in [*others, *writes]:
        # The daemon has asked the store for the next invocation's input already.
        before = time.monotonic_ns()
        ask(worker, write)
        is_answered = read(before) == "pixels"
        assert is_answered == (write in others), write
        assert read(time.monotonic_ns()) == "pixels", write
    # A daemon that does not say when it asked.
    assert ask(worker, f"read {kind}", STORES[kind]) == "pixels"


@pytest.mark.parametrize("code", [TWO, TWO_AWAITED], ids=["threads", "asyncio"])
def test_an_invocation_is_not_answered_from_the_input_of_another_one(begin: Begin, code: str) -> None:
    worker = begin(code, concurrency=2)
    invoke(worker, "own", VALUE, stream=1, id="one")
    invoke(worker, "other", stream=2, id="two")
    told = {}
    for _ in range(2):
        _, stream, _, body = worker.frame()
        told[stream] = json.loads(body)
    # It is not known whose a thread without a context is.
    own = "ConnectionError" if code == TWO else "pixels"
    assert told == {1: ["pixels", own], 2: "ConnectionError"}


def test_a_write_that_runs_is_noted_at_its_end_too() -> None:
    given = Given(lambda store: [store["key"]], lambda place: [place])

    def begin() -> Any:
        store = {"key": "k", "asked_ns": time.monotonic_ns()}
        one: Any = SimpleNamespace(store=store, invocation="")
        given.add(one)
        return one

    with given.writing(["k"]):
        # It may be the object before the write, or after it.
        during: Any = begin()
        found: Any = given.newest("k")
        assert found is during
    assert given.newest("k") is None
    given.add(during)
    assert given.newest("k") is None
    after: Any = begin()
    assert given.newest("k") is after


def test_two_names_of_an_object_are_overwritten_together() -> None:
    given = Given(lambda store: store["names"], lambda place: [place])
    one: Any = SimpleNamespace(store={"names": ["a", "b"], "asked_ns": 0}, invocation="")
    given.add(one)
    given.wrote(frozenset("a"))
    assert given.by_place == {}
    given.add(one)
    assert given.by_place == {}


def test_each_invocation_has_its_own_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "one_at_a_time", False)
    given = Given(lambda store: [store["key"]], lambda place: [place])
    one: Any = SimpleNamespace(store={"key": "k"}, invocation="one")
    two: Any = SimpleNamespace(store={"key": "k"}, invocation="two")
    given.add(one)
    given.add(two)
    assert given.newest("k") is None
    for own in (one, two):
        token = output.request_id.set(own.invocation)
        assert given.newest("k") is own
        assert given.take("k", lambda _: True) is own and given.newest("k") is None
        output.request_id.reset(token)


def test_of_many_writes_the_oldest_are_forgotten_and_what_was_read_before_them_is_no_answer() -> None:
    written = Written()
    for at in range(WRITES_MAX + 1):
        written.note([at], now_ns=100 + at)
    assert written.has_any_since(["other"], asked_ns=100)
    assert not written.has_any_since(["other"], asked_ns=101)
    assert written.has_any_since([1], asked_ns=101) and not written.has_any_since([1], asked_ns=102)
    assert len(written._when) == WRITES_MAX
    # What is written again is the newest.
    written.note([1], now_ns=5000)
    written.note(["new"], now_ns=5001)
    assert written.has_any_since([1], asked_ns=5000)


@pytest.mark.parametrize(
    ("place", "changes", "leaves"),
    [
        (
            s3._writes("http://s/b/x/y"),
            ["http://s/b/x/y", "http://s/b/x", "http://s/b", "http://s"],
            ["http://s/b/x/y/z", "http://s/b/xy"],
        ),
        (
            redis._writes(("h", 1, 0, b"k")),
            [(("h", 1), b"k"), (("h", 1), None), (None, b"k"), (None, None)],
            [(("h", 2), b"k"), (("h", 1), b"x")],
        ),
    ],
    ids=["s3", "redis"],
)
def test_a_write_changes_what_is_at_its_place(place: Any, changes: list[Any], leaves: list[Any]) -> None:
    assert set(place) >= set(changes) and not set(place) & set(leaves)


def test_a_request_changes_what_is_at_above_and_below_its_url() -> None:
    place = set(http._writes(("GET", "http://s/a/b?c", "")))
    for url in ("http://s", "http://s/a/b/c?d", "http://S:80/a", "http://s/a/b/"):
        assert place & set(http._written_by("post", url)), url
        assert not http._written_by("get", url)
    for url in ("http://s/c", "http://s/a/bb", "http://t/a/b", "https://s/a/b"):
        assert not place & set(http._written_by("PUT", url)), url
    assert not http._writes(("POST", "http://s/a", ""))


def test_a_call_changes_what_is_said_of_its_queue() -> None:
    said, received = (sqs._place(action, "http://s/q") for action in ("GetQueueAttributes", "ReceiveMessage"))
    assert sqs._written_by("SendMessage", "http://s/q") == [said]
    assert set(sqs._written_by("PurgeQueue", "http://S:80/q/")) >= {said, received}
    assert sqs._written_by("ListQueues", "http://s/q") == []
