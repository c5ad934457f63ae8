#!/usr/bin/env python3
"""An input that is read while it arrives, and the same input as a whole (`data.stream`).

    bench/truffle/stream.py [--pilot target/debug/pilot] [--smoke] [--rounds 10] [--size 32] [--rate 80] [--json FILE]

Two daemons of one build differ in `data.stream` alone, and keep nothing. Each round asks both, and the one that begins changes from round
to round. The input comes from an HTTP server that sends so many MB per second. The handlers: one hashes each part as it comes, one
compresses it, which takes about as long as the transfer, and one takes a view, which waits for the whole: it gains nothing, and must lose
nothing. All are measured warm, and with a worker that has to start. The times are those of the whole request, as its client sees it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(1, str(ROOT / "bench"))

from benchlib.call import invoke  # noqa: E402
from benchlib.daemon import Daemon, end, free_port, wait_for_port  # noqa: E402

MB = 1_000_000
SIDES = ("stream", "whole")
HANDLERS = {
    "hash": """
import hashlib

def handler(event, context):
    digest = hashlib.sha256()
    with context.inputs.open("x") as file:
        for part in iter(lambda: file.read(1 << 18), b""):
            digest.update(part)
    return digest.hexdigest()
""",
    "compress": """
import zlib

def handler(event, context):
    compressor, count = zlib.compressobj(1), 0
    with context.inputs.open("x") as file:
        for part in iter(lambda: file.read(1 << 18), b""):
            count += len(compressor.compress(part))
    return count + len(compressor.flush())
""",
    "view": """
import hashlib

def handler(event, context):
    return hashlib.sha256(context.inputs["x"]).hexdigest()
""",
}
# The server is a process of its own, so that its work is not this one's.
SERVER = """
import http.server, os, sys, time

port, size, rate = (int(word) for word in sys.argv[1:])
# More than the window of a compressor, so that nothing repeats for it.
data = os.urandom(1 << 20)
views = [data[at : at + (1 << 14)] for at in range(0, 1 << 20, 1 << 14)]

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Or the body waits 40 ms for an acknowledgement of the head.
    disable_nagle_algorithm = True

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", str(size))
        self.end_headers()
        began, sent = time.monotonic(), 0
        while sent < size:
            part = views[(sent >> 14) % len(views)][: size - sent]
            self.wfile.write(part)
            sent += len(part)
            ahead = sent / rate - (time.monotonic() - began)
            if ahead > 0:
                time.sleep(ahead)

    def log_message(self, *_):
        pass

http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


def measure(daemons: dict[str, Daemon], rounds: int) -> list[dict[str, Any]]:
    rows = []
    for name in HANDLERS:
        for start in ("warm", "cold"):
            seen: dict[str, list[dict[str, Any]]] = {side: [] for side in SIDES}
            for turn in range(rounds + 1):  # the first one starts the workers
                for side in SIDES if turn % 2 == 0 else SIDES[::-1]:
                    daemon = daemons[side]
                    if start == "cold":
                        daemon.scale(name, 0)
                        daemon.wait_for_idle(name, 0)
                    found = invoke(daemon, name)
                    if turn:
                        if found["start"] != start:
                            raise RuntimeError(f"{name} was {found['start']}, must be {start}")
                        seen[side].append(found)
            answers = {json.dumps(found["answer"]) for found in seen["stream"] + seen["whole"]}
            if len(answers) != 1:
                raise RuntimeError(f"{name}: the answers differ: {answers}")
            stream, whole = ([found["ms"] for found in seen[side]] for side in SIDES)
            ratio = statistics.geometric_mean([one / other for one, other in zip(stream, whole)])
            row = {
                "handler": name,
                "start": start,
                "stream_ms": statistics.median(stream),
                "whole_ms": statistics.median(whole),
            }
            rows.append({**row, "ratio": ratio, "raw": seen, "error": None})
            print(f"{name:10}{start:6}{row['stream_ms']:>12.1f}{row['whole_ms']:>12.1f}{ratio:>10.3f}", flush=True)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pilot", type=Path, default=ROOT / "target" / "debug" / "pilot")
    parser.add_argument("--smoke", action="store_true", help="a small input once")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--size", type=int, help="of the input, MB")
    parser.add_argument("--rate", type=int, default=80, help="of the server, MB/s")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    options.rounds = options.rounds or (1 if options.smoke else 10)
    options.size = options.size or (2 if options.smoke else 32)
    with tempfile.TemporaryDirectory(prefix="pilot-stream-") as folder:
        home = Path(folder)
        home.chmod(0o755)
        port = free_port()
        numbers = [str(number) for number in (port, options.size * MB, options.rate * MB)]
        server = subprocess.Popen([sys.executable, "-c", SERVER, *numbers], stdin=subprocess.DEVNULL)
        try:
            wait_for_port(port, server)
            daemons = {}
            for side in SIDES:
                (home / side).mkdir()
                daemons[side] = Daemon(options.pilot.resolve(), home / side)
                with daemons[side].config.open("a") as config:
                    config.write(f"[data]\nmemory_mb = 512\ncache_mb = 0\nstream = {str(side == 'stream').lower()}\n")
                    config.write(f'[stores.site]\nfunctions = ["*"]\nkind = "http"\nurl = "http://127.0.0.1:{port}"\n')
            with daemons["stream"], daemons["whole"]:
                for daemon in daemons.values():
                    for name, code in HANDLERS.items():
                        inputs = {"x": {"from": "http://site/x", "stream": True}}
                        daemon.deploy(name, code, handler="app.handler", timeout_s=60, cpu=1, inputs=inputs)
                print(f"{'':16}{'stream, ms':>12}{'whole, ms':>12}{'ratio':>10}")
                rows = measure(daemons, options.rounds)
        finally:
            end(server)
    if options.json:
        made = {
            "what": "stream",
            "binary": options.pilot.name,
            "rounds": options.rounds,
            "size_mb": options.size,
            "rate_mb_per_s": options.rate,
            "machine": {"kernel": platform.release(), "cpus": os.cpu_count(), "load_average": os.getloadavg()},
            "rows": rows,
        }
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(made, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
