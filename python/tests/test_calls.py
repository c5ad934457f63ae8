"""Calls of other functions. The test plays the daemon's side of the socket."""

from __future__ import annotations

import array
import json
import os
import socket
import struct
from typing import Any

import pytest
from conftest import Start
from harness import PATIENCE_S, Stream, invoke_meta
from test_inputs import send

from pilot_worker.protocol import wire

HEADER = struct.Struct("<II")


class Daemon:
    """The daemon's end of the socket of one invocation."""

    def __init__(self, worker: Stream, event: object, stream: int = 1, **meta: str) -> None:
        self.socket, theirs = socket.socketpair()
        self.socket.settimeout(PATIENCE_S)
        described = invoke_meta(inputs=[{"name": ":calls", "kind": "calls"}], **meta)
        send(worker, stream, described, json.dumps(event).encode(), [theirs.fileno()])
        theirs.close()

    def asked(self) -> tuple[dict[str, Any], bytes]:
        meta_len, body_len = HEADER.unpack(self._read(HEADER.size))
        return json.loads(self._read(meta_len)), self._read(body_len)

    def answer(self, number: int, body: bytes = b"", fds: tuple[int, ...] = (), **end: Any) -> None:
        meta = json.dumps({"id": number, **({"descriptor": True} if fds else {}), **(end or {"end": "done"})}).encode()
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        message = HEADER.pack(len(meta), len(body)) + meta
        sent = self.socket.sendmsg([message], rights)
        # Sending nothing is an error, too, once the worker has its answer and has closed its end.
        if rest := message[sent:] + body:
            self.socket.sendall(rest)

    def _read(self, length: int) -> bytes:
        data = b""
        while len(data) < length:
            more = self.socket.recv(length - len(data))
            assert more, "the worker closed the socket"
            data += more
        return data


def result(worker: Stream) -> Any:
    kind, _, _, body = worker.frame()
    assert kind == wire.RESULT, body
    return json.loads(body)


CODE = """
import pilotlight

def handler(event, context):
    assert list(context.inputs) == []
    try:
        if "map" in event:
            return pilotlight.map("next", event["map"])
        if "long" in event:
            return [len(one) for one in pilotlight.map("next", ["x" * event["long"]] * 3)]
        if "data" in event:
            return pilotlight.invoke("next", 1, data=event["data"].encode())
        return pilotlight.invoke("next")
    except pilotlight.InvokeError as error:
        return [type(error).__name__, str(error)]
"""
ASYNC = CODE.replace("import pilotlight\n", "import asyncio, pilotlight\n").replace(
    "def handler(event",
    "async def handler(event, context):\n    return await asyncio.to_thread(plain, event, context)\n\ndef plain(event",
)


@pytest.mark.parametrize("code", [CODE, ASYNC], ids=["plain", "async"])
def test_an_answer_is_a_value_or_an_exception(start: Start, code: str) -> None:
    worker = start(code)
    error = json.dumps({"errorType": "KeyError", "errorMessage": "'x'"}).encode()
    table: list[tuple[dict[str, Any], bytes, Any]] = [
        ({"end": "done"}, b'{"a": 1}', {"a": 1}),
        ({"end": "function_error"}, error, ["FunctionError", "function 'next' failed: KeyError: 'x'"]),
        ({"end": "refused", "reason": "NotFound", "problem": "none"}, b"", ["Refused", "NotFound: none"]),
    ]
    for end, body, expected in table:
        daemon = Daemon(worker, {})
        asked, event = daemon.asked()
        assert (asked["op"], asked["function"], event) == ("call", "next", b"{}")
        daemon.answer(asked["id"], body, **end)
        assert result(worker) == expected


def test_answers_come_in_any_order_and_results_do_not(start: Start) -> None:
    worker = start(CODE)
    daemon = Daemon(worker, {"map": list(range(20))})
    asked = [daemon.asked() for _ in range(16)]
    assert [event for _, event in asked] == [b"%d" % n for n in range(16)]
    for call, event in reversed(asked):
        if event == b"3":
            daemon.answer(call["id"], end="refused", reason="Throttled", problem="busy")
        else:
            daemon.answer(call["id"], event)
    for _ in range(4):
        call, event = daemon.asked()
        daemon.answer(call["id"], event)
    assert result(worker) == ["MapError", "1 of 20 calls of 'next' failed; number 3: Throttled: busy"]
    daemon = Daemon(worker, {"map": list(range(20))})
    for _ in range(20):
        call, event = daemon.asked()
        daemon.answer(call["id"], event)
    assert result(worker) == list(range(20))


def test_a_handler_that_cannot_send_reads_meanwhile(start: Start) -> None:
    worker = start(CODE)
    length = 2 << 20
    daemon = Daemon(worker, {"long": length})
    for _ in range(3):
        call, event = daemon.asked()
        # The answer is longer than what the socket takes, and the handler is sending the next event.
        daemon.answer(call["id"], event)
    assert result(worker) == [length] * 3


def test_bytes_are_written_after_the_call_has_begun(start: Start) -> None:
    worker = start(CODE)
    daemon = Daemon(worker, {"data": "pixels"})
    made, _ = daemon.asked()
    assert (made["op"], made["len"]) == ("buffer", 6)
    file = os.memfd_create("test")
    os.ftruncate(file, 6)
    daemon.answer(made["id"], fds=(file,))
    call, _ = daemon.asked()
    assert (call["op"], call["buffer"]) == ("call", made["id"])
    sealed, _ = daemon.asked()
    assert (sealed["op"], sealed["buffer"]) == ("seal", made["id"])
    assert os.pread(file, 10, 0) == b"pixels"
    daemon.answer(sealed["id"])
    daemon.answer(call["id"], b'"taken"')
    assert result(worker) == "taken"
    assert daemon.asked()[0] == {"op": "release", "buffer": made["id"]}
    # And if the seal is refused, the call is given up.
    daemon = Daemon(worker, {"data": ""})
    made, _ = daemon.asked()
    daemon.answer(made["id"], fds=(file,))
    os.close(file)
    daemon.asked()
    sealed, _ = daemon.asked()
    daemon.answer(sealed["id"], end="refused", reason="StillMapped", problem="mapped")
    assert result(worker) == ["Refused", "StillMapped: mapped"]
    assert daemon.asked()[0]["op"] == "release"


PARTS = """
import pilotlight

KIB = 1024

def handler(event, context):
    def parts():
        for length in event["parts"]:
            yield bytes([length % 251]) * length
        if event.get("raise"):
            raise RuntimeError("no more of it")
    try:
        return pilotlight.invoke("next", 1, data=parts(), size=event["size"])
    except (ValueError, TypeError, RuntimeError) as error:
        return [type(error).__name__, str(error)]
"""


def test_parts_are_told_as_they_are_made(start: Start) -> None:
    worker = start(PARTS)
    kib = 1024
    lengths = [300 * kib, 1, 255 * kib, 0, 2 * kib, 600 * kib]
    daemon = Daemon(worker, {"parts": lengths, "size": sum(lengths)})
    made, _ = daemon.asked()
    assert (made["op"], made["len"]) == ("buffer", sum(lengths))
    file = os.memfd_create("test")
    os.ftruncate(file, made["len"])
    daemon.answer(made["id"], fds=(file,))
    call, _ = daemon.asked()
    assert (call["op"], call["buffer"]) == ("call", made["id"])
    # What is told does not change any more. Not each small part is told.
    told = []
    while (asked := daemon.asked()[0])["op"] == "filled":
        assert asked["buffer"] == made["id"]
        told.append(asked["len"])
    assert told == [300 * kib, 557 * kib + 1, sum(lengths)]
    assert asked["op"] == "seal"
    expected = b"".join(bytes([length % 251]) * length for length in lengths)
    assert os.pread(file, made["len"], 0) == expected
    os.close(file)
    daemon.answer(asked["id"])
    daemon.answer(call["id"], b'"taken"')
    assert result(worker) == "taken"


def test_much_data_in_parts_is_told_a_limited_number_of_times(start: Start) -> None:
    worker = start(PARTS)
    length = 512 << 10
    daemon = Daemon(worker, {"parts": [length] * 150, "size": 150 * length})
    made, _ = daemon.asked()
    file = os.memfd_create("test")
    os.ftruncate(file, made["len"])
    daemon.answer(made["id"], fds=(file,))
    os.close(file)
    call, _ = daemon.asked()
    told = 0
    while (asked := daemon.asked()[0])["op"] == "filled":
        told += 1
    assert 64 <= told <= 128
    daemon.answer(asked["id"])
    daemon.answer(call["id"], b'"taken"')
    assert result(worker) == "taken"


@pytest.mark.parametrize(
    ("event", "said"),
    [
        ({"parts": [3, 4], "size": 8}, ["ValueError", "data has 7 bytes, and size says 8"]),
        ({"parts": [3, 4], "size": 6}, ["ValueError", "data has more than the 6 bytes of size"]),
        ({"parts": [3], "size": 3, "raise": 1}, ["RuntimeError", "no more of it"]),
    ],
    ids=["short", "long", "raises"],
)
def test_parts_that_do_not_fit_give_the_call_up(start: Start, event: Any, said: list[str]) -> None:
    worker = start(PARTS)
    daemon = Daemon(worker, event)
    made, _ = daemon.asked()
    file = os.memfd_create("test")
    os.ftruncate(file, made["len"])
    daemon.answer(made["id"], fds=(file,))
    os.close(file)
    assert daemon.asked()[0]["op"] == "call"
    # Nothing is sealed.
    assert daemon.asked()[0] == {"op": "release", "buffer": made["id"]}
    assert result(worker) == said
    # A size that cannot be, and data that is no iterable, ask for nothing.
    for wrong in ({"parts": [], "size": -1}, {"parts": [], "size": "x"}):
        daemon = Daemon(worker, wrong)
        assert result(worker)[0] in ("ValueError", "TypeError")


def test_large_bytes_are_told_while_they_are_copied(start: Start) -> None:
    worker = start(
        """
import pilotlight
def handler(event, context):
    return pilotlight.invoke("next", 1, data=bytes(event))
"""
    )
    length = (16 << 20) + 1
    daemon = Daemon(worker, length)
    made, _ = daemon.asked()
    file = os.memfd_create("test")
    os.ftruncate(file, length)
    daemon.answer(made["id"], fds=(file,))
    call, _ = daemon.asked()
    assert [daemon.asked()[0] for _ in range(2)] == [{"op": "filled", "buffer": made["id"], "len": n << 20} for n in (8, 16)]
    sealed, _ = daemon.asked()
    assert sealed["op"] == "seal" and os.fstat(file).st_blocks * 512 >= length
    os.close(file)
    daemon.answer(sealed["id"])
    daemon.answer(call["id"], b"1")
    assert result(worker) == 1


def test_an_invocation_without_calls_and_one_that_is_over_say_so(start: Start) -> None:
    worker = start(CODE)
    worker.ask({})
    kind, said = result(worker)
    assert kind == "InvokeError" and "invokes = " in said
    daemon = Daemon(worker, {}, stream=50)
    daemon.asked()
    daemon.socket.close()
    assert result(worker)[0] == "InvokeError"


THREADS = """
import concurrent.futures, pilotlight

kept = []

def call(n):
    try:
        return pilotlight.invoke("next", n)
    except pilotlight.InvokeError as error:
        return type(error).__name__

def handler(event, context):
    try:
        raise ValueError
    except ValueError as problem:
        kept.append(problem)  # so the frame, and all that the invocation had, outlive it
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        return list(pool.map(call, range(4)))
"""


def test_threads_of_a_handler_invoke_also_when_an_invocation_before_it_is_kept(start: Start) -> None:
    worker = start(THREADS)
    for stream in range(1, 4):
        daemon = Daemon(worker, {}, stream=stream, id=f"invocation-{stream}")
        for _ in range(4):
            call, event = daemon.asked()
            daemon.answer(call["id"], event, end="failed" if stream == 1 else "done")
        assert result(worker) == (["FunctionError"] * 4 if stream == 1 else [0, 1, 2, 3])


def test_a_failed_call_keeps_nothing_of_its_invocation(start: Start) -> None:
    worker = start(
        """
import gc, pilotlight, weakref
gc.disable()
class Large:
    pass
seen = []
def handler(event, context):
    if event == "seen":
        return [one() is None for one in seen]
    large = Large()
    seen.append(weakref.ref(large))
    try:
        return pilotlight.invoke("next")
    except pilotlight.FunctionError:
        return "failed"
"""
    )
    daemon = Daemon(worker, {})
    daemon.answer(daemon.asked()[0]["id"], b"{}", end="failed")
    assert result(worker) == "failed"
    worker.ask("seen")
    assert result(worker) == [True]


def test_events_of_a_map_may_come_of_calls(start: Start) -> None:
    """More than run at a time: each place is free when its answer has come, also if the handler has not asked for it."""
    worker = start(
        """
import pilotlight
def handler(event, context):
    inner = lambda n: sum(pilotlight.map("part", [n, n]))
    return pilotlight.map("next", ({"n": inner(n)} for n in range(event)))
"""
    )
    daemon = Daemon(worker, 40)
    for _ in range(3 * 40):
        call, event = daemon.asked()
        daemon.answer(call["id"], event)
    assert result(worker) == [{"n": 2 * n} for n in range(40)]


def test_a_wrong_argument_ends_no_other_call(start: Start) -> None:
    worker = start(
        """
import pilotlight
def handler(event, context):
    told = []
    for call in (
        lambda: pilotlight.buffer(-1), lambda: pilotlight.buffer(1.5), lambda: pilotlight.buffer("1"), lambda: pilotlight.buffer(2 ** 70),
        lambda: pilotlight.invoke(5), lambda: pilotlight.invoke(None), lambda: pilotlight.invoke("t\\ud800"),
        lambda: pilotlight.invoke("next", "x" * (8 << 20)), lambda: pilotlight.invoke("x" * 5000),
    ):
        try:
            call()
        except Exception as error:
            told.append(error.reason if isinstance(error, pilotlight.Refused) else type(error).__name__)
    return told, pilotlight.invoke("next", 7)
"""
    )
    daemon = Daemon(worker, {})
    call, event = daemon.asked()
    daemon.answer(call["id"], event)
    kinds = ["ValueError", "TypeError", "TypeError", "ValueError", "TypeError", "TypeError", "UnicodeEncodeError"]
    assert result(worker) == [[*kinds, "TooLarge", "NotFound"], 7]


@pytest.mark.parametrize("view", ["view[::-1]", "view[::2]"])
def test_what_does_not_lie_in_order_is_handed_over_as_it_reads(start: Start, view: str) -> None:
    worker = start(
        f"""
import pilotlight
view = memoryview(b"abcdef")
def handler(event, context):
    return pilotlight.invoke("next", 1, data={view})
"""
    )
    daemon = Daemon(worker, {})
    made, _ = daemon.asked()
    file = os.memfd_create("test")
    os.ftruncate(file, made["len"])
    daemon.answer(made["id"], fds=(file,))
    call, _ = daemon.asked()
    sealed, _ = daemon.asked()
    assert os.pread(file, 10, 0) == {"view[::-1]": b"fedcba", "view[::2]": b"ace"}[view]
    os.close(file)
    daemon.answer(sealed["id"])
    daemon.answer(call["id"], b"1")
    assert result(worker) == 1


def test_nothing_is_open_after_an_invocation(start: Start) -> None:
    worker = start(CODE)
    for _ in range(20):
        daemon = Daemon(worker, {})
        asked, _ = daemon.asked()
        daemon.answer(asked["id"], b"1")
        assert result(worker) == 1
        assert daemon.socket.recv(1) == b"", "the worker still has the socket"
