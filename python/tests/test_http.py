"""ASGI and WSGI applications: scopes, streaming, errors, lifespan, concurrency."""

from __future__ import annotations

import json
import os
from urllib.parse import unquote, unquote_to_bytes

import pytest
from conftest import Functions, Start

from pilot_worker.protocol import wire

ASGI = """
import json, asyncio
async def handler(scope, receive, send):
    if scope["type"] == "lifespan":
        raise NotImplementedError
    path = scope["path"].removeprefix(scope["root_path"])
    start = {"type": "http.response.start", "status": 201, "headers": [(b"x-a", b"1"), (b"x-b", b"2")]}
    if path == "/scope":
        body = await receive()
        after = asyncio.ensure_future(receive())
        seen = {key: value.decode() if isinstance(value, bytes) else value for key, value in scope.items()
                if key in ("method", "path", "raw_path", "query_string", "root_path", "client", "server", "scheme", "http_version")}
        seen["headers"] = [[name.decode(), value.decode()] for name, value in scope["headers"]]
        seen["body"] = body["body"].decode()
        seen["more"] = body["more_body"]
        await send(start)
        await send({"type": "http.response.body", "body": json.dumps(seen).encode()})
        assert (await after)["type"] == "http.disconnect"
    elif path == "/stream":
        await send(start)
        for n in range(3):
            await send({"type": "http.response.body", "body": b"%d" % n, "more_body": True})
        await send({"type": "http.response.body"})
    elif path == "/large":
        await send(start)
        await send({"type": "http.response.body", "body": b"x" * 5_000_000})
    elif path == "/early":
        raise ValueError("early")
    elif path == "/late":
        await send(start)
        await send({"type": "http.response.body", "body": b"so far", "more_body": True})
        raise ValueError("late")
    elif path == "/none":
        pass
    elif path == "/after":
        await send(start)
        await send({"type": "http.response.body", "body": b"done"})
        raise ValueError("afterwards")
"""


def test_asgi_gets_a_scope_and_answers_in_one_piece(start: Start) -> None:
    worker = start(ASGI, interface="asgi")
    status, headers, body, frames = worker.http(
        path="/%73cope", query="a=%20", method="PUT", body=b"in", headers=[["host", "h:81"], ["x", "1"]]
    )
    assert (status, headers, frames) == (201, {"x-a": "1", "x-b": "2"}, 1)
    assert json.loads(body) == {
        "method": "PUT", "path": "/fn/test/scope", "raw_path": "/fn/test/%73cope", "query_string": "a=%20",
        "root_path": "/fn/test", "client": ["127.0.0.1", 40000], "server": ["h", 81], "scheme": "http", "http_version": "1.1",
        "headers": [["host", "h:81"], ["x", "1"]], "body": "in", "more": False,
    }  # fmt: skip


@pytest.mark.parametrize("concurrency", [1, 4])
def test_asgi_streams(start: Start, concurrency: int) -> None:
    worker = start(ASGI, interface="asgi", concurrency=concurrency)
    stream = worker.ask_http(path="/stream")
    frames = [worker.frame() for _ in range(4)]
    assert [(kind, body) for kind, _, _, body in frames] == [
        (wire.HEAD, b"0"),
        (wire.CHUNK, b"1"),
        (wire.CHUNK, b"2"),
        (wire.END, b""),
    ]
    assert {frame[1] for frame in frames} == {stream}
    pieces = -(-5_000_000 // wire.PIECE_LEN_MAX)
    assert worker.http(path="/large")[2:] == (b"x" * 5_000_000, pieces), "a long body in pieces"


def test_asgi_errors_end_their_stream_only(start: Start, functions: Functions) -> None:
    worker = start(ASGI, interface="asgi")
    for path, kinds, error in [
        ("/early", [wire.ERROR], "ValueError"),
        ("/late", [wire.HEAD, wire.ERROR], "ValueError"),
        ("/none", [wire.ERROR], "Runtime.IncompleteResponse"),
    ]:
        worker.ask_http(path=path)
        frames = [worker.frame() for _ in kinds]
        assert [frame[0] for frame in frames] == kinds
        assert json.loads(frames[-1][3])["errorType"] == error
    assert worker.http(path="/after")[2] == b"done"
    assert worker.error({})["errorType"] == "Runtime.BadRequest"
    assert "afterwards" in functions.log.read_now()


LIFESPAN = """
import os
async def handler(scope, receive, send):
    if scope["type"] == "lifespan":
        assert (await receive())["type"] == "lifespan.startup"
        scope["state"]["pid"] = os.getpid()
        await send({"type": "lifespan.startup.%s", "message": "no database"})
        assert (await receive())["type"] == "lifespan.shutdown"
        print("stopped")
        await send({"type": "lifespan.shutdown.complete"})
        return
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": str(scope["state"]["pid"] == os.getpid()).encode()})
"""


def test_asgi_lifespan_runs_in_the_worker(functions: Functions) -> None:
    template = functions.template(LIFESPAN % "complete", interface="asgi")
    worker = template.worker(log=functions.log.write_fd)
    worker.ready()
    assert worker.http()[2] == b"True"
    worker.close()
    assert Functions.exit_of(template, 1) == {"code": 0}
    assert functions.log.read_now() == "stopped\n"


def test_a_failed_lifespan_startup_is_an_init_error(functions: Functions) -> None:
    worker = functions.template(LIFESPAN % "failed", interface="asgi").worker()
    kind, _, _, body = worker.frame()
    assert kind == wire.INIT_ERROR
    assert json.loads(body)["errorMessage"] == "no database"


def test_an_application_that_does_not_look_at_its_scope_ends_at_its_first_message_of_the_lifespan(functions: Functions) -> None:
    worker = functions.worker(
        """
async def handler(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    print("works for", scope["type"])
    await send({"type": "http.response.body", "body": b"done"})
""",
        interface="asgi",
    )
    assert worker.http()[2] == b"done"
    assert functions.log.read_now() == "works for http\n"


def test_asgi_requests_run_at_once(start: Start) -> None:
    worker = start(
        """
import asyncio
here, met = [], None
async def handler(scope, receive, send):
    assert scope["type"] == "http"
    global met
    met = met or asyncio.Event()
    here.append(1)
    if len(here) == 3: met.set()
    await met.wait()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for n in range(40):
        await send({"type": "http.response.body", "body": scope["path"].encode() * 5000, "more_body": True})
    await send({"type": "http.response.body"})
""",
        interface="asgi",
        concurrency=3,
    )
    asked = {worker.ask_http(path=f"/{n}"): f"/fn/test/{n}".encode() * 200_000 for n in range(3)}
    bodies = dict.fromkeys(asked, b"")
    ends = 0
    while ends < 3:  # the worker has filled the socket and continues while we read
        kind, stream, _, body = worker.frame()
        bodies[stream] += body
        ends += kind == wire.END
    assert bodies == asked


ECHO_ASGI = """
import json
async def handler(scope, receive, send):
    seen = {key: list(value) if isinstance(value, bytes) else value for key, value in scope.items()
            if key in ("path", "raw_path", "query_string", "root_path", "server")}
    await send({"type": "http.response.start", "status": 200})
    await send({"type": "http.response.body", "body": json.dumps(seen).encode()})
"""


WSGI = """
import json, sys
def handler(environ, start_response):
    path = environ["PATH_INFO"]
    if path == "/environ":
        seen = {key: value for key, value in environ.items() if isinstance(value, str)}
        seen["body"] = environ["wsgi.input"].read().decode()
        body = json.dumps(seen).encode()
        start_response("200 OK", [("Content-Length", str(len(body)))])
        return [body]
    if path == "/stream":
        def parts():
            try:
                yield b"a"; yield b""; yield b"b"
            finally:
                print("closed")
        start_response("202 Accepted", [])
        return parts()
    if path == "/write":
        start_response("200 OK", [])(b"written")
        return [b"returned"]
    if path == "/empty":
        start_response("204 No Content", [])
        return []
    if path == "/early":
        raise ValueError("early")
    if path == "/late":
        start_response("200 OK", [])
        def parts():
            yield b"a"
            raise ValueError("late")
        return parts()
    if path == "/replaced":
        start_response("200 OK", [])
        try:
            raise ValueError("replaced")
        except ValueError:
            start_response("500 Oops", [], sys.exc_info())
        return [b"sorry"]
    if path == "/exit":
        sys.exit(9)
"""


def test_wsgi_gets_an_environ_and_answers_in_one_piece(start: Start) -> None:
    worker = start(WSGI, interface="wsgi")
    headers = [
        ["host", "h:81"],
        ["content-type", "text/plain"],
        ["x-a", "1"],
        ["x-a", "2"],
        ["cookie", "a=1"],
        ["cookie", "b=2"],
    ]
    status, _, body, frames = worker.http(path="/%65nviron", query="q", method="POST", body=b"in", headers=headers)
    seen = json.loads(body)
    assert (status, frames) == (200, 1)
    expected = {
        "REQUEST_METHOD": "POST", "SCRIPT_NAME": "/fn/test", "PATH_INFO": "/environ", "QUERY_STRING": "q", "CONTENT_LENGTH": "2",
        "CONTENT_TYPE": "text/plain", "HTTP_X_A": "1,2", "HTTP_COOKIE": "a=1; b=2", "SERVER_NAME": "h", "SERVER_PORT": "81",
        "REMOTE_ADDR": "127.0.0.1", "wsgi.url_scheme": "http", "body": "in",
    }  # fmt: skip
    assert {key: seen[key] for key in expected} == expected


def test_wsgi_leaves_out_headers_with_an_underscore_in_their_name(start: Start) -> None:
    worker = start(WSGI, interface="wsgi")
    headers = [
        ["x-forwarded-for", "1.1.1.1"], ["x_forwarded_for", "2.2.2.2"], ["content-type", "text/plain"], ["content_type", "text/html"],
        ["content_length", "99"], ["x_own", "1"], ["x-own_er", "2"],
    ]  # fmt: skip
    for given in (headers, headers[::-1]):
        seen = json.loads(worker.http(path="/environ", headers=given)[2])
        assert {key: value for key, value in seen.items() if key.startswith(("HTTP_", "CONTENT_"))} == {
            "HTTP_X_FORWARDED_FOR": "1.1.1.1", "CONTENT_TYPE": "text/plain", "CONTENT_LENGTH": "0",
        }  # fmt: skip


HOSTS = [
    ("h", "h", 80), ("h:81", "h", 81), ("[::1]", "[::1]", 80), ("[::1]:81", "[::1]", 81), ("", "localhost", 80), (None, "localhost", 80),
    (":81", "localhost", 81), ("h:", "h", 80), (":", "localhost", 80), ("h:x", "h", 80), ("h:\xb2", "h", 80), ("h:" + "9" * 5000, "h", 80),
]  # fmt: skip


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_the_name_of_the_server_is_that_of_the_host_header_and_never_empty(start: Start, scheme: str) -> None:
    wsgi, asgi = start(WSGI, interface="wsgi"), start(ECHO_ASGI, interface="asgi")
    for host, name, number in HOSTS:
        port = 443 if number == 80 and scheme == "https" else number
        headers = [] if host is None else [["host", host]]
        seen = json.loads(wsgi.http(path="/environ", headers=headers, scheme=scheme)[2])
        assert (seen["SERVER_NAME"], seen["SERVER_PORT"], seen.get("HTTP_HOST")) == (name, str(port), host), host
        assert json.loads(asgi.http(headers=headers, scheme=scheme)[2])["server"] == [name, port], host


ONE_CHUNK = """
class Chunks(list):
    def __len__(self):
        return 1
BODIES = {"list": [b"ab"], "tuple": (b"ab",), "own": Chunks([b"a", b"b"]), "two": [b"a", b"b"], "empty": [b""]}
def handler(environ, start_response):
    start_response("200 OK", [])
    return BODIES[environ["QUERY_STRING"]]
"""


def test_a_body_of_one_chunk_is_sent_with_its_head(start: Start) -> None:
    """PEP 3333: a server may know the length of such a body. A class may say anything about its own."""
    worker = start(ONE_CHUNK, interface="wsgi")
    seen = {kind: worker.http(query=kind)[2:4] for kind in ("list", "tuple", "own", "two", "empty")}
    assert seen == {"list": (b"ab", 1), "tuple": (b"ab", 1), "own": (b"ab", 3), "two": (b"ab", 3), "empty": (b"", 1)}


@pytest.mark.parametrize(("query", "uri"), [("", "/fn/test/%65nviron"), ("q=%20&a", "/fn/test/%65nviron?q=%20&a")])
def test_the_request_uri_of_wsgi_is_what_the_client_sent(start: Start, query: str, uri: str) -> None:
    worker = start(WSGI, interface="wsgi")
    assert json.loads(worker.http(path="/%65nviron", query=query)[2])["REQUEST_URI"] == uri


@pytest.mark.parametrize(
    ("path", "query"), [("/é", "q=é"), ("/%C3%A9", "q=%C3%A9"), ("/😀/%20", "q=😀&é"), ("/é%FF", ""), ("/a", "ÿ=\u0100")]
)
def test_an_application_gets_the_bytes_of_a_path_and_query_that_are_not_ascii(start: Start, path: str, query: str) -> None:
    """The daemon's text is the client's bytes as UTF-8."""
    root = "/fn/ü%3A1"
    target = f"{root}{path}?{query}" if query else root + path
    worker = start(ECHO_ASGI, interface="asgi")
    scope = json.loads(worker.http(path=path, query=query, root_path=root)[2])
    assert scope == {
        "raw_path": list((root + path).encode()), "query_string": list(query.encode()),
        "path": unquote(root + path), "root_path": "/fn/ü:1", "server": ["localhost", 80],
    }  # fmt: skip
    worker = start(WSGI.replace('"/environ"', 'environ["PATH_INFO"]'), interface="wsgi")
    seen = json.loads(worker.http(path=path, query=query, root_path=root)[2])
    assert {key: seen[key].encode("latin-1") for key in ("SCRIPT_NAME", "PATH_INFO", "QUERY_STRING", "REQUEST_URI")} == {
        "SCRIPT_NAME": "/fn/ü:1".encode(), "PATH_INFO": unquote_to_bytes(path),
        "QUERY_STRING": query.encode(), "REQUEST_URI": target.encode(),
    }  # fmt: skip


def test_the_root_path_of_asgi_is_decoded_and_begins_the_path(start: Start) -> None:
    worker = start(ECHO_ASGI, interface="asgi")
    for path in ("/hello", "/%68ello"):
        scope = json.loads(worker.http(path=path, root_path="/fn/star%3A1")[2])
        assert (scope["root_path"], scope["path"]) == ("/fn/star:1", "/fn/star:1/hello")
        assert bytes(scope["raw_path"]).decode() == "/fn/star%3A1" + path


@pytest.mark.parametrize("concurrency", [1, 2])
def test_wsgi_streams_and_reports_errors(start: Start, functions: Functions, concurrency: int) -> None:
    worker = start(WSGI, interface="wsgi", concurrency=concurrency)
    worker.ask_http(path="/stream")
    assert [worker.frame()[::3] for _ in range(3)] == [(wire.HEAD, b"a"), (wire.CHUNK, b"b"), (wire.END, b"")]
    assert worker.http(path="/write")[2] == b"writtenreturned"
    assert worker.http(path="/empty")[:3] == (204, {}, b"")
    assert worker.http(path="/replaced")[:3:2] == (500, b"sorry")
    worker.ask_http(path="/early")
    assert worker.frame()[0] == wire.ERROR
    worker.ask_http(path="/late")
    assert [worker.frame()[0] for _ in range(2)] == [wire.HEAD, wire.ERROR]
    assert "closed" in functions.log.read_now()
    worker.ask_http(path="/exit")
    assert worker.is_closed()


SHORT_WSGI = """
def handler(environ, start_response):
    status = environ["QUERY_STRING"] or "200 OK"
    start_response(status, [("Content-Length", "6")])
    bodies = {"/whole": [b"abc", b"def"], "/short": iter([b"abc"]), "/one": [b"abc"], "/empty": []}
    return bodies[environ["PATH_INFO"]]
"""

SHORT_ASGI = """
async def handler(scope, receive, send):
    status = int(scope["query_string"][:3] or 200)
    parts = {"/whole": [b"abc", b"def"], "/short": [b"abc", b""], "/empty": [b""]}[scope["path"].removeprefix(scope["root_path"])]
    await send({"type": "http.response.start", "status": status, "headers": [(b"Content-Length", b"6")]})
    for part in parts[:-1]:
        await send({"type": "http.response.body", "body": part, "more_body": True})
    await send({"type": "http.response.body", "body": parts[-1]})
"""


@pytest.mark.parametrize(("interface", "code"), [("wsgi", SHORT_WSGI), ("asgi", SHORT_ASGI)])
def test_a_body_that_is_shorter_than_its_content_length_never_looks_complete(start: Start, interface: str, code: str) -> None:
    worker = start(code, interface=interface)
    assert worker.http(path="/whole")[2] == b"abcdef"
    worker.ask_http(path="/short")
    assert worker.frame()[::3] == (wire.HEAD, b"abc")
    kind, _, _, body = worker.frame()
    assert kind == wire.ERROR
    assert json.loads(body)["errorType"] == "Runtime.IncompleteResponse" and b"has 3 bytes, and its Content-Length is 6" in body
    for path in ("/empty", "/one")[: 2 if interface == "wsgi" else 1]:
        worker.ask_http(path=path)
        assert worker.frame()[0] == wire.ERROR
    assert worker.http(path="/empty", method="HEAD")[::2] == (200, b"")
    assert worker.http(path="/empty", query="304 Not Modified")[0] == 304


@pytest.mark.skipif(
    "PILOT_TEST_SITE_PACKAGES" not in os.environ, reason="needs starlette and flask in PILOT_TEST_SITE_PACKAGES"
)
def test_the_frameworks_people_use_are_served(functions: Functions) -> None:
    site = os.environ["PILOT_TEST_SITE_PACKAGES"]
    functions.write("""
from starlette.applications import Starlette
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route
async def hello(request): return JSONResponse({"url": str(request.url), "q": request.query_params["q"]})
def stream(request): return StreamingResponse(iter(["a", "b"]))
handler = Starlette(routes=[Route("/hello", hello), Route("/stream", stream)])
""")
    worker = functions.worker(
        (functions.directory / "app.py").read_text(), interface="asgi", sys_path=[str(functions.directory), site]
    )
    status, _, body, frames = worker.http(path="/hello", query="q=1")
    assert (status, json.loads(body), frames) == (200, {"url": "http://localhost/fn/test/hello?q=1", "q": "1"}, 1)
    assert worker.http(path="/stream")[2] == b"ab"
    assert worker.http(path="/nowhere")[0] == 404
    assert worker.http(path="/hello", query="q=1", root_path="/fn/star%3A1")[0] == 200
    worker = functions.worker(
        "import flask\nhandler = flask.Flask('x')\n@handler.get('/hello')\ndef hello(): return flask.request.url\n",
        interface="wsgi",
        sys_path=[str(functions.directory), site],
    )
    assert worker.http(path="/hello")[::2] == (200, b"http://localhost/fn/test/hello")
