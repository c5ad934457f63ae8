"""The frame codec against the vectors that all languages share."""

from __future__ import annotations

import array
import json
import os
import queue
import socket
import struct
import threading
from pathlib import Path
from typing import Any

import pytest
from harness import Template

from pilot_worker import inputs
from pilot_worker.inputs.growing import BrokenInput, Growing
from pilot_worker.inputs.received import InputError
from pilot_worker.protocol import wire

VECTORS = Path(__file__).parents[2] / "crates" / "path" / "wire" / "vectors"
FRAMES = json.loads((VECTORS / "frames.json").read_text())
CONTROL = json.loads((VECTORS / "control.json").read_text())


def by_name(vectors: list[dict[str, Any]]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("vector", vectors, ids=lambda vector: vector["name"])


@by_name(FRAMES["valid"])
def test_a_valid_frame_is_decoded_and_encoded_again(vector: dict[str, Any]) -> None:
    data = bytes.fromhex(vector["hex"])
    decoder = wire.Decoder()
    decoder.feed(data)
    frame = decoder.next()
    assert frame is not None and decoder.is_empty()
    kind, stream, meta, body = frame
    assert kind == getattr(wire, vector["kind"])
    assert stream == vector["stream"]
    assert (json.loads(meta) if meta else None) == vector["meta"]
    assert body.decode() == vector["body"]
    assert wire.encode(kind, stream, meta, body) == data


@by_name(FRAMES["valid"])
def test_a_frame_may_arrive_byte_by_byte(vector: dict[str, Any]) -> None:
    data = bytes.fromhex(vector["hex"])
    decoder = wire.Decoder()
    for byte in data[:-1]:
        decoder.feed(bytes([byte]))
        assert decoder.next() is None
    decoder.feed(data[-1:])
    assert decoder.next() is not None


@by_name(FRAMES["invalid"])
def test_an_invalid_frame_is_refused_with_its_reason(vector: dict[str, Any]) -> None:
    decoder = wire.Decoder()
    decoder.feed(bytes.fromhex(vector["hex"]))
    if vector["error"] == "truncated":
        assert decoder.next() is None
        assert decoder.is_empty() is (vector["hex"] == "")
    else:
        with pytest.raises(wire.ProtocolError) as caught:
            decoder.next()
        assert caught.value.reason == vector["error"]


@by_name(FRAMES["sequences"])
def test_a_sequence_is_taken_apart(vector: dict[str, Any]) -> None:
    decoder = wire.Decoder()
    decoder.feed(bytes.fromhex(vector["hex"]))
    for kind, stream, body in vector["frames"]:
        frame = decoder.next()
        assert frame is not None
        assert (frame[0], frame[1], frame[3].decode()) == (getattr(wire, kind), stream, body)
    assert decoder.is_empty()


@by_name(FRAMES["with_inputs"])
def test_a_frame_takes_the_descriptors_that_came_before_it(vector: dict[str, Any]) -> None:
    pipes = [os.open("/dev/null", os.O_RDONLY) for _ in range(vector["descriptors"])]
    inputs.arrived([(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", pipes).tobytes())])
    decoder = wire.Decoder()
    decoder.feed(bytes.fromhex(vector["hex"]))
    frame = decoder.next()
    assert frame is not None and frame[1] == vector["stream"]
    meta = json.loads(frame[2])
    assert meta == vector["meta"]
    taken = inputs.take(frame[1], meta["inputs"])
    assert [(each.name, each.kind, each.fileno()) for each in taken.values()] == [
        (entry["name"], entry["kind"], pipe) for entry, pipe in zip(meta["inputs"], pipes)
    ]
    taken.clear()
    for pipe in pipes:
        with pytest.raises(OSError):
            os.fstat(pipe)


@by_name(FRAMES["with_growing"])
def test_an_input_that_still_arrives_has_its_progress(vector: dict[str, Any]) -> None:
    pipes = [os.open("/dev/null", os.O_RDONLY) for _ in range(vector["descriptors"])]
    inputs.arrived([(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", pipes).tobytes())])
    decoder = wire.Decoder()
    decoder.feed(bytes.fromhex(vector["hex"]))
    frame = decoder.next()
    assert frame is not None
    taken = inputs.take(frame[1], json.loads(frame[2])["inputs"])
    assert [(each.name, each.is_whole, each.fileno()) for each in taken.values()] == [
        ("video", False, pipes[0]),
        ("log", False, pipes[1]),
    ]
    assert taken["video"].size == 4096
    # Nobody will say more: its other end is closed.
    with pytest.raises(InputError, match="when the invocation ended"):
        taken["log"].whole()
    taken.clear()
    for pipe in pipes:
        with pytest.raises(OSError):
            os.fstat(pipe)


@by_name(FRAMES["progress"])
@pytest.mark.parametrize("step", [1, 9, 1000])
def test_progress_is_read_in_any_pieces(vector: dict[str, Any], step: int) -> None:
    ours, theirs = socket.socketpair()
    growing = Growing("video", None, os.open("/dev/null", os.O_RDONLY))
    growing.follow(theirs.detach())
    data = bytes.fromhex(vector["hex"])
    with ours:
        for at in range(0, len(data), step):
            ours.sendall(data[at : at + step])
            growing._listen()
    assert growing.wait(vector["there"]) == vector["there"]
    if vector["end"] == "whole":
        assert growing.wait() == growing.size == vector["there"]
    else:
        with pytest.raises(BrokenInput, match=vector["problem"] or "when the invocation ended"):
            growing.wait(vector["there"] + 1)


def test_threads_wait_for_what_they_need_and_a_forked_process_for_nothing() -> None:
    ours, theirs = socket.socketpair()
    growing = Growing("video", 30, os.open("/dev/null", os.O_RDONLY))
    growing.follow(theirs.detach())
    ended: queue.SimpleQueue[int] = queue.SimpleQueue()

    def wait(count: int) -> None:
        growing.wait(count)
        ended.put(count)

    threads = [threading.Thread(target=wait, args=(count,)) for count in (30, 20, 10)]
    for thread in threads:
        thread.start()
    with ours:
        for there in (10, 20, 30):
            # The next message is sent when the one who waits for this one has gone on, although others still wait.
            ours.sendall(struct.pack("<BQ", there == 30, there))
            assert ended.get(timeout=20) == there
    for thread in threads:
        thread.join(20)
    other = Growing("video", 30, os.open("/dev/null", os.O_RDONLY))
    other._process = 0
    with pytest.raises(BrokenInput, match="a forked process cannot wait"):
        other.wait(1)


@by_name(FRAMES["with_inputs"])
def test_a_frame_without_its_descriptors_is_refused(vector: dict[str, Any]) -> None:
    decoder = wire.Decoder()
    decoder.feed(bytes.fromhex(vector["hex"]))
    with pytest.raises(wire.ProtocolError) as caught:
        decoder.next()
    assert caught.value.reason == "descriptors_missing"


def test_parts_that_are_too_long_are_not_encoded() -> None:
    with pytest.raises(wire.ProtocolError, match="meta_too_long"):
        wire.encode(wire.RESULT, 1, bytes(wire.META_LEN_MAX + 1), b"")
    with pytest.raises(wire.ProtocolError, match="body_too_long"):
        wire.encode(wire.RESULT, 1, b"", bytes(wire.RESULT_LEN_MAX + 1))


@by_name(CONTROL["refused"])
def test_a_refused_request_leaves_the_template_alive(vector: dict[str, Any], root: Template) -> None:
    pipes = [open("/dev/null") for _ in range(vector["fd_count"])]
    root.send(vector["message"], [pipe.fileno() for pipe in pipes])
    answer = root.message("fork_failed")
    assert answer["id"] == vector["message"]["id"]
    for pipe in pipes:
        pipe.close()


@pytest.mark.parametrize("text", [b"{", b"[]", b"null", b'"fork"', b"{}", b'{"op":"sing"}', b"\xff\xfe"])
def test_a_message_that_is_no_request_leaves_the_template_alive(text: bytes, root: Template) -> None:
    with open("/dev/null") as stray:
        root.send(text, [stray.fileno()])
    assert root.message("fork_failed")["id"] == 0
