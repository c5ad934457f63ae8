"""Messages of an MQTT broker: mosquitto, and brokers that this file plays."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import SECRET
from pilot_daemon import Daemon, free_port
from test_triggers import ask, eventually, trigger

pytestmark = pytest.mark.timeout(240)

HANDLER = """
def handler(event, context):
    if event.get("payload") == "poison":
        raise ValueError("poison")
    return event
"""
RECORDED = '[functions.{0}.async]\nretries = 0\non_success = "file:runs.jsonl"\n'


class Broker:
    """A mosquitto with a plain port and one with TLS, which both want a password."""

    def __init__(self, home: Path, certificate: tuple[Path, Path]) -> None:
        self.home, self.port, self.tls_port = home, free_port(), free_port()
        passwords, self.config = home / "passwords", home / "mosquitto.conf"
        subprocess.run(["mosquitto_passwd", "-b", "-c", passwords, "pilot", SECRET], check=True)
        self.config.write_text(
            f"""
user root
per_listener_settings false
allow_anonymous false
password_file {passwords}
persistence true
persistence_location {home}/
max_queued_messages 10000
listener {self.port} 127.0.0.1
listener {self.tls_port} 127.0.0.1
certfile {certificate[0]}
keyfile {certificate[1]}
"""
        )
        self.start()

    def start(self) -> None:
        with (self.home / "mosquitto.log").open("ab") as log:
            self.process = subprocess.Popen(["mosquitto", "-c", self.config], stdin=subprocess.DEVNULL, stdout=log, stderr=log)

        def is_up() -> bool:
            try:
                for port in (self.port, self.tls_port):
                    socket.create_connection(("127.0.0.1", port), 1).close()
                return True
            except OSError:
                assert self.process.poll() is None, (self.home / "mosquitto.log").read_text()
                return False

        eventually("mosquitto", is_up, 30)

    def stop(self) -> None:
        """It writes what it holds."""
        self.process.terminate()
        self.process.wait(20)

    def publish(self, topic: str, *messages: str | bytes, qos: int = 1, retain: bool = False) -> None:
        """Each line of text, or one message of bytes."""
        command = [
            "mosquitto_pub",
            "-h",
            "127.0.0.1",
            "-p",
            str(self.port),
            "-u",
            "pilot",
            "-P",
            SECRET,
            "-t",
            topic,
            "-q",
            str(qos),
        ]
        command += ["-r"] if retain else []
        if isinstance(messages[0], bytes):
            done = subprocess.run([*command, "-s"], input=messages[0], capture_output=True, timeout=60)
        else:
            lines = "".join(f"{message}\n" for message in messages)
            done = subprocess.run([*command, "-l"], input=lines.encode(), capture_output=True, timeout=60)
        assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def broker(home: Path, certificate: tuple[Path, Path]) -> Iterator[Broker]:
    missing = [name for name in ("mosquitto", "mosquitto_pub") if shutil.which(name) is None]
    if missing:
        pytest.skip(f"MQTT is not tested: there is no {missing} on PATH (Debian: apt-get install mosquitto mosquitto-clients)")
    place = home / "mosquitto"
    place.mkdir()
    broker = Broker(place, certificate)
    yield broker
    broker.stop()


@pytest.fixture
def start(tmp_path: Path, certificate: tuple[Path, Path]) -> Iterator[Callable[[str, str], Daemon]]:
    """Starts a daemon with a connection `main` to this URL, or starts it again."""
    begun: list[Daemon] = []

    def start(url: str, password: str = SECRET, more: str = "") -> Daemon:
        secret, config = tmp_path / "secret", tmp_path / "pilotd.toml"
        secret.write_text(password)
        secret.chmod(0o600)
        keys = f'functions = ["*"]\nkind = "mqtt"\nurl = "{url}"\nuser = "pilot"\npassword_file = "{secret}"\n'
        config.write_text(f'[connections.main]\n{keys}ca_file = "{certificate[0]}"\n{more}')
        begun.append(Daemon(tmp_path, "--config", str(config)))
        return begun[-1]

    yield start
    for daemon in begun:
        daemon.stop()


def deploy(daemon: Daemon, folder: Path, name: str, topic: str, keys: str = "") -> None:
    project = folder / name
    project.mkdir(exist_ok=True)
    (project / "app.py").write_text(HANDLER)
    trigger = f'[[functions.{name}.triggers]]\ntype = "mqtt"\nconnection = "main"\ntopic = "{topic}"\n{keys}'
    text = f'[functions.{name}]\nhandler = "app.handler"\n{RECORDED.format(name)}{trigger}'
    (project / "pilot.toml").write_text(text)
    done = daemon.up(project)
    assert done.returncode == 0, done.stdout + done.stderr + daemon.log.read_text()


def is_active(daemon: Daemon, name: str) -> None:
    eventually(f"{name} to listen", lambda: trigger(daemon, name)["state"] == "active")


def has_begun(daemon: Daemon, name: str) -> None:
    eventually("some messages", lambda: trigger(daemon, name)["received"] > 20)


def events(daemon: Daemon, name: str) -> list[dict[str, Any]]:
    path = daemon.data / "destinations" / name / "runs.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line)["requestPayload"] for line in lines if line.endswith("\n")]


def payloads(daemon: Daemon, name: str) -> list[Any]:
    return [event.get("payload", event.get("payloadBase64")) for event in events(daemon, name)]


def test_messages_over_tls_invoke_the_function_and_poison_becomes_a_dead_letter(
    broker: Broker, start: Callable[..., Daemon], tmp_path: Path
) -> None:
    broker.publish("home/hall/t", '{"t": 20}', retain=True)
    daemon = start(f"mqtts://localhost:{broker.tls_port}")
    deploy(daemon, tmp_path, "lab", "home/+/t", "qos = 2\n")
    is_active(daemon, "lab")
    eventually("the retained message", lambda: len(events(daemon, "lab")) == 1)
    broker.publish("home/attic/t", b"\xff\x00")
    broker.publish("home/attic/t", '"poison"', '{"t": 21.50}', qos=2)
    broker.publish("home/attic/t", "off", qos=0)
    broker.publish("home/attic/humidity", "1")
    eventually("the messages", lambda: len(events(daemon, "lab")) == 4)
    letters = eventually("the dead letter", lambda: ask(daemon, "/_pilot/v1/dlq?function=lab"))
    assert len(letters) == 1 and "poison" in letters[0]["error"], letters
    found = {json.dumps(event.get("payload", event.get("payloadBase64"))): event for event in events(daemon, "lab")}
    assert set(found) == {'{"t": 20}', '"/wA="', '{"t": 21.5}', '"b2Zm"'}, found
    assert [found['{"t": 20}'][key] for key in ("topic", "retain", "qos")] == ["home/hall/t", True, 1]
    assert [found['{"t": 21.5}'][key] for key in ("topic", "retain", "qos")] == ["home/attic/t", False, 2]
    assert found['"/wA="']["eventSource"] == "pilotlight:mqtt" and found['"b2Zm"']["qos"] == 0
    shown = trigger(daemon, "lab")
    assert (shown["type"], shown["source"], shown["received"]) == ("mqtt", "main/home/+/t", 5), shown
    metrics = daemon.request("GET", "/metrics").read().decode()
    assert 'faas_invocations_total{faas_name="lab",faas_trigger="pubsub"}' in metrics
    assert 'faas_invocations_total{faas_name="lab",faas_trigger="http"} 0' in metrics
    # What was retained is not sent again after each connection.
    broker.stop()
    eventually("a failure", lambda: trigger(daemon, "lab")["state"] == "failing")
    broker.start()
    is_active(daemon, "lab")
    broker.publish("home/attic/t", "5")
    eventually("the next message", lambda: 5 in payloads(daemon, "lab"))
    assert len(events(daemon, "lab")) == 5
    broker.publish("home/hall/t", "", retain=True)


def test_nothing_is_lost_when_the_daemon_is_killed_or_the_broker_is_away(
    broker: Broker, start: Callable[..., Daemon], tmp_path: Path
) -> None:
    url = f"mqtt://127.0.0.1:{broker.port}"
    daemon = start(url)
    deploy(daemon, tmp_path, "safe", "work/#")
    is_active(daemon, "safe")
    sent = 0
    for _ in range(3):
        publisher = threading.Thread(target=broker.publish, args=("work/a", *map(str, range(sent, sent + 200))))
        publisher.start()
        has_begun(daemon, "safe")
        daemon.process.kill()
        daemon.process.wait()
        publisher.join()
        sent += 200
        # Nobody listens.
        broker.publish("work/b", *map(str, range(sent, sent + 20)))
        sent += 20
        daemon = start(url)
    broker.stop()
    broker.start()
    broker.publish("work/c", str(sent))
    wanted = set(range(sent + 1))
    eventually("all messages", lambda: set(payloads(daemon, "safe")) == wanted)


def test_messages_wait_for_a_full_queue_and_run_once(
    broker: Broker, start: Callable[..., Daemon], tmp_path: Path
) -> None:
    daemon = start(f"mqtt://127.0.0.1:{broker.port}", more="[limits]\nasync_records = 20\n")
    deploy(daemon, tmp_path, "full", "full/#")
    is_active(daemon, "full")
    broker.publish("full/a", *map(str, range(300)))
    eventually("all messages", lambda: len(set(payloads(daemon, "full"))) == 300)
    assert sorted(payloads(daemon, "full")) == list(range(300))
    assert "full" in trigger(daemon, "full").get("last_error", ""), trigger(daemon, "full")


def test_a_wrong_password_is_shown(broker: Broker, start: Callable[..., Daemon], tmp_path: Path) -> None:
    daemon = start(f"mqtt://127.0.0.1:{broker.port}", "wrong")
    deploy(daemon, tmp_path, "denied", "a")
    shown = eventually("a failure", lambda: (shown := trigger(daemon, "denied"))["state"] == "failing" and shown)
    assert "password_file" in shown["last_error"], shown


def test_a_message_that_is_too_large_does_not_stop_the_others(
    broker: Broker, start: Callable[..., Daemon], tmp_path: Path
) -> None:
    daemon = start(f"mqtt://127.0.0.1:{broker.port}")
    deploy(daemon, tmp_path, "sized", "$share/team/size")
    is_active(daemon, "sized")
    broker.publish("size", b'"' + b"x" * (3 << 19) + b'"')
    broker.publish("size", b'"' + b"y" * 1_000_000 + b'"')
    broker.publish("size", "1")
    eventually("those that fit", lambda: len(events(daemon, "sized")) == 2)
    assert 1 in payloads(daemon, "sized")
    assert trigger(daemon, "sized")["state"] == "active"


class Played:
    """A broker whose answers are fixed, and what it got."""

    def __init__(self, *answers: bytes) -> None:
        self.answers, self.got = answers, b""
        self.server = socket.create_server(("127.0.0.1", 0))
        self.url = f"mqtt://127.0.0.1:{self.server.getsockname()[1]}"
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self) -> None:
        while True:
            try:
                connection = self.server.accept()[0]
            except OSError:
                return
            with connection:
                connection.settimeout(60)
                try:
                    for answer in self.answers:
                        self.got += connection.recv(4096)
                        connection.sendall(answer)
                    while part := connection.recv(4096):
                        self.got += part
                except OSError:
                    pass


CONNACK = b"\x20\x03\x00\x00\x00"
SUBACK = b"\x90\x04\x00\x01\x00\x01"


@pytest.mark.parametrize(
    ("answers", "problem"),
    [
        ((b"HTTP/1.1 400 Bad Request\r\n\r\n",), "does not answer"),
        ((CONNACK, b"\x90\x04\x00\x01\x00\x87"), "refuses the subscription"),
        ((CONNACK, SUBACK + b"\x30\xff\xff\xff\x7f"), "cannot be read"),
        ((CONNACK, SUBACK + b"\x32\x05\x00\x01a\x00\x00"), "cannot be read"),
        ((CONNACK, SUBACK + b"\x40\x02\x00\x09"), "wrong kind"),
    ],
)
def test_a_broker_that_sends_nonsense_is_a_failure_that_is_shown(
    start: Callable[..., Daemon], tmp_path: Path, answers: tuple[bytes, ...], problem: str
) -> None:
    played = Played(*answers)
    daemon = start(played.url)
    deploy(daemon, tmp_path, "odd", "a")
    eventually(problem, lambda: problem in trigger(daemon, "odd").get("last_error", ""))
    assert daemon.ready()
    played.server.close()


class Talker(Played):
    """A broker that releases messages without end, and counts what is answered."""

    def serve(self) -> None:
        connection = self.server.accept()[0]
        with connection, contextlib.suppress(OSError):
            for answer in self.answers:
                connection.recv(4096)
                connection.sendall(answer)
            # PUBREL, each of which has a PUBCOMP.
            releases = b"\x62\x02\x00\x09" * 10_000
            threading.Thread(target=self.talk, args=(connection, releases), daemon=True).start()
            while part := connection.recv(65536):
                self.got += part

    def talk(self, connection: socket.socket, releases: bytes) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection.sendall(releases)


def test_a_broker_that_talks_without_end_is_listened_to_at_a_pace(start: Callable[..., Daemon], tmp_path: Path) -> None:
    talker = Talker(CONNACK, SUBACK)
    daemon = start(talker.url)
    deploy(daemon, tmp_path, "told", "a")
    is_active(daemon, "told")
    before, began = talker.got.count(b"\x70"), time.monotonic()
    time.sleep(3)
    answered, took_s = talker.got.count(b"\x70") - before, time.monotonic() - began
    # A thousand per second, and those that a pause of the daemon or of this broker has left.
    assert answered < 1000 * took_s + 1000, (answered, took_s)
    eventually("more of them", lambda: talker.got.count(b"\x70") - before > 500)
    assert daemon.ready()
    talker.server.close()


def test_a_removed_function_ends_its_session(start: Callable[..., Daemon], tmp_path: Path) -> None:
    played = Played(CONNACK, SUBACK)
    daemon = start(played.url)
    deploy(daemon, tmp_path, "gone", "a")
    is_active(daemon, "gone")
    assert b"MQTT\x05" in played.got and b"\x00\x01a\x11" in played.got, played.got
    response = daemon.request("DELETE", "/_pilot/v1/functions/gone")
    assert response.status in (200, 204), response.read()
    # DISCONNECT with a Session Expiry Interval of 0.
    eventually("the end of the session", lambda: played.got.endswith(b"\xe0\x07\x00\x05\x11\x00\x00\x00\x00"))
    played.server.close()
