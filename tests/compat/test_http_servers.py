"""Unmodified third-party HTTP frameworks in `runtime = "http"`: functions-framework for Python and for Node.js, whose commands are on
PATH, and Express with ws. README.md describes their responses.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

HERE = Path(__file__).resolve().parent
SERVERS = ["functions-framework-python", "functions-framework-node", "express"]

# Packages may have to be installed before the first test.
pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def server_deployed(deployed):
    def deploy(server: str) -> None:
        if not server.endswith("python") and shutil.which("npm") is None:
            pytest.skip(f"{server} is not tested: there is no npm on PATH to install it with")
        deployed(HERE / "servers" / server)

    return deploy


@pytest.fixture(scope="module", params=SERVERS)
def server(request, server_deployed):
    server_deployed(request.param)
    return request.param


def test_it_answers_a_get(server, daemon):
    response = daemon.request("GET", f"/fn/{server}/?name=p%C3%A4r")
    assert (response.status, response.read().decode()) == (200, "hello pär")
    assert daemon.request("GET", f"/fn/{server}/elsewhere").status == 404


def test_it_answers_posted_json(server, daemon):
    sent = {"a": [1, None, "grüße"], "deep": {"er": {}}}
    response = daemon.request("POST", f"/fn/{server}/json", sent)
    assert response.status == 201
    assert json.load(response) == {"got": sent, "type": "application/json"}


def test_its_events_arrive_while_they_are_made(server, daemon):
    response = daemon.request("GET", f"/fn/{server}/events")
    assert response.headers.get_content_type() == "text/event-stream"
    assert (response.readline(), response.readline()) == (b"data: one\n", b"\n")
    # The second part is not sent before this.
    assert daemon.request("POST", f"/fn/{server}/release").read() == b"released"
    assert response.read() == b"data: two\n\n"


def test_it_hears_of_its_end(server, daemon, watch):
    response = daemon.request("POST", f"/fn/{server}-watched/watch", {"port": watch.port})
    assert response.read() == b"watched"
    assert watch.last_words(daemon, f"{server}-watched") == b"SIGTERM"


def test_a_web_socket_of_ws_talks_through(server_deployed, daemon):
    server_deployed("express")
    with connect(f"ws://{daemon.address}/fn/express/chat", proxy=None, open_timeout=20) as socket:
        for said in ("hello", "grüße"):
            socket.send(said)
            assert socket.recv(timeout=20) == said.upper()
        large = bytes(range(256)) * 1000
        socket.send(large)
        assert socket.recv(timeout=20) == large


def test_web_sockets_of_starlette_talk_and_large_bodies_stream(deployed, daemon):
    deployed(HERE / "servers" / "starlette")
    url = f"ws://{daemon.address}/fn/starlette"
    with (
        connect(f"{url}/rooms/one?by=me", subprotocols=["chat"], proxy=None) as one,
        connect(f"{url}/rooms/two", proxy=None) as two,
    ):
        assert (one.subprotocol, two.subprotocol) == ("chat", None)
        for socket, room, by in [(one, "one", "me"), (two, "two", None)] * 20:
            socket.send("hello")
            assert json.loads(socket.recv(timeout=10)) == {"said": "hello", "to": room, "by": by}
        one.ping().wait(10)
    with pytest.raises(InvalidStatus) as refused:
        connect(f"{url}/refused", proxy=None)
    assert (refused.value.response.status_code, refused.value.response.body) == (401, b"members only")
    response = daemon.request("POST", "/fn/starlette/upload", bytes(12_000_000))
    assert (response.status, response.read()) == (200, b"12000000")
    assert sorted(daemon.request("GET", "/fn/starlette/left").read().split(b",")) == [b"one", b"two"]
