"""Measurements of the Node worker: start to `waiting`, specification to READY and to the first RESULT, memory, one invocation.

    python3 bench.py [--node PATH] [--rounds N] [--flags="…"] [--module]

The results are medians of one run. Compare them only with another run on the same machine. "fresh node" starts the same
interpreter for one line of JavaScript. This is the minimum for a cold start without a pre-warmed process.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import struct
import subprocess
import tempfile
import time
from pathlib import Path

WORKER = Path(__file__).resolve().parent / "worker.js"
HEADER = struct.Struct("<IIIBBH")
INVOKE, READY, RESULT = 1, 16, 17
CALLS = 10_000
CALLS_FIRST = 2_000  # left out: V8 is still compiling
PATIENCE_S = 30.0
HELLO = {
    False: "exports.handler = async (event) => ({ hello: event.name });\n",
    True: "export const handler = async (event) => ({ hello: event.name });\n",
}


class Worker:
    """A pre-warmed worker, and the daemon's ends of its two sockets."""

    def __init__(self, node: str, flags: list[str]) -> None:
        self.channel, theirs = socket.socketpair()
        self.control, their_control = socket.socketpair()
        self.began_ns = time.monotonic_ns()
        self.process = subprocess.Popen(
            [node, *flags, str(WORKER), "prewarmed"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            close_fds=False,
            preexec_fn=lambda: place(theirs.fileno(), their_control.fileno()),  # noqa: PLW1509 - no threads here
        )
        theirs.close()
        their_control.close()
        for end in (self.channel, self.control):
            end.settimeout(PATIENCE_S)
        self.waiting = json.loads(self.control.makefile().readline())
        self.waiting_ms = (time.monotonic_ns() - self.began_ns) / 1e6

    def specify(self, cwd: str, module: bool) -> None:
        function = {
            "name": "hello",
            "version": 1,
            "memory_mb": 256,
            "timeout_s": 30,
            "arn": "arn:aws:lambda:us-east-1:0:function:hello",
        }
        environment = {"PATH": "/usr/bin:/bin", "TZ": ":UTC", "AWS_LAMBDA_FUNCTION_NAME": "hello", "LEVEL": "info"}
        document = {
            "cwd": cwd,
            "handler": "index.handler",
            "environment": environment,
            "memory_mb": 256,
            "concurrency": 1,
            "function": function,
            "log_fd": None,
        }
        self.control.sendall(json.dumps(document).encode() + b"\n")

    def frame(self) -> tuple[int, bytes, bytes]:
        header = self._exactly(HEADER.size)
        meta_len, body_len, _, kind, _, _ = HEADER.unpack(header)
        return kind, self._exactly(meta_len), self._exactly(body_len)

    def _exactly(self, wanted: int) -> bytes:
        data = b""
        while len(data) < wanted:
            more = self.channel.recv(wanted - len(data))
            assert more, "the worker closed its channel"
            data += more
        return data

    def end(self) -> None:
        self.control.close()
        self.channel.close()
        assert self.process.wait(PATIENCE_S) == 0


def place(channel: int, control: int) -> None:
    high = [os.dup2(channel, 200), os.dup2(control, 201)]
    for number, fd in enumerate(high, start=3):
        os.dup2(fd, number)
    os.closerange(5, 1024)


def invoke(stream: int) -> bytes:
    meta = {
        "id": "8f6e0a52-0d5a-4f0e-9c6b-0f9a1c2d3e4f",
        "arn": "arn",
        "version": "1",
        "deadline_ms": int(time.time() * 1000) + 30_000,
    }
    meta_bytes, body = json.dumps(meta).encode(), b'{"name": "world"}'
    return HEADER.pack(len(meta_bytes), len(body), stream, INVOKE, 0, 0) + meta_bytes + body


def pss_kb(pid: int) -> tuple[int, int]:
    fields = dict(line.split()[:2] for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:])
    return int(fields["Pss:"]), int(fields["Private_Dirty:"])


def show(name: str, values: list[float], unit: str) -> None:
    ordered = sorted(values)
    p90 = ordered[int(len(ordered) * 0.9)]
    print(f"{name:>28}: p50 {statistics.median(ordered):8.2f} {unit}, p90 {p90:8.2f}, least {ordered[0]:8.2f}")


def starts(node: str, flags: list[str], rounds: int, cwd: str, module: bool) -> None:
    waiting, ready, first, fresh, pss = [], [], [], [], []
    for _ in range(rounds):
        began_ns = time.monotonic_ns()
        subprocess.run([node, "-e", "0"], check=True)
        fresh.append((time.monotonic_ns() - began_ns) / 1e6)
        worker = Worker(node, flags)
        waiting.append(worker.waiting_ms)
        pss.append(pss_kb(worker.process.pid))
        asked_ns = time.monotonic_ns()
        worker.channel.sendall(invoke(1))
        worker.specify(cwd, module)
        kind, meta, body = worker.frame()
        assert kind == READY, body
        stamps = json.loads(meta)
        ready.append((stamps["initialised_ns"] - stamps["forked_ns"]) / 1e6)
        kind, meta, body = worker.frame()
        assert kind == RESULT, body
        first.append((time.monotonic_ns() - asked_ns) / 1e6)
        worker.end()
    show("fresh node -e 0", fresh, "ms")
    show("exec to waiting", waiting, "ms")
    show("specification to READY", ready, "ms")
    show("specification to RESULT", first, "ms")
    show("PSS while waiting", [kb / 1024 for kb, _ in pss], "MiB")
    show("private while waiting", [kb / 1024 for _, kb in pss], "MiB")


def calls(node: str, flags: list[str], cwd: str, module: bool) -> None:
    worker = Worker(node, flags)
    worker.specify(cwd, module)
    worker.frame()
    frame = invoke(1)
    worker.channel.settimeout(None)
    times = []
    for _ in range(CALLS):
        began_ns = time.perf_counter_ns()
        worker.channel.sendall(frame)
        worker.channel.recv(4096)
        times.append((time.perf_counter_ns() - began_ns) / 1e3)
    show("no-op round trip", times[CALLS_FIRST:], "us")
    worker.channel.settimeout(PATIENCE_S)
    worker.end()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--node", default="node")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--flags", default="")
    parser.add_argument("--module", action="store_true", help="the handler is an ES module")
    arguments = parser.parse_args()
    flags = arguments.flags.split()
    with tempfile.TemporaryDirectory() as cwd:
        Path(cwd, "index.mjs" if arguments.module else "index.js").write_text(HELLO[arguments.module])
        starts(arguments.node, flags, arguments.rounds, cwd, arguments.module)
        calls(arguments.node, flags, cwd, arguments.module)


if __name__ == "__main__":
    main()
