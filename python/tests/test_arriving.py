"""What an initscript and its handler send each other while both run."""

from __future__ import annotations

import array
import json
import os
import socket
import struct
from typing import Any

from conftest import Start
from harness import Stream, invoke_meta
from test_inputs import memory, send

from pilot_worker.protocol import wire

CODE = """
import os
import threading
import pilotlight

def handler(event, context):
    init = pilotlight.init
    told = []
    for id in event.get("ids", ()):
        try:
            told.append(bytes(init.recv_msg(id)).decode())
        except init.NoMessage as error:
            told.append(str(error))
    for id, address in event.get("connections", ()):
        try:
            with init.get_conn(id, address) as connection:
                connection.sendall(b"hello")
                told.append(connection.recv(100).decode())
        except init.NoConnection as error:
            told.append(str(error))
    if event.get("threads"):
        got = []
        threads = [threading.Thread(target=lambda id=id: got.append((id, bytes(init.recv_msg(id)).decode()))) for id in (1, 2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        told = sorted(got)
    return [told, init.messages(), sorted(context.inputs), len(os.listdir("/proc/self/fd"))]
"""


class Script:
    """The daemon's end of a script that goes on."""

    def __init__(self) -> None:
        self.socket, self.theirs = socket.socketpair()

    def note(self, fd: int | None = None, **note: object) -> None:
        text = json.dumps(note).encode()
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))] if fd is not None else []
        data = struct.pack("<I", len(text)) + text
        # In two pieces: the descriptor comes with the first one.
        self.socket.sendmsg([data[:3]], rights)
        self.socket.sendall(data[3:])
        if fd is not None:
            os.close(fd)

    def begin(self, worker: Stream, event: object) -> None:
        meta = invoke_meta(inputs=[{"name": ":init", "kind": "script"}])
        send(worker, 1, meta, json.dumps(event).encode(), [self.theirs.fileno()])
        self.theirs.close()


SENDS = """
import socket
import pilotlight

socket.setdefaulttimeout(0.001)

def handler(event, context):
    init = pilotlight.init
    told = []
    for id, data, times in event["send"]:
        if data == "wait":
            try:
                init.recv_msg(times)
            except init.NoMessage:
                pass
            continue
        try:
            init.send_msg(id, bytearray(data.encode() * times))
            told.append("sent")
        except (init.NotSent, ValueError) as error:
            told.append(f"{type(error).__name__}: {error}")
    for wrong in ("text", None, memoryview(b"abcd")[::2]):
        try:
            init.send_msg(99, wrong)
            told.append("sent")
        except TypeError:
            pass
    return told
"""


def received(script: Script, count: int) -> list[tuple[int, bytes]]:
    """The next messages of the handler."""
    got = []
    for _ in range(count):
        id, length = struct.unpack("<QI", script.socket.recv(12, socket.MSG_WAITALL))
        got.append((id, script.socket.recv(length, socket.MSG_WAITALL) if length else b""))
    return got


def answer(worker: Stream) -> list[object]:
    kind, _, _, body = worker.frame()
    assert kind == wire.RESULT, body
    value = json.loads(body)
    assert isinstance(value, list)
    return value


def test_a_message_may_come_before_or_after_it_is_asked_for(start: Start) -> None:
    worker, script = start(CODE), Script()
    script.note(memory(b"early"), op="message", id="0", len=5)
    script.begin(worker, {"ids": [0, 1, 2]})
    script.note(memory(b"late"), op="message", id="1", len=4)
    script.note(op="end")
    assert answer(worker)[:3] == [["early", "late", "message 2: the initscript did not send it"], [0, 1], []]


def test_a_script_that_fails_says_why_to_whoever_waits(start: Start) -> None:
    worker, script = start(CODE), Script()
    script.begin(worker, {"ids": [0, 1], "connections": [[2, "tcp://db:1"], [3, "tcp://db:1"]]})
    script.note(op="message", id="0", problem="no such object")
    script.note(op="connection", id="2", problem="refused")
    script.note(op="end", problem="it trapped")
    told = answer(worker)[0]
    assert told == ["message 0: no such object", "message 1: it trapped", "connection 2: refused", "connection 3: it trapped"]


def test_a_daemon_that_closes_the_socket_ends_the_wait(start: Start) -> None:
    worker, script = start(CODE), Script()
    script.begin(worker, {"ids": [0]})
    script.socket.close()
    assert answer(worker)[0] == ["message 0: the invocation ended before the initscript"]


def test_a_connection_is_taken_once_and_only_by_its_address(start: Start) -> None:
    worker, script = start(CODE), Script()
    before = worker.result({})
    here, there = socket.socketpair()
    script.begin(worker, {"connections": [[7, "tcp://other:1"], [7, "tcp://db:1"], [7, "tcp://db:1"]]})
    script.note(there.detach(), op="connection", id="7", address="tcp://db:1")
    assert here.recv(5) == b"hello"
    here.sendall(b"welcome")
    told, _, _, count = answer(worker)
    assert told == [
        "connection 7: it leads to tcp://db:1, and not to tcp://other:1",
        "welcome",
        "connection 7: connection 7 was taken before",
    ]
    # The handler has closed it, and only the script's socket is open now.
    assert isinstance(before, list) and count == before[3] + 1


def test_what_nobody_takes_is_closed_with_the_invocation(start: Start) -> None:
    worker, script = start(CODE), Script()
    (read, read_by_worker), (unread, unread_by_worker) = socket.socketpair(), socket.socketpair()
    script.note(read_by_worker.detach(), op="connection", id="0", address="tcp://db:1")
    script.note(memory(b"x"), op="message", id="0", len=1)
    script.note(unread_by_worker.detach(), op="connection", id="1", address="tcp://db:1")
    script.begin(worker, {"ids": [0]})
    assert answer(worker)[0] == ["x"]
    assert (read.recv(1), unread.recv(1)) == (b"", b"")


KEEPS = """
import pilotlight, threading
kept, both = [], threading.Barrier(2)
def handler(event, context):
    try:
        raise ValueError
    except ValueError as problem:
        kept.append(problem)  # so the frame, and all that the invocation had, outlive it
    if event == "meets": both.wait(20)
    try:
        return bytes(pilotlight.init.recv_msg(0)).decode()
    except pilotlight.init.NoMessage as error:
        return str(error)
"""


def test_messages_are_those_of_one_invocation(start: Start) -> None:
    """Also if something refers to the invocation that had them, and if two run at a time."""
    given: list[dict[str, object]] = [{"name": "init.0", "kind": "memory", "len": 5}]
    worker = start(KEEPS)
    send(worker, 1, invoke_meta(id="first", inputs=given), b"{}", [memory(b"alice")])
    assert answer_text(worker) == "alice"
    send(worker, 1, invoke_meta(id="second"), b"{}", [])
    assert "no initscript ran" in answer_text(worker)
    worker = start(KEEPS, concurrency=2)
    send(worker, 1, invoke_meta(id="first", inputs=given), b'"meets"', [memory(b"alice")])
    send(worker, 2, invoke_meta(id="second"), b'"meets"', [])
    answers = dict(answer_of_any(worker) for _ in range(2))
    assert answers[1] == "alice" and "no initscript ran" in answers[2], answers


def answer_text(worker: Stream) -> str:
    return answer_of_any(worker)[1]


def answer_of_any(worker: Stream) -> tuple[int, str]:
    """The next answer, and its stream."""
    kind, stream, _, body = worker.frame()
    assert kind == wire.RESULT, body
    return stream, str(json.loads(body))


def test_threads_wait_at_the_same_time(start: Start) -> None:
    worker, script = start(CODE), Script()
    script.begin(worker, {"threads": True})
    script.note(memory(b"two"), op="message", id="2", len=3)
    script.note(memory(b"one"), op="message", id="1", len=3)
    script.note(op="end")
    assert answer(worker)[0] == [[1, "one"], [2, "two"]]


def test_a_handler_sends_messages_to_its_script(start: Start) -> None:
    worker, script = start(SENDS), Script()
    id_max = (1 << 64) - 1
    script.begin(worker, {"send": [[7, "hello", 1], [id_max, "", 0], [8, "x", 1 << 20], [0, "wait", 1], [9, "y", 1]]})
    assert received(script, 3) == [(7, b"hello"), (id_max, b""), (8, b"x" * (1 << 20))]
    # The handler waits for a message, and sends again.
    script.note(memory(b"go"), op="message", id="1", len=2)
    assert received(script, 1) == [(9, b"y")]
    assert answer(worker) == ["sent"] * 4


def test_what_a_script_cannot_get_is_not_sent_and_says_why(start: Start) -> None:
    worker, script = start(SENDS), Script()
    large, many = (1 << 20) + 1, [[id, "x", 1] for id in range(2, 18)]
    script.begin(worker, {"send": [[1, "x", 1], [1, "y", 1], [2, "x", large], [-1, "x", 1], [1 << 64, "x", 1], *many]})
    assert received(script, 16) == [(1, b"x"), *((id, b"x") for id in range(2, 17))]
    told = answer(worker)
    assert told[:3] == [
        "sent",
        "NotSent: message 1: a message with this id was sent before",
        f"NotSent: message 2: it has {large} bytes, and a message to the initscript has at most {1 << 20}",
    ]
    assert [str(one).split(":")[0] for one in told[3:5]] == ["ValueError"] * 2
    assert told[5:] == ["sent"] * 15 + [
        "NotSent: message 17: the initscript is full: it gets at most 16 messages, of 4194304 bytes in all"
    ]


def test_all_messages_of_a_handler_have_a_limit(start: Start) -> None:
    worker, script = start(SENDS), Script()
    script.begin(worker, {"send": [*([id, "x", 1 << 20] for id in range(4)), [4, "x", 1], [5, "", 0]]})
    assert [id for id, _ in received(script, 5)] == [0, 1, 2, 3, 5]
    told = answer(worker)
    assert told[:4] == ["sent"] * 4 and "the initscript is full" in str(told[4]) and told[5] == "sent"


def test_a_script_that_has_ended_gets_nothing_and_says_why(start: Start) -> None:
    worker = start(SENDS)
    ends: list[tuple[dict[str, Any], str]] = [({"problem": "it trapped"}, ": it trapped"), ({}, "")]
    for end, why in ends:
        script = Script()
        script.note(op="end", **end)
        script.begin(worker, {"send": [[1, "x", 1]]})
        assert answer(worker) == [f"NotSent: message 1: the initscript has ended{why}"]
        script.socket.setblocking(False)
        assert script.socket.recv(1) == b""


def test_a_script_that_ends_during_a_send_says_why(start: Start) -> None:
    worker, script = start(SENDS), Script()
    # It does not read: only a part of this fits into the socket.
    script.begin(worker, {"send": [[1, "x", 1 << 20], [2, "x", 1]]})
    script.socket.recv(1, socket.MSG_PEEK)
    script.socket.shutdown(socket.SHUT_RD)
    script.note(op="end", problem="it trapped")
    assert answer(worker) == [f"NotSent: message {id}: the initscript has ended: it trapped" for id in (1, 2)]


def test_a_handler_without_a_script_beside_it_cannot_send(start: Start) -> None:
    worker = start(SENDS)
    value = worker.result({"send": [[1, "x", 1]]})
    assert isinstance(value, list) and "no initscript runs beside the handler" in str(value[0])
    # What the script has sent is there, and the script itself is not.
    meta = invoke_meta(inputs=[{"name": "init.0", "kind": "memory", "len": 1}])
    fd = memory(b"x")
    send(worker, 2, meta, json.dumps({"send": [[1, "x", 1]]}).encode(), [fd])
    os.close(fd)
    assert "no initscript runs beside the handler" in str(answer(worker)[0])
