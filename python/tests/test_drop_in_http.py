"""What the drop-in for HTTP clients leaves to the server, and what a response has, with real clients and a server."""

from __future__ import annotations

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest
from conftest import Functions
from test_drop_ins import BODY, BODY_SHA256, SITE_PACKAGES, Ask, asking

from pilot_worker.drop_ins import http

CODE = """
import asyncio, requests, httpx, urllib3

by_requests, by_urllib3, by_httpx = requests.Session(), urllib3.PoolManager(), httpx.Client(follow_redirects=True, verify=False)

def ask(client, method, url, headers=None, body=None):
    if client == "requests":
        answer = by_requests.request(method, url, data=body, headers=headers)
    elif client == "urllib3":
        answer = by_urllib3.request(method, url, body=body, headers=headers)
    elif client == "httpx":
        answer = by_httpx.request(method, url, content=body, headers=headers)
    else:
        async def later():
            async with httpx.AsyncClient(follow_redirects=True, verify=False) as made:
                return await made.request(method, url, content=body, headers=headers)
        answer = asyncio.run(later())
    return "server" if "x-from" in answer.headers else "script"

def cookies(url):
    session = requests.Session()
    answer = session.get(url)
    with httpx.Client() as client:
        client.get(url)
        return dict(answer.cookies), dict(session.cookies), dict(client.cookies), session.get(url.replace("/cookie", "/whoami")).text

def heads(url):
    answers = [requests.head(url), urllib3.request("HEAD", url), httpx.head(url)]
    return [[answer.headers["content-length"], answer.headers["x-pilot-input"]] for answer in answers]

def retried(url):
    host = url.split("/")[2]
    name, port = host.split(":")
    mine = urllib3.Retry(total=3, status_forcelist=[404, 503], backoff_factor=0)
    answers = [
        urllib3.PoolManager(retries=mine).request("GET", url + "/503"),
        urllib3.HTTPConnectionPool(name, int(port), retries=mine).request("GET", "/404"),
        urllib3.HTTPConnectionPool(name, int(port)).request("GET", "/302"),
    ]
    return [[answer.status, "x-from" in answer.headers] for answer in answers]

def handler(event, context):
    name, *arguments = event
    if name != "ask":
        return globals()[name](*arguments)
    return [ask(*call) for call in arguments]
"""
CLIENTS = ["requests", "urllib3", "httpx", "httpx, async"]


class Site(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        text = str(self.headers.get("cookie")).encode()
        self.send_response(200)
        self.send_header("x-from", "server")
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text if self.command != "HEAD" else b"")

    do_POST = do_PUT = do_PATCH = do_DELETE = do_HEAD = do_GET

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def site() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Site)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


@pytest.fixture
def ask(functions: Functions) -> Ask:
    if SITE_PACKAGES is None:
        pytest.skip("drop-ins are not tested with real clients: PILOT_TEST_SITE_PACKAGES is not set")
    return asking(functions.worker(CODE, sys_path=[str(functions.directory), SITE_PACKAGES], drop_ins=["http"]))


def got(url: str, **more: Any) -> dict[str, Any]:
    """The response to a script's request."""
    return {"kind": "http", "method": "GET", "url": url, "status": 200, "headers": [], **more}


def test_cookies_of_an_answer_are_the_clients(ask: Ask, site: str) -> None:
    answer = got(f"{site}/cookie", headers=[["set-cookie", "session=abc123; Path=/"], ["set-cookie", "b=1; Path=/"]])
    mine = {"session": "abc123", "b": "1"}
    *kept, sent = ask(["cookies", answer["url"]], answer, answer)
    assert kept == [mine] * 3 and sorted(sent.split("; ")) == ["b=1", "session=abc123"]


def test_an_answer_to_head_has_the_length_that_the_server_said(ask: Ask, site: str) -> None:
    answer = got(f"{site}/a", method="HEAD", headers=[["content-length", "1234"]])
    assert ask(["heads", answer["url"]], answer, answer, answer) == [["1234", f"i{at}"] for at in range(3)]


def test_what_a_client_follows_or_retries_is_asked_of_the_server(ask: Ask, site: str) -> None:
    answers = [got(f"{site}/{status}", status=status, headers=[["location", "/new"]]) for status in (302, 404, 503)]
    assert ask(["retried", site], *answers) == [[200, True]] * 3


@pytest.mark.parametrize("client", CLIENTS)
def test_redirects_and_failures_are_no_answers(ask: Ask, site: str, client: str) -> None:
    for status in (302, 304, 408, 413, 425, 429, 500, 503):
        # The script's own second attempt is one.
        answers = [got(f"{site}/a", status=status), got(f"{site}/a")]
        assert ask(["ask", [client, "GET", f"{site}/a"], [client, "GET", f"{site}/a"]], *answers) == ["script", "server"], (
            status
        )
    later = got(f"{site}/a", status=404, headers=[["retry-after", "1"]])
    assert ask(["ask", [client, "GET", f"{site}/a"]], later) == ["server"]


@pytest.mark.parametrize("client", CLIENTS)
def test_what_the_function_has_written_is_asked_of_the_server(ask: Ask, site: str, client: str) -> None:
    for written, read in [
        ("/item", "/item"),
        ("/item?x=1", "/item?y=2"),
        ("/items/1", "/items"),
        ("/items", "/items/1?x"),
        ("/items/1", ""),
    ]:
        for method in ("PUT", "POST", "PATCH", "DELETE"):
            for by in CLIENTS:
                calls = [[by, method, site + written, None, "new"], [client, "GET", site + read]]
                assert ask(["ask", *calls], got(site + read)) == ["server", "server"], (method, written, read, by)
    # Something else, another server, and what is the effect of a script's own request, stay.
    task = got(f"{site}/items", method="POST", body_sha256=BODY_SHA256)
    calls = [
        [client, "POST", f"{site}/items", None, "another"],
        [client, "GET", f"{site}/item"],
        [client, "GET", "http://127.0.0.1:9/items"],
        [client, "POST", f"{site}/items", None, BODY],
    ]
    stay = [got(f"{site}/item"), got("http://127.0.0.1:9/items"), task]
    assert ask(["ask", *calls], *stay) == ["server", "script", "script", "script"]


#: Headers of a client and of its script, and who answers.
HEADERS: list[tuple[dict[str, str], dict[str, str], str]] = [
    ({"X-Api-Key": "k1"}, {}, "server"),
    ({"X-Api-Key": "k1"}, {"x-api-key": "k1"}, "script"),
    ({"X-Api-Key": "k1"}, {"x-api-key": "k2"}, "server"),
    ({}, {"x-api-key": "k1"}, "server"),
    ({"Authorization": "Bearer x"}, {"authorization": "Bearer x"}, "script"),
    ({"Accept": "application/xml"}, {}, "server"),
    ({"Accept": "application/xml"}, {"accept": "application/xml"}, "script"),
    (
        {"Accept": "*/*", "Connection": "close", "User-Agent": "me", "Accept-Encoding": "gzip", "traceparent": "00"},
        {},
        "script",
    ),
    ({}, {"accept": "application/xml"}, "server"),
    ({"Accept-Language": "de"}, {}, "server"),
    ({"Cache-Control": "no-cache"}, {}, "server"),
    ({"Cache-Control": "no-store"}, {}, "server"),
    ({"Pragma": "no-cache"}, {}, "server"),
    ({"Cookie": "a=b"}, {}, "server"),
    ({"Range": "bytes=0-1"}, {}, "server"),
    ({"Content-Type": "text/csv"}, {}, "script"),
    ({"Host": "another.example"}, {}, "server"),
]


@pytest.mark.parametrize("client", CLIENTS)
def test_headers_that_may_decide_are_compared(ask: Ask, site: str, client: str) -> None:
    for asked, sent, by in HEADERS:
        answer = got(f"{site}/a", request_headers=[[name, value] for name, value in sent.items()])
        assert ask(["ask", [client, "GET", f"{site}/a", asked]], answer) == [by], (asked, sent)


@pytest.mark.parametrize("client", CLIENTS)
def test_of_two_answers_that_with_the_same_headers_is_taken(ask: Ask, site: str, client: str) -> None:
    answers = [got(f"{site}/a", request_headers=[["x-api-key", key]]) for key in ("k1", "k2")]
    calls = [[client, "GET", f"{site}/a", {"X-Api-Key": key}] for key in ("k2", "k2", "k1")]
    assert ask(["ask", *calls], *answers) == ["script", "server", "script"]


@pytest.mark.parametrize("client", CLIENTS)
def test_the_type_of_a_body_is_compared(ask: Ask, site: str, client: str) -> None:
    def call(kind: str) -> list[Any]:
        return [client, "POST", f"{site}/a", {"Content-Type": kind} if kind else {}, BODY]

    for sent, asked, by in [
        ("", "", "script"),
        ("text/plain", "", "script"),
        ("application/json", "application/json; charset=UTF-8", "script"),
        ("", "application/json", "server"),
        ("application/json", "", "server"),
    ]:
        headers = [["content-type", sent]] if sent else []
        answer = got(f"{site}/a", method="POST", body_sha256=BODY_SHA256, request_headers=headers)
        assert ask(["ask", call(asked)], answer) == [by], (sent, asked)


@pytest.mark.parametrize(
    ("vary", "asked", "sent", "is_same"),
    [
        ("Accept-Encoding, Origin", {"accept-encoding": "gzip"}, {}, True),
        ("*", {}, {}, False),
        ("User-Agent", {}, {}, False),  # what the client adds is not known
        ("user-agent", {"user-agent": "a"}, {"user-agent": "b"}, False),
        ("user-agent", {"user-agent": "a"}, {"user-agent": "a"}, True),
        ("accept", {"accept": "*/*"}, {}, True),
        ("X-Tenant", {}, {}, True),
    ],
)
def test_what_the_response_varies_by_is_compared(vary: str, asked: dict[str, str], sent: dict[str, str], is_same: bool) -> None:
    store = got("http://here/a", headers=[["vary", vary]], request_headers=[[name, value] for name, value in sent.items()])
    assert (http._is_answer(store) and http._is_same(asked, store, has_body=False)) is is_same
