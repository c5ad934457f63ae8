#!/usr/bin/env python3
"""Data for a function on another node, and a plain TCP stream of the same size (Truffle, section III).

    bench/truffle/nodes.py [--pilot target/debug/pilot] [--rounds 10] [--megabits 1000] [--json FILE]

Two daemons run in two network namespaces, joined by a virtual cable with a rate (tc-tbf(8)). In each round a function on the one invokes a
function on the other, with data that lies in a buffer (`buffer`) or that is copied into one first (`bytes`), and a plain TCP connection
carries as many bytes. The sides take turns. The time of a call is measured in the calling function, from the call to the answer of
the other one, which has the data and has read its ends; that of the stream in its sender, from the first byte to the receiver's one byte
of answer. Both connections were opened before. It needs root.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[1:1] = [str(ROOT / "bench"), str(ROOT / "tests" / "support")]

from benchlib.daemon import Daemon, end  # noqa: E402
from benchlib.stats import Estimate  # noqa: E402
from two_nodes import Authority, Cable  # noqa: E402

MIB = 1 << 20
SIDES = ("tcp", "buffer", "bytes")

FIRST = """
import time
import pilotlight

def handler(event, context):
    size = event["size"]
    if event["side"] == "buffer":
        with pilotlight.buffer(size) as buffer:
            buffer.write(bytes(size))
            buffer.seal()
            began = time.perf_counter()
            answer = pilotlight.invoke("second", data=buffer)
            took = time.perf_counter() - began
    else:
        data = bytes(size)
        data.count(1)  # its pages are there
        began = time.perf_counter()
        answer = pilotlight.invoke("second", data=data)
        took = time.perf_counter() - began
    assert answer["size"] == size, answer
    return took * 1e3
"""

SECOND = """
def handler(event, context):
    data = context.inputs["data"]
    return {"size": len(data), "ends": [data[0], data[-1]]}
"""

RECEIVER = """
import socket, sys
size = int(sys.argv[2])
listener = socket.create_server((sys.argv[1], 7000))
print(flush=True)
peer, _ = listener.accept()
memory = memoryview(bytearray(size))
while True:
    at = 0
    while at < size:
        got = peer.recv_into(memory[at:])
        if not got:
            sys.exit()
        at += got
    peer.sendall(b"x")
"""

SENDER = """
import socket, sys, time
size = int(sys.argv[2])
peer = socket.create_connection((sys.argv[1], 7000))
data = bytes(size)
data.count(1)
print(flush=True)
for _ in sys.stdin:
    began = time.perf_counter()
    peer.sendall(data)
    peer.recv(1)
    print((time.perf_counter() - began) * 1e3, flush=True)
"""


class FarDaemon(Daemon):
    """A daemon in a namespace. Everything goes over its control socket."""

    def __init__(self, binary: Path, home: Path, namespace: str, config: str) -> None:
        home.mkdir()
        super().__init__(binary, home)
        self.namespace = namespace
        with self.config.open("a") as file:
            file.write(config)

    def start(self) -> None:
        command = ["nsenter", f"--net=/run/netns/{self.namespace}", "--", str(self.binary), "serve", "--listen", self.address]
        command += ["--data-dir", str(self.data), "--config", str(self.config)]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        deadline = time.monotonic() + 30
        while not self.is_ready():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the daemon is not ready\n{self.log_tail()}")
            time.sleep(0.01)

    def is_ready(self) -> bool:
        try:
            return self.call("GET", "/readyz")[0] == 200
        except OSError:
            return False

    def call(self, method: str, path: str, body: bytes = b"", content_type: str = "application/json") -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("localhost", timeout=120)
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.settimeout(120)
        try:
            connection.sock.connect(str(self.data / "control.sock"))
            connection.request(method, path, body or None, {"content-type": content_type})
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()


class Stream:
    """The plain TCP stream from the one namespace to the other."""

    def __init__(self, cable: Cable, size: int) -> None:
        self.ends: list[subprocess.Popen[str]] = []
        for end_name, program in (("b", RECEIVER), ("a", SENDER)):
            command = ["nsenter", f"--net=/run/netns/{cable.names[end_name]}", "--", sys.executable, "-c", program]
            pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
            self.ends.append(subprocess.Popen([*command, cable.ADDRESSES["b"], str(size)], **pipes))
            self.line()

    def line(self) -> str:
        stdout = self.ends[-1].stdout
        assert stdout
        line = stdout.readline()
        if not line:
            raise RuntimeError("the plain stream broke off")
        return line

    def take(self) -> float:
        stdin = self.ends[-1].stdin
        assert stdin
        stdin.write("\n")
        stdin.flush()
        return float(self.line())

    def close(self) -> None:
        for process in self.ends:
            end(process)


def configured(home: Path, cable: Cable, binary: Path) -> dict[str, FarDaemon]:
    authority = Authority(home)
    other = {"a": "b", "b": "a"}
    functions = {"a": '["second"]', "b": '["first"]'}
    daemons = {}
    for name, address in cable.ADDRESSES.items():
        config = f'[data]\nmemory_mb = 640\nfunction_mb = 320\ninput_mb = 300\n[nodes]\nlisten = "{address}:7443"\n'
        config += f"{authority.keys(name)}[nodes.{other[name]}]\n"
        config += f'url = "https://{cable.ADDRESSES[other[name]]}:7443"\nfunctions = {functions[name]}\nmay_invoke = ["*"]\n'
        daemons[name] = FarDaemon(binary, home / name, cable.names[name], config)
    return daemons


def measure(daemons: dict[str, FarDaemon], stream: Stream, size: int, rounds: int) -> dict[str, list[float]]:
    """Milliseconds by side, one per round."""
    spec: dict[str, Any] = {"memory_mb": 1024, "timeout_s": 300, "cpu": 2, "handler": "app.handler"}
    daemons["b"].deploy("second", SECOND, **spec)
    daemons["a"].deploy("first", FIRST, invokes=["second"], **spec)
    samples: dict[str, list[float]] = {side: [] for side in SIDES}
    for turn in range(rounds + 1):  # the first one starts the workers
        for side in SIDES[turn % 3 :] + SIDES[: turn % 3]:
            took = stream.take() if side == "tcp" else daemons["a"].invoke("first", {"side": side, "size": size})
            if not isinstance(took, float):
                raise RuntimeError(f"{side}: {took}")
            if turn:
                samples[side].append(took)
    return samples


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pilot", type=Path, default=ROOT / "target" / "debug" / "pilot")
    parser.add_argument("--smoke", action="store_true", help="little data, once")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--size", type=int, help="MB")
    parser.add_argument("--megabits", type=int, default=1000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rounds = options.rounds or (1 if options.smoke else 10)
    size = (options.size or (4 if options.smoke else 128)) * MIB
    with tempfile.TemporaryDirectory(prefix="pilot-nodes-") as folder, Cable() as cable:
        home = Path(folder)
        home.chmod(0o755)
        cable.rate(options.megabits)
        stream = Stream(cable, size)
        try:
            daemons = configured(home, cable, options.pilot.resolve())
            with daemons["b"], daemons["a"]:
                samples = measure(daemons, stream, size, rounds)
        finally:
            stream.close()
    rows = []
    print(f"{size // MIB} MB at {options.megabits} Mbit/s")
    print(f"{'':8}{'ms':>18}{'Mbit/s':>10}{'of TCP':>9}")
    for side, taken in samples.items():
        estimate = Estimate.of(taken)
        share = statistics.geometric_mean([plain / one for plain, one in zip(samples["tcp"], taken)])
        rate = size * 8 / 1e3 / estimate.mean
        print(f"{side:8}{estimate.text(1):>18}{rate:>10.0f}{share:>9.3f}")
        rows.append(
            {"side": side, "ms": estimate.to_json(), "megabits": rate, "share_of_tcp": share, "raw_ms": taken, "error": None}
        )
    if options.json:
        made = {
            "what": "nodes",
            "binary": options.pilot.name,
            "rounds": rounds,
            "bytes": size,
            "megabits": options.megabits,
            "machine": {"kernel": platform.release(), "cpus": os.cpu_count(), "load_average": os.getloadavg()},
            "rows": rows,
        }
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(made, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
