"""The shim of memcached and etcd (the paper's Fig. 11 and 12): it brings the snapshot to where the unmodified server wants it, starts the server,
and asks it a first question.

The snapshot is in the messages of the initscript, in the order of the event's keys, or behind the event's URLs.
"""

import base64
import http.client
import json
import os
import shutil
import socket
import subprocess
import time
from urllib.parse import urlsplit

import pilotlight
from clock import Clock

STATE = "/tmp/state"
LIMIT_S = 60


def download(url, path):
    place = urlsplit(url)
    connection = http.client.HTTPConnection(place.netloc, timeout=LIMIT_S)
    connection.request("GET", f"{place.path}?{place.query}")
    response = connection.getresponse()
    if response.status != 200:
        raise RuntimeError(f"{place.path}: {response.status} {response.read(300)!r}")
    with open(path, "wb") as file:
        shutil.copyfileobj(response, file, 1 << 20)


def copy(source, path):
    """In the kernel, because the server writes to its file and a message cannot be written."""
    with open(source, "rb") as given, open(path, "wb") as file:
        size, at = os.fstat(given.fileno()).st_size, 0
        while at < size:
            at += os.sendfile(file.fileno(), given.fileno(), at, size - at)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def until(process, ask):
    """The first answer."""
    deadline = time.monotonic() + LIMIT_S
    while True:
        try:
            return ask()
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{process.args[0]} does not serve ({process.poll()})") from None
            time.sleep(0.001)


def memcached(files, event):
    """It maps the memory file, and reads the other one (docs: warm restart)."""
    address = f"{STATE}/socket"
    command = ["memcached", "-e", files[0], "-m", str(event["memory_mb"]), "-s", address]
    process = subprocess.Popen([*command, *(["-u", "root"] if os.getuid() == 0 else [])])

    def ask():
        with socket.socket(socket.AF_UNIX) as line:
            line.connect(address)
            line.sendall(b"get %s\r\n" % event["question"].encode())
            reader = line.makefile("rb")
            head = reader.readline().split()
            return reader.read(int(head[3])) if head[0] == b"VALUE" else b""

    return until(process, ask)


def etcd(files, event):
    """Restores the snapshot into a data directory, and serves it."""
    client, peer = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
    data = f"{STATE}/etcd-data"
    cluster = ["--name", "one", "--initial-cluster", f"one={peer}", "--initial-advertise-peer-urls", peer]
    restore = ["etcdctl", "snapshot", "restore", files[0], "--data-dir", data, *cluster]
    subprocess.run(restore, env={**os.environ, "ETCDCTL_API": "3"}, check=True, capture_output=True)
    command = ["etcd", "--data-dir", data, *cluster, "--listen-peer-urls", peer, "--listen-client-urls", client]
    process = subprocess.Popen([*command, "--advertise-client-urls", client, "--log-level", "error", "--logger", "zap"])

    def ask():
        connection = http.client.HTTPConnection(urlsplit(client).netloc, timeout=LIMIT_S)
        connection.request("POST", "/v3/kv/range", json.dumps({"key": base64.b64encode(event["question"].encode()).decode()}))
        response = connection.getresponse()
        answer = response.read()
        if response.status != 200:
            raise OSError(f"{response.status} {answer[:200]!r}")
        found = json.loads(answer).get("kvs", [])
        return base64.b64decode(found[0]["value"]) if found else b""

    return until(process, ask)


def handler(event):
    clock = Clock()
    os.makedirs(STATE, exist_ok=True)
    # etcd's snapshot is only read, so it is used where it lies.
    is_read_only = event["service"] == "etcd"
    files, copied, downloaded = [], 0.0, 0.0
    for message, name, url in zip(range(1, 9), event["names"], event["urls"]):
        path = f"{STATE}/{name}"
        given = pilotlight.init.paths.get(message)
        if given is None:
            download(url, path)
            downloaded += clock.lap()
        elif not is_read_only:
            copy(given, path)
            copied += clock.lap()
        files.append(given if given and is_read_only else path)
    value = {"memcached": memcached, "etcd": etcd}[event["service"]](files, event)
    measurement = {"download_time": downloaded, "copy_time": copied, "serve_time": clock.lap()}
    return {"result": value.decode(), "by": "script" if pilotlight.init.paths else "service", "measurement": measurement}
