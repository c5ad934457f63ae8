"""Functions that know nothing of inputs: boto3 and redis-py answer from them when it is the same object, and only then."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from conftest import KEY_ID, SECRET, Bucket, Redis, eventually
from pilot_daemon import Daemon
from test_inputs import MIB, invoke

HERE = Path(__file__).resolve().parent
FUNCTION = """
[functions.{name}]
handler = "{handler}"
network = "host"
timeout_s = 20
{more}
[functions.{name}.environment]
AWS_ENDPOINT_URL = "{endpoint}"
AWS_DEFAULT_REGION = "us-east-1"
REDIS_PORT = "{port}"
REDIS_PASSWORD = "{secret}"
{environment}
[functions.{name}.inputs]
{inputs}
"""
CREDENTIALS = f'AWS_ACCESS_KEY_ID = "{KEY_ID}"\nAWS_SECRET_ACCESS_KEY = "{SECRET}"'
OBJECT = 'image = "s3://photos/{event.key}"'
STREAMED = 'image = { from = "s3://photos/{event.key}", stream = true }'
VALUE = 'state = "rediss://cache/{event.key}"'
MASK = 'image = { from = "s3://photos/{event.mask}", optional = true }'
BOTH = f'{OBJECT}\nstate = {{ from = "rediss://cache/{{event.key}}", optional = true }}'
# name, handler, further keys, variables, inputs
FUNCTIONS = [
    ("objects", "app.objects", "", CREDENTIALS, OBJECT),
    ("objects-fresh", "app.objects", 'template = "off"', CREDENTIALS, OBJECT),
    ("objects-off", "app.objects", "drop_ins = false", CREDENTIALS, OBJECT),
    ("anonymous", "app.objects", "", "", OBJECT),
    ("streamed", "app.objects", "", "", STREAMED),
    ("masked", "app.objects", "", CREDENTIALS, MASK),
    ("lazy", "lazy.handler", "", CREDENTIALS, OBJECT),
    ("values", "app.values", "", "", VALUE),
    ("values-fresh", "app.values", 'template = "off"', "", VALUE),
    ("cost", "cost.handler", "", "", BOTH),
    ("beside", "app.beside", "concurrency = 2\nscale = { max = 1 }", CREDENTIALS, OBJECT),
    ("count", "app.count", "scale = { max = 1 }", "", VALUE),
]


@pytest.fixture(scope="session")
def clients(daemon: Daemon, bucket: Bucket, redis: Redis, home: Path, certificate: tuple[Path, Path]) -> Daemon:
    folder = home / "clients"
    shutil.copytree(HERE / "clients", folder)
    shutil.copy(certificate[0], folder / "ca.pem")
    manifest = [
        FUNCTION.format(
            name=f"client-{name}",
            handler=handler,
            more=more,
            environment=environment,
            inputs=inputs,
            endpoint=bucket.endpoint,
            port=redis.port,
            secret=SECRET,
        )
        for name, handler, more, environment, inputs in FUNCTIONS
    ]
    (folder / "pilot.toml").write_text("".join(manifest))
    done = daemon.up(folder)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}\n{daemon.log.read_text()}"
    return daemon


def answer(daemon: Daemon, function: str, **event: Any) -> Any:
    response, value = invoke(daemon, f"client-{function}", event)
    assert response.getheader("x-amz-function-error") is None, value
    return value


def sha256(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


@pytest.mark.parametrize("function", ["objects", "objects-fresh"])
def test_boto3_answers_from_the_input_as_the_store_would(clients: Daemon, bucket: Bucket, function: str) -> None:
    body = os.urandom(300_000)
    kept = {"ContentType": "image/x-test", "Metadata": {"camera": "north"}}
    bucket.client.put_object(Bucket="photos", Key="clients/ä b.bin", Body=body, **kept)
    for how in ("get", "head", "resource"):
        here = answer(clients, function, key="clients/ä b.bin", how=how)
        there = answer(clients, "objects-off", key="clients/ä b.bin", how=how)
        assert (here.pop("input"), there.pop("input")) == ("image", None)
        assert here == there, how
        assert here["body"] == (sha256(b"") if how == "head" else sha256(body))
        assert here["Metadata"] == {"camera": "north"} and here["ContentLength"] == 300_000


@pytest.mark.parametrize("size", [0, 5, 30 * MIB], ids=["empty", "small", "in parts"])
def test_downloads_need_no_store_and_no_credentials(clients: Daemon, bucket: Bucket, size: int) -> None:
    body = os.urandom(size)
    bucket.put("clients/download", body)
    # Without credentials, boto3 cannot ask the store.
    for how in ("download_file", "download_fileobj"):
        assert answer(clients, "anonymous", key="clients/download", how=how) == {"body": sha256(body)}
    response, error = invoke(clients, "client-anonymous", {"key": "clients/download", "how": "get", "more": {"PartNumber": 1}})
    assert error["errorType"] == "NoCredentialsError", error


def test_boto3_reads_while_the_object_arrives(clients: Daemon, bucket: Bucket) -> None:
    for how in ("get", "head", "resource", "download_file", "download_fileobj"):
        body = os.urandom(20 * MIB)
        bucket.put(f"clients/arrives-{how}", body)
        found = answer(clients, "streamed", key=f"clients/arrives-{how}", how=how)
        assert found["body"] == (sha256(b"") if how == "head" else sha256(body)), how
        assert found.get("ContentLength", len(body)) == len(body)
        last = json.loads(clients.request("GET", "/_pilot/v1/functions/client-streamed").read())["last"]
        assert "streamed" in last["transfers"][0], last
    bucket.put("clients/pieces-arrive", b"0123456789")
    assert answer(clients, "streamed", key="clients/pieces-arrive", how="stream") == ["012", "3456", "789"]


def test_a_body_is_read_in_pieces(clients: Daemon, bucket: Bucket) -> None:
    bucket.put("clients/pieces", b"0123456789")
    assert answer(clients, "anonymous", key="clients/pieces", how="stream") == ["012", "3456", "789"]


def test_ranges_and_conditions_are_right_or_left_to_the_store(clients: Daemon, bucket: Bucket) -> None:
    body = bytes(range(100))
    bucket.put("clients/range", body)
    tag = bucket.client.head_object(Bucket="photos", Key="clients/range")["ETag"]
    for asked, piece in {"bytes=0-9": body[:10], "bytes=90-": body[90:], "bytes=-5": body[95:], "bytes=95-200": body[95:]}.items():
        here, there = (
            answer(clients, function, key="clients/range", how="get", more={"Range": asked}) for function in ("objects", "objects-off")
        )
        assert (here.pop("input"), there.pop("input")) == ("image", None)
        assert here == there and here["status"] == 206 and here["body"] == sha256(piece), asked
    assert answer(clients, "objects", key="clients/range", how="get", more={"IfMatch": tag})["input"] == "image"
    assert answer(clients, "objects", key="clients/range", how="get", more={"ResponseContentType": "a/b"})["input"] is None
    response, error = invoke(clients, "client-objects", {"key": "clients/range", "how": "get", "more": {"IfMatch": '"other"'}})
    assert "PreconditionFailed" in error["errorMessage"], error
    response, error = invoke(clients, "client-objects", {"key": "clients/range", "how": "get", "more": {"Range": "bytes=100-"}})
    assert "InvalidRange" in error["errorMessage"], error


def test_another_object_and_what_the_function_wrote_come_from_the_store(clients: Daemon, bucket: Bucket) -> None:
    bucket.put("clients/own", b"before")
    written = sha256(b"written by the function")
    assert answer(clients, "objects", key="clients/own", how="write") == ["image", None, written]
    # In the next invocation it is an input again.
    assert answer(clients, "objects", key="clients/own", how="get")["body"] == written
    bucket.put("clients/other", b"other")
    other = answer(clients, "masked", key="clients/other", mask="clients/own", how="get")
    assert (other["input"], other["body"]) == (None, sha256(b"other"))


def wait_until_held(redis: Redis) -> None:
    eventually("the handler", lambda: redis.ask(b"LPOP", b"clients:begun") != b"$-1\r\n")


def test_what_is_said_about_an_object_with_the_same_bytes_is_as_in_the_store(clients: Daemon, bucket: Bucket) -> None:
    place = {"Bucket": "photos", "Key": "clients/described"}
    bucket.client.put_object(**place, Body=b"same", Metadata={"state": "draft"}, ContentType="text/plain")
    for state, kind in (("draft", "text/plain"), ("approved", "application/json")):
        if state == "approved":
            source = {"CopySource": "photos/clients/described", "MetadataDirective": "REPLACE"}
            bucket.client.copy_object(**place, **source, Metadata={"state": state}, ContentType=kind)
        for _ in range(2):
            here = answer(clients, "objects", key="clients/described", how="get")
            assert here["input"] == "image"
            assert (here["Metadata"], here["ContentType"], here["body"]) == ({"state": state}, kind, sha256(b"same"))


def test_an_invocation_is_answered_from_its_own_inputs_only(clients: Daemon, bucket: Bucket, redis: Redis) -> None:
    bucket.put("clients/theirs", b"before")
    bucket.put("clients/own", b"own")
    with ThreadPoolExecutor() as pool:
        held = pool.submit(answer, clients, "beside", key="clients/theirs", read="clients/theirs", hold=True)
        wait_until_held(redis)
        bucket.put("clients/theirs", b"after")
        later = answer(clients, "beside", key="clients/own", read="clients/theirs")
        redis.ask(b"RPUSH", b"clients:go", b"1")
        assert (later["input"], later["body"]) == (None, sha256(b"after"))
        assert (held.result()["input"], held.result()["body"]) == ("image", sha256(b"before"))


def test_an_input_that_was_read_before_the_worker_wrote_the_object_is_no_answer(clients: Daemon, redis: Redis) -> None:
    def reads() -> list[str]:
        found = redis.ask(b"INFO", b"commandstats").decode()
        return [line.partition(",")[0] for line in found.splitlines() if line.startswith("cmdstat_getrange:")]

    redis.put("clients:count", b"0")
    with ThreadPoolExecutor() as pool:
        first = pool.submit(answer, clients, "count", key="clients:count", hold=True)
        wait_until_held(redis)
        before = reads()
        second = pool.submit(answer, clients, "count", key="clients:count")
        eventually("the second input", lambda: reads() != before)
        redis.ask(b"RPUSH", b"clients:go", b"1")
        assert [first.result(), second.result()] == [1, 2]


def test_an_optional_input_that_failed_comes_from_the_store(clients: Daemon, bucket: Bucket) -> None:
    assert answer(clients, "masked", key="clients/none", mask="clients/none", how="failed") == "NoSuchKey"
    bucket.put("clients/there", b"there")
    assert answer(clients, "masked", key="clients/there", mask="clients/there", how="get")["input"] == "image"


def test_after_an_invocation_its_inputs_are_gone(clients: Daemon, bucket: Bucket) -> None:
    bucket.put("clients/first", b"first")
    bucket.put("clients/second", b"second")
    assert answer(clients, "masked", key="clients/first", mask="clients/first", how="get")["input"] == "image"
    response, later = invoke(clients, "client-masked", {"key": "clients/first", "mask": "clients/second", "how": "get"})
    assert response.getheader("x-pilot-start") == "warm" and later["input"] is None


def test_a_client_that_the_handler_imports_has_the_drop_in(clients: Daemon, bucket: Bucket) -> None:
    bucket.put("clients/lazy", b"lazy")
    assert answer(clients, "lazy", key="clients/lazy") == {"input": "image", "body": sha256(b"lazy")}


@pytest.mark.parametrize("function", ["values", "values-fresh"])
def test_redis_answers_from_the_input(clients: Daemon, redis: Redis, function: str) -> None:
    def commands() -> int:
        found = redis.ask(b"INFO", b"commandstats").decode()
        gets = [line for line in found.splitlines() if line.startswith("cmdstat_get:")]
        return int(gets[0].split("calls=")[1].split(",")[0]) if gets else 0

    redis.put("clients:state", "on ä".encode())
    before = commands()
    assert answer(clients, function, key="clients:state", how="get") == "on ä"
    assert answer(clients, function, key="clients:state", how="text") == ["str", "on ä"]
    assert answer(clients, function, key="clients:state", how="asyncio") == "on ä"
    assert commands() == before, "the server was asked"
    assert answer(clients, function, key="clients:state", how="pipeline") == ["on ä", "on ä"]
    assert commands() == before + 1
    assert answer(clients, function, key="clients:state", how="write") == ["on ä", "on ä!"]
    assert commands() == before + 2


def test_a_miss_costs_less_than_5_us(clients: Daemon, bucket: Bucket, redis: Redis) -> None:
    bucket.put("clients/cost", b"x")
    redis.put("clients/cost", b"x")
    costs = answer(clients, "cost", key="clients/cost")
    assert costs["sent"] and costs["inputs"] == ["image", "state"]
    print(f"a miss costs: S3 {costs['s3']:.2f} us, Redis {costs['redis']:.2f} us, a command that writes {costs['set']:.2f} us")
    assert all(costs[kind] < 5 for kind in ("s3", "redis", "set")), costs
