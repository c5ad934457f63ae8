"""Inputs with `decode` of functions that are not Python: values in Node.js, and files of known formats for programs."""

from __future__ import annotations

import base64
import csv
import io
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
from conftest import HERE
from pilot_daemon import Daemon, binary
from test_decoders import PHOTO, World, png, started
from test_inputs import failure, invoke, timing

# Packages may have to be installed before the first test.
pytestmark = pytest.mark.timeout(240)
ROWS = [[(0, 1, 2), (3, 4, 5)], [(6, 7, 8), (9, 10, 11)], [(12, 13, 14), (255, 254, 253)]]
TABLE = [[1, 0.5, "Köln"], [2, None, ""], [3, -1.0, None]]


@pytest.fixture(scope="module")
def world(home: Path) -> Iterator[World]:
    with started(home, "files", "memory_mb = 256\ninput_mb = 64", None) as world:
        yield world


@pytest.fixture(scope="module")
def node(world: World) -> World:
    if shutil.which("npm") is None:
        pytest.skip("decoded inputs of Node.js functions are not tested: there is no npm on PATH")
    done = world.daemon.up(HERE / "decoders-files")
    assert done.returncode == 0, f"{done.stdout}{done.stderr}\n{world.daemon.log.read_text()}"
    return world


def test_node_has_an_image_as_an_array(node: World) -> None:
    node.origin.whole("small", png(ROWS))
    response, answer = invoke(node.daemon, "image", {"key": "small", "whole": True})
    assert response.getheader("x-pilot-start") == "cold"
    assert answer["values"] == [value for row in ROWS for pixel in row for value in pixel]
    # The array has its values and nothing else, so they were read once and not copied again.
    expected = {"shape": [3, 2, 3], "dtype": "|u1", "type": "Uint8Array", "bytes": 18, "own": 18}
    assert expected.items() <= answer.items()
    # As plain inputs: the same value again, a file for programs, read-only and gone with the invocation.
    expected = {"same": True, "names": ["x"], "written": "EACCES", "program": "\x93NUMPY", "earlier": []}
    assert expected.items() <= answer.items()
    node.origin.whole("photo", PHOTO.read_bytes())
    response, answer = invoke(node.daemon, "image", {"key": "photo"})
    assert (answer["shape"], answer["bytes"]) == ([512, 512, 3], 512 * 512 * 3)
    fetch = timing(response)["fetch.x"]
    assert fetch["bytes"] == answer["file"] > answer["bytes"] and 0 < fetch["decode"] <= fetch["dur"]
    assert answer["earlier"] == [False]


@pytest.mark.parametrize(
    ("array", "kind"),
    [
        (numpy.arange(24, dtype="<i4").reshape(2, 3, 4), "Int32Array"),
        (numpy.arange(24, dtype=">u2").reshape(2, 3, 4), "Uint16Array"),
        (numpy.asfortranarray(numpy.arange(24, dtype="<f8").reshape(4, 6)), "Float64Array"),
        (numpy.array([-1, 1 << 40]), "BigInt64Array"),
        (numpy.array([True, False, True]), "Uint8Array"),
        (numpy.zeros((0, 5), dtype="<f4"), "Float32Array"),
        (numpy.array(7, dtype="|i1"), "Int8Array"),
    ],
    ids=["C", "big-endian", "Fortran", "64 bits", "truths", "empty", "scalar"],
)
def test_node_has_an_array_of_numpy_with_its_type(node: World, array: numpy.ndarray, kind: str) -> None:  # type: ignore[type-arg]
    node.save("array", array)
    _, answer = invoke(node.daemon, "npy", {"key": "array", "whole": True})
    expected = {"shape": list(array.shape), "dtype": array.dtype.newbyteorder("<").str, "type": kind, "bytes": array.nbytes}
    assert expected.items() <= answer.items(), answer
    assert answer["values"] == array.ravel().astype("f8").tolist()


def test_node_has_the_value_of_json(node: World) -> None:
    value = {"b": [1, 2.5, None, True], "a": {"text": ' ä " \\ , '}}
    (node.files / "doc").write_bytes(b"\xef\xbb\xbf" + json.dumps(value, indent=4).encode())
    _, answer = invoke(node.daemon, "json", {"key": "doc"})
    assert answer["value"] == value and answer["same"] and answer["written"] == "EACCES"
    # The file is the text without what is between its parts.
    assert answer["text"] == json.dumps(value, separators=(",", ":"))
    (node.files / "nothing").write_text(" null ")
    assert invoke(node.daemon, "json", {"key": "nothing"})[1]["value"] is None


def test_node_reads_tables_with_the_library_of_arrow(node: World) -> None:
    for format in ("file", "stream"):
        _, made = invoke(node.daemon, "tables", {"format": format})
        (node.files / format).write_bytes(base64.b64decode(made))
        response, answer = invoke(node.daemon, "arrow", {"key": format})
        assert answer["isBuffer"] and answer["rows"] == TABLE, answer
        assert [name for name, _ in answer["columns"]] == ["n", "price", "city"]
        assert "decode" in timing(response)["fetch.x"]
    # A table that pilot itself writes: its records of usage.
    text = usage(node.daemon)
    usage(node.daemon, "--parquet", "--output", node.files / "usage.parquet")
    _, answer = invoke(node.daemon, "parquet", {"key": "usage.parquet"})
    names, *lines = csv.reader(io.StringIO(text))
    assert [name for name, _ in answer["columns"]] == names and len(answer["rows"]) == len(lines) >= 2
    for line, row in zip(lines, answer["rows"], strict=True):
        for field, value, name in zip(line, row, names, strict=True):
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                assert float(field) == value, name
            else:
                assert field == ("" if value is None else str(value)), name


def test_what_cannot_be_decoded_is_an_error_of_the_input_in_node(node: World) -> None:
    for text, said in [
        ('{"a": 1', "EOF while parsing an object"),
        ('{"a": 1, "a": 2}', 'an object has the name "a" twice'),
        ("[" * 1000 + "]" * 1000, "recursion limit"),
        ("\udcff", "it is not UTF-8 at byte 0"),
    ]:
        (node.files / "bad").write_text(text, errors="surrogateescape")
        kind, message = failure(node.daemon, "json", {"key": "bad"})
        assert kind == "Input.DecodeError", message
        assert 'input "x" from file://disk/bad: it cannot be decoded as json: ' in message and said in message
        _, answer = invoke(node.daemon, "maybe", {"key": "bad"})
        assert answer.startswith("InputError: input 'x': it cannot be decoded as json: ") and said in answer
    for function in ("arrow", "parquet"):
        kind, message = failure(node.daemon, function, {"key": "bad"})
        assert kind == "Input.DecodeError" and f"it cannot be decoded as {function}: " in message


INPUTS = """
photo = { from = "file://disk/photo.png", decode = "image" }
the-array = { from = "file://disk/array", decode = "npy" }
document = { from = "file://disk/document", decode = "json" }
table = { from = "file://disk/usage.parquet", decode = "parquet", optional = true }
plain = "file://disk/document"
bad = { from = "file://disk/photo.png", decode = "json", optional = true }
"""
# What a program sees of its inputs: `said` has headers or variables, and `files` what the paths lead to.
SEEN = """
import base64, json

def seen(given):
    found = {"said": {}, "files": {}}
    for name, value in given:
        name = name.lower().replace("_", "-")
        if name.startswith("pilot-input-"):
            with open(value, "rb") as file:
                found["files"][name[12:]] = base64.b64encode(file.read()).decode()
        elif name.startswith(("pilot-decoded-input-", "pilot-failed-input-")):
            found["said"][name] = value
    return json.dumps(found)
"""
PROVIDED = f"""#!/usr/bin/env python3
{SEEN}
import http.client, os

api = http.client.HTTPConnection(os.environ["AWS_LAMBDA_RUNTIME_API"])
while True:
    api.request("GET", "/2018-06-01/runtime/invocation/next")
    event = api.getresponse()
    event.read()
    path = f"/2018-06-01/runtime/invocation/{{event.getheader('Lambda-Runtime-Aws-Request-Id')}}/response"
    api.request("POST", path, seen(event.getheaders()))
    api.getresponse().read()
"""
SERVER = f"""#!/usr/bin/env python3
{SEEN}
import http.server, os


class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(seen(self.headers.items()).encode())


http.server.ThreadingHTTPServer(("", int(os.environ["PORT"])), Handler).serve_forever()
"""
PROGRAM = f"""{SEEN}
import os

print(seen(os.environ.items()))
"""


ARRAY = numpy.arange(24, dtype=">f4").reshape(4, 6)


def objects() -> dict[str, bytes]:
    """What the stores of `INPUTS` have. The table comes later."""
    file = io.BytesIO()
    numpy.save(file, numpy.asfortranarray(ARRAY))
    return {"photo.png": png(ROWS), "array": file.getvalue(), "document": b'{ "a": [1, 2] }'}


def usage(daemon: Daemon, *options: str | Path) -> str:
    """The daemon's records of usage. With options: a table that pilot itself writes."""
    export = [binary(), "cost", "export", "--endpoint", f"unix:{daemon.data / 'control.sock'}", *options]
    return subprocess.run(export, capture_output=True, text=True, timeout=30, check=True).stdout


def load(text: str) -> Any:
    return numpy.load(io.BytesIO(base64.b64decode(text)), allow_pickle=False)


def check_files(answer: Any) -> None:
    """What a program must have seen of `INPUTS`."""
    files, said = answer["files"], answer["said"]
    assert load(files["photo"]).tolist() == [[list(pixel) for pixel in row] for row in ROWS]
    found = load(files["the-array"])
    assert found.dtype.str == "<f4" and found.tolist() == ARRAY.tolist()
    assert base64.b64decode(files["document"]) == b'{"a":[1,2]}'
    assert base64.b64decode(files["plain"]) == b'{ "a": [1, 2] }'
    assert said.pop("pilot-failed-input-bad").startswith("it cannot be decoded as json: ")
    table = said.pop("pilot-decoded-input-table")
    assert table.startswith("application/vnd.apache.arrow.file; rows="), table
    assert said == {
        "pilot-decoded-input-photo": 'application/x-npy; dtype="|u1"; shape="3,2,3"',
        "pilot-decoded-input-the-array": 'application/x-npy; dtype="<f4"; shape="4,6"',
        "pilot-decoded-input-document": "application/json",
    }
    file = base64.b64decode(files["table"])
    assert file[:6] == file[-6:] == b"ARROW1"


@pytest.mark.parametrize(
    ("runtime", "code"),
    [('runtime = "provided"', PROVIDED), ('runtime = "http"', SERVER)],
    ids=["provided", "http"],
)
def test_a_program_gets_files_of_known_formats(world: World, tmp_path: Path, runtime: str, code: str) -> None:
    for key, body in objects().items():
        (world.files / key).write_bytes(body)
    (tmp_path / "program.py").write_text(code)
    (tmp_path / "pilot.toml").write_text(
        f'[functions.program]\n{runtime}\ncommand = ["python3", "program.py"]\ntimeout_s = 30\n[functions.program.inputs]{INPUTS}'
    )
    done = world.daemon.up(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    # Then there is a record of usage.
    invoke(world.daemon, "program", {})
    usage(world.daemon, "--parquet", "--output", world.files / "usage.parquet")
    # A client cannot say itself what an input is.
    headers = {"Pilot-Decoded-Input-Plain": "text/plain"} if "http" in runtime else {}
    path = "/fn/program/" if headers else "/2015-03-31/functions/program/invocations"
    response = world.daemon.request("POST", path, {}, **headers)
    check_files(json.loads(response.read()))
