"""Responses of a worker that serves several at once: their windows, and clients that hang up."""

from __future__ import annotations

import json
import socket
import time

import pytest
from conftest import Functions, Start
from harness import Stream, http_meta

from pilot_worker.protocol import flow, wire

# A response of PATH pieces of 64 KiB. `/0` says what has become of the others.
ASGI = """
import asyncio, json
seen = {}
async def handler(scope, receive, send):
    assert scope["type"] == "http"
    number = int(scope["path"].rpartition("/")[2])
    how = scope["query_string"].decode()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    if number == 0:
        await send({"type": "http.response.body", "body": json.dumps(seen).encode()})
        return
    if how == "listens":
        await receive()
        assert (await receive())["type"] == "http.disconnect"
        seen[how] = "disconnected"
        return
    try:
        if how == "large":
            await send({"type": "http.response.body", "body": b"x" * number * 65536})
            return
        for _ in range(number):
            await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})
            if how == "slow":
                await asyncio.sleep(0.01)
        await send({"type": "http.response.body"})
    except BaseException as error:
        seen[how] = type(error).__name__
        raise
    finally:
        seen.setdefault(how, "ended")
"""
WSGI = """
import json
seen = {}
def handler(environ, start_response):
    number, how = int(environ["PATH_INFO"][1:]), environ["QUERY_STRING"]
    write = start_response("200 OK", [])
    if number == 0:
        return [json.dumps(seen).encode()]
    if how == "large":
        return [b"x" * number * 65536]
    if how == "write":
        try:
            for _ in range(number):
                write(b"x" * 65536)
        except BaseException as error:
            seen[how] = type(error).__name__
            raise
        return []
    return parts(number, how)

def parts(number, how):
    try:
        for _ in range(number):
            yield b"x" * 65536
    except GeneratorExit:
        seen[how] = "closed"
    finally:
        seen.setdefault(how, "ended")
"""
APPLICATIONS = {"asgi": ASGI, "wsgi": WSGI}


def concurrent(start: Start, interface: str, **changes: object) -> Stream:
    worker = start(APPLICATIONS[interface], interface=interface, concurrency=4, **changes)
    worker.makes_room = False
    return worker


def seen_by(worker: Stream, how: str) -> str:
    """What has become of a response."""
    until = time.monotonic() + 10
    while time.monotonic() < until:
        seen = json.loads(worker.http(path="/0")[2])
        if how in seen:
            return str(seen[how])
        time.sleep(0.02)
    raise AssertionError(f"the response has no end: {how}")


def take(worker: Stream, stream: int, pieces: int) -> None:
    for number in range(pieces):
        kind, answered, _, body = worker.frame()
        assert (kind, answered, len(body)) == (wire.CHUNK if number else wire.HEAD, stream, 65536)


@pytest.mark.parametrize("how", ["", "large", "write"])
@pytest.mark.parametrize("interface", APPLICATIONS)
def test_a_response_waits_for_room_and_holds_up_no_other_one(start: Start, interface: str, how: str) -> None:
    worker = concurrent(start, interface)
    fits = wire.WINDOW_LEN // 65536
    stream = worker.ask_http(path="/12", query=how)
    take(worker, stream, fits)
    assert worker.http(path="/0")[2] == b"{}"  # the next frame is not of the first response
    worker.make_room(stream, wire.WINDOW_LEN)
    worker.make_room(stream + 100, 1)  # a response that is over
    for _ in range(fits):
        assert worker.frame()[:2] == (wire.CHUNK, stream)
    assert worker.http(path="/0")[2] == b"{}"
    worker.makes_room = True
    worker.make_room(stream, wire.WINDOW_LEN)
    kind, length = wire.CHUNK, 2 * fits * 65536
    while kind == wire.CHUNK:
        kind, answered, _, body = worker.frame()
        assert answered == stream
        length += len(body)
    assert (kind, length) == (wire.END, 12 * 65536)


@pytest.mark.parametrize(
    ("interface", "how", "end"),
    [
        ("asgi", "", "ClientGone"),
        ("asgi", "slow", "ClientGone"),
        ("asgi", "listens", "disconnected"),
        ("wsgi", "", "closed"),
        ("wsgi", "write", "ClientGone"),
    ],
)
def test_an_application_ends_when_its_client_has_gone(
    start: Start, functions: Functions, interface: str, how: str, end: str
) -> None:
    worker = concurrent(start, interface)
    other = worker.ask_http(path="/9", query="other")
    take(worker, other, 4)
    stream = worker.ask_http(path="/1000", query=how)
    if how != "listens":
        take(worker, stream, 4)
    worker.cancel(stream)
    begun = time.monotonic()
    while (frame := worker.frame())[0] != wire.END:
        assert frame[1] == stream
    assert frame[1] == stream
    assert time.monotonic() - begun < 5
    worker.cancel(stream)  # the daemon may not know yet that it is over
    assert seen_by(worker, how) == end
    assert functions.log.read_now() == "", "the application has done nothing wrong"
    # The other one goes on.
    worker.makes_room = True
    worker.make_room(other, wire.WINDOW_LEN)
    while (frame := worker.frame())[0] == wire.CHUNK:
        assert frame[1] == other


# A request to `/sub` leaves its `send`, and gets its head. One to `/pub` sends there until that fails.
ASGI_BROADCAST = """
import asyncio
subscribers = []
async def publish():
    while True:
        await subscribers[0]({"type": "http.response.body", "body": b"news", "more_body": True})
async def handler(scope, receive, send):
    assert scope["type"] in ("http", "websocket")
    start = {"type": "http.response.start", "status": 200, "headers": []}
    first = {"type": "http.response.body", "body": b"first half", "more_body": True}
    if scope["type"] == "websocket":
        await send({"type": "websocket.accept"})
        await publish()
    if scope["path"].endswith("/sub"):
        subscribers.append(send)
        await send(start)
        await send(first)
        await asyncio.sleep(60)
    if scope["query_string"] == b"begun":
        await send(start)
        await send(first)
    await publish()
"""
WSGI_BROADCAST = """
import time
subscribers = []
def handler(environ, start_response):
    write = start_response("200 OK", [])
    if environ["PATH_INFO"] == "/sub":
        subscribers.append(write)
        write(b"first half")
        time.sleep(60)
    if environ["QUERY_STRING"] == "begun":
        write(b"first half")
    while True:
        subscribers[0](b"news")
"""


@pytest.mark.parametrize("how", ["", "begun"])
@pytest.mark.parametrize(("interface", "source"), [("asgi", ASGI_BROADCAST), ("wsgi", WSGI_BROADCAST)])
def test_a_client_that_has_gone_ends_no_response_of_another(
    start: Start, functions: Functions, interface: str, source: str, how: str
) -> None:
    worker = start(source, interface=interface, concurrency=4)
    subscriber = worker.ask_http(path="/sub")
    assert worker.frame()[:2] == (wire.HEAD, subscriber)
    worker.cancel(subscriber)
    stream = worker.ask_http(path="/pub", query=how)
    if how == "begun":
        assert worker.frame()[:2] == (wire.HEAD, stream)
    kind, answered, _, body = worker.frame()
    assert (kind, answered) == (wire.ERROR, stream)
    assert json.loads(body)["errorType"] == "ClientGone"
    assert "the client has hung up" in functions.log.read_now()


def test_a_response_that_ends_lets_go_who_waits_for_its_room(start: Start) -> None:
    worker = start(
        """
import asyncio
subscribers = []
async def handler(scope, receive, send):
    assert scope["type"] == "http"
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"first", "more_body": True})
    if scope["path"].endswith("/sub"):
        waits = asyncio.Event()
        subscribers.append((send, waits))
        await waits.wait()
        await asyncio.sleep(0)
        raise ValueError("it ends")
    send, waits = subscribers[0]
    for _ in range(3):
        await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})
    waits.set()
    await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})
    await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})
""",
        interface="asgi",
        concurrency=4,
    )
    worker.makes_room = False
    subscriber = worker.ask_http(path="/sub")
    assert worker.frame()[:2] == (wire.HEAD, subscriber)
    stream = worker.ask_http(path="/pub")
    assert worker.frame()[:2] == (wire.HEAD, stream)
    for _ in range(4):
        assert worker.frame()[:2] == (wire.CHUNK, subscriber)
    ends = {answered: (kind, body) for kind, answered, _, body in (worker.frame(), worker.frame())}
    assert ends[subscriber][0] == wire.ERROR
    kind, body = ends[stream]
    assert kind == wire.ERROR
    assert "after its response was complete" in json.loads(body)["errorMessage"]


def test_a_thread_that_waits_for_the_room_of_a_response_is_let_go_when_it_ends(start: Start) -> None:
    worker = start(
        """
import threading
subscribers = []
def handler(environ, start_response):
    write = start_response("200 OK", [])
    write(b"first")
    if environ["PATH_INFO"] == "/sub":
        fails = threading.Event()
        subscribers.append((write, fails))
        fails.wait()
        raise ValueError("it ends")
    write, fails = subscribers[0]
    threading.Timer(0.3, fails.set).start()
    for _ in range(9):
        write(b"x" * 65536)
    return []
""",
        interface="wsgi",
        concurrency=4,
    )
    worker.makes_room = False
    subscriber = worker.ask_http(path="/sub")
    assert worker.frame()[:2] == (wire.HEAD, subscriber)
    stream = worker.ask_http(path="/pub")
    assert worker.frame()[:2] == (wire.HEAD, stream)
    for _ in range(4):
        assert worker.frame()[:2] == (wire.CHUNK, subscriber)
    ends = {answered: (kind, body) for kind, answered, _, body in (worker.frame(), worker.frame())}
    assert ends[subscriber][0] == wire.ERROR
    kind, body = ends[stream]
    assert kind == wire.ERROR
    assert "after its response was complete" in json.loads(body)["errorMessage"]


def test_a_client_that_has_gone_ends_no_websocket_of_another(start: Start) -> None:
    worker = start(ASGI_BROADCAST, interface="asgi", concurrency=4)
    subscriber = worker.ask_http(path="/sub")
    assert worker.frame()[:2] == (wire.HEAD, subscriber)
    worker.cancel(subscriber)
    ours, theirs = socket.socketpair()
    stream = subscriber + 1
    meta = http_meta(inputs=[{"name": "pilot", "kind": "websocket"}])
    frame = bytearray(wire.encode(wire.HTTP, stream, json.dumps(meta).encode(), b""))
    frame[13] = 1  # descriptors
    socket.send_fds(worker.socket, [bytes(frame)], [theirs.fileno()])
    theirs.close()
    assert worker.frame()[:2] == (wire.HEAD, stream)
    assert worker.frame()[:2] == (wire.ERROR, stream)
    ours.close()


def test_tasks_that_send_parts_of_one_response_all_wait_for_room(start: Start) -> None:
    worker = start(
        """
import asyncio
async def handler(scope, receive, send):
    assert scope["type"] == "http"
    await send({"type": "http.response.start", "status": 200, "headers": []})
    async def part():
        await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})
    await asyncio.gather(*(part() for _ in range(8)))
    await send({"type": "http.response.body"})
""",
        interface="asgi",
        concurrency=2,
    )
    worker.makes_room = False
    stream = worker.ask_http()
    take(worker, stream, 4)
    for _ in range(4):
        worker.make_room(stream, 65536)
        assert worker.frame()[:2] == (wire.CHUNK, stream)
    worker.make_room(stream, 65536)
    assert worker.frame()[:2] == (wire.END, stream)


def test_a_handler_is_not_told_that_its_client_has_gone(start: Start) -> None:
    for kind in ("", "async "):
        code = f"import time\n{kind}def handler(event, context):\n    time.sleep(0.1)\n    return event\n"
        worker = start(code, concurrency=2)
        stream = worker.ask(5)
        worker.cancel(stream)
        worker.make_room(stream, 5)
        assert worker.frame()[:2] == (wire.RESULT, stream)
        assert worker.result(6) == 6


def test_an_error_that_a_gone_client_has_led_to_is_found_behind_others() -> None:
    def raised(error: BaseException, cause: BaseException | None = None) -> BaseException:
        error.__cause__ = cause
        return error

    class Group(Exception):
        exceptions = (ValueError(), raised(OSError(), flow.ClientGone()))

    assert flow.is_from_gone_client(flow.ClientGone())
    assert flow.is_from_gone_client(raised(ValueError(), flow.ClientGone()))
    assert flow.is_from_gone_client(Group())
    circle = ValueError()
    assert not flow.is_from_gone_client(raised(circle, raised(KeyError(), circle)))
    assert not flow.is_from_gone_client(None)
