"""What an initscript sends while the handler runs."""

from __future__ import annotations

import array
import json
import os
import socket
import struct

from conftest import Start
from harness import Stream, invoke_meta
from test_inputs import memory, send

from pilot_worker import wire

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


def test_threads_wait_at_the_same_time(start: Start) -> None:
    worker, script = start(CODE), Script()
    script.begin(worker, {"threads": True})
    script.note(memory(b"two"), op="message", id="2", len=3)
    script.note(memory(b"one"), op="message", id="1", len=3)
    script.note(op="end")
    assert answer(worker)[0] == [[1, "one"], [2, "two"]]
