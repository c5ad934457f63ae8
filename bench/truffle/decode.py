#!/usr/bin/env python3
"""An image that is decoded while the worker starts, the same one after its start, and a handler that decodes it.

    bench/truffle/decode.py [--pilot target/release/pilot] [--smoke] [--rounds 10] [--width 2000] [--rate 80] [--json FILE]

Two daemons of one build differ in `data.overlap` alone, and keep nothing. Each round asks all three sides, and the one that begins changes from
round to round. The image is a PNG of 3/4 of the width, from an HTTP server that sends so many MB per second. The handler that decodes uses Pillow
(with `--smoke`, zlib alone, because nothing is installed then), and its input is fetched while the worker starts, too. They are measured
warm, cold, and cold with a hook of 100 ms. The times are those of the whole request, as its client sees it. The JSON has every one.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import struct
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(1, str(ROOT / "bench"))

from benchlib.call import invoke  # noqa: E402
from benchlib.daemon import Daemon, end, free_port, wait_for_port  # noqa: E402

MB = 1_000_000
# Each side: its daemon, and its function.
SIDES = {"decode": ("overlap", "decode"), "after": ("after", "decode"), "handler": ("overlap", "handler")}
SAID = """
def said(pixels, shape):
    return {"shape": list(shape), "sum": sum(memoryview(pixels).cast("B")[::4096])}
"""
HOOK = """
import time
from snapshot_restore_py import register_after_restore
register_after_restore(lambda: time.sleep(0.1))
"""
DECODE = """
def handler(event, context):
    given = context.inputs["x"]
    return said(given.view(), given.shape)
"""
PILLOW = """
import numpy
from PIL import Image

def handler(event, context):
    with context.inputs.open("x") as file:
        pixels = numpy.asarray(Image.open(file))
    return said(pixels, pixels.shape)
"""
ZLIB = """
import struct, zlib

def handler(event, context):
    data, at, parts = context.inputs["x"], 8, []
    while at < len(data):
        length, kind = struct.unpack_from(">I4s", data, at)
        if kind == b"IHDR":
            width, height = struct.unpack_from(">II", data, at + 8)
        elif kind == b"IDAT":
            parts.append(data[at + 8 : at + 8 + length])
        at += length + 12
    lines = zlib.decompress(b"".join(parts))
    step = 1 + 3 * width
    return said(b"".join(lines[line + 1 : line + step] for line in range(0, len(lines), step)), (height, width, 3))
"""
# The server is a process of its own, so that its work is not this one's.
SERVER = """
import http.server, sys, time

port, rate, path = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
with open(path, "rb") as file:
    data = file.read()

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Or the body waits 40 ms for an acknowledgement of the head.
    disable_nagle_algorithm = True

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        began = time.monotonic()
        for at in range(0, len(data), 1 << 14):
            self.wfile.write(data[at : at + (1 << 14)])
            ahead = at / rate - (time.monotonic() - began)
            if ahead > 0:
                time.sleep(ahead)

    def log_message(self, *_):
        pass

http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


def picture(width: int) -> bytes:
    """A PNG with lines that differ, so that it has work for its decoder."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    height = width * 3 // 4
    noise = os.urandom(3 * width)
    lines = bytearray()
    for line in range(height):
        cut = line * 7 % len(noise)
        # Half of each line is noise, and half is plain.
        row = noise[cut:] + noise[:cut]
        lines += b"\0" + row[: len(row) // 2] + bytes([line % 256]) * (len(row) - len(row) // 2)
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(lines), 1)) + chunk(b"IEND", b"")


def measure(daemons: dict[str, Daemon], rounds: int) -> list[dict[str, Any]]:
    rows = []
    sides = list(SIDES)
    for start, suffix in (("warm", ""), ("cold", ""), ("cold", "-hook")):
        seen: dict[str, list[dict[str, Any]]] = {side: [] for side in sides}
        for turn in range(rounds + 1):  # the first one starts the workers
            for side in sides[turn % 3 :] + sides[: turn % 3]:
                daemon, function = daemons[SIDES[side][0]], SIDES[side][1] + suffix
                if start == "cold":
                    daemon.scale(function, 0)
                    daemon.wait_for_idle(function, 0)
                found = invoke(daemon, function)
                if turn:
                    if found["start"] != start:
                        raise RuntimeError(f"{function} was {found['start']}, must be {start}")
                    seen[side].append(found)
        answers = {json.dumps(found["answer"]) for side in sides for found in seen[side]}
        if len(answers) != 1:
            raise RuntimeError(f"the answers differ: {answers}")
        times = {side: [found["ms"] for found in seen[side]] for side in sides}
        ratios = {
            f"ratio_{other}": statistics.geometric_mean([one / two for one, two in zip(times["decode"], times[other])])
            for other in sides[1:]
        }
        name = start + (" + 100 ms" if suffix else "")
        row: dict[str, Any] = {"start": name, **{f"{side}_ms": statistics.median(times[side]) for side in sides}, **ratios}
        rows.append({**row, "raw": seen, "error": None})
        figures = "".join(f"{row[f'{side}_ms']:>14.1f}" for side in sides)
        print(f"{name:14}{figures}{row['ratio_after']:>12.3f}{row['ratio_handler']:>12.3f}", flush=True)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pilot", type=Path, default=ROOT / "target" / "debug" / "pilot")
    parser.add_argument("--smoke", action="store_true", help="a small image once, and nothing is installed")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--width", type=int)
    parser.add_argument("--rate", type=int, default=80, help="of the server, MB/s")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rounds = options.rounds or (1 if options.smoke else 10)
    width = options.width or (200 if options.smoke else 2000)
    with tempfile.TemporaryDirectory(prefix="pilot-decode-") as folder:
        home = Path(folder)
        home.chmod(0o755)
        image, port = home / "image.png", free_port()
        image.write_bytes(picture(width))
        command = [sys.executable, "-c", SERVER, str(port), str(options.rate * MB), str(image)]
        server = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        try:
            wait_for_port(port, server)
            daemons = {}
            for side in ("overlap", "after"):
                (home / side).mkdir()
                daemons[side] = Daemon(options.pilot.resolve(), home / side)
                with daemons[side].config.open("a") as config:
                    config.write(f"[data]\nmemory_mb = 512\ncache_mb = 0\noverlap = {str(side == 'overlap').lower()}\n")
                    config.write(f'[stores.site]\nfunctions = ["*"]\nkind = "http"\nurl = "http://127.0.0.1:{port}"\n')
            with daemons["overlap"], daemons["after"]:
                own, packages = (ZLIB, "") if options.smoke else (PILLOW, "numpy\npillow\n")
                for daemon in daemons.values():
                    for suffix, hook in (("", ""), ("-hook", HOOK)):
                        plain = {"x": "http://site/x"}
                        decoded = {"x": {"from": "http://site/x", "decode": "image"}}
                        spec: dict[str, Any] = {"handler": "app.handler", "timeout_s": 60, "cpu": 1}
                        daemon.deploy("decode" + suffix, hook + SAID + DECODE, inputs=decoded, **spec)
                        daemon.deploy("handler" + suffix, hook + SAID + own, packages, inputs=plain, **spec)
                columns = "".join(f"{side + ', ms':>14}" for side in SIDES)
                print(f"{'':14}{columns}{'/ after':>12}{'/ handler':>12}")
                rows = measure(daemons, rounds)
        finally:
            end(server)
        size = image.stat().st_size
    if options.json:
        made = {
            "what": "decode",
            "binary": options.pilot.name,
            "rounds": rounds,
            "width": width,
            "bytes": size,
            "rate_mb_per_s": options.rate,
            "machine": {"kernel": platform.release(), "cpus": os.cpu_count(), "load_average": os.getloadavg()},
            "rows": rows,
        }
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(made, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
