"""Unmodified servers behind a small shim (the paper's Fig. 11 and 12): memcached restarts warm from a snapshot, and etcd restores one."""

from __future__ import annotations

import base64
import http.client
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchlib.daemon import end, free_port, wait_for_port
from benchlib.report import Bar, Report
from benchlib.store import presigned

from .measure import HEADER, NOTES, SIDES, Cell, turn_order
from .sebs import DISTANCES_MS
from .world import BUCKET, CONTAINER, PROGRAM, World

PROGRAMS = ("memcached", "etcd", "etcdctl")
PACKAGES = ("memcached", "etcd-server", "etcd-client")
QUESTION = "key-42"
MINIMA = {"memcached": 1.56, "etcd": 1.18}


class MissingError(RuntimeError):
    """There is no such server here."""


@dataclass(frozen=True)
class Server:
    """A server, the objects of its snapshot, and an event."""

    name: str
    objects: dict[str, bytes]
    event: dict[str, Any]
    answer: str


def install(is_smoke: bool) -> None:
    """Debian's packages. Their services are not started (invoke-rc.d(8): runlevel 1). A smoke run installs nothing."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if not missing:
        return
    if is_smoke or shutil.which("apt-get") is None:
        raise MissingError(f"{', '.join(missing)}: not installed (Debian: {' '.join(PACKAGES)})")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    print(f"installing {' '.join(PACKAGES)}", file=sys.stderr, flush=True)
    for command in (["update"], ["install", "-y", "--no-install-recommends", *PACKAGES]):
        done = subprocess.run(
            ["apt-get", "-qq", *command], env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True
        )
    if done.returncode != 0:
        raise MissingError(f"apt-get install: {done.stderr.strip()[-300:]}")


def memcached(home: Path, memory_mb: int, items: int) -> Server:
    """Its memory file is a snapshot once it was ended by SIGUSR1, and the other file says what is in it (docs: warm restart)."""
    memory, address = home / "memcached", home / "memcached.socket"
    command = ["memcached", "-e", str(memory), "-m", str(memory_mb), "-s", str(address)]
    process = subprocess.Popen([*command, *(["-u", "root"] if os.getuid() == 0 else [])])
    some = random.Random(7)
    try:
        with connected(address, process) as line:
            for at in range(0, items, 1000):
                values = ((at + one, some.randbytes(500).hex()) for one in range(min(1000, items - at)))
                line.sendall(
                    b"".join(b"set key-%d 0 0 1000 noreply\r\n%s\r\n" % (key, value.encode()) for key, value in values)
                )
            line.sendall(b"get %s\r\n" % QUESTION.encode())
            reader = line.makefile("rb")
            if not reader.readline().startswith(b"VALUE"):
                raise RuntimeError(f"memcached has no room for {items} items in {memory_mb} MB")
            answer = reader.read(1000).decode()
        process.send_signal(signal.SIGUSR1)
        process.wait(60)
    finally:
        end(process)
    objects = {"snapshots/memory": memory.read_bytes(), "snapshots/memory.meta": Path(f"{memory}.meta").read_bytes()}
    memory.unlink()
    return Server("memcached", objects, {"memory_mb": memory_mb}, answer)


def connected(address: Path, process: subprocess.Popen[bytes]) -> socket.socket:
    while True:
        line = socket.socket(socket.AF_UNIX)
        try:
            line.settimeout(60)
            line.connect(str(address))
            return line
        except OSError:
            line.close()
            if process.poll() is not None:
                raise RuntimeError(f"memcached has ended with {process.returncode}") from None


def etcd(home: Path, items: int) -> Server:
    """Items of 10 KB."""
    port, data, snapshot = free_port(), home / "etcd", home / "etcd.snapshot"
    client, peer = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{free_port()}"
    command = [
        "etcd",
        "--name",
        "one",
        "--data-dir",
        str(data),
        "--listen-client-urls",
        client,
        "--advertise-client-urls",
        client,
    ]
    command += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"one={peer}"]
    some, answer = random.Random(7), ""
    with (home / "etcd.log").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        wait_for_port(port, process, 60)
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        for at in range(items):
            value = some.randbytes(5000).hex()
            answer = value if f"key-{at}" == QUESTION else answer
            body = {"key": base64.b64encode(b"key-%d" % at).decode(), "value": base64.b64encode(value.encode()).decode()}
            connection.request("POST", "/v3/kv/put", json.dumps(body))
            response = connection.getresponse()
            said = response.read()
            if response.status != 200:
                raise RuntimeError(f"etcd: {response.status} {said[:300]!r}")
        save = ["etcdctl", "--endpoints", client, "snapshot", "save", str(snapshot)]
        subprocess.run(save, env={**os.environ, "ETCDCTL_API": "3"}, check=True, capture_output=True)
    finally:
        end(process)
    return Server("etcd", {"snapshots/etcd": snapshot.read_bytes()}, {}, answer)


def measure(world: World) -> Report:
    report = Report(
        "servers", "unmodified servers that take their state from a snapshot, without and with an initscript", HEADER
    )
    try:
        install(world.is_smoke)
    except MissingError as error:
        print(f"*** memcached and etcd are not measured: {error} ***", file=sys.stderr, flush=True)
        report.rows = [[f"NOT MEASURED: {error}", *("–" for _ in HEADER[1:])]]
        return report
    # The paper's sizes, 200 MB and 14 MB.
    servers = [
        memcached(world.home, 40 if world.is_smoke else 200, 1000 if world.is_smoke else 130_000),
        etcd(world.home, 50 if world.is_smoke else 1350),
    ]
    kinds = world.kinds((PROGRAM, CONTAINER))
    if CONTAINER in kinds:
        world.make_image(programs=[Path(shutil.which(name) or name) for name in PROGRAMS])
    for server in servers:
        for key, body in server.objects.items():
            world.store.put(key, body)
        for kind in kinds:
            for side in SIDES:
                script = "objects" if side == "with" else None
                name = f"{server.name}-{kind}-{side}"
                world.deploy(world.daemon(kind), name, "service", script, [f"s3://{BUCKET}"], kind=kind, memory_mb=1024)
    cells = []
    for round_trip_ms in DISTANCES_MS[1:] if world.is_smoke else DISTANCES_MS:
        world.distance(round_trip_ms)
        here = [
            (server, Cell(server.name, kind, round_trip_ms, True, {side: [] for side in SIDES}))
            for server in servers
            for kind in kinds
        ]
        for turn in range(world.turns):
            for server, cell in here:
                for side in turn_order(turn):
                    seen = world.cold(world.daemon(cell.kind), f"{server.name}-{cell.kind}-{side}", event_of(world, server))
                    if seen.answer["result"] != server.answer:
                        raise RuntimeError(f"{cell.title}, {side}: the answer is {seen.answer['result'][:80]!r}")
                    if seen.answer["by"] != {"with": "script", "without": "service"}[side]:
                        raise RuntimeError(f"{cell.title}, {side}: the snapshot is by the {seen.answer['by']}")
                    cell.sides[side].append(seen)
            print(f"… {round_trip_ms:g} ms: turn {turn + 1} of {world.turns}", file=sys.stderr, flush=True)
        cells += [cell for _, cell in here]
    report.rows = [cell.row() for cell in cells]
    sizes = ", ".join(f"{server.name} {sum(map(len, server.objects.values())) / 1e6:.1f} MB" for server in servers)
    report.notes = [
        *NOTES,
        f"begun ends with the server's first answer, which is checked. Snapshots: {sizes}. The shim copies memcached's into the worker's "
        "/tmp, because memcached writes to it",
        *world.skips,
    ]
    for cell in cells:
        mean = cell.begun_ratio()
        least = MINIMA[cell.name]
        report.bars.append(Bar(f"{cell.title}: without ÷ with", f"≥ {least}", f"{mean:.2f}", mean >= least))
    report.data = [cell.to_json() for cell in cells]
    return report


def event_of(world: World, server: Server) -> dict[str, Any]:
    keys = list(server.objects)
    return {
        **server.event,
        "service": server.name,
        "question": QUESTION,
        "object": {"keys": keys},
        "names": [Path(key).name for key in keys],
        "urls": [presigned(world.endpoint, key) for key in keys],
    }
