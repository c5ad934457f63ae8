"""Responses that an application got wrong: only their request fails, at once, and no frame is one that the daemon rejects.

The daemon ends a worker whose frame it cannot read. `accepted` has its rules (`crates/path/sandbox/src/worker/call.rs`).
"""

from __future__ import annotations

import json
import random
import socket
from collections.abc import Callable
from typing import Any

import pytest
from conftest import Functions, Start
from harness import Stream, http_meta

from pilot_worker.protocol import wire

WSGI = """
import array
class Text(str): pass
class Pair(tuple):
    def _asdict(self): return {"name": self[0]}
def handler(environ, start_response):
    path = environ["PATH_INFO"]
    status, headers, chunks = eval(environ["wsgi.input"].read())
    if path == "/write":
        write = start_response(status, headers)
        for chunk in chunks: write(chunk)
        return []
    start_response(status, headers)
    return chunks if path == "/list" else iter(chunks)
"""

ASGI = """
import array, http
async def handler(scope, receive, send):
    for message in eval((await receive())["body"]):
        await send(message)
"""


def accepted(worker: Stream, stream: int) -> tuple[int, dict[str, str], bytes] | str:
    """The response, or the type of its error. Fails if the daemon would not take a frame."""
    status, headers, body = 0, {}, b""
    while True:
        kind, answered, meta, more = worker.frame()
        assert answered == stream
        if kind == wire.ERROR:
            return str(json.loads(more)["errorType"])
        if kind == wire.HEAD:
            assert not status, "a second HEAD"
            status = meta["status"]
            assert type(status) is int and 100 <= status <= 599, status
            for pair in meta["headers"]:
                assert len(pair) == 2 and all(isinstance(text, str) for text in pair), pair
                "".join(pair).encode()  # the daemon's JSON has no lone surrogates
            headers = dict(meta["headers"])
        else:
            assert kind in (wire.CHUNK, wire.END) and status, kind
        body += more
        if kind == wire.END or "finished_ns" in meta:
            return status, headers, body


def ask(worker: Stream, program: str, path: str = "/") -> tuple[int, dict[str, str], bytes] | str:
    return accepted(worker, worker.ask_http(method="POST", path=path, body=program.encode()))


INVALID = "Function.InvalidResponse"

WSGI_CASES = [
    ('"200 OK", [], ["text"]', "TypeError"),
    ('"200 OK", [], ["te", "xt"]', "TypeError"),
    ('"200 OK", [], [5]', "TypeError"),
    ('"200 OK", [], [bytearray(b"ab")]', (200, {}, b"ab")),
    ('"200 OK", [], [memoryview(b"a-b-")[::2]]', (200, {}, b"ab")),
    ('"200 OK", [], [array.array("H", [0x6161, 0x6262])]', (200, {}, b"aabb")),
    ('"200 OK", [("a", "x" * 300_000)], [b"b"]', INVALID),
    ('"200 OK", [("a", "x" * 300_000)], [b"b", b"c"]', INVALID),
    ('"200 OK", [("a", "x" * 250_000)], [b"b"]', (200, {"a": "x" * 250_000}, b"b")),
    ('"700 X", [], [b"b"]', INVALID),
    ('"20", [], [b"b"]', INVALID),
    ('"-20", [], [b"b"]', INVALID),
    ('"600 X", [], []', INVALID),
    ('"599", [], []', (599, {}, b"")),
    ('"OK", [], [b"b"]', "ValueError"),
    ("200, [], [b'b']", "TypeError"),
    ('"200 OK", [("a", 5)], [b"b"]', INVALID),
    ('"200 OK", [("a", None)], [b"b"]', INVALID),
    ('"200 OK", [(b"a", "b")], [b"b"]', INVALID),
    ('"200 OK", [("a", ["b"])], [b"b"]', INVALID),
    ('"200 OK", [("a", "\\ud800")], [b"b"]', INVALID),
    ('"200 OK", [("a\\udc00", "b")], [b"b"]', INVALID),
    ('"200 OK", [("a", "\\U0001f600 \\\\ud800")], [b"b"]', (200, {"a": "\U0001f600 \\ud800"}, b"b")),
    ('"200 OK", [("a", "b", "c")], [b"b"]', "ValueError"),
    ('"200 OK", [("a",)], [b"b"]', "ValueError"),
    ('"200 OK", [5], [b"b"]', "TypeError"),
    ('"200 OK", None, [b"b"]', "TypeError"),
    ('"200 OK", {"ab": 1}, [b"b"]', (200, {"a": "b"}, b"b")),
    ('"200 OK", (pair for pair in [Pair((Text("a"), Text("b")))]), [b"b"]', (200, {"a": "b"}, b"b")),
]  # fmt: skip


@pytest.mark.parametrize("path", ["/list", "/", "/write"])
def test_what_a_wsgi_application_gets_wrong_is_its_requests_error(start: Start, path: str) -> None:
    worker = start(WSGI, interface="wsgi")
    for program, expected in WSGI_CASES:
        assert ask(worker, program, path) == expected, program


def _asgi(start: str = "'status': 200, 'headers': []", *bodies: str) -> str:
    parts = [f"{{'type': 'http.response.body', {body}}}" for body in bodies or ("'body': b'b'",)]
    return f"[{{'type': 'http.response.start', {start}}}, {', '.join(parts)}]"


def _status(status: str) -> str:
    return _asgi(f"'status': {status}")


def _headers(headers: str) -> str:
    return _asgi(f"'status': 200, 'headers': {headers}")


def _bodies(*bodies: str) -> str:
    return _asgi("'status': 200", *bodies)


ASGI_CASES = [
    *[(_status(status), INVALID) for status in ("600", "999", "0", "-1", "99", "True", "70000", "200.0", "'200'", "None", "10**5000 - 1")],
    (_status("http.HTTPStatus.CREATED"), (201, {}, b"b")),
    (_status("100"), INVALID),
    (_status("102"), INVALID),
    (_status("599"), (599, {}, b"b")),
    (_headers("[(b'a', b'x' * 300_000)]"), INVALID),
    (_asgi("'status': 200, 'headers': [(b'a', b'x' * 300_000)]", "'body': b'b', 'more_body': True", "'body': b'c'"), INVALID),
    *[(_headers(f"[({name!r}, b'b')]"), INVALID) for name in (b"", b"a b", b"a:", b"a\r\nb", b"\xe4", b"(a)")],
    *[(_headers(f"[(b'a', {value!r})]"), INVALID) for value in (b"a\r\nb: c", b"\n", b"\0", b"\x1b")],
    (_headers("[(b'a-B.1', b'\\t\\\"\\\\\\xe4')]"), (200, {"a-B.1": '\t"\\\xe4'}, b"b")),
    (_headers("[('a', 'b')]"), "AttributeError"),
    (_headers("[(b'a', 5)]"), "AttributeError"),
    (_headers("[(b'a', None)]"), "AttributeError"),
    (_headers("[(b'a',)]"), "ValueError"),
    (_headers("[b'a']"), "ValueError"),
    (_headers("{b'a': b'b'}"), "ValueError"),
    (_headers("None"), "TypeError"),
    (_headers("5"), "TypeError"),
    (_headers("((bytearray(b'a'), b'\\xff') for _ in (1,))"), (200, {"a": "\xff"}, b"b")),
    (_bodies("'body': 'text'"), "TypeError"),
    (_bodies("'body': None"), "TypeError"),
    (_bodies("'body': 5"), "TypeError"),
    (_bodies("'body': [1, 2]"), "TypeError"),
    (_bodies("'body': bytearray(b'ab')"), (200, {}, b"ab")),
    (_bodies("'body': memoryview(b'a-b-')[::2]"), (200, {}, b"ab")),
    (_bodies("'body': array.array('H', [0x6161, 0x6262])"), (200, {}, b"aabb")),
    (_bodies("'body': b'a', 'more_body': 'yes'", "'more_body': None"), (200, {}, b"a")),
    (_bodies("'body': b'a', 'more_body': 7", "'body': 'text', 'more_body': []"), "TypeError"),
    ("[{'type': 'http.response.body', 'body': b'b'}]", "RuntimeError"),
    ("[{'type': 5}]", "RuntimeError"),
    ("[{}]", "KeyError"),
    ("[5]", "TypeError"),
]  # fmt: skip


@pytest.mark.parametrize("concurrency", [1, 3])
def test_what_an_asgi_application_gets_wrong_is_its_requests_error(start: Start, concurrency: int) -> None:
    worker = start(ASGI, interface="asgi", concurrency=concurrency)
    for program, expected in ASGI_CASES:
        seen = ask(worker, program)
        # Python does not print a number of more than 4300 digits.
        assert seen == expected or ("10**5000" in program and seen == "ValueError"), program


# Expressions from which responses are put together.
VALUES = [
    "None", "True", "0", "-1", "5", "1.5", "600", "10**30", "''", "'a'", "'200 OK'", "'\\ud800'", "b''", "b'a'", "b'\\xff'",
    "bytearray(b'ab')", "memoryview(b'a-b-')[::2]", "array.array('H', [1, 2])", "'x' * 300_000", "b'x' * 300_000", "[]", "{}", "()",
    "('a', 'b')", "[b'a', b'b']", "{'a': 'b'}", "object()", "iter(())", "float('nan')",
]  # fmt: skip


def _any(rng: random.Random, *usual: str) -> str:
    """Usually what is right."""
    return rng.choice(usual if rng.random() < 0.6 else VALUES)


def _pairs(rng: random.Random, *usual: str) -> str:
    pairs = [f"({_any(rng, *usual)}, {_any(rng, *usual)})" for _ in range(rng.randrange(3))]
    return f"[{', '.join(pairs)}]"


def _some_of_wsgi(rng: random.Random) -> str:
    chunks = [_any(rng, "b'a'", "b'bc'") for _ in range(rng.randrange(3))]
    headers = _any(rng, _pairs(rng, "'a'", "'b'"))
    return f"{_any(rng, repr('200 OK'))}, {headers}, [{', '.join(chunks)}]"


def _some_of_asgi(rng: random.Random) -> str:
    start = f"'status': {_any(rng, '200', '204')}, 'headers': {_any(rng, _pairs(rng, repr(b'a'), repr(b'b')))}"
    bodies = [
        f"'body': {_any(rng, repr(b'a'))}, 'more_body': {_any(rng, 'True')}",
        f"'body': {_any(rng, repr(b'b'))}, 'more_body': {_any(rng, 'False')}",
    ]
    return _asgi(start, *bodies[rng.randrange(2) :])


@pytest.mark.parametrize(
    ("interface", "code", "some", "usual"),
    [
        ("wsgi", WSGI, _some_of_wsgi, "'200 OK', [], [b'b']"),
        ("asgi", ASGI, _some_of_asgi, _bodies("'body': b'b'")),
    ],
)
def test_no_response_of_an_application_is_a_frame_that_the_daemon_rejects(
    functions: Functions, interface: str, code: str, some: Callable[[random.Random], str], usual: str
) -> None:
    worker = functions.worker(code, interface=interface)
    rng = random.Random(20)
    for _ in range(400):
        program, path = some(rng), rng.choice(["/", "/list", "/write"])
        try:
            ask(worker, program, path)
            assert ask(worker, usual) == (200, {}, b"b")
        except Exception as error:
            raise AssertionError(f"{path} {program}") from error
        functions.log.read_now()  # the worker waits if its pipe is full


def test_an_application_may_answer_with_another_response_after_an_invalid_one(start: Start) -> None:
    worker = start(
        """
import sys
def handler(environ, start_response):
    try:
        start_response("200 OK", [("Content-Length", "3"), ("a", "\\ud800")])(b"abc")
    except Exception:
        start_response("500 Oops", [("Content-Length", "5")], sys.exc_info())
    return [b"sorry"]
""",
        interface="wsgi",
    )
    assert accepted(worker, worker.ask_http()) == (500, {"Content-Length": "5"}, b"sorry")


def test_nothing_is_sent_after_the_end_of_a_response(start: Start, functions: Functions) -> None:
    worker = start(
        """
class Chunks(list):
    def close(self): self.write(b"more")
def handler(environ, start_response):
    chunks = Chunks([b"abc"])
    chunks.write = start_response("200 OK", [("Content-Length", "3")])
    return chunks
""",
        interface="wsgi",
    )
    for _ in range(2):
        assert accepted(worker, worker.ask_http()) == (200, {"Content-Length": "3"}, b"abc")
    assert "called write() after" in functions.log.read_now()


WEBSOCKET = """
async def handler(scope, receive, send):
    assert (await receive())["type"] == "websocket.connect"
    await send(eval(scope["query_string"]))
"""


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("'websocket.accept', 'subprotocol': 'chat'", {"sec-websocket-protocol": "chat"}),
        ("'websocket.accept', 'subprotocol': 5", INVALID),
        ("'websocket.accept', 'subprotocol': b'chat'", INVALID),
        ("'websocket.accept', 'subprotocol': chr(0xd800)", INVALID),
        ("'websocket.accept', 'headers': [(b'a', b'x' * 300_000)]", INVALID),
        ("'websocket.accept', 'headers': [(b'a', 5)]", "AttributeError"),
        ("'websocket.http.response.start', 'status': 600", INVALID),
    ],
)
def test_a_handshake_that_an_application_answers_wrongly_is_an_error(start: Start, message: str, expected: Any) -> None:
    worker = start(WEBSOCKET, interface="asgi", concurrency=2)
    ours = shake_hands(worker, query=f"{{'type':{message}}}")
    seen = accepted(worker, 1)
    assert seen == (expected if isinstance(expected, str) else (101, expected, b""))
    ours.close()


def shake_hands(worker: Stream, **meta: Any) -> socket.socket:
    """Sends the handshake of a WebSocket as stream 1. Returns the daemon's end of its messages."""
    ours, theirs = socket.socketpair()
    meta = http_meta(inputs=[{"name": "pilot", "kind": "websocket"}], **meta)
    frame = bytearray(wire.encode(wire.HTTP, 1, json.dumps(meta).encode(), b""))
    frame[13] = 1
    socket.send_fds(worker.socket, [bytes(frame)], [theirs.fileno()])
    theirs.close()
    return ours


# As engineio does, on which python-socketio builds.
LOOKS_AT_HEADERS = """
async def handler(scope, receive, send):
    headers = dict(scope["headers"])
    asks = headers.get(b"upgrade") == b"websocket" and b"upgrade" in headers.get(b"connection", b"").lower()
    given = [(name, value) for name, value in scope["headers"] if name.startswith(b"x-")]
    await send({"type": "websocket.accept" if asks else "websocket.close", "headers": given})
"""


def test_an_application_sees_that_a_handshake_asks_for_a_websocket(start: Start) -> None:
    worker = start(LOOKS_AT_HEADERS, interface="asgi", concurrency=2)
    ours = shake_hands(worker, headers=[["host", "localhost"], ["x-own", "1"]])
    assert accepted(worker, 1) == (101, {"x-own": "1"}, b"")
    ours.close()
