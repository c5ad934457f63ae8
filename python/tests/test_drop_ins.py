"""Drop-ins for clients of stores, with real clients that have no store to ask."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from conftest import Functions
from harness import Stream, invoke_meta
from test_inputs import memory, send

from pilot_worker.drop_ins import lambda_client, s3

SITE_PACKAGES = os.environ.get("PILOT_TEST_SITE_PACKAGES")
CODE = """
import boto3, redis

s3 = boto3.client("s3", endpoint_url="http://127.0.0.1:9", region_name="us-east-1")

def handler(event, context):
    try:
        if event["client"] == "redis":
            return redis.Redis(port=9, db=event.get("db", 0)).get(event["key"]).decode()
        if event.get("timeout"):
            body = s3.get_object(Bucket="photos", Key=event["key"])["Body"]
            body.set_socket_timeout(event["timeout"])
            return body.read().decode()
        return s3.get_object(Bucket="photos", Key=event["key"], **event.get("more", {}))["Body"].read().decode()
    except Exception as error:
        return type(error).__name__
"""
OBJECT = {"kind": "s3", "endpoint": "http://127.0.0.1:9", "bucket": "photos", "key": "a b.png", "headers": [["etag", '"1"']]}
VALUE = {"kind": "redis", "host": "localhost", "port": 9, "database": 0, "key": "state"}


Ask = Callable[..., Any]


def asking(worker: Stream) -> Ask:
    def ask(event: dict[str, Any], *stores: dict[str, Any]) -> Any:
        described = [{"name": f"i{at}", "kind": "memory", "len": 6, "store": store} for at, store in enumerate(stores)]
        meta = invoke_meta(**({"inputs": described} if described else {}))
        send(worker, 1, meta, json.dumps(event).encode(), [memory(b"pixels") for _ in stores])
        return json.loads(worker.frame()[3])

    return ask


@pytest.fixture
def started(functions: Functions) -> Callable[[list[str]], Ask]:
    if SITE_PACKAGES is None:
        pytest.skip("drop-ins are not tested with real clients: PILOT_TEST_SITE_PACKAGES is not set")
    paths = [str(functions.directory), SITE_PACKAGES]
    return lambda kinds: asking(functions.worker(CODE, sys_path=paths, drop_ins=kinds))


def test_clients_answer_from_inputs_while_the_invocation_runs(started: Callable[[list[str]], Ask]) -> None:
    ask = started(["s3", "redis"])
    here = {"client": "s3", "key": "a b.png"}
    value = {"client": "redis", "key": "state"}
    assert ask(here, OBJECT, VALUE) == ask(value, OBJECT, VALUE) == "pixels"
    assert ask({**here, "timeout": 3}, OBJECT) == "pixels"
    # Nothing of it is left, and the clients cannot ask the store.
    assert ask(here) == "NoCredentialsError"
    assert ask(value) == "ConnectionError"
    for miss, store in [
        ({**here, "key": "b.png"}, OBJECT),
        (here, {**OBJECT, "bucket": "other"}),
        (here, {**OBJECT, "endpoint": "http://127.0.0.1:10"}),
        (here, {key: OBJECT[key] for key in OBJECT if key != "endpoint"}),
        ({**here, "more": {"VersionId": "1"}}, OBJECT),
        ({**here, "more": {"IfNoneMatch": '"1"'}}, OBJECT),
        ({**here, "more": {"ExpectedBucketOwner": "1"}}, OBJECT),
    ]:
        assert ask(miss, store) == "NoCredentialsError", miss
    for change in ({"key": "other"}, {"db": 1}):
        assert ask({**value, **change}, VALUE) == "ConnectionError", change


def test_without_drop_ins_clients_are_as_they_were(started: Callable[[list[str]], Ask]) -> None:
    ask = started([])
    assert ask({"client": "s3", "key": "a b.png"}, OBJECT) == "NoCredentialsError"
    assert ask({"client": "redis", "key": "state"}, VALUE) == "ConnectionError"


REDIS_CODE = """
import asyncio, redis, redis.asyncio, redis.asyncio.sentinel, redis.sentinel

PORT, SOCKET = %d, "/nonexistent/redis"

class Elsewhere(redis.Connection):
    def __init__(self, **options):
        super().__init__(port=9, **options)

MAKE = {
    "plain": lambda: redis.Redis(port=PORT),
    "single": lambda: redis.Redis(port=PORT, single_connection_client=True),
    "latin": lambda: redis.Redis(port=PORT, encoding="latin-1"),
    "asyncio": lambda: redis.asyncio.Redis(port=PORT),
    "pool": lambda: redis.Redis(connection_pool=redis.ConnectionPool()),
    "url": lambda: redis.Redis.from_url("redis://"),
    "elsewhere": lambda: redis.Redis(connection_pool=redis.ConnectionPool(connection_class=Elsewhere)),
    "unix": lambda: redis.Redis(unix_socket_path=SOCKET),
    "unix url": lambda: redis.Redis.from_url(f"unix://{SOCKET}"),
    "unix, asyncio": lambda: redis.asyncio.Redis(unix_socket_path=SOCKET),
    "sentinel": lambda: redis.sentinel.Sentinel([("127.0.0.1", 9)]).master_for("m"),
    "sentinel, asyncio": lambda: redis.asyncio.sentinel.Sentinel([("127.0.0.1", 9)]).master_for("m"),
}
made = {}
loop = asyncio.new_event_loop()

async def waited(awaitable):
    return await awaitable

def ask(name, command, *arguments):
    if command == "SET of a type that nobody knows":
        arguments, command = (object(), *arguments), "SET"
    if name not in made:
        made[name] = MAKE[name]()
    if command == "pipeline":
        return made[name].pipeline().execute_command(*arguments).execute()
    answer = made[name].execute_command(command, *arguments)
    if "asyncio" in name:
        answer = loop.run_until_complete(waited(answer))
    return answer.decode() if isinstance(answer, bytes) else answer

def handler(event, context):
    told = []
    for call in event:
        try:
            told.append(ask(*call))
        except Exception as error:
            told.append(type(error).__name__)
    return told
"""


@pytest.fixture
def ask_redis(functions: Functions, redis_port: int) -> Ask:
    """Calls of clients of a server that answers OK to every command but PING."""
    if SITE_PACKAGES is None:
        pytest.skip("drop-ins are not tested with real clients: PILOT_TEST_SITE_PACKAGES is not set")
    paths = [str(functions.directory), SITE_PACKAGES]
    return asking(functions.worker(REDIS_CODE % redis_port, sys_path=paths, drop_ins=["redis"]))


@pytest.mark.parametrize(
    ("client", "select"),
    [
        ("single", ["SELECT", 1]),
        ("plain", ["select 1"]),
        ("plain", ["pipeline", "SELECT", 1]),
        ("asyncio", ["SELECT", 1]),
        ("single", ["RESET"]),
    ],
)
def test_after_select_the_server_answers_in_later_invocations_too(
    ask_redis: Ask, redis_port: int, client: str, select: list[Any]
) -> None:
    here = {**VALUE, "port": redis_port}
    get = [client, "GET", "state"]
    assert ask_redis([get], here) == ["pixels"]
    ask_redis([[client, *select]])
    others = [name for name in ("plain", "single", "asyncio") if name != client]
    assert ask_redis([get, *([name, "GET", "state"] for name in others)], here) == ["OK", "pixels", "pixels"]


def test_a_client_whose_server_is_not_known_asks_it(ask_redis: Ask, redis_port: int) -> None:
    local = {**VALUE, "port": 6379}
    assert ask_redis([["pool", "GET", "state"], ["url", "GET", "state"]], local) == ["pixels", "pixels"]
    names = ["elsewhere", "unix", "unix url", "unix, asyncio", "sentinel", "sentinel, asyncio"]
    answers = ask_redis([[name, "GET", "state"] for name in names], local)
    assert answers == ["ConnectionError"] * 4 + ["MasterNotFoundError"] * 2
    # It may be the same server.
    here = {**VALUE, "port": redis_port}
    calls = [
        ["unix", "SET", "other", "new"],
        ["plain", "GET", "state"],
        ["unix", "SET", "state", "new"],
        ["plain", "GET", "state"],
    ]
    assert ask_redis(calls, here) == ["ConnectionError", "pixels", "ConnectionError", "OK"]


def test_a_key_that_redis_py_encodes_is_noted(ask_redis: Ask, redis_port: int) -> None:
    def answers(key: str, *write: Any) -> Any:
        other = {**VALUE, "port": redis_port}
        calls = [["plain", *write], ["plain", "GET", key], ["plain", "GET", "state"]]
        return ask_redis(calls, {**other, "key": key}, other)[1:]

    assert answers("5", "SET", 5, "new") == ["OK", "pixels"]
    assert answers("1.5", "SET", 1.5, "new") == ["OK", "pixels"]
    assert answers("5", "DEL", "5.0", 5.0) == ["pixels", "pixels"]
    assert answers("5", "SET 5", "new") == ["OK", "pixels"]
    assert answers("5", "SET of a type that nobody knows", "new") == ["OK", "OK"]


def test_a_key_has_the_encoding_of_its_client(ask_redis: Ask, redis_port: int) -> None:
    here = {**VALUE, "port": redis_port, "key": "é"}
    get = ["GET", "é"]
    calls = [["plain", *get], ["latin", *get], ["latin", "APPEND", "é", "new"], ["plain", *get]]
    assert ask_redis(calls, here) == ["pixels", "OK", "OK", "pixels"]
    assert ask_redis([["latin", "APPEND", "Ã©", "new"], ["plain", *get]], here) == ["OK", "OK"]


class AwaitedEndpoint:
    """What the drop-ins use of aiobotocore's endpoint."""

    class Parser:
        async def parse(self, response: Any, shape: Any) -> Any:
            raise AssertionError("nothing is parsed")

    _response_parser_factory = SimpleNamespace(create_parser=lambda protocol: AwaitedEndpoint.Parser())

    def make_request(self, operation_model: Any, request: Any) -> Any:
        return self._ask()

    async def _ask(self) -> str:
        return "store"


@pytest.fixture
def awaited() -> ModuleType:
    module: Any = ModuleType("botocore.endpoint")
    module.Endpoint = type("Endpoint", (AwaitedEndpoint,), {})
    module.convert_to_response_dict = lambda http, operation_model: {}
    return module  # type: ignore[no-any-return]  # attributes are set


@pytest.mark.filterwarnings("error")
def test_a_client_that_awaits_its_response_asks_the_store(awaited: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    s3._patch(awaited)
    input = SimpleNamespace(store=OBJECT, size=6, is_whole=True, name="i", view=lambda: memoryview(b"pixels"))
    place = s3._places(OBJECT)[0]
    monkeypatch.setitem(s3.given.by_place, place, [input])
    request = {"url": place, "headers": {}}
    model = SimpleNamespace(name="GetObject", output_shape=None, has_streaming_output=True)
    assert asyncio.run(awaited.Endpoint().make_request(model, request)) == "store"


def test_an_awaiting_client_of_lambda_gets_an_error_that_says_what_to_do(awaited: Any) -> None:
    lambda_client._patch(awaited)
    with pytest.raises(NotImplementedError, match="aiobotocore another endpoint_url"):
        awaited.Endpoint().make_request(SimpleNamespace(name="Invoke"), {"url": lambda_client.ENDPOINT, "headers": {}})
    other = {"url": "http://127.0.0.1:9", "headers": {}}
    assert asyncio.run(awaited.Endpoint().make_request(SimpleNamespace(name="Invoke"), other)) == "store"


@pytest.mark.parametrize(
    ("url", "plain"),
    [
        ("http://Store.local:80/b/K", "http://store.local/b/K"),
        ("https://store.local:80/b/K", "https://store.local:80/b/K"),
        ("https://b.s3.eu-west-1.amazonaws.com/k", "https://s3.amazonaws.com/b/k"),
        ("https://s3.dualstack.us-east-1.amazonaws.com:443/b/k", "https://s3.amazonaws.com/b/k"),
        ("https://my.b.s3-fips.us-gov-west-1.amazonaws.com/k", "https://s3.amazonaws.com/my.b/k"),
        ("https://b.s3-accelerate.amazonaws.com/k", "https://s3.amazonaws.com/b/k"),
        ("https://b.s3-accesspoint.eu-west-1.amazonaws.com/k", "https://b.s3-accesspoint.eu-west-1.amazonaws.com/k"),
        ("https://b.s3.amazonaws.com.example.org/k", "https://b.s3.amazonaws.com.example.org/k"),
    ],
)
def test_a_url_is_compared_without_what_makes_no_difference(url: str, plain: str) -> None:
    assert s3._plain(url) == plain


HTTP_CODE = """
import asyncio, requests, httpx, urllib3

def ask(client, method, url, body=None, headers=None):
    if client == "requests":
        answer = requests.request(method, url, data=body, headers=headers)
        return answer.status_code, answer.text, answer.headers.get("etag")
    if client == "urllib3":
        answer = urllib3.request(method, url, body=body, headers=headers, retries=False)
        return answer.status, answer.data.decode(), answer.headers.get("etag")
    if client == "httpx":
        answer = httpx.request(method, url, content=body, headers=headers)
        return answer.status_code, answer.text, answer.headers.get("etag")
    async def later():
        async with httpx.AsyncClient() as made:
            return await made.request(method, url, content=body, headers=headers)
    answer = asyncio.run(later())
    return answer.status_code, answer.text, answer.headers.get("etag")

def handler(event, context):
    told = []
    for call in event:
        try:
            told.append(ask(*call))
        except Exception as error:
            told.append(type(error).__name__)
    return told
"""
#: SHA-256 of `{"a": 1}`.
BODY, BODY_SHA256 = '{"a": 1}', "f9d86028c6e0d64e225186f96acb69338b2c59764df79162107f5c4bb34d1310"


@pytest.mark.parametrize("client", ["requests", "urllib3", "httpx", "httpx, async"])
def test_http_clients_answer_once_from_what_the_script_got(functions: Functions, client: str) -> None:
    if SITE_PACKAGES is None:
        pytest.skip("drop-ins are not tested with real clients: PILOT_TEST_SITE_PACKAGES is not set")
    paths = [str(functions.directory), SITE_PACKAGES]
    ask = asking(functions.worker(HTTP_CODE, sys_path=paths, drop_ins=["http"]))
    place = {"kind": "http", "method": "GET", "url": "http://127.0.0.1:9/a?b=c", "status": 200, "headers": [["etag", '"1"']]}
    post = {**place, "method": "POST", "url": "http://localhost/rpc", "body_sha256": BODY_SHA256, "status": 201}
    get, rpc = [client, "GET", place["url"]], [client, "POST", "http://LOCALHOST:80/rpc", BODY]
    answers = ask([rpc, get, get, get], place, place, post)
    assert answers[:3] == [[201, "pixels", '"1"'], [200, "pixels", '"1"'], [200, "pixels", '"1"']]
    # Each answers one call, and nobody is at this address.
    assert "Error" in answers[3]
    misses = [
        [client, "GET", "http://127.0.0.1:9/a?b=d"],
        [client, "GET", place["url"], None, {"Authorization": "Bearer x"}],
        [client, "GET", place["url"], None, {"Range": "bytes=0-1"}],
        [client, "PUT", place["url"]],
        [client, "POST", "http://127.0.0.1:9/a?b=c", BODY],
    ]
    assert all("Error" in answer for answer in ask(misses, place))
    # They end with their invocation.
    assert all("Error" in answer for answer in ask([get], post)) and "Error" in ask([get])[0]


RESPONSE_CODE = """
import requests, urllib3

vars(urllib3).pop("HTTPHeaderDict", None)  # urllib3 1.26 does not have it there
pool = urllib3.HTTPConnectionPool("127.0.0.1", 9)

def handler(event, context):
    mine = urllib3.Retry(total=7)
    answers = [
        urllib3.request("GET", event),
        pool.urlopen("GET", "/a", None, None, mine),
        pool.urlopen("GET", "/a", retries=5, redirect=False),
        pool.urlopen("GET", "/a", None, None, False),
        requests.get(event, allow_redirects=False).raw,
    ]
    told = [[answer.status, answer.reason, answer.version, answer.retries.total] for answer in answers]
    history = [len(answer.retries.history) for answer in answers]
    try:
        requests.get(event).raise_for_status()
    except requests.HTTPError as error:
        return told, history, answers[1].retries is mine, str(error)
"""


def test_a_response_of_urllib3_has_what_one_of_a_server_has(functions: Functions) -> None:
    if SITE_PACKAGES is None:
        pytest.skip("drop-ins are not tested with real clients: PILOT_TEST_SITE_PACKAGES is not set")
    paths = [str(functions.directory), SITE_PACKAGES]
    ask = asking(functions.worker(RESPONSE_CODE, sys_path=paths, drop_ins=["http"]))
    place = {"kind": "http", "method": "GET", "url": "http://127.0.0.1:9/a", "status": 404, "headers": []}
    told, history, is_mine, error = ask(place["url"], *[place] * 5, {**place, "status": 499})
    assert told == [[404, "Not Found", 11, total] for total in (3, 7, 5, False, 0)]
    assert history == [0] * 5 and is_mine
    assert error == "499 Client Error:  for url: http://127.0.0.1:9/a"
