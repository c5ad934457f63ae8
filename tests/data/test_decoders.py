"""Inputs with `decode`: a process in a sandbox makes an array of what the store has, while the worker starts."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import os
import struct
import subprocess
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy
import pytest
from conftest import HERE
from pilot_daemon import ROOT, Daemon, binary
from test_inputs import MIB, failure, invoke, timing
from test_streams import Answer, Origin

PHOTO = ROOT / "examples" / "image" / "astronaut.jpg"


@dataclass
class World:
    daemon: Daemon
    origin: Origin
    files: Path

    def save(self, key: str, array: object) -> None:
        file = io.BytesIO()
        numpy.save(file, array)
        (self.files / key).write_bytes(file.getvalue())

    def described(self, function: str) -> dict[str, object]:
        description = json.loads(self.daemon.request("GET", f"/_pilot/v1/functions/{function}").read())
        transfer: dict[str, object] = description["last"]["transfers"][0]
        return transfer


@contextlib.contextmanager
def started(home: Path, name: str, data: str, functions: Path | None = HERE / "decoders") -> Iterator[World]:
    place = home / f"decoders-{name}"
    (place / "files").mkdir(parents=True)
    origin = Origin()
    config = place / "pilotd.toml"
    config.write_text(
        f"""
[data]
{data}
[stores.origin]
functions = ["*"]
kind = "http"
url = "http://127.0.0.1:{origin.server.server_address[1]}"
[stores.disk]
functions = ["*"]
kind = "file"
path = "{place / "files"}"
"""
    )
    daemon = Daemon(place, "--config", str(config))
    try:
        if functions:
            done = daemon.up(functions)
            assert done.returncode == 0, f"{done.stdout}{done.stderr}\n{daemon.log.read_text()}"
        yield World(daemon, origin, place / "files")
    finally:
        daemon.stop()
        origin.server.shutdown()


@pytest.fixture(scope="module")
def world(home: Path) -> Iterator[World]:
    with started(home, "plain", "memory_mb = 256\ninput_mb = 64") as world:
        yield world


def png(rows: list[list[tuple[int, int, int]]]) -> bytes:
    """As the specification says, section 5."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", len(rows[0]), len(rows), 8, 2, 0, 0, 0)
    data = b"".join(b"\0" + bytes(value for pixel in row for value in pixel) for row in rows)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(data)) + chunk(b"IEND", b"")


def decoders(daemon: Daemon) -> list[int]:
    """The processes of this daemon that decode or wait for an input."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            if b"decode-input" in (entry / "cmdline").read_bytes():
                pid = int(entry.name)
                while pid not in (0, 1, daemon.process.pid):
                    pid = int((Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[1])
                if pid == daemon.process.pid:
                    found.append(int(entry.name))
    return found


def test_an_image_is_an_array_in_the_handler(world: World) -> None:
    rows = [[(0, 1, 2), (3, 4, 5)], [(6, 7, 8), (9, 10, 11)], [(12, 13, 14), (255, 254, 253)]]
    world.origin.whole("small", png(rows))
    response, answer = invoke(world.daemon, "image", {"key": "small", "whole": True})
    assert response.getheader("x-pilot-start") == "cold"
    assert answer["values"] == [[list(pixel) for pixel in row] for row in rows]
    expected = {"by": "image", "shape": [3, 2, 3], "dtype": "|u1", "form": ["B", [3, 2, 3], True], "size": 18, "as_file": 18}
    assert expected.items() <= answer.items() and answer["same"] and "read-only" in answer["write"]
    world.origin.whole("photo", PHOTO.read_bytes())
    response, answer = invoke(world.daemon, "image", {"key": "photo"})
    assert (answer["shape"], answer["size"]) == ([512, 512, 3], 512 * 512 * 3)
    # The timeline says how much of the time was the decoder's.
    fetch = timing(response)["fetch.x"]
    assert fetch["bytes"] == 512 * 512 * 3 and 0 < fetch["decode"] <= fetch["dur"]
    transfer = world.described("image")
    assert transfer["began"] <= transfer["decoding"] <= transfer["ended"]  # type: ignore[operator]
    command = [binary(), "describe", "image", "--endpoint", f"unix:{world.daemon.data / 'control.sock'}"]
    assert "decoding" in subprocess.run(command, capture_output=True, text=True, timeout=30).stdout


@pytest.mark.parametrize(
    "array",
    [
        numpy.arange(24, dtype="<i4").reshape(2, 3, 4),
        numpy.arange(24, dtype=">i4").reshape(2, 3, 4),
        numpy.asfortranarray(numpy.arange(24, dtype="<f8").reshape(4, 6)),
        numpy.array([True, False, True]),
        numpy.zeros((0, 5), dtype="<f4"),
        numpy.array(7, dtype="<u2"),
    ],
    ids=["C", "big-endian", "Fortran", "truths", "empty", "scalar"],
)
def test_an_array_of_numpy_keeps_its_shape_and_values(world: World, array: numpy.ndarray) -> None:  # type: ignore[type-arg]
    world.save("array", array)
    _, answer = invoke(world.daemon, "npy", {"key": "array", "whole": True})
    little = array.dtype.newbyteorder("<").str
    assert (answer["shape"], answer["dtype"], answer["size"]) == (list(array.shape), little, array.nbytes), answer
    assert answer["form"][1:] == [list(array.shape), True]
    assert answer["values"] == (array.tolist() if array.size else [])


def test_numpy_sees_the_memory_itself(world: World) -> None:
    done = world.daemon.up(HERE / "decoders-numpy")
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    array = numpy.arange(8 * MIB, dtype="<u4")
    world.save("large", array)
    _, answer = invoke(world.daemon, "of-numpy", {"key": "large"})
    assert (answer["shape"], answer["dtype"], answer["sum"]) == ([8 * MIB], "<u4", int(array.sum(dtype="u8")))
    assert not answer["writeable"] and not answer["owns"]
    # The array has 32 MB.
    assert answer["grown_kib"] < 4096, answer


def test_python_has_the_value_of_json(world: World) -> None:
    value = {"b": 1, "a": [18446744073709551615, 0.1, None, True, "\u00e4"]}
    (world.files / "doc").write_bytes(b"\xef\xbb\xbf" + json.dumps(value, indent=4).encode())
    response, answer = invoke(world.daemon, "json", {"key": "doc"})
    assert answer["value"] == value and list(answer["value"]) == ["b", "a"] and answer["same"]
    # What was checked is without white space.
    assert json.loads(answer["text"]) == value and "\n" not in answer["text"]
    assert answer["said"] == "Decoded(name='x', by='json')"
    assert "decode" in timing(response)["fetch.x"]
    (world.files / "nothing").write_text(" null ")
    assert invoke(world.daemon, "json", {"key": "nothing"})[1]["value"] is None
    (world.files / "twice").write_text('{"a": 1, "a": 2}')
    kind, message = failure(world.daemon, "json", {"key": "twice"})
    assert kind == "Input.DecodeError" and 'an object has the name "a" twice' in message, message


@pytest.mark.timeout(240)
def test_pyarrow_reads_a_table_in_place(world: World) -> None:
    done = world.daemon.up(HERE / "decoders-pyarrow")
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"

    def save(key: str, **event: object) -> None:
        (world.files / key).write_bytes(base64.b64decode(invoke(world.daemon, "tables", event)[1]))

    columns = {"n": [1, 2, 3], "price": [0.5, None, -2.0], "city": ["K\u00f6ln", "", None]}
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    for format, compression in [("file", None), ("stream", None), ("stream", "lz4"), ("file", "zstd")]:
        save("table", format=format, compression=compression)
        response, answer = invoke(world.daemon, "arrow", {"key": "table", "whole": True})
        assert (answer["rows"], answer["names"], answer["same"]) == (rows, list(columns), True)
        assert "decode" in timing(response)["fetch.x"]
    # The values are where the daemon has put them, also of what was compressed in the store.
    save("large", format="stream", compression="lz4", count=200_000)
    _, answer = invoke(world.daemon, "arrow", {"key": "large"})
    assert (answer["rows"], answer["last"]) == (200_000, 199_999)
    assert answer["copied"] < 65_536, answer
    (world.files / "bad").write_text("no table")
    kind, message = failure(world.daemon, "arrow", {"key": "bad"})
    assert kind == "Input.DecodeError" and "it cannot be decoded as arrow: " in message, message


def test_the_columns_of_a_table_are_arrays(world: World) -> None:
    """The table is one that pilot itself writes: its records of usage."""
    world.save("array", numpy.zeros(3))
    for _ in range(3):
        invoke(world.daemon, "npy", {"key": "array"})
    export = [binary(), "cost", "export", "--endpoint", f"unix:{world.daemon.data / 'control.sock'}"]
    text = subprocess.run(export, capture_output=True, text=True, timeout=30, check=True).stdout.splitlines()
    subprocess.run(
        [*export, "--parquet", "--output", world.files / "usage.parquet"], capture_output=True, timeout=30, check=True
    )
    _, answer = invoke(world.daemon, "table", {"key": "usage.parquet"})
    assert answer["rows"] >= 3 and "by='parquet'" in answer["said"]
    names = text[0].split(",")
    assert list(answer["columns"]) == names
    for name in names:
        values, present = answer["columns"][name], answer["present"][name]
        assert len(values) == answer["rows"]
        for row, line in enumerate(text[1:][: answer["rows"]]):
            field = line.split(",")[names.index(name)]
            is_there = present is None or present[row]
            assert (str(values[row]) if is_there else "") == field, (name, row)


def test_what_cannot_be_decoded_is_an_error_of_the_input(world: World) -> None:
    whole = png([[(0, 0, 0)] * 40] * 40)
    huge = bytearray(whole)
    huge[16:24] = struct.pack(">II", 40_000, 40_000)
    huge[29:33] = struct.pack(">I", zlib.crc32(bytes(huge[12:29])))
    for body, said in [
        (b"no image", "it is no PNG, JPEG, GIF or WebP"),
        (whole[:50], "it cannot be decoded as image: "),
        (PHOTO.read_bytes()[:2000], "it cannot be decoded as image: "),
        (bytes(huge), "data."),
        (b"", "it is no PNG"),
    ]:
        world.origin.whole("bad", body)
        kind, message = failure(world.daemon, "image", {"key": "bad"})
        assert kind == "Input.DecodeError", message
        assert 'input "x" from http://origin/bad: it cannot be decoded as image: ' in message and said in message
    (world.files / "bad").write_bytes(b"no image")
    _, answer = invoke(world.daemon, "maybe", {"key": "bad"})
    assert answer.startswith("input 'x': ") and "it is no PNG" in answer
    world.save("objects", numpy.array([{}], dtype=object))
    kind, message = failure(world.daemon, "npy", {"key": "objects"})
    assert kind == "Input.DecodeError" and 'have the type "|O"' in message
    # The store's own errors are as they are.
    assert failure(world.daemon, "image", {"key": "none"})[0] == "Input.NotFound"
    world.origin.whole("small", png([[(1, 2, 3)]]))
    assert invoke(world.daemon, "image", {"key": "small"})[1]["shape"] == [1, 1, 3]


def test_what_was_decoded_is_shared_and_kept_and_asked_for_again(world: World) -> None:
    photo = PHOTO.read_bytes()
    world.origin.put("kept", *(Answer([photo], len(photo), "first") for _ in range(2)))
    first, _ = invoke(world.daemon, "image", {"key": "kept"})
    assert "decode=" in (first.getheader("server-timing") or "")
    second, answer = invoke(world.daemon, "image", {"key": "kept"})
    assert answer["shape"] == [512, 512, 3]
    said = second.getheader("server-timing") or ""
    assert "desc=cached" in said and "decode=" not in said
    world.origin.put("kept", Answer([png([[(1, 2, 3)]])], None, "second"))
    assert invoke(world.daemon, "image", {"key": "kept"})[1]["shape"] == [1, 1, 3]
    # Many at the same time: one transfer and one decoder, and at most one more question for the others.
    world.origin.put("many", *(Answer([photo], len(photo), "many") for _ in range(12)))
    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(lambda _: invoke(world.daemon, "image", {"key": "many"}), range(12)))
    assert all(answer["shape"] == [512, 512, 3] for _, answer in answers)
    fetched = [one for one, _ in answers if "desc=" not in (one.getheader("server-timing") or "").partition("fetch.x")[2]]
    assert len(fetched) < 12


def test_a_decoder_has_no_rights_and_decodes_one_input(world: World) -> None:
    world.origin.whole("small", png([[(1, 2, 3)]]))
    invoke(world.daemon, "image", {"key": "small"})
    deadline = time.monotonic() + 20
    while len(waiting := decoders(world.daemon)) != 1:
        assert time.monotonic() < deadline, "no process waits for the next input"
        time.sleep(0.02)
    (pid,) = waiting
    place = Path("/proc") / str(pid)
    status = dict(line.split(":\t", 1) for line in (place / "status").read_text().splitlines() if ":\t" in line)
    assert status["CapEff"] == status["CapBnd"] == "0" * 16
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    assert "0" not in status["Uid"].split()
    for namespace in ("net", "pid", "mnt", "ipc"):
        assert os.readlink(place / "ns" / namespace) != os.readlink(f"/proc/self/ns/{namespace}")
    assert (place / "environ").read_bytes() == b""
    opened = {os.readlink(place / "fd" / number).partition(":")[0] for number in os.listdir(place / "fd")}
    assert opened == {"socket", "/dev/null"}
    # It decodes the next input, and then there is another one.
    world.origin.whole("small", png([[(1, 2, 3)]]))
    invoke(world.daemon, "image", {"key": "small"})
    deadline = time.monotonic() + 20
    while pid in decoders(world.daemon):
        assert time.monotonic() < deadline, "it was not the next input's"
        time.sleep(0.02)


def test_a_decoder_that_needs_too_much_memory_is_ended(home: Path) -> None:
    with started(home, "small", "memory_mb = 256\ninput_mb = 64\ndecoder_memory_mb = 32") as world:
        world.save("large", numpy.ones(48 * MIB, dtype="u1"))
        kind, message = failure(world.daemon, "npy", {"key": "large"})
        assert kind == "Input.DecodeError" and "it cannot be decoded as npy: " in message, message
        assert "data.decoder_memory_mb" in message or "no memory" in message, message
        world.save("small", numpy.ones(3, dtype="u1"))
        assert invoke(world.daemon, "npy", {"key": "small"})[1]["shape"] == [3]
        # Nothing is left of the one that failed.
        deadline = time.monotonic() + 20
        while len(decoders(world.daemon)) > 1:
            assert time.monotonic() < deadline
            time.sleep(0.02)


def test_a_decoder_is_refused_where_it_cannot_work(world: World, tmp_path: Path) -> None:
    for runtime, table, said in [
        ("python", 'decode = "jpeg"', "must be one of image, npy, parquet, arrow, json"),
        ("python", 'decode = "npy", stream = true', "leave one of the two out"),
        ("node", 'decode = "npy", stream = true', "leave one of the two out"),
    ]:
        (tmp_path / "pilot.toml").write_text(
            f'[functions.no]\nruntime = "{runtime}"\nhandler = "app.handler"\n'
            f'[functions.no.inputs]\nx = {{ from = "file://disk/x", {table} }}\n'
        )
        done = world.daemon.up(tmp_path)
        assert done.returncode != 0 and said in done.stdout + done.stderr, done.stdout + done.stderr
