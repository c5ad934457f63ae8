"""Triggers and destinations outside of the daemon, with real servers: SQS's API (moto), Redis, HTTP."""

from __future__ import annotations

import hashlib
import http.server
import json
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from conftest import KEY_ID, SECRET, Redis, eventually
from pilot_daemon import Daemon

pytestmark = pytest.mark.timeout(240)

HANDLER = """
def handler(event, context):
    if "Records" not in event:
        return event
    failed = []
    for record in event["Records"]:
        text = record.get("body") or record["fields"]["text"]
        if text == "crash":
            raise ValueError(text)
        if text.startswith("poison"):
            failed.append({"itemIdentifier": record.get("messageId") or record["id"]})
        else:
            print("got " + text, flush=True)
    return {"batchItemFailures": failed}
"""

SLOW = """
import os, time

def handler(event, context):
    time.sleep(float(os.environ.get("SLEEP_S", "0")))
    for record in event["Records"]:
        print("got " + record["messageId"].replace("-", ""), flush=True)
"""


@dataclass
class Hook:
    """A server that takes records. It refuses the first one."""

    posts: list[tuple[str, str, Any]] = field(default_factory=list)
    url: str = ""


@pytest.fixture(scope="module")
def hook() -> Iterator[Hook]:
    hook = Hook()

    class Takes(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            is_first = not hook.posts
            hook.posts.append((self.headers["authorization"], self.headers["idempotency-key"], body))
            self.send_response(503 if is_first else 204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Takes)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    hook.url = f"http://127.0.0.1:{server.server_port}/hooks"
    yield hook
    server.shutdown()


def queues(sqs: Any, place: Path) -> str:
    """The connection to the server of SQS, whose secret is a file in this folder."""
    return f"""
[connections.queues]
functions = ["*"]
kind = "sqs"
url = "{sqs.meta.endpoint_url}/123456789012"
access_key_id = "{KEY_ID}"
secret_access_key_file = "{place / "secret"}"
"""


@pytest.fixture(scope="module")
def triggered(home: Path, sqs: Any, redis: Redis, certificate: tuple[Path, Path], hook: Hook) -> Iterator[Daemon]:
    """A daemon whose functions may use these servers."""
    place = home / "triggered"
    place.mkdir()
    for name, text in (("secret", SECRET), ("authorization", "Bearer hook")):
        (place / name).write_text(text)
        (place / name).chmod(0o600)
    config = place / "pilotd.toml"
    config.write_text(
        f"""
{queues(sqs, place)}[connections.main]
functions = ["*"]
kind = "redis"
url = "rediss://localhost:{redis.port}/0"
password_file = "{place / "secret"}"
ca_file = "{certificate[0]}"
[connections.hooks]
functions = ["*"]
kind = "http"
url = "{hook.url}"
authorization_file = "{place / "authorization"}"
"""
    )
    daemon = Daemon(place, "--config", str(config))
    yield daemon
    daemon.stop()


def deploy(daemon: Daemon, folder: Path, name: str, keys: str, code: str = HANDLER) -> None:
    project = folder / name
    project.mkdir()
    (project / "app.py").write_text(code)
    (project / "pilot.toml").write_text(f'[functions.{name}]\nhandler = "app.handler"\n{keys}')
    done = daemon.up(project)
    assert done.returncode == 0, done.stdout + done.stderr + daemon.log.read_text()


def ask(daemon: Daemon, path: str) -> Any:
    response = daemon.request("GET", path)
    body = response.read()
    assert response.status == 200, body
    return json.loads(body)


def trigger(daemon: Daemon, name: str) -> Any:
    return ask(daemon, f"/_pilot/v1/functions/{name}")["triggers"][0]


def got(daemon: Daemon, name: str) -> list[str]:
    """What the handler printed, sorted."""
    response = daemon.request("GET", f"/_pilot/v1/functions/{name}/logs")
    return sorted(re.findall(r"got (\w+)", response.read().decode()))


def is_counted_as_pubsub(daemon: Daemon, name: str) -> bool:
    """Metrics are counted a moment after the answer."""
    text = daemon.request("GET", "/metrics").read().decode()
    return re.search(rf'faas_invocations_total{{faas_name="{name}",faas_trigger="pubsub"}} [1-9]', text) is not None


def dead(daemon: Daemon, name: str) -> Any:
    return ask(daemon, f"/_pilot/v1/dlq?function={name}")


def test_messages_of_a_queue_are_deleted_when_they_are_done_and_poison_becomes_a_dead_letter(
    sqs: Any, triggered: Daemon, tmp_path: Path
) -> None:
    queue = sqs.create_queue(QueueName="jobs", Attributes={"VisibilityTimeout": "6"})["QueueUrl"]
    for text in ("one", "poison", "two"):
        sqs.send_message(QueueUrl=queue, MessageBody=text)
    # Nothing is received twice because the machine is slow.
    keys = 'timeout_s = 5\n[[functions.jobs.triggers]]\ntype = "sqs"\nreport_batch_item_failures = true\nmax_receives = 1\n'
    deploy(triggered, tmp_path, "jobs", keys + f'queue = "{queue}"\n')
    letters = eventually("a dead letter", lambda: dead(triggered, "jobs"))
    assert len(letters) == 1 and "max_receives" in letters[0]["error"], letters
    shown = ask(triggered, f"/_pilot/v1/async/{letters[0]['id']}")["payload"]["Records"][0]
    assert (shown["body"], shown["eventSource"]) == ("poison", "aws:sqs")
    assert shown["eventSourceARN"] == "arn:aws:sqs:us-east-1:123456789012:jobs"
    assert got(triggered, "jobs") == ["one", "two"]
    names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]

    def is_empty() -> bool:
        counts = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=names)["Attributes"]
        return all(counts[name] == "0" for name in names)

    eventually("an empty queue", is_empty)
    state = trigger(triggered, "jobs")
    assert state["state"] == "active" and state["errors"] >= 1 and state["received"] >= 3, state
    # It goes on.
    sqs.send_message(QueueUrl=queue, MessageBody="three")
    eventually("the next message", lambda: got(triggered, "jobs") == ["one", "three", "two"])
    eventually("the count", lambda: is_counted_as_pubsub(triggered, "jobs"))


def test_a_batch_that_raises_stays_in_the_queue(sqs: Any, triggered: Daemon, tmp_path: Path) -> None:
    queue = sqs.create_queue(QueueName="crashes", Attributes={"VisibilityTimeout": "600"})["QueueUrl"]
    sqs.send_message(QueueUrl=queue, MessageBody="crash")
    keys = f'[[functions.crashes.triggers]]\ntype = "sqs"\nqueue = "{queue}"\n'
    deploy(triggered, tmp_path, "crashes", keys)
    shown = eventually("an error", lambda: (shown := trigger(triggered, "crashes")).get("last_error") and shown)
    assert "ValueError" in shown["last_error"], shown
    counts = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["All"])["Attributes"]
    assert counts["ApproximateNumberOfMessagesNotVisible"] == "1", counts


def visible_and_hidden(sqs: Any, queue: str) -> tuple[int, int]:
    """Messages that are visible, and those that are hidden."""
    names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
    found = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=names)["Attributes"]
    return int(found[names[0]]), int(found[names[1]])


def test_a_batch_that_takes_longer_than_its_visibility_timeout_runs_once(sqs: Any, triggered: Daemon, tmp_path: Path) -> None:
    """Its event would be too large, so it runs in two parts of ten seconds. Its messages are hidden for 18 seconds at first."""
    queue = sqs.create_queue(QueueName="long", Attributes={"VisibilityTimeout": "6"})["QueueUrl"]
    # As JSON, each quotation mark has two bytes.
    body = '"' * 240_000
    ids = [sqs.send_message(QueueUrl=queue, MessageBody=body)["MessageId"].replace("-", "") for _ in range(20)]
    keys = 'timeout_s = 12\nenvironment = { SLEEP_S = "10" }\n[[functions.long.triggers]]\ntype = "sqs"\n'
    deploy(triggered, tmp_path, "long", keys + f'batch_size = 20\nmax_receives = 1\nqueue = "{queue}"\n', SLOW)
    eventually("the first part", lambda: len(got(triggered, "long")) >= 10)
    eventually("its deletion", lambda: sum(visible_and_hidden(sqs, queue)) < 20)
    assert len(got(triggered, "long")) < 20, "it is deleted before the second part ends"
    eventually("an empty queue", lambda: visible_and_hidden(sqs, queue) == (0, 0))
    assert got(triggered, "long") == sorted(ids)
    assert dead(triggered, "long") == []
    assert trigger(triggered, "long")["errors"] == 0


def test_messages_that_are_collected_at_a_stop_are_run(sqs: Any, home: Path, tmp_path: Path) -> None:
    place = home / "stopped-trigger"
    place.mkdir()
    (place / "secret").write_text(SECRET)
    (place / "secret").chmod(0o600)
    config = place / "pilotd.toml"
    config.write_text(queues(sqs, place))
    queue = sqs.create_queue(QueueName="collected", Attributes={"VisibilityTimeout": "600"})["QueueUrl"]
    daemon = Daemon(place, "--config", str(config))
    try:
        keys = f'[[functions.collected.triggers]]\ntype = "sqs"\nbatch_window_s = 120\nqueue = "{queue}"\n'
        deploy(daemon, tmp_path, "collected", keys, SLOW)
        for text in ("one", "two"):
            sqs.send_message(QueueUrl=queue, MessageBody=text)
        eventually("the messages are collected", lambda: visible_and_hidden(sqs, queue) == (0, 2))
        assert got(daemon, "collected") == []
    finally:
        daemon.stop()
    assert visible_and_hidden(sqs, queue) == (0, 0)


def test_a_queue_that_is_not_there_is_an_error_that_is_shown(sqs: Any, triggered: Daemon, tmp_path: Path) -> None:
    queue = f"{sqs.meta.endpoint_url}/123456789012/later"
    deploy(triggered, tmp_path, "later", f'[[functions.later.triggers]]\ntype = "sqs"\nqueue = "{queue}"\n')
    shown = eventually("a failure", lambda: (shown := trigger(triggered, "later"))["state"] == "failing" and shown)
    assert "NonExistentQueue" in shown["last_error"] or "QueueDoesNotExist" in shown["last_error"], shown
    sqs.create_queue(QueueName="later")
    sqs.send_message(QueueUrl=queue, MessageBody="here")
    eventually("the message", lambda: got(triggered, "later") == ["here"])
    assert trigger(triggered, "later")["state"] == "active"


def test_entries_of_a_stream_are_acknowledged_and_those_of_a_dead_consumer_are_taken_over(
    redis: Redis, triggered: Daemon, tmp_path: Path
) -> None:
    # Another consumer of the group got an entry and is gone.
    redis.ask(b"XGROUP", b"CREATE", b"mails", b"team", b"0", b"MKSTREAM")
    redis.ask(b"XADD", b"mails", b"*", b"text", b"left")
    redis.ask(b"XREADGROUP", b"GROUP", b"team", b"gone", b"STREAMS", b"mails", b">")
    for text in (b"one", b"poison", b"two"):
        redis.ask(b"XADD", b"mails", b"*", b"text", text)
    keys = (
        'timeout_s = 5\n[[functions.mails.triggers]]\ntype = "redis"\nconnection = "main"\nstream = "mails"\ngroup = "team"\n'
    )
    deploy(triggered, tmp_path, "mails", keys + "claim_idle_s = 6\nmax_receives = 1\nreport_batch_item_failures = true\n")
    eventually("the entries", lambda: {"one", "two"} <= set(got(triggered, "mails")))
    letters = eventually("dead letters", lambda: len(found := dead(triggered, "mails")) == 2 and found)
    # The other consumer had had its entry once already.
    texts = [ask(triggered, f"/_pilot/v1/async/{one['id']}")["payload"]["Records"][0]["fields"]["text"] for one in letters]
    assert sorted(texts) == ["left", "poison"]
    eventually("nothing is pending", lambda: redis.ask(b"XPENDING", b"mails", b"team").startswith(b"*4\r\n:0"))
    assert got(triggered, "mails") == ["one", "two"]
    assert trigger(triggered, "mails")["source"] == "main/mails team"
    eventually("the count", lambda: is_counted_as_pubsub(triggered, "mails"))


def test_a_stream_with_an_entry_that_is_too_large_waits_longer_each_time_and_goes_on_without_it(
    redis: Redis, triggered: Daemon, tmp_path: Path
) -> None:
    # More than the daemon reads at once. The consumer has it from the first read on, so each new connection meets it again.
    large = redis.ask(b"XADD", b"photos", b"*", b"text", b"x" * (13 << 20)).splitlines()[1]
    keys = '[[functions.photos.triggers]]\ntype = "redis"\nconnection = "main"\nstream = "photos"\ngroup = "team"\n'
    deploy(triggered, tmp_path, "photos", keys)
    shown = eventually("failures", lambda: (shown := trigger(triggered, "photos"))["errors"] >= 4 and shown)
    assert "lower batch_size" in shown["last_error"], shown
    lines = [line for line in triggered.log.read_text().splitlines() if "photos" in line]
    # Failures that follow each other, with nothing that works in between: only the first one is reported.
    assert len([line for line in lines if "a trigger fails" in line]) == 1, lines
    assert not [line for line in lines if "works again" in line], lines
    redis.ask(b"XDEL", b"photos", large)
    redis.ask(b"XADD", b"photos", b"*", b"text", b"small")
    eventually("the next entry", lambda: got(triggered, "photos") == ["small"])
    assert trigger(triggered, "photos")["state"] == "active"


def test_records_arrive_at_urls_queues_and_streams(
    sqs: Any, redis: Redis, hook: Hook, triggered: Daemon, tmp_path: Path
) -> None:
    queue = sqs.create_queue(QueueName="records")["QueueUrl"]
    for name, destination in (("web", f"{hook.url}/a"), ("queued", f"sqs:{queue}"), ("streamed", "redis:main/records")):
        deploy(triggered, tmp_path, name, f'async = {{ on_success = "{destination}" }}\n')
        path = f"/2015-03-31/functions/{name}/invocations"
        response = triggered.request("POST", path, {"name": name}, **{"X-Amz-Invocation-Type": "Event"})
        assert response.status == 202, response.read()
    eventually("the second try", lambda: len(hook.posts) == 2)
    (authorization, key, record), again = hook.posts
    assert (authorization, key, record) == again and authorization == "Bearer hook"
    assert record["requestPayload"] == record["responsePayload"] == {"name": "web"}

    def received() -> Any:
        return sqs.receive_message(QueueUrl=queue).get("Messages")

    message = eventually("the message", received)[0]
    assert json.loads(message["Body"])["requestPayload"] == {"name": "queued"}
    eventually("the entry", lambda: redis.ask(b"XLEN", b"records") == b":1\r\n")
    assert b'"requestPayload":{"name": "streamed"}' in redis.ask(b"XRANGE", b"records", b"-", b"+")


def test_a_destination_that_the_operator_did_not_name_is_refused(triggered: Daemon, tmp_path: Path, hook: Hook) -> None:
    other = hook.url.replace("/hooks", "/hooks/../admin")
    for destination in ("http://169.254.169.254/x", other, "redis:other/x", "sqs:http://127.0.0.1:9/1/q"):
        project = tmp_path / "refused"
        project.mkdir(exist_ok=True)
        (project / "app.py").write_text(HANDLER)
        keys = f'async = {{ on_failure = "{destination}" }}\n'
        (project / "pilot.toml").write_text(f'[functions.refused]\nhandler = "app.handler"\n{keys}')
        done = triggered.up(project)
        assert done.returncode != 0 and "[connections." in done.stdout + done.stderr, (destination, done.stdout, done.stderr)


def test_who_shares_a_url_with_others_uses_its_own_credentials(home: Path, tmp_path: Path) -> None:
    """Two connections lead to the same queue and URL, each for one function and with its own credentials."""
    seen: dict[str, set[str]] = {"one": set(), "two": set()}

    class Takes(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            text = self.rfile.read(int(self.headers["content-length"])).decode()
            sender = re.search(r"function:(one|two)-", text)
            assert sender
            authorization = self.headers["authorization"]
            key = re.search(r"Credential=(\w+)/", authorization)
            seen[sender[1]].add(key[1] if key else authorization)
            answer = json.dumps({"MessageId": "1", "MD5OfMessageBody": hashlib.md5(body(text).encode()).hexdigest()}).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    def body(text: str) -> str:
        return str(json.loads(text).get("MessageBody", ""))

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Takes)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/1"
    place = home / "shared-url"
    place.mkdir()
    text = ""
    for name in ("one", "two"):
        (place / name).write_text(f"secret-{name}")
        (place / name).chmod(0o600)
        text += f"""
[connections.queue-{name}]
functions = ["{name}-*"]
kind = "sqs"
url = "{url}"
access_key_id = "KEY{name}"
secret_access_key_file = "{place / name}"
[connections.hook-{name}]
functions = ["{name}-*"]
kind = "http"
url = "{url}"
authorization_file = "{place / name}"
"""
    config = place / "pilotd.toml"
    config.write_text(text)
    daemon = Daemon(place, "--config", str(config))
    try:
        for name in ("one", "two"):
            for kind, destination in (("queue", f"sqs:{url}/q"), ("hook", url)):
                function = f"{name}-{kind}"
                deploy(daemon, tmp_path, function, f'async = {{ on_success = "{destination}" }}\n')
                path = f"/2015-03-31/functions/{function}/invocations"
                response = daemon.request("POST", path, {}, **{"X-Amz-Invocation-Type": "Event"})
                assert response.status == 202, response.read()
                wanted = f"KEY{name}" if kind == "queue" else f"secret-{name}"
                eventually(f"the record of {function}", lambda name=name, wanted=wanted: wanted in seen[name])
    finally:
        daemon.stop()
        server.shutdown()
    assert seen == {name: {f"KEY{name}", f"secret-{name}"} for name in ("one", "two")}
