"""The clients. Each is a thread that sends one request after the other and judges every answer at once."""

from __future__ import annotations

import json
import random
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from .client import Answer, Connection, Cut, Nonsense
from .daemon import Daemon
from .ledger import Ledger
from .servers import KEYS, Store

# The longest that a caller waits: a start (30 s) and the function's timeout (5 s) after a daemon that was stopped or is starting.
ANSWER_S = 60
# Clients whose answers are passed on part by part.
STREAMING = ("stream", "server")
INVOKE = "/2015-03-31/functions/{}/invocations"


class Clients:
    """All clients of a run."""

    def __init__(self, seed: int, daemon: Daemon, store: Store, ledger: Ledger, functions: Path) -> None:
        self._seed, self._daemon, self._store, self._ledger, self._functions = seed, daemon, store, ledger, functions
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        self.has_node = shutil.which("node") is not None

    def start(self) -> None:
        clients: dict[str, Callable[[Client], None]] = {
            "sync-1": sync,
            "sync-2": sync,
            "url": url,
            "stream": stream,
            "server": server,
            "input": digest,
            "input-stream": digest_stream,
            "async-1": note,
            "async-2": note,
            "async-file": note_to_file,
            "async-key": note_with_key,
            "deploy": deploy,
            "control": control,
            "rubbish": rubbish,
        }
        if self.has_node:
            clients |= {"node": node, "node-input": node_digest}
        for name, turn in clients.items():
            self.add(name, turn)

    def add(self, name: str, turn: Callable[[Client], None]) -> None:
        client = Client(name, self._seed, self._daemon, self._store, self._ledger, self._functions)
        thread = threading.Thread(target=self._go, args=(client, turn), name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _go(self, client: Client, turn: Callable[[Client], None]) -> None:
        while not self._stopping.is_set():
            try:
                turn(client)
            except Exception as error:  # noqa: BLE001
                # A client that stops would hide everything that follows.
                self._ledger.breaks("the clients work", f"{client.name}: {type(error).__name__}: {error}")
            self._stopping.wait(client.rng.uniform(0.005, 0.08))
        client.hang_up()

    def stop(self) -> None:
        """Waits until every caller has its answer."""
        self._stopping.set()
        deadline = time.monotonic() + ANSWER_S + 10
        for thread in self._threads:
            thread.join(max(0, deadline - time.monotonic()))
            if thread.is_alive():
                self._ledger.breaks("every caller is answered", f"{thread.name} still waits")


class Client:
    """What a client has: its random numbers, its connection, and the judgement of answers."""

    def __init__(self, name: str, seed: int, daemon: Daemon, store: Store, ledger: Ledger, functions: Path) -> None:
        self.name, self.daemon, self.store, self.ledger, self.functions = name, daemon, store, ledger, functions
        self.rng = random.Random(f"client {seed} {name}")
        self.number = 0  # of the request
        self.deployed = 0  # the client `deploy`: the last number that was acknowledged
        self._connection: Connection | None = None

    def token(self) -> str:
        self.number += 1
        return f"{self.name}.{self.number}"

    def hang_up(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def ask(self, path: str, body: bytes, headers: dict[str, str] | None = None, method: str = "POST") -> Answer | None:
        """One request. None: there was no answer, and nobody is to blame but the faults."""
        began = time.monotonic()
        try:
            if self._connection is None:
                self._connection = Connection(self.daemon.address, ANSWER_S)
            answer = self._connection.ask(method, path, body, headers)
        except Nonsense as error:
            self.ledger.breaks("every answer is one answer", f"{self.name}: {error}")
            self.hang_up()
            return None
        except TimeoutError:
            self.hang_up()
            self.ledger.breaks("every caller is answered", f"{self.name}: nothing for {ANSWER_S} s after {path}")
            return None
        except OSError as error:
            self.hang_up()
            self._judge_error(began, error)
            return None
        # A part of the requests has connections of their own.
        if answer.headers.get("connection") == "close" or self.rng.random() < 0.2:
            self.hang_up()
        return answer

    def _judge_error(self, began: float, error: OSError) -> None:
        """An error of the connection is an outcome if the daemon was down, or if an answer that had begun cannot be finished."""
        self.ledger.count(self.name, "cut" if isinstance(error, Cut) else "no connection")
        if self.ledger.was_down(began, time.monotonic()):
            return
        # The head of a streamed answer may not have been sent when its body breaks off.
        has_begun = isinstance(error, Cut) and ("middle" in str(error) or self.name in STREAMING)
        if has_begun and self.ledger.was_disturbed(began, time.monotonic(), 1):
            return
        # The daemon may end before the supervisor has seen it.
        time.sleep(0.3)
        if not self.ledger.was_down(began, time.monotonic()):
            self.ledger.breaks("a connection ends with the daemon alone", f"{self.name}: {type(error).__name__}: {error}")

    def judged(self, answer: Answer | None) -> bytes | None:
        """The body of a success. Other answers are counted; they must be errors as documented."""
        if answer is None:
            return None
        failed = answer.headers.get("x-amz-function-error")
        if answer.status in (200, 201) and failed is None:
            self.ledger.count(self.name, "success")
            return answer.body
        self.ledger.count(self.name, f"{answer.status} {failed or ''}".strip())
        if answer.status in (429, 500, 502, 503, 504) or failed is not None:
            self._is_an_error(answer)
        else:
            self.ledger.breaks("errors are documented ones", f"{self.name}: {answer.status}: {answer.body[:300]!r}")
        return None

    def _is_an_error(self, answer: Answer) -> None:
        try:
            document = json.loads(answer.body)
            named = {"Message", "message", "errorMessage"} & document.keys()
        except (ValueError, AttributeError):
            named = set()
        if not named:
            self.ledger.breaks("errors are documented ones", f"{self.name}: {answer.status}: {answer.body[:300]!r}")

    def expects(self, answer: Answer | None, expected: dict[str, object]) -> None:
        """A success must be the answer to this request."""
        body = self.judged(answer)
        if body is None:
            return
        try:
            document = json.loads(body)
        except ValueError:
            document = None
        if not isinstance(document, dict) or any(document.get(key) != value for key, value in expected.items()):
            self.ledger.breaks("each answer is that of its request", f"{self.name}: {expected} but {body[:300]!r}")


def _event(document: dict[str, object]) -> bytes:
    return json.dumps(document).encode()


def sync(client: Client) -> None:
    token = client.token()
    padding = client.rng.choice([0, 0, 100, 20_000, 300_000])
    event = {"token": token, "ms": client.rng.choice([0, 0, 5, 50]), "padding": padding}
    client.expects(client.ask(INVOKE.format("echo"), _event(event)), {"token": token, "padding": "x" * padding})


def node(client: Client) -> None:
    token = client.token()
    client.expects(client.ask(INVOKE.format("node"), _event({"token": token})), {"token": token})


def url(client: Client) -> None:
    token = client.token()
    client.expects(client.ask(f"/fn/url/some/path?token={token}", b"", method="GET"), {"token": token})


def stream(client: Client) -> None:
    """A body of many parts: all of them in order, or an answer that is visibly cut."""
    token, parts = client.token(), client.rng.randrange(1, 30)
    body = client.judged(client.ask(f"/fn/stream/?token={token}&parts={parts}", b"", method="GET"))
    whole = "".join(f"{token} {part}\n" for part in range(parts)) + "end\n"
    if body is not None and body.decode() != whole:
        client.ledger.breaks("a cut answer is seen as one", f"{token}: {len(body)} of {len(whole)} bytes, and a proper end")


def server(client: Client) -> None:
    """A function that is an HTTP server sends back what it got."""
    sent = f"{client.token()} ".encode() * client.rng.choice([1, 10, 5000])
    body = client.judged(client.ask("/fn/server/back", sent))
    if body is not None and body != sent:
        client.ledger.breaks("each answer is that of its request", f"{client.name}: {len(sent)} bytes, got {body[:100]!r}")


def _digest(client: Client, function: str) -> None:
    token, key = client.token(), str(client.rng.randrange(KEYS))
    answer = client.ask(INVOKE.format(function), _event({"token": token, "key": key}))
    client.expects(answer, {"token": token, "digest": client.store.digests[key]})


def digest(client: Client) -> None:
    _digest(client, "digest")


def digest_stream(client: Client) -> None:
    _digest(client, "digest-stream")


def node_digest(client: Client) -> None:
    _digest(client, "node-digest")


def _accepted(client: Client, function: str, token: str, key: str | None = None) -> bool:
    """One asynchronous invocation. False: it was not accepted, or nobody knows."""
    headers = {"X-Amz-Invocation-Type": "Event"}
    if key is not None:
        headers["X-Pilot-Idempotency-Key"] = key
    answer = client.ask(INVOKE.format(function), _event({"token": token, "ms": 60}), headers)
    if answer is None:
        return False
    if answer.status != 202:
        client.judged(answer)
        return False
    client.ledger.count(client.name, "accepted")
    request = answer.headers.get("x-amzn-requestid", "")
    client.ledger.accepts(request, function, token)
    if key is not None:
        client.ledger.keyed(key, request)
    return True


def note(client: Client) -> None:
    for _ in range(client.rng.choice([1, 1, 8])):
        _accepted(client, "note", client.token())


def note_to_file(client: Client) -> None:
    _accepted(client, "note-to-file", client.token())


def note_with_key(client: Client) -> None:
    """Sends the same event until it is accepted, and sometimes once more."""
    token = client.token()
    deadline = time.monotonic() + ANSWER_S
    while not _accepted(client, "note-once", token, token) and time.monotonic() < deadline:
        time.sleep(client.rng.uniform(0.05, 0.3))
    if client.rng.random() < 0.3:
        _accepted(client, "note-once", token, token)


def deploy(client: Client) -> None:
    """Deploys the next version of a function. What was acknowledged must be there from then on."""
    client.number += 1
    folder = client.functions / "deployed"
    text = (client.functions / "app.py").read_text().replace("NUMBER = 0", f"NUMBER = {client.number}")
    (folder / "app.py").write_text(text)
    try:
        done = client.daemon.cli("deploy", folder, timeout_s=90)
    except subprocess.TimeoutExpired:
        client.ledger.breaks("every caller is answered", f"pilot deploy has not ended after 90 s: number {client.number}")
        return
    client.ledger.count(client.name, "success" if done.returncode == 0 else "refused")
    if done.returncode == 0:
        client.deployed = client.number
    elif not done.stderr.strip():
        client.ledger.breaks("errors are documented ones", "pilot deploy has failed and says nothing")
    token = client.token()
    # A connection that is not used for long is closed by the daemon.
    client.hang_up()
    body = client.judged(client.ask(INVOKE.format("number"), _event({"token": token})))
    if body is not None:
        found = json.loads(body)
        if found["token"] != token or not client.deployed <= found["number"] <= client.number:
            how = f"{client.deployed} was acknowledged, {client.number} is the last: {found}"
            client.ledger.breaks("an acknowledged deployment stays", how)
    time.sleep(1)


def control(client: Client) -> None:
    """The control API answers, whatever happens."""
    path = client.rng.choice(["/_pilot/v1/functions", "/metrics", "/_pilot/v1/async", "/_pilot/v1/functions/echo"])
    began = time.monotonic()
    try:
        status, document = client.daemon.api("GET", path, timeout_s=ANSWER_S)
    except TimeoutError:
        client.ledger.breaks("every caller is answered", f"nothing for {ANSWER_S} s after {path}")
        return
    except OSError as error:
        client.ledger.count(client.name, "no connection")
        with suppress(OSError):
            time.sleep(0.3)
        if not client.ledger.was_down(began, time.monotonic()):
            how = f"{path}: {type(error).__name__}: {error}"
            client.ledger.breaks("a connection ends with the daemon alone", how)
        return
    client.ledger.count(client.name, "success" if status == 200 else str(status))
    if status != 200:
        client.ledger.breaks("the control API answers", f"{path}: {status}: {document}")
    time.sleep(0.2)


REQUESTS = [
    b"POST /2015-03-31/functions/echo/invocations HTTP/1.1\r\nHost: localhost\r\nContent-Length: 21\r\n\r\n"
    + b'{"token": "rubbish"} ',
    b"GET /fn/stream/?token=rubbish&parts=2 HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n",
    b"POST /fn/server/ HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    b"POST /_pilot/v1/dlq/redrive HTTP/1.1\r\nHost: localhost\r\nContent-Length: 15\r\n\r\n" + b'{"id": "none" }',
    b"GET /_pilot/v1/functions/echo/logs?tail=5 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00",
]


def rubbish(client: Client) -> None:
    """A damaged request to one of the listeners. Nobody judges the answer: the daemon must live, and serve the others."""
    sent = bytearray(client.rng.choice(REQUESTS))
    for _ in range(client.rng.randrange(6)):
        at = client.rng.randrange(len(sent))
        what = client.rng.randrange(4)
        if what == 0:
            sent[at] = client.rng.randrange(256)
        elif what == 1:
            sent[at:at] = sent[at : at + client.rng.randrange(200)]
        elif what == 2:
            del sent[at : at + client.rng.randrange(1, 20)]
        else:
            sent[at:at] = client.rng.randbytes(client.rng.randrange(64))
        sent = sent or bytearray(b"x")
    family, address = (socket.AF_INET, client.daemon.address)
    if client.rng.random() < 0.5:
        family, address = (socket.AF_UNIX, str(client.daemon.data / "control.sock"))  # type: ignore[assignment]
    with suppress(OSError), socket.socket(family) as connection:
        connection.settimeout(1)
        connection.connect(address)
        connection.sendall(sent)
        if client.rng.random() < 0.5:
            connection.shutdown(socket.SHUT_WR)
        while connection.recv(1 << 16):
            pass
    client.ledger.count(client.name, "sent")
