"""Descriptors that come with an invocation."""

from __future__ import annotations

import array
import json
import os
import socket
import struct
import sys
import tempfile
from math import prod

import pytest
from conftest import Start
from harness import Stream, invoke_meta

from pilot_worker.protocol import wire

SITE_PACKAGES = os.environ.get("PILOT_TEST_SITE_PACKAGES")

CODE = """
import os

def handler(event, context):
    seen = {}
    for name, given in context.inputs.items():
        if isinstance(given, memoryview):
            seen[name] = bytes(given).decode()
        else:
            with given.socket() as peer:
                peer.sendall(b"hello")
                seen[name] = given.kind
    if event == "count":
        seen["open"] = len(os.listdir("/proc/self/fd"))
    return seen
"""
ASYNC = CODE.replace("def handler", "async def handler")


def ask(worker: Stream, stream: int, event: object, inputs: list[dict[str, object]], fds: list[int]) -> None:
    send(worker, stream, invoke_meta(inputs=inputs), json.dumps(event).encode(), fds)


def send(worker: Stream, stream: int, described: dict[str, object], body: bytes, fds: list[int]) -> None:
    meta = json.dumps(described).encode()
    frame = wire.HEADER.pack(len(meta), len(body), stream, wire.INVOKE, len(fds), 0) + meta + body
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    sent = worker.socket.sendmsg([frame[:20]], rights)
    worker.socket.sendall(frame[sent:])


def memory(text: bytes) -> int:
    file = tempfile.TemporaryFile()
    file.write(text)
    file.flush()
    return os.dup(file.fileno())


@pytest.mark.parametrize("code", [CODE, ASYNC], ids=["plain", "async"])
def test_a_handler_maps_memory_and_uses_a_socket(start: Start, code: str) -> None:
    worker = start(code)
    here, there = socket.socketpair()
    photo = memory(b"pixels")
    inputs: list[dict[str, object]] = [{"name": "photo", "kind": "memory", "len": 6}, {"name": "db", "kind": "socket"}]
    ask(worker, 1, {}, inputs, [photo, there.fileno()])
    kind, _, _, body = worker.frame()
    assert (kind, json.loads(body)) == (wire.RESULT, {"photo": "pixels", "db": "socket"})
    assert here.recv(5) == b"hello"


def test_an_input_is_a_view_a_file_a_path_or_an_error(start: Start) -> None:
    worker = start(
        """
def handler(event, context):
    inputs = context.inputs
    try:
        inputs["mask"]
    except LookupError as error:
        failed = str(error)
    with inputs.open("photo") as file, open(inputs.path("photo"), "rb") as again:
        return [
            list(inputs), "mask" in inputs, failed, inputs["photo"].readonly, inputs["photo"] is inputs["photo"],
            bytes(inputs["empty"]).decode(), file.read().decode(), again.read(3).decode(),
        ]
"""
    )
    photo, empty = memory(b"pixels"), memory(b"")
    meta = invoke_meta(
        inputs=[{"name": "photo", "kind": "memory", "len": 6}, {"name": "empty", "kind": "memory", "len": 0}],
        failed_inputs=[{"name": "mask", "problem": "there is no such object"}],
    )
    send(worker, 1, meta, b"{}", [photo, empty])
    kind, _, _, body = worker.frame()
    assert (kind, json.loads(body)) == (
        wire.RESULT,
        [["photo", "empty"], False, "input 'mask': there is no such object", True, True, "", "pixels", "pix"],
    )


def test_inputs_belong_to_their_invocation_alone(start: Start) -> None:
    worker = start(CODE)
    for text in [b"one", b"two"]:
        ask(worker, 1, {}, [{"name": "a", "kind": "memory", "len": 3}], [memory(text)])
        assert json.loads(worker.frame()[3]) == {"a": text.decode()}
    assert worker.result({}) == {}


def test_descriptors_are_closed_when_the_invocation_is_over(start: Start) -> None:
    worker = start(CODE)
    before = worker.result("count")["open"]
    for _ in range(20):
        ask(worker, 1, {}, [{"name": "a", "kind": "memory", "len": 1}], [memory(b"x")])
        worker.frame()
    assert worker.result("count")["open"] == before


def test_a_frame_without_its_descriptors_ends_the_worker(start: Start) -> None:
    worker = start(CODE)
    meta = json.dumps(invoke_meta(inputs=[{"name": "a", "kind": "memory", "len": 1}])).encode()
    worker.socket.sendall(wire.HEADER.pack(len(meta), 2, 1, wire.INVOKE, 1, 0) + meta + b"{}")
    assert worker.is_closed()


MESSAGES = """
import pilotlight
from pilotlight import init
import pilotlight.init as same

def handler(event, context):
    assert init is same is pilotlight.init
    view = None
    try:
        view = init.recv_msg(event)
        return [init.messages(), bytes(view).decode(), view.readonly, view is context.inputs[f"init.{event}"]]
    except LookupError as error:
        return [init.messages(), type(error).__name__, str(error)]
"""


@pytest.mark.parametrize("code", [MESSAGES, MESSAGES.replace("def handler", "async def handler")], ids=["plain", "async"])
def test_messages_of_the_initscript_are_views_of_the_invocation_that_has_them(start: Start, code: str) -> None:
    worker = start(code)
    inputs: list[dict[str, object]] = [
        {"name": "photo", "kind": "memory", "len": 6},
        {"name": "init.7", "kind": "memory", "len": 5},
    ]
    failed = [{"name": "init.8", "problem": "no such object"}]
    meta = invoke_meta(inputs=inputs, failed_inputs=failed)

    def ask(event: int, *fds: int) -> object:
        send(worker, 1, meta if fds else invoke_meta(), json.dumps(event).encode(), list(fds))
        kind, _, _, body = worker.frame()
        assert kind == wire.RESULT, body
        return json.loads(body)

    assert ask(7, memory(b"pixels"), memory(b"cats!")) == [[7], "cats!", True, True]
    assert ask(8, memory(b"pixels"), memory(b"cats!")) == [[7], "NoMessage", "message 8: no such object"]
    assert ask(9, memory(b"pixels"), memory(b"cats!")) == [[7], "NoMessage", "message 9: the initscript did not send it"]
    # The next invocation has none.
    gone = ask(7)
    assert isinstance(gone, list) and gone[:2] == [[], "NoMessage"] and "no initscript ran" in gone[2]


@pytest.mark.parametrize("script", ["init.script", "init.shared"])
def test_a_script_that_failed_says_why(start: Start, script: str) -> None:
    worker = start(MESSAGES)
    failed = [{"name": script, "problem": "it computed without end"}]
    assert worker.result(3, failed_inputs=failed) == [[], "NoMessage", "message 3: it computed without end"]


EMPTY = """
import sys


def handler(event, context):
    if event["without"]:
        sys.modules["numpy"] = None
    array = context.inputs["x"].array
    is_read_only = array.readonly if isinstance(array, memoryview) else not array.flags.writeable
    return [type(array).__name__, list(array.shape), array.nbytes, array.itemsize, is_read_only]
"""

DECODED = """
import sys

def handler(event, context):
    if event.get("without"):
        sys.modules["numpy"] = None  # importing it fails
    given = context.inputs["x"]
    if given.by == "parquet":
        columns = given.columns
        try:
            texts = columns["city"][:] + [columns["city"][-1]]
        except ValueError as error:
            texts = str(error)
        present = columns.present("price")
        return [given.rows, list(columns), columns["price"].tolist(), present.tolist(), columns.present("city"), texts]
    array = given.array
    own = context.inputs.open("x").read()
    return [type(array).__name__, list(array.shape), array.tolist(), list(given.shape), given.dtype, len(own), array is given.array]
"""


@pytest.mark.parametrize("kind", ["memoryview", "ndarray"])
def test_a_decoded_input_is_an_array(start: Start, kind: str) -> None:
    code = DECODED
    if kind == "ndarray":
        if SITE_PACKAGES is None:
            pytest.skip("arrays are not tested with numpy: PILOT_TEST_SITE_PACKAGES is not set")
        code = f"import sys\nsys.path.append({SITE_PACKAGES!r})\n{DECODED}"
    worker = start(code)
    decoded = {"by": "npy", "array": {"element": "<u2", "shape": [2, 3]}}
    described = invoke_meta(inputs=[{"name": "x", "kind": "memory", "len": 12, "decoded": decoded}])
    content = array.array("H", [1, 2, 3, 4, 5, 6]).tobytes()
    send(worker, 1, described, json.dumps({"without": kind == "memoryview"}).encode(), [memory(content)])
    found, _, _, body = worker.frame()
    assert found == wire.RESULT, body
    assert json.loads(body) == [kind, [2, 3], [[1, 2, 3], [4, 5, 6]], [2, 3], "<u2", 12, True]


@pytest.mark.parametrize("kind", ["memoryview", "ndarray"])
@pytest.mark.parametrize("element", ["<f8", "|b1", "<f2"])
@pytest.mark.parametrize("shape", [[0], [0, 5], [0, 3, 2], [5, 0], [2, 0, 3], [0, 1 << 40]])
def test_an_array_without_values_keeps_its_shape(start: Start, kind: str, element: str, shape: list[int]) -> None:
    code = EMPTY
    if kind == "ndarray":
        if SITE_PACKAGES is None:
            pytest.skip("arrays are not tested with numpy: PILOT_TEST_SITE_PACKAGES is not set")
        code = f"import sys\nsys.path.append({SITE_PACKAGES!r})\n{EMPTY}"
    worker = start(code)
    decoded = {"by": "npy", "array": {"element": element, "shape": shape}}
    described = invoke_meta(inputs=[{"name": "x", "kind": "memory", "len": 0, "decoded": decoded}])
    send(worker, 1, described, json.dumps({"without": kind == "memoryview"}).encode(), [memory(b"")])
    found, _, _, body = worker.frame()
    assert found == wire.RESULT, body
    assert json.loads(body) == [kind, shape, 0, int(element[2:]), True]


@pytest.mark.parametrize("shape", [[1, 2], [0, 2]])
def test_halves_without_numpy_are_numbers_or_their_bits(start: Start, shape: list[int]) -> None:
    worker = start(DECODED)
    content = struct.pack("<2e", 1.0, -2.0)[: 2 * prod(shape)]
    decoded = {"by": "npy", "array": {"element": "<f2", "shape": shape}}
    described = invoke_meta(inputs=[{"name": "x", "kind": "memory", "len": len(content), "decoded": decoded}])
    send(worker, 1, described, b'{"without": true}', [memory(content)])
    found, _, _, body = worker.frame()
    assert found == wire.RESULT, body
    rows = [[1.0, -2.0]] if sys.version_info >= (3, 12) else [[0x3C00, 0xC000]]
    assert json.loads(body)[2:5] == [rows if prod(shape) else [], shape, "<f2"]


def test_a_decoded_json_text_is_a_value_and_a_file_of_arrow_needs_pyarrow(start: Start) -> None:
    worker = start(
        """
def tried(what):
    try:
        return what()
    except (TypeError, ImportError) as error:
        return f"{type(error).__name__}: {error}"

def handler(event, context):
    settings, prices = context.inputs["settings"], context.inputs["prices"]
    return [
        settings.value, settings.value is settings.value, context.inputs.open("settings").read().decode(), repr(settings),
        prices.rows, bytes(prices.view()).decode(), tried(lambda: prices.table).partition(":")[0],
        tried(lambda: settings.array), tried(lambda: settings.table), tried(lambda: prices.value), tried(lambda: prices.columns),
    ]
"""
    )
    described = invoke_meta(
        inputs=[
            {"name": "settings", "kind": "memory", "len": 9, "decoded": {"by": "json", "json": {}}},
            {"name": "prices", "kind": "memory", "len": 6, "decoded": {"by": "arrow", "arrow": {"rows": 3, "columns": 2}}},
        ]
    )
    send(worker, 1, described, b"{}", [memory(b'{"a":[1]}'), memory(b"ARROW1")])
    found, _, _, body = worker.frame()
    assert found == wire.RESULT, body
    assert json.loads(body) == [
        {"a": [1]},
        True,
        '{"a":[1]}',
        "Decoded(name='settings', by='json')",
        3,
        "ARROW1",
        "ModuleNotFoundError",
        "TypeError: input 'settings' was decoded as json: use value",
        "TypeError: input 'settings' was decoded as json: use value",
        "TypeError: input 'prices' was decoded as arrow: use table",
        "TypeError: input 'prices' was decoded as arrow: use table",
    ]


@pytest.mark.parametrize("ends", [(5, 5), (9, 5), (3, 6)], ids=["right", "backwards", "beyond"])
def test_a_decoded_table_has_columns_and_never_leaves_its_memory(start: Start, ends: tuple[int, int]) -> None:
    worker = start(DECODED)
    columns = [
        {"name": "price", "values": {"fixed": {"element": "<f8", "at": 0}}, "present": 16},
        {"name": "city", "values": {"bytes": {"ends": 24, "at": 40, "len": 5, "text": True}}},
    ]
    decoded = {"by": "parquet", "table": {"rows": 2, "columns": columns}}
    described = invoke_meta(inputs=[{"name": "x", "kind": "memory", "len": 45, "decoded": decoded}])
    content = array.array("d", [0.5, 0.0]).tobytes() + b"\1\0" + bytes(6) + array.array("Q", ends).tobytes() + "Köln".encode()
    send(worker, 1, described, b'{"without": true}', [memory(content)])
    found, _, _, body = worker.frame()
    assert found == wire.RESULT, body
    texts = {(5, 5): ["Köln", "", ""], (9, 5): "row 0 is damaged", (3, 6): "row 1 is damaged"}[ends]
    assert json.loads(body) == [2, ["price", "city"], [0.5, 0.0], [True, False], None, texts]
