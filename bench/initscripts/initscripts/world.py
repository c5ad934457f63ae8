"""What the experiments share: the servers behind relays, a daemon, the functions with and without scripts, and a cold invocation."""

from __future__ import annotations

import http.client
import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from benchlib.containers import Engine, NoEngineError, unmount_below
from benchlib.daemon import Daemon, end, free_port, invoke_path, wait_for_port
from benchlib.pilot import ROOT
from benchlib.relay import Relay
from benchlib.store import BUCKET, KEY_ID, REGION, SECRET, Store
from benchlib.timing import timing

from .containers import CODE, COMMAND, ENVIRONMENT, root_of

HERE = Path(__file__).resolve().parents[1]
ACCOUNT, QUEUE = "123456789012", "tasks"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": KEY_ID, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_DEFAULT_REGION": REGION}
# Functions that need no packages.
BARE = ("nothing", "reply")
# What a function's measurement says beside its start.
WORK = ("compute_time", "upload_time")
STARTS = ("lease", "fork", "exec", "runtime", "sandbox", "init")
# How a worker is made: forked from a template, a new interpreter, Node.js (a process that was started ahead, as Pilotlight keeps them), a
# new container; a program behind the Lambda Runtime API in a kept sandbox.
FORK, FRESH, NODE, CONTAINER = KINDS = ("fork", "fresh", "node", "container")
PROGRAM = "program"
# Services in C.
SERVICES = ("cached", "vecdb")
IMAGE = "pilot-initscripts/functions:1"
# Functions with a model, which need a module and packages more than the others.
WITH_MODEL, MODEL_PACKAGES = ("imgrec", "recognise", "recognition", "classify"), "requirements-imgrec.txt"


class Queues:
    """moto's server with SQS's API. It checks no signatures, so requests of this process have none."""

    def __init__(self, home: Path) -> None:
        self.port = free_port()
        command = [python_with_moto(), "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]
        with (home / "queues.log").open("wb") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def __enter__(self) -> Queues:
        try:
            wait_for_port(self.port, self.process, 60)
            self.call("CreateQueue", QueueName=QUEUE, Attributes={"VisibilityTimeout": "3600"})
        except RuntimeError:
            end(self.process)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        end(self.process)

    def call(self, action: str, **arguments: object) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            headers = {"content-type": "application/x-amz-json-1.0", "x-amz-target": f"AmazonSQS.{action}"}
            # It chooses the service by the scope of the signature.
            scope = f"{KEY_ID}/20260101/{REGION}/sqs/aws4_request"
            headers["authorization"] = f"AWS4-HMAC-SHA256 Credential={scope}, SignedHeaders=host, Signature=none"
            connection.request("POST", "/", json.dumps(arguments), headers)
            response = connection.getresponse()
            answer = response.read()
        finally:
            connection.close()
        if response.status != 200:
            raise RuntimeError(f"{action}: {response.status} {answer[:300]!r}")
        return json.loads(answer or b"null")

    def send(self, body: object) -> None:
        url = f"http://127.0.0.1:{self.port}/{ACCOUNT}/{QUEUE}"
        self.call("SendMessage", QueueUrl=url, MessageBody=json.dumps(body))


def python_with_moto() -> str:
    """This Python, or that of the tests."""
    tests = ROOT / "target" / "venv" / "bin" / "python"
    if importlib.util.find_spec("moto") is None and tests.exists():
        return str(tests)
    return sys.executable


@dataclass(frozen=True)
class Seen:
    """One invocation, ms. `total` is the client's time, `start` the phases until the worker was ready, `fetch` what the function
    waited for its data, and `begun` the time from the request until the function had them.
    """

    total: float
    start: float
    fetch: float
    begun: float
    is_first: bool
    is_cold: bool
    answer: dict[str, Any] = field(repr=False)
    # `Server-Timing`, as it came.
    header: str = field(repr=False)

    @property
    def phases(self) -> dict[str, dict[str, float]]:
        return timing(self.header)

    def to_json(self) -> dict[str, Any]:
        """Without the rest of the answer. `steps` are what the function has measured, ms."""
        numbers = {"total": self.total, "start": self.start, "fetch": self.fetch, "begun": self.begun}
        rounded = {key: round(number, 3) for key, number in numbers.items()}
        steps = {key: round(value / 1000, 3) for key, value in self.answer["measurement"].items() if key.endswith("_time")}
        return {**rounded, "steps": steps, "is_first": self.is_first, "phases": self.header}


@dataclass
class World:
    """Everything that runs while an experiment measures."""

    binary: Path
    home: Path
    turns: int
    is_smoke: bool
    _stack: ExitStack = field(default_factory=ExitStack)
    _called: set[str] = field(default_factory=set)
    _relays: list[Relay] = field(default_factory=list)
    _daemons: dict[str, Daemon] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)

    def __enter__(self) -> World:
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)
        unmount_below(self.home)

    @cached_property
    def store(self) -> Store:
        folder = self.home / "store"
        folder.mkdir()
        return self._stack.enter_context(Store(folder))

    @cached_property
    def objects(self) -> Relay:
        return self._stack.enter_context(Relay(self.store.port))

    @cached_property
    def queues(self) -> Queues:
        return self._stack.enter_context(Queues(self.home))

    @cached_property
    def tasks(self) -> Relay:
        return self._stack.enter_context(Relay(self.queues.port))

    def relay(self, server_port: int) -> Relay:
        """Before a further server."""
        relay = self._stack.enter_context(Relay(server_port))
        self._relays.append(relay)
        return relay

    def start(self, command: Sequence[str | Path], port: int) -> None:
        """A server that ends with the world."""
        with (self.home / "servers.log").open("ab") as log:
            process = subprocess.Popen([*map(str, command)], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self._stack.callback(end, process)
        wait_for_port(port, process)

    def distance(self, round_trip_ms: float) -> None:
        self.objects.set(round_trip_ms)
        for relay in self._relays:
            relay.set(round_trip_ms)
        if "queues" in self.__dict__:
            self.tasks.set(round_trip_ms)

    @property
    def endpoint(self) -> str:
        """S3, behind the relay."""
        return f"http://127.0.0.1:{self.objects.port}"

    @cached_property
    def engine(self) -> Engine:
        return self._stack.enter_context(Engine())

    def make_image(self, requirements: Sequence[str] = (), programs: Sequence[Path] = (), *, services: bool = False) -> None:
        """The image of kind `container`: all functions, the packages of these files, these programs, and the services."""
        folder = self.home / "image"
        files = [HERE / "functions" / file for file in requirements]
        root = root_of(folder, files, [*programs, *map(service, SERVICES)] if services else list(programs))
        for name in SERVICES if services else ():
            shutil.copy(service(name), root / CODE.lstrip("/") / name)
        self.engine.image(IMAGE, root, ENVIRONMENT)
        shutil.rmtree(folder)

    def kinds(self, wanted: Sequence[str]) -> list[str]:
        """Those that can run here. The others are told, here and in the report."""
        return [kind for kind in wanted if not self._lacks(kind)]

    def _lacks(self, kind: str) -> bool:
        why = None
        if kind == NODE and not (shutil.which("node") and shutil.which("npm")):
            why = "there is no Node.js with npm on PATH"
        if kind == CONTAINER:
            why = "a smoke run starts no engine" if self.is_smoke else self._engine_problem()
        if why and kind not in self.skipped:
            self.skipped[kind] = why
            print(f"*** {kind} is not measured: {why} ***", file=sys.stderr, flush=True)
        return why is not None

    def _engine_problem(self) -> str | None:
        try:
            return None if self.engine.address else "it has no address"
        except NoEngineError as error:
            return str(error)

    @property
    def skips(self) -> list[str]:
        """For the notes of a report."""
        return [f"NOT MEASURED: {kind}: {why}" for kind, why in self.skipped.items()]

    def daemon(self, kind: str = FORK, *, with_queues: bool = False) -> Daemon:
        """The one for workers of this kind. Nothing is kept between starts, so that the gain is that of the overlap alone. Containers have
        a daemon of their own, which keeps none of them.
        """
        name = "daemon-containers" if kind == CONTAINER else "daemon"
        if name not in self._daemons:
            self._daemons[name] = self._start(name, kind == CONTAINER, with_queues or self.is_smoke)
        return self._daemons[name]

    def _start(self, name: str, with_containers: bool, with_queues: bool) -> Daemon:
        folder = self.home / name
        folder.mkdir()
        environment = {**os.environ, "DOCKER_HOST": self.engine.address} if with_containers else None
        daemon = Daemon(self.binary, folder, environment)
        config = "[limits]\nruntimes = 0\n" if with_containers else ""
        config += "[data]\nmemory_mb = 1024\nfunction_mb = 512\ncache_mb = 0\n"
        # The peers of services.
        config += 'initscript_networks = ["127.0.0.0/8"]\n'
        config += self.store.config().replace(f":{self.store.port}", f":{self.objects.port}")
        # Before the daemon starts, because its configuration names their relay.
        if with_queues:
            config += (
                f'[connections.jobs]\nfunctions = ["*"]\nkind = "sqs"\nurl = "http://127.0.0.1:{self.tasks.port}/{ACCOUNT}"\n'
                f'access_key_id = "{KEY_ID}"\nsecret_access_key_file = "{self.store.secret}"\n'
            )
        with daemon.config.open("a") as file:
            file.write(config)
        return self._stack.enter_context(daemon)

    def deploy(
        self,
        daemon: Daemon,
        name: str,
        code: str,
        script: str | None,
        allow: list[str],
        *,
        kind: str = FORK,
        files: dict[str, bytes] | None = None,
        script_input: str = "",
        **spec: Any,
    ) -> None:
        """A function of the folder `functions`, or a service, with one of the scripts or without, and with further files."""
        own, of_kind = files_of_service(code, kind) if code in SERVICES else files_of(code, kind, one_set=self.is_smoke)
        files = own | (files or {})
        spec = {"network": "host", "timeout_s": 60, "memory_mb": 512, **of_kind, **spec}
        environment = {"AWS_ENDPOINT_URL_S3": self.endpoint, **CREDENTIALS, **of_kind.get("environment", {})}
        spec["environment"] = environment | (spec.get("environment") or {})
        if script:
            files["init.wasm"] = script_of(script).read_bytes()
            spec["initscript"] = {"module": "init.wasm", "allow": allow, "timeout_ms": 30_000, "input": script_input}
        daemon.upload(name, files, spec)

    def cold(self, daemon: Daemon, function: str, event: object) -> Seen:
        """An invocation that waits for a start. The first one of each function counts, too."""
        self.retire(daemon, function)
        seen = self.ask(daemon, function, event)
        if not seen.is_cold:
            raise RuntimeError(f"{function} was not cold")
        return seen

    def retire(self, daemon: Daemon, function: str) -> None:
        """Afterwards, the function has no worker."""
        daemon.scale(function, 0)
        daemon.wait_for_idle(function, 0)

    def ask(self, daemon: Daemon, function: str, event: object) -> Seen:
        """One invocation."""
        is_first = function not in self._called
        self._called.add(function)
        body = json.dumps(event).encode()
        head = f"POST {invoke_path(function)} HTTP/1.1\r\nHost: 127.0.0.1:{daemon.port}\r\nContent-Length: {len(body)}\r\n\r\n"
        began = time.perf_counter()
        with socket.create_connection(("127.0.0.1", daemon.port), timeout=120) as connection:
            # In one write: between the two of http.client, a hundred threads of a client may run, and no script begins without the event.
            connection.sendall(head.encode() + body)
            response = http.client.HTTPResponse(connection, method="POST")
            response.begin()
            text = response.read()
            total = (time.perf_counter() - began) * 1000
        answer = json.loads(text)
        if response.status != 200 or "measurement" not in answer:
            raise RuntimeError(f"{function}: {response.status} {text[:600]!r}")
        is_cold = response.getheader("x-pilot-start") == "cold"
        header = response.getheader("server-timing") or ""
        phases = timing(header)
        start = sum(phases.get(phase, {}).get("dur", 0.0) for phase in STARTS)
        measured = answer["measurement"]
        begun = total - sum(measured.get(part, 0.0) for part in WORK) / 1000
        return Seen(total, start, measured.get("download_time", 0.0) / 1000, begun, is_first, is_cold, answer, header)


def files_of(code: str, kind: str, *, one_set: bool) -> tuple[dict[str, bytes], dict[str, Any]]:
    """The files of a function, and the keys of its specification. `one_set`: all functions in Python have the same packages."""
    if kind == CONTAINER:
        keys = {
            "runtime": "container",
            "image": IMAGE,
            "contract": "provided",
            "command": COMMAND,
            "environment": {"FUNCTION": code},
        }
        return {}, keys
    if kind == PROGRAM:
        folder = HERE / "functions"
        files = {file: (folder / "container" / file).read_bytes() for file in ("bootstrap.py", "pilotlight.py")}
        files |= {file: (folder / file).read_bytes() for file in (f"{code}.py", "clock.py")}
        return files, {"runtime": "provided", "command": ["python3", "bootstrap.py"], "environment": {"FUNCTION": code}}
    if kind == NODE:
        folder = HERE / "functions" / "node"
        files = {file: (folder / file).read_bytes() for file in ("index.js", "clock.js", "storage.js")}
        files["function.js"] = (folder / f"{code}.js").read_bytes()
        # Of the packages, those that this function requires.
        package = json.loads((folder / "package.json").read_bytes())
        required = b"".join(files.values()).decode()
        needed = {name: version for name, version in package["dependencies"].items() if f"require('{name}')" in required}
        files["package.json"] = json.dumps({**package, "dependencies": needed}).encode()
        return files, {"runtime": "node", "handler": "index.handler", "environment": {"AWS_REGION": REGION}}
    folder = HERE / "functions"
    names = ["app.py"] if code in BARE else ["app.py", "storage.py", "clock.py", "requirements.txt"]
    files = {file: (folder / file).read_bytes() for file in names}
    files["function.py"] = (folder / f"{code}.py").read_bytes()
    if code in WITH_MODEL:
        files["model.py"] = (folder / "model.py").read_bytes()
    if code in WITH_MODEL or (one_set and code not in BARE):
        files["requirements.txt"] += (folder / MODEL_PACKAGES).read_bytes()
    return files, {"handler": "app.handler", "template": "on" if kind == FORK else "off", "environment": {}}


def files_of_service(code: str, kind: str) -> tuple[dict[str, bytes], dict[str, Any]]:
    """The same of a service in C."""
    if kind == CONTAINER:
        program = str(Path(CODE) / code)
        return {}, {"runtime": "container", "image": IMAGE, "contract": "provided", "command": [program]}
    return {"bootstrap": service(code).read_bytes()}, {"runtime": "provided"}


@cache
def script_of(name: str) -> Path:
    """A module, built now: a script of this benchmark, or an example of the SDK."""
    crate = HERE / "scripts" if (HERE / "scripts" / "examples" / f"{name}.rs").exists() else ROOT / "sdk" / "initscript"
    return built(crate, "--example", name) / "examples" / f"{name}.wasm"


@cache
def service(name: str) -> Path:
    """A service in C, built now."""
    program = ROOT / "target" / "initscript" / name
    program.parent.mkdir(parents=True, exist_ok=True)
    options = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-O2", "-I", str(ROOT / "sdk" / "c"), "-lm", "-o", str(program)]
    done = subprocess.run(["gcc", str(HERE / "services" / f"{name}.c"), *options], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{name}.c: {done.stderr.strip()}")
    return program


@cache
def network() -> Path:
    """The network of imgrec-wasm."""
    return built(HERE / "network", "--lib") / "bench_network.wasm"


def built(crate: Path, *what: str) -> Path:
    """The folder with what cargo has made."""
    target = ROOT / "target" / "initscript"
    command = ["cargo", "build", "--release", "--locked", "--quiet", *what, "--target-dir", str(target)]
    done = subprocess.run(command, cwd=crate, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(what)} of {crate}: {done.stderr.strip()} (rustup target add wasm32-unknown-unknown)")
    return target / "wasm32-unknown-unknown" / "release"


def script_of_c() -> Path | None:
    """The example in C. `None`: there is no zig here."""
    if importlib.util.find_spec("ziglang") is None and shutil.which("zig") is None:
        return None
    zig = ["zig"] if shutil.which("zig") else [sys.executable, "-m", "ziglang"]
    module = ROOT / "target" / "initscript" / "two_objects_c.wasm"
    module.parent.mkdir(parents=True, exist_ok=True)
    flags = [
        "--target=wasm32-freestanding",
        "-Os",
        "-nostdlib",
        "-Wl,--no-entry",
        "-Wl,--export=run",
        "-Wl,-z,stack-size=65536",
    ]
    source = ROOT / "sdk" / "initscript" / "c"
    command = [*zig, "cc", *flags, "-Wl,--strip-all", "-o", str(module), "two_objects.c"]
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    return module


__all__ = [
    "ACCOUNT",
    "BUCKET",
    "CONTAINER",
    "FORK",
    "FRESH",
    "KINDS",
    "MODEL_PACKAGES",
    "NODE",
    "PROGRAM",
    "QUEUE",
    "Relay",
    "Seen",
    "World",
    "network",
    "service",
    "script_of",
    "script_of_c",
]
