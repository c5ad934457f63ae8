"""What the experiments share: the stores behind links, daemons that differ in `data.overlap` alone, functions that take an input by each kind
of worker, and a cold invocation.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from benchlib.containers import Engine, NoEngineError, bring, inside, python_root, unmount_below
from benchlib.daemon import Daemon, end, free_port, invoke_path, wait_for_port
from benchlib.relay import Relay
from benchlib.store import Store
from benchlib.timing import timing

FUNCTIONS = Path(__file__).resolve().parents[1] / "functions"
KIB, MIB = 1 << 10, 1 << 20
SIDES = ("overlap", "after")
# How a worker is made: forked from a template, Node.js (a process that was started ahead, as Pilotlight keeps them), a new container.
FORK, NODE, CONTAINER = "fork", "node", "container"
# Where an input is: the body of the request, Redis, S3.
DIRECT, KVS, S3 = STORES = ("direct", "kvs", "s3")
LOCATIONS = {DIRECT: "direct://request/body", KVS: "redis://kvs/{event.key}", S3: "s3://photos/{event.key}"}
IMAGE, CODE = "pilot-truffle/consume:1", Path("/app/code")
DELAYED = """
import time
from snapshot_restore_py import register_after_restore
register_after_restore(lambda: time.sleep({seconds}))
"""
STARTS = ("lease", "fork", "exec", "runtime", "sandbox", "init")


@dataclass(frozen=True)
class Link:
    """Between the node and its stores. Without limits, it is loopback without the relay in user space."""

    name: str
    round_trip_ms: float = 0.0
    megabits: float = 0.0


LOOPBACK = Link("loopback")
GIGABIT = Link("1 Gbit/s, 1 ms", 1.0, 1000.0)
FAR = Link("100 Mbit/s, 20 ms", 20.0, 100.0)


@dataclass(frozen=True)
class Worker:
    """A kind of worker, and a delay that is added to its start, seconds."""

    kind: str
    delay_s: float = 0.0

    @property
    def name(self) -> str:
        return self.kind + (f" + {self.delay_s * 1000:g} ms" if self.delay_s else "")


@dataclass(frozen=True)
class Seen:
    """One cold invocation, ms: as the client sees it, and the two parts that can overlap. `header` is `Server-Timing`."""

    total: float
    start: float
    transfer: float
    hidden: float
    header: str = field(repr=False, default="")

    def to_json(self) -> dict[str, Any]:
        return {key: round(value, 3) if isinstance(value, float) else value for key, value in asdict(self).items()}


class Redis:
    """redis-server without persistence."""

    def __init__(self, home: Path) -> None:
        self.port = free_port()
        command = ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        # What a SET replaces is given back by another thread, and is no part of the time.
        command += ["--lazyfree-lazy-server-del", "yes"]
        with (home / "redis.log").open("wb") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=home)

    def __enter__(self) -> Redis:
        wait_for_port(self.port, self.process)
        return self

    def __exit__(self, *_: object) -> None:
        end(self.process)

    def put(self, key: str, body: bytes) -> None:
        command = ["redis-cli", "-p", str(self.port), "-x", "SET", key]
        done = subprocess.run(command, input=body, capture_output=True, check=False)
        if done.stdout.strip() != b"OK":
            raise RuntimeError(f"SET {key}: {done.stdout!r} {done.stderr!r}")


@dataclass
class World:
    """Everything that runs while an experiment measures, with one link."""

    binary: Path
    home: Path
    link: Link = LOOPBACK
    _stack: ExitStack = field(default_factory=ExitStack)
    _daemons: dict[tuple[str, bool], Daemon] = field(default_factory=dict)

    def __enter__(self) -> World:
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)
        unmount_below(self.home)

    @cached_property
    def store(self) -> Store:
        return self._stack.enter_context(Store(self._folder("store")))

    @cached_property
    def redis(self) -> Redis:
        return self._stack.enter_context(Redis(self._folder("redis")))

    @cached_property
    def engine(self) -> Engine:
        engine = self._stack.enter_context(Engine())
        root = self._folder("image")
        interpreter = python_root(root)
        code = inside(root, CODE)
        code.mkdir(parents=True)
        shutil.copy(FUNCTIONS / "container.py", code)
        bring(root, [interpreter, *root.glob("**/*.so*")])
        engine.image(IMAGE, root)
        shutil.rmtree(root)
        return engine

    def linked(self, port: int) -> int:
        """Where a server is, seen over the link."""
        if self.link == LOOPBACK:
            return port
        relay = self._stack.enter_context(Relay(port))
        relay.set(self.link.round_trip_ms, self.link.megabits)
        return relay.port

    @cached_property
    def config(self) -> str:
        """What all daemons have. Nothing is kept between invocations."""
        s3 = self.store.config().replace(f":{self.store.port}", f":{self.linked(self.store.port)}")
        kvs = f'[stores.kvs]\nfunctions = ["*"]\nkind = "redis"\nurl = "redis://127.0.0.1:{self.linked(self.redis.port)}"\n'
        return f"[data]\nmemory_mb = 1024\nfunction_mb = 512\ncache_mb = 0\noverlap = {{overlap}}\n{s3}{kvs}"

    def put(self, key: str, body: bytes) -> None:
        """Into both stores."""
        self.store.put(key, body)
        self.redis.put(key, body)

    def daemon(self, side: str, kind: str = FORK) -> Daemon:
        """The daemon of a side. Containers have one of their own, which keeps none of them."""
        if (side, kind == CONTAINER) not in self._daemons:
            folder = self._folder(f"{side}-{kind}")
            environment = {**os.environ, "DOCKER_HOST": self.engine.address} if kind == CONTAINER else None
            daemon = Daemon(self.binary, folder, environment)
            config = "[limits]\nruntimes = 0\n" if kind == CONTAINER else ""
            config += self.config.format(overlap=str(side == "overlap").lower())
            with daemon.config.open("a") as file:
                file.write(config)
            self._daemons[side, kind == CONTAINER] = self._stack.enter_context(daemon)
        return self._daemons[side, kind == CONTAINER]

    def _folder(self, name: str) -> Path:
        folder = self.home / name
        folder.mkdir()
        return folder

    def deploy(self, side: str, worker: Worker, store: str) -> str:
        """A function that takes its input from a store, on the daemon of a side. Returns its name."""
        name = f"{worker.kind}-{round(worker.delay_s * 1000)}-{store}"
        spec: dict[str, Any] = {"timeout_s": 60, "memory_mb": 512, "inputs": {"x": LOCATIONS[store]}}
        daemon = self.daemon(side, worker.kind)
        if worker.kind == FORK:
            delay = DELAYED.format(seconds=worker.delay_s) if worker.delay_s else ""
            code = delay + (FUNCTIONS / "consume.py").read_text()
            daemon.deploy(name, code, **spec)
        elif worker.kind == NODE:
            files = {"index.js": (FUNCTIONS / "consume.js").read_bytes()}
            daemon.upload(name, files, {**spec, "runtime": "node", "handler": "index.handler"})
        else:
            command = ["python3", str(CODE / "container.py")]
            keys = {"runtime": "container", "image": IMAGE, "contract": "provided", "command": command}
            daemon.upload(name, {}, {**spec, **keys})
        return name

    def kinds(self, wanted: list[Worker]) -> list[Worker]:
        """Those that can run here. The others are told."""
        return [worker for worker in wanted if not self._lacks(worker.kind)]

    def _lacks(self, kind: str) -> bool:
        why = None
        if kind == NODE and not shutil.which("node"):
            why = "there is no Node.js on PATH"
        if kind == CONTAINER:
            try:
                self.engine  # noqa: B018 - it starts here
            except NoEngineError as error:
                why = str(error)
        if why:
            print(f"*** {kind} is not measured: {why} ***", file=sys.stderr, flush=True)
        return why is not None


def retire(daemon: Daemon, function: str) -> None:
    """Afterwards, the function has no worker."""
    daemon.scale(function, 0)
    daemon.wait_for_idle(function, 0)
    time.sleep(0.02)


def cold(daemon: Daemon, function: str, key: str, size: int, *, body: bytes | None = None, port: int = 0) -> Seen:
    """An invocation that waits for a start. The event names the input, or the body is the input. `port`: of the daemon."""
    retire(daemon, function)
    connection = http.client.HTTPConnection("127.0.0.1", port or daemon.port, timeout=120)
    try:
        began = time.perf_counter()
        connection.request("POST", invoke_path(function), json.dumps({"key": key}).encode() if body is None else body)
        response = connection.getresponse()
        answer = response.read()
        total = (time.perf_counter() - began) * 1000
    finally:
        connection.close()
    if response.status != 200 or json.loads(answer).get("bytes") != size:
        raise RuntimeError(f"{function} with {key}: {response.status} {answer[:300]!r}")
    if response.getheader("x-pilot-start") != "cold":
        raise RuntimeError(f"{function} was not cold")
    header = response.getheader("server-timing") or ""
    phases = timing(header)
    start = sum(phases.get(name, {}).get("dur", 0.0) for name in STARTS)
    fetch = phases["fetch.x"]
    return Seen(total, start, fetch["dur"], fetch["hidden"], header)
