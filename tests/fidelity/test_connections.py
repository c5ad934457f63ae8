"""Connections that were opened at import, in four workers at once (SPECIFICATION, START-17).

Every library is also used outside Pilotlight, in a process that loses its connection, with the same packages. That says what the
library shows after such a loss: nothing if it connects again by itself.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pilot_daemon import Daemon
from servers import Postgres, Redis, Web, certificate

SOURCES = Path(__file__).resolve().parent / "functions" / "connections"
WORKERS = 4
RUNS = int(os.environ.get("PILOT_FIDELITY_RUNS", "1"))
CALLS_OF_EACH = 50 * RUNS
# After these, a function has failed.
ERRORS_MAX = 20

# Clients and their servers. These connect again by themselves, so their templates are forked.
RECONNECT = {
    "requests": "web",
    "requests_tls": "web_tls",
    "urllib3": "web",
    "http_client": "web",
    "http_client_tls": "web_tls",
    "httpx": "web",
    "httpx_tls": "web_tls",
    "redis": "redis",
}
# Forked, too, because it connects in an after_restore hook.
HOOK = {"psycopg2_hook": "postgres"}
# These stay disconnected, or are not known to connect again.
IMPORT = {
    "psycopg2": "postgres",
    "psycopg": "postgres",
    "pg8000": "postgres",
    "asyncpg": "postgres",
    "sqlalchemy": "postgres",
    "socket": "web",
}
# http.client shows an error once. The template closes its connections, so that it connects again.
SHOW_NOTHING = set(RECONNECT) - {"http_client", "http_client_tls"} | {"sqlalchemy"}

SERVERS = {**RECONNECT, **HOOK, **IMPORT}
INSTEAD = {
    **dict.fromkeys(RECONNECT, "each worker reconnects"),
    **dict.fromkeys(HOOK, "it is closed in each worker, for the after_restore hook"),
    **dict.fromkeys(IMPORT, "not known to reconnect by itself, so each worker imports the module itself"),
}

# Imports a module, waits until its connection is lost, and uses it twice.
OUTSIDE = """
import importlib, sys
ask = importlib.import_module(sys.argv[1]).ask
print("connected", flush=True)
sys.stdin.readline()
for token in ("first", "second"):
    try:
        assert ask(token)[0] == token
        print("nothing")
    except Exception as error:
        print(type(error).__name__)
"""


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    home = Path(tempfile.mkdtemp(prefix="pilot-connections-"))
    home.chmod(0o755)  # PostgreSQL runs as another user
    try:
        shutil.copytree(SOURCES, home / "code", ignore=shutil.ignore_patterns("__pycache__"))
        yield home
    finally:
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(scope="module")
def web() -> Iterator[Web]:
    server = Web()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def web_tls(folder: Path) -> Iterator[Web]:
    server = Web(certificate(folder))
    shutil.copy(folder / "ca.pem", folder / "code" / "ca.pem")
    yield server
    server.stop()


@pytest.fixture(scope="module")
def redis(folder: Path) -> Iterator[Redis]:
    server = Redis(folder)
    yield server
    server.stop()


@pytest.fixture(scope="module")
def postgres(folder: Path) -> Iterator[Postgres]:
    server = Postgres(folder)
    yield server
    server.stop()


@dataclass
class Seen:
    """The answers of a function. `users` are the processes that each connection served."""

    calls: int = 0
    wrong: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    users: defaultdict[object, set[int]] = field(default_factory=lambda: defaultdict(set))
    workers: set[int] = field(default_factory=set)

    def add(self, daemon: Daemon, function: str, token: str, **event: object) -> None:
        path = f"/2015-03-31/functions/{function}/invocations"
        response = daemon.request("POST", path, {"token": token, **event})
        body = response.read()
        self.calls += 1
        answer = json.loads(body)
        if response.status != 200 or response.headers.get("X-Amz-Function-Error"):
            self.errors[str(answer.get("errorType", body))] += 1
            return
        (word, connection), at_import = answer["answer"], answer["at_import"]
        self.wrong += (word, at_import["answer"][0]) != (token, "import")
        self.users[connection].add(answer["pid"])
        self.users[at_import["answer"][1]].add(at_import["pid"])
        self.workers.add(answer["pid"])

    def shared(self) -> list[object]:
        return [connection for connection, pids in self.users.items() if len(pids) > 1]


def function(library: str) -> str:
    """Its name. `test_packages.py` has functions with the names of packages."""
    return f"connected-{library}"


def deployed(daemon: Daemon, code: Path, library: str, environment: dict[str, str]) -> dict[str, Any]:
    """Deploys the function and returns the daemon's report about its template."""
    lines = [
        f"[functions.{function(library)}]",
        f'handler = "with_{library}.handler"',
        'network = "host"  # to reach the servers on 127.0.0.1',
        f"scale = {{ max = {WORKERS} }}",
        *(f"environment.{key} = {value!r}" for key, value in environment.items()),
    ]
    (code / "pilot.toml").write_text("\n".join(lines) + "\n")
    done = daemon.up(code)
    assert done.returncode == 0, done.stdout + done.stderr
    report: dict[str, Any] = json.loads(daemon.request("GET", f"/_pilot/v1/functions/{function(library)}").read())["template"]
    return report


def outside(daemon: Daemon, code: Path, library: str, environment: dict[str, str], server: Web | Redis | Postgres) -> list[str]:
    """What the library shows at the first two uses after its connection was lost, without Pilotlight."""
    packages = [str(found) for found in daemon.data.glob("environments/*/*") if (found / "redis").exists()]
    assert packages, f"the packages of the function are not below {daemon.data}"
    python = shutil.which("python3")
    assert python is not None, "the daemon needs it, too"
    process = subprocess.Popen(
        [python, "-c", OUTSIDE, f"with_{library}"],
        cwd=code,
        env={"PATH": os.environ["PATH"], **environment, "PYTHONPATH": os.pathsep.join([str(code), *packages])},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None and process.stdout is not None
    with process:
        assert process.stdout.readline() == "connected\n"
        server.cut()
        rest, _ = process.communicate("\n", timeout=60)
    return rest.split()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("library", SERVERS)
def test_each_worker_has_its_own_connection(
    daemon: Daemon, folder: Path, library: str, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    name = SERVERS[library]
    server = request.getfixturevalue(name)
    ports = {"HTTP_PORT": "web", "HTTPS_PORT": "web_tls", "REDIS_PORT": "redis", "POSTGRES_PORT": "postgres"}
    environment = {key: str(server.port if of == name else 0) for key, of in ports.items()}
    report = deployed(daemon, folder / "code", library, environment)
    seen = Seen()
    for wait_s in (0.5, 1.0, 2.0, 4.0, 8.0, 16.0):  # until all four run: each call of such a burst keeps its worker busy
        with ThreadPoolExecutor(WORKERS) as callers:
            until = time.time() + wait_s
            for index in range(WORKERS):
                callers.submit(seen.add, daemon, function(library), f"burst-{wait_s}-{index}", until=until)
        if len(seen.workers) >= WORKERS:
            break

    def caller(index: int) -> None:
        for call in range(CALLS_OF_EACH):
            if sum(seen.errors.values()) > ERRORS_MAX:
                return  # they may be timeouts
            seen.add(daemon, function(library), f"{index}-{call}")

    with ThreadPoolExecutor(WORKERS) as callers:
        for done in [callers.submit(caller, index) for index in range(WORKERS)]:
            done.result()
    daemon.retire(function(library))
    # Outside Pilotlight there are no hooks.
    shown = [] if library in HOOK else outside(daemon, folder / "code", library, environment, server)
    with capsys.disabled():
        print(
            f"\n{library}: {'forked' if report['forkable'] else 'not forked'}, {seen.calls} calls in {len(seen.workers)} workers, "
            f"{seen.wrong} wrong, {sum(seen.errors.values())} errors; after a lost connection it shows {', '.join(shown) or 'what its hook leaves'}"
        )
    assert len(seen.workers) >= WORKERS
    assert seen.wrong == 0
    assert not seen.shared()
    assert not seen.errors, f"{seen.errors}; outside Pilotlight, {library} shows {shown} after a lost connection"
    assert report["forkable"] == (library not in IMPORT), report
    findings = [row for row in report["findings"] if f":{server.port} " in row["what"] + " "]
    assert findings and all(row["where"].startswith(f"with_{library}.py:") for row in findings), report["findings"]
    assert {row["instead"] for row in findings} == {INSTEAD[library]}
    assert not getattr(server, "errors", []), "the server received what does not belong to the TLS session"
    if library in SHOW_NOTHING:
        assert shown == ["nothing", "nothing"], "a fork loses its connections: it must be taken from the list of connections.py"
    elif library not in HOOK:
        assert shown[0] != "nothing"
