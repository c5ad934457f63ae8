"""Connections that user code opens at import: libraries connect again in each worker, and a template whose connection a worker
would miss is not forked. tests/fidelity has the same with real servers."""

from __future__ import annotations

import socketserver
import threading

import pytest
from at_import import CALLS, SITE, Redis, all_at_once, assert_no_answer_crosses, findings, needs, ready
from conftest import Functions
from harness import Stream, Template

HTTP_CLIENT = """
import http.client
connection = http.client.HTTPConnection("127.0.0.1", %d, timeout=10)
def get(path):
    connection.request("GET", path)
    return connection.getresponse().read().decode()
get("/import")
def handler(event, context):
    return get(event)
"""


def test_http_connections_of_the_import_are_not_shared(functions: Functions, http_port: int) -> None:
    template = functions.template(HTTP_CLIENT % http_port)
    assert findings(template) == [("app.py:5", f"opened TCP 127.0.0.1:{http_port} at import", "each worker reconnects")]
    assert_no_answer_crosses(template)


URLLIB3 = """
import urllib3
pool = urllib3.PoolManager(retries=False, timeout=10)
def handler(event, context):
    return pool.request("GET", "http://127.0.0.1:%d" + event).data.decode()
handler("/import", None)
"""

REQUESTS = """
import requests
session = requests.Session()
def handler(event, context):
    return session.get("http://127.0.0.1:%d" + event, timeout=10).text
handler("/import", None)
"""


BOTO3 = """
import boto3
port = %d
client = boto3.client("lambda", "us-east-1", endpoint_url=f"http://127.0.0.1:{port}", aws_access_key_id="a", aws_secret_access_key="b")
def handler(event, context):
    path = client.invoke(FunctionName=event.replace("/", "_"))["Payload"].read().decode()
    return path.split("/")[3].replace("_", "/")
handler("/import", None)
"""


@pytest.mark.parametrize(
    ("module", "source", "line"), [("urllib3", URLLIB3, 5), ("requests", REQUESTS, 5), ("boto3", BOTO3, 6)]
)
def test_pools_of_connections_reconnect(functions: Functions, http_port: int, module: str, source: str, line: int) -> None:
    needs(module)
    template = functions.template(source % http_port, sys_path=[str(functions.directory), SITE])
    assert findings(template) == [(f"app.py:{line}", f"opened TCP 127.0.0.1:{http_port} at import", "each worker reconnects")]
    assert_no_answer_crosses(template)


REDIS = """
import redis
client = redis.Redis(port=%d, socket_timeout=10)
def handler(event, context):
    return client.echo(event).decode()
assert handler("import", None) == "import"
"""


def test_a_redis_client_of_the_import_reconnects(functions: Functions, redis_port: int) -> None:
    needs("redis")
    template = functions.template(REDIS % redis_port, sys_path=[str(functions.directory), SITE])
    assert (f"opened TCP 127.0.0.1:{redis_port} at import", "each worker reconnects") in [row[1:] for row in findings(template)]
    assert_no_answer_crosses(template)


SUBSCRIBED = """
import redis
client = redis.Redis(port=%d, socket_timeout=10)
subscription = client.pubsub(ignore_subscribe_messages=True)
subscription.subscribe("channel")
subscription.get_message(timeout=10)
pool = redis.BlockingConnectionPool(port=%d, socket_timeout=10)
shared = redis.Redis(connection_pool=pool)
shared.ping()
alone = redis.Redis(port=%d, socket_timeout=10, single_connection_client=True)
def handler(event, context):
    return [subscription.get_message(timeout=0), alone.echo("mine").decode()]
"""


def test_a_subscription_to_redis_is_each_workers_own(functions: Functions, redis_port: int) -> None:
    needs("redis")
    template = functions.template(SUBSCRIBED % (redis_port, redis_port, redis_port), sys_path=[str(functions.directory), SITE])
    rows = findings(template)
    assert [where for where, _, _ in rows] == ["app.py:5", "app.py:10"]
    assert all(instead == "its client keeps it, so each worker imports the module itself" for _, _, instead in rows)
    workers = assert_each_worker_imports(functions, template, rows)
    assert [worker.result({}) for worker in workers] == [[None, "mine"]] * 4


# With a hook, the program says that it expects to lose its connections.
HOOK = "import snapshot_restore_py\nsnapshot_restore_py.register_after_restore(list)\n"

REDIS_OVER_UNIX = """
import redis
client = redis.Redis(unix_socket_path=%r, socket_timeout=10)
def handler(event, context):
    return client.echo(event).decode()
assert handler("import", None) == "import"
"""


class _ThreadedUnix(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True


def test_a_redis_client_of_a_unix_socket_reconnects(functions: Functions) -> None:
    needs("redis")
    path = str(functions.directory / "redis.sock")
    with _ThreadedUnix(path, Redis) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            template = functions.template(REDIS_OVER_UNIX % path, sys_path=[str(functions.directory), SITE])
            assert findings(template) == [("app.py:5", f"opened unix {path} at import", "each worker reconnects")]
            assert_no_answer_crosses(template)
        finally:
            server.shutdown()
            thread.join()


CONNECTED = """
import socket
connection = socket.create_connection(("127.0.0.1", %d))
connection.settimeout(5)
copy = connection.dup()
def handler(event, context):
    try:
        connection.sendall(b"x")
        sent = "sent"
    except BrokenPipeError:
        sent = "broken"
    return [connection.recv(10).decode(), copy.recv(10).decode(), sent, connection.gettimeout(), connection.get_inheritable()]
"""


def test_a_connected_socket_reads_as_closed_if_a_hook_can_replace_it(functions: Functions, redis_port: int) -> None:
    template = functions.template(HOOK + CONNECTED % redis_port)
    ((where, what, instead),) = findings(template)
    assert (where, what) == ("app.py:5", f"opened TCP 127.0.0.1:{redis_port} at import") and "after_restore hook" in instead
    for worker in ready(template, 2):
        assert worker.result({}) == ["", "", "broken", 5, False]


def assert_each_worker_imports(functions: Functions, template: Template, found: list[tuple[str, str, str]]) -> list[Stream]:
    """The template refuses to fork and says why. Returns workers of the level above."""
    assert findings(template) == found
    assert template.report["must_not_fork"] == f"{found[0][1]} ({found[0][2].partition(',')[0]})"
    template.fork("worker")
    assert "must not fork" in template.message("fork_failed")["error"]
    workers = [functions.root.worker(functions.spec(sys_path=[str(functions.directory), SITE])) for _ in range(4)]
    for worker in workers:
        worker.ready()
    return workers


IMPORTS_ITSELF = "not known to reconnect by itself, so each worker imports the module itself"

OWN_PROTOCOL = """
import socket
connection = socket.create_connection(("127.0.0.1", %d))
connection.settimeout(10)
def handler(event, context):
    connection.sendall(b"*2\\r\\n$4\\r\\nECHO\\r\\n$%%d\\r\\n%%s\\r\\n" %% (len(event), event.encode()))
    return connection.recv(100).decode().split()[1]
"""


def test_a_connection_that_nothing_would_open_again_is_each_workers_own(functions: Functions, redis_port: int) -> None:
    template = functions.template(OWN_PROTOCOL % redis_port)
    found = [("app.py:3", f"opened TCP 127.0.0.1:{redis_port} at import", IMPORTS_ITSELF)]
    workers = assert_each_worker_imports(functions, template, found)
    for _ in range(CALLS):
        events = [f"w{index}" for index in range(len(workers))]
        assert [body for _, body in all_at_once(workers, events)] == [f'"{event}"' for event in events]


SMTP = """
import smtplib
class Client(smtplib.SMTP):
    def getreply(self):
        return 220, b"here"
client = Client("127.0.0.1", %d)
def handler(event, context):
    return client.sock.fileno() > 0
"""


def test_a_library_that_is_not_known_to_reconnect_is_named(functions: Functions, redis_port: int) -> None:
    template = functions.template(SMTP % redis_port)
    assert findings(template) == [("app.py:6", f"opened TCP 127.0.0.1:{redis_port} at import with smtplib", IMPORTS_ITSELF)]


READ_LATER = """
import http.client
connection = http.client.HTTPConnection("127.0.0.1", %d, timeout=10)
connection.request("GET", "/begun-at-import")
%s
def handler(event, context):
    return %s.read().decode()
"""
NOT_READ = "a response was not read to its end, so each worker imports the module itself"


@pytest.mark.parametrize(
    ("at_import", "in_handler"), [("", "connection.getresponse()"), ("begun = connection.getresponse()", "begun")]
)
def test_a_response_that_is_read_in_the_handler_is_each_workers_own(
    functions: Functions, http_port: int, at_import: str, in_handler: str
) -> None:
    template = functions.template(READ_LATER % (http_port, at_import, in_handler))
    found = [("app.py:4", f"opened TCP 127.0.0.1:{http_port} at import with http.client", NOT_READ)]
    workers = assert_each_worker_imports(functions, template, found)
    assert [worker.result({}) for worker in workers] == ["/begun-at-import"] * 4


READ_LATER_WITH_HTTPX = """
import httpx
client = httpx.Client(timeout=10)
begun = client.send(client.build_request("GET", "http://127.0.0.1:%d/begun-at-import"), stream=True)
def handler(event, context):
    return begun.read().decode()
"""


def test_a_response_of_httpx_that_is_read_in_the_handler_is_each_workers_own(functions: Functions, http_port: int) -> None:
    needs("httpx")
    template = functions.template(READ_LATER_WITH_HTTPX % http_port, sys_path=[str(functions.directory), SITE])
    found = [("app.py:4", f"opened TCP 127.0.0.1:{http_port} at import with httpcore", NOT_READ)]
    workers = assert_each_worker_imports(functions, template, found)
    assert [worker.result({}) for worker in workers] == ["/begun-at-import"] * 4


LOOP_WITH_CONNECTION = """
import asyncio
loop = asyncio.new_event_loop()
async def connect():
    return await asyncio.open_connection("127.0.0.1", %d)
reader, writer = loop.run_until_complete(connect())
async def read():
    return await asyncio.wait_for(reader.read(10), 5)
def handler(event, context):
    return loop.run_until_complete(read()).decode()
"""


def test_a_connection_of_a_loop_ends_in_a_worker_with_a_hook(functions: Functions, redis_port: int) -> None:
    template = functions.template(HOOK + LOOP_WITH_CONNECTION % redis_port)
    assert [row[1] for row in findings(template)] == [f"opened TCP 127.0.0.1:{redis_port} at import"]
    for worker in ready(template, 2):
        assert worker.result({}) == ""


def test_a_connection_of_a_loop_is_each_workers_own(functions: Functions, redis_port: int) -> None:
    template = functions.template(LOOP_WITH_CONNECTION % redis_port)
    found = [("app.py:5", f"opened TCP 127.0.0.1:{redis_port} at import", IMPORTS_ITSELF)]
    assert_each_worker_imports(functions, template, found)
