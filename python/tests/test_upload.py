"""Bodies of requests that are larger than a frame, for WSGI applications."""

from __future__ import annotations

import array
import json
import socket
import struct
import threading
import zlib
from collections.abc import Iterable

import pytest
from conftest import Functions, Start
from harness import Stream, http_meta

from pilot_worker.protocol import wire

# As Django and Bottle do, it reads what CONTENT_LENGTH says, and otherwise nothing. It keeps what it was given.
APPLICATION = """
import json, zlib
kept = []
def handler(environ, start_response):
    kept.append(environ)
    body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    start_response("200 OK", [])
    return [json.dumps([len(body), zlib.adler32(body), environ.get("CONTENT_LENGTH")]).encode()]
"""
UNKNOWN: dict[str, object] = {"headers": [["transfer-encoding", "chunked"]]}


def part(data: bytes) -> bytes:
    return struct.pack("<I", len(data)) + data


def send(worker: Stream, stream: int, body: bytes, **meta: object) -> socket.socket:
    """A request of which more follows. Returns the socket for it."""
    here, there = socket.socketpair()
    encoded = json.dumps(http_meta(inputs=[{"name": ":body", "kind": "body"}], **meta)).encode()
    frame = wire.HEADER.pack(len(encoded), len(body), stream, wire.HTTP, 1, 0) + encoded + body
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [there.fileno()]))]
    sent = worker.socket.sendmsg([frame[:20]], rights)
    worker.socket.sendall(frame[sent:])
    there.close()
    return here


def send_parts(to: socket.socket, parts: Iterable[bytes]) -> None:
    """Until the worker does not read any more."""
    try:
        for one in parts:
            to.sendall(part(one))
    except ConnectionError:
        pass


def answer_to(worker: Stream, stream: int, beginning: bytes, parts: list[bytes], **meta: object) -> tuple[int, bytes]:
    with send(worker, stream, beginning, **meta) as rest:
        sender = threading.Thread(target=send_parts, args=(rest, [*parts, b""]))
        sender.start()
        status, _, body, _ = worker.http_answer(stream)
        rest.shutdown(socket.SHUT_RDWR)  # should the worker not have read all
        sender.join()
    return status, body


@pytest.mark.parametrize("concurrency", [1, 4])
def test_a_wsgi_application_gets_all_of_a_body_of_unknown_length(start: Start, concurrency: int) -> None:
    worker = start(APPLICATION, interface="wsgi", concurrency=concurrency)
    parts = [bytes([number]) * 50_000 for number in range(20)]
    status, body = answer_to(worker, 1, b"begin", parts, **UNKNOWN)
    whole = b"begin" + b"".join(parts)
    assert (status, json.loads(body)) == (200, [len(whole), zlib.adler32(whole), str(len(whole))])


def test_a_wsgi_application_reads_a_body_of_known_length_while_it_is_sent(start: Start) -> None:
    code = (
        "def handler(environ, start_response):\n"
        "    start_response('200 OK', [])\n"
        "    yield environ['wsgi.input'].read(5)\n"
        "    yield environ['wsgi.input'].read(5)\n"
    )
    worker = start(code, interface="wsgi")
    with send(worker, 1, b"begin", headers=[["content-length", "10"]]) as rest:
        assert worker.frame()[::3] == (wire.HEAD, b"begin")
        rest.sendall(part(b"later") + part(b""))
        assert worker.frame()[::3] == (wire.CHUNK, b"later")


def test_a_body_of_unknown_length_that_is_too_large_for_the_memory_is_refused(functions: Functions) -> None:
    """Also if several are that together. What a request has used is free again, whatever its application keeps."""
    function = {"name": "test", "memory_mb": 6}
    worker = functions.worker(APPLICATION, interface="wsgi", concurrency=4, function=function)
    parts = [bytes(65_536)] * 24
    assert [answer_to(worker, stream, b"", parts, **UNKNOWN)[0] for stream in (1, 2)] == [200, 200]
    status, body = answer_to(worker, 3, b"", parts * 2, **UNKNOWN)
    told = json.loads(body)
    assert (status, told["errorType"]) == (413, "RequestTooLargeException")
    assert "2097152 bytes together, which is a third of memory_mb" in told["errorMessage"]
    first = send(worker, 4, bytes(4 << 20), **UNKNOWN)  # refused before its end
    assert worker.http_answer(4)[0] == 413
    first.close()
    assert answer_to(worker, 5, b"", parts, **UNKNOWN)[0] == 200


def test_an_application_is_not_called_with_a_part_of_a_body_of_unknown_length(start: Start) -> None:
    worker = start(APPLICATION, interface="wsgi")
    send(worker, 1, b"begin", **UNKNOWN).close()
    kind, _, _, body = worker.frame()
    assert (kind, json.loads(body)["errorType"]) == (wire.ERROR, "ClientDisconnected")
