#!/usr/bin/env python3
"""A chain of two functions on one node: data by reference, and through Redis on the same machine (Truffle, section III).

    bench/truffle/chain.py [--binary target/debug/pilot] [--rounds 10] [--json FILE]

Each round measures every way with 1 KB and with 128 MB, one after the other. The time is that of the whole call of the second
function, measured in the first one, warm: from data that is in the memory of the first function to an answer of the second one,
which has it and, where the row says so, has read a byte of every page. The ways to hand it over by reference: a buffer that the
first function has filled, an input of the first function, or bytes, which are copied into a buffer. Redis gets plain SET and
GET over loopback without persistence, from a client that copies nothing more than once.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(1, str(ROOT / "bench"))

from benchlib.daemon import Daemon, end, free_port, wait_for_port  # noqa: E402
from benchlib.stats import Estimate  # noqa: E402

KIB, MIB = 1 << 10, 1 << 20
SIZES = {"1 KB": KIB, "128 MB": 128 * MIB}

REDIS = """
import socket

def redis(port):
    peer = socket.create_connection(("127.0.0.1", port))
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return peer

def redis_set(peer, data):
    peer.sendall(b"*3\\r\\n$3\\r\\nSET\\r\\n$4\\r\\ndata\\r\\n$%d\\r\\n" % len(data))
    peer.sendall(data)
    peer.sendall(b"\\r\\n")
    assert peer.recv(64) == b"+OK\\r\\n"

def redis_get(peer):
    peer.sendall(b"*2\\r\\n$3\\r\\nGET\\r\\n$4\\r\\ndata\\r\\n")
    head = peer.recv(64, socket.MSG_PEEK)
    at = head.index(b"\\n") + 1
    peer.recv(at)
    data = bytearray(int(head[1:at]))
    for part in (memoryview(data), memoryview(bytearray(2))):
        while part:
            part = part[peer.recv_into(part):]
    return data
"""

FIRST = (
    REDIS
    + """
import time
import pilotlight

kept = {}

def handler(event, context):
    way, size, ask = event["way"], event["size"], {"reads": event["reads"]}
    if "relayed" in event:  # the second stage of `input`: it has an input, and hands it on
        began = time.perf_counter()
        answer = pilotlight.invoke("second", ask, data=context.inputs["data"])
    elif way == "input":
        with pilotlight.buffer(size) as buffer:
            buffer.write(bytes(size))
            return pilotlight.invoke("first", {**event, "relayed": True}, data=buffer)
    elif way == "buffer":
        with pilotlight.buffer(size) as buffer:
            buffer.write(bytes(size))
            began = time.perf_counter()
            answer = pilotlight.invoke("second", ask, data=buffer)
    else:
        data = bytes(size)
        data.count(1)  # its pages are there
        if way == "redis":
            peer = kept.get("redis") or kept.setdefault("redis", redis(event["redis"]))
        began = time.perf_counter()
        if way == "redis":
            redis_set(peer, data)
            answer = pilotlight.invoke("second", {**ask, "redis": event["redis"]})
        else:
            answer = pilotlight.invoke("second", ask, data=data)
    took = (time.perf_counter() - began) * 1e3
    assert answer["size"] == size, answer
    return took
"""
)

SECOND = (
    REDIS
    + """
kept = {}

def handler(event, context):
    if "redis" in event:
        peer = kept.get("redis") or kept.setdefault("redis", redis(event["redis"]))
        data = redis_get(peer)
    else:
        data = context.inputs["data"]
    if event["reads"]:
        bytes(memoryview(data)[::4096])
    return {"size": len(data), "ends": [data[0], data[-1]]}
"""
)

WAYS = [
    ("reference: buffer", "buffer", False),
    ("reference: buffer, every page read", "buffer", True),
    ("reference: input", "input", False),
    ("reference: bytes", "bytes", False),
    ("Redis", "redis", False),
]


def start_redis(home: Path) -> tuple[subprocess.Popen[bytes], int]:
    port = free_port()
    command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
    # What a SET replaces is given back by another thread, and is no part of the time.
    command += ["--lazyfree-lazy-server-del", "yes"]
    with (home / "redis.log").open("wb") as log:
        server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=home)
    wait_for_port(port, server)
    return server, port


def measure(daemon: Daemon, port: int, rounds: int) -> dict[str, dict[str, list[float]]]:
    """Milliseconds by way and size, one per round."""
    spec: dict[str, Any] = {"network": "host", "memory_mb": 1024, "timeout_s": 120, "cpu": 2, "handler": "app.handler"}
    daemon.deploy("second", SECOND, **spec)
    daemon.deploy("first", FIRST, invokes=["first", "second"], **spec)
    samples: dict[str, dict[str, list[float]]] = {way: {size: [] for size in SIZES} for way, _, _ in WAYS}
    for turn in range(rounds + 1):  # the first one starts the workers
        for way, how, reads in WAYS:
            for size, length in SIZES.items():
                took = daemon.invoke("first", {"way": how, "size": length, "reads": reads, "redis": port})
                if not isinstance(took, float):
                    raise RuntimeError(f"{way}, {size}: {took}")
                if turn:
                    samples[way][size].append(took)
    return samples


def report(samples: dict[str, dict[str, list[float]]], options: argparse.Namespace) -> None:
    print(f"{'':36}{'1 KB, ms':>16}{'128 MB, ms':>18}{'more, ms':>10}{'Redis / it':>12}")
    redis = Estimate.of(samples["Redis"]["128 MB"]).mean
    rows: list[dict[str, Any]] = []
    for way, taken in samples.items():
        small, large = (Estimate.of(taken[size]) for size in SIZES)
        more, ratio = large.mean - small.mean, redis / large.mean
        print(f"{way:36}{small.text(2):>16}{large.text(2):>18}{more:>10.2f}{ratio:>12.1f}")
        rows.append({"way": way, "small": small.to_json(), "large": large.to_json(), "more_ms": more, "redis_over_it": ratio})
    if options.json:
        made = {
            "what": "chain",
            "binary": options.binary.name,
            "rounds": options.rounds,
            "machine": {"kernel": platform.release(), "cpus": os.cpu_count(), "load_average": os.getloadavg()},
            "rows": rows,
            "raw_ms": samples,
        }
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(made, indent=1) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=Path, default=ROOT / "target" / "debug" / "pilot")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pilot-chain-") as folder:
        home = Path(folder)
        home.chmod(0o755)
        server, port = start_redis(home)
        try:
            with Daemon(options.binary.resolve(), home) as daemon:
                samples = measure(daemon, port, options.rounds)
        finally:
            end(server)
    report(samples, options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
