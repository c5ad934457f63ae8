"""Inputs from S3: fetched while the worker starts, mapped by the worker, or an error of that invocation alone."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import re
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from conftest import SECRET, Bucket, Folder, Redis
from pilot_daemon import Daemon

MIB = 1 << 20


def invoke(daemon: Daemon, function: str, event: object, timeout_s: float = 60) -> tuple[http.client.HTTPResponse, Any]:
    response = daemon.request("POST", f"/2015-03-31/functions/{function}/invocations", event, timeout_s)
    return response, json.loads(response.read())


def timing(response: http.client.HTTPResponse) -> dict[str, dict[str, float]]:
    """`Server-Timing`: the numbers of each entry, by its name."""
    entries = {}
    for entry in (response.getheader("server-timing") or "").split(","):
        name, *parts = entry.strip().split(";")
        pairs = [part.split("=", 1) for part in parts]
        entries[name] = {key: float(value) for key, value in pairs if re.fullmatch(r"[\d.]+", value)}
    return entries


def failure(daemon: Daemon, function: str, event: object) -> tuple[str, str]:
    response, error = invoke(daemon, function, event)
    assert response.status == 200 and response.getheader("x-amz-function-error") == "Unhandled"
    return error["errorType"], error["errorMessage"]


def rss_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    match = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert match
    return int(match[1]) / 1024


def memory_files_mib(daemon: int) -> dict[str, float]:
    """What the memory files hold that the daemon and its processes have open, by process."""
    found: dict[str, float] = {}
    for pid in [daemon, *descendants(daemon)]:
        blocks = 0
        with suppress(OSError):
            for file in Path(f"/proc/{pid}/fd").iterdir():
                with suppress(OSError):
                    if os.readlink(file).startswith("/memfd:"):
                        blocks += file.stat().st_blocks
            if blocks:
                found[f"{pid} {Path(f'/proc/{pid}/comm').read_text().strip()}"] = blocks * 512 / MIB
    return found


def descendants(pid: int) -> list[int]:
    parents = {}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parents[int(process.name)] = int(process.joinpath("stat").read_text().rpartition(")")[2].split()[1])
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found[1:]


def test_the_transfer_and_the_start_run_side_by_side(daemon: Daemon, bucket: Bucket) -> None:
    image = os.urandom(100 * MIB)
    bucket.put("large.bin", image)
    tried = []
    # What else the machine does can only make less of it happen at the same time, so one of five is enough.
    for _ in range(5):
        daemon.retire("slow-start")
        response, answer = invoke(daemon, "slow-start", {"key": "large.bin"})
        assert (answer["sha256"], answer["bytes"]) == (hashlib.sha256(image).hexdigest(), len(image))
        assert answer["memory"] == "read-only"
        # What is mapped is not the worker's own memory.
        assert answer["grown_kib"] < 1024
        entries = timing(response)
        fetch, total = entries["fetch.image"], entries["total"]["dur"]
        assert response.getheader("x-pilot-start") == "cold" and entries["init"]["dur"] > 300
        assert fetch["bytes"] == len(image)
        # It began with the request, and nearly all of it passed during the start, which took longer.
        start = sum(entries[name]["dur"] for name in ("lease", "exec", "sandbox", "init"))
        possible = min(start, fetch["dur"])
        is_hidden = fetch["begin"] < 50 and fetch["hidden"] >= 0.9 * possible
        if is_hidden and total < start + fetch["dur"] + entries["handler"]["dur"]:
            break
        tried.append(entries)
        # Another object: this one is kept.
        image = os.urandom(100 * MIB)
        bucket.put("large.bin", image)
    else:
        raise AssertionError(tried)


def test_a_warm_worker_gets_its_inputs_and_the_timeline_has_them(daemon: Daemon, bucket: Bucket) -> None:
    bucket.put("folder/small.bin", b"pixels")
    first, _ = invoke(daemon, "digest", {"key": "folder/small.bin"})
    assert first.getheader("x-pilot-start") == "cold"
    second, answer = invoke(daemon, "digest", {"key": "folder/small.bin"})
    assert second.getheader("x-pilot-start") == "warm"
    assert answer["sha256"] == hashlib.sha256(b"pixels").hexdigest()
    entries = timing(second)
    assert entries["fetch.image"]["bytes"] == 6 and entries["fetch.image"]["hidden"] == 0
    assert entries["inputs"]["dur"] >= entries["fetch.image"]["dur"] * 0.9
    description = json.loads(daemon.request("GET", "/_pilot/v1/functions/digest").read())
    (transfer,) = description["last"]["transfers"]
    assert (transfer["input"], transfer["from"], transfer["bytes"]) == ("image", "s3://photos/folder/small.bin", 6)


Backing = Bucket | Folder | Redis


@pytest.fixture(params=["digest", "digest-https", "digest-file", "digest-redis"])
def store(request: pytest.FixtureRequest, bucket: Bucket, folder: Folder, redis: Redis) -> tuple[str, Backing]:
    """A function, and where its inputs come from: every kind of store behaves alike."""
    backings: dict[str, Backing] = {"digest": bucket, "digest-redis": redis}
    return request.param, backings.get(request.param, folder)


def test_an_object_arrives_whole_from_every_kind_of_store(daemon: Daemon, store: tuple[str, Backing]) -> None:
    function, backing = store
    for key, body in {
        "a.txt": b"a",
        "folder/with space/ä+%20.bin": os.urandom(100_000),
        "empty": b"",
        "30 MiB": os.urandom(30 * MIB),
    }.items():
        backing.put(key, body)
        _, answer = invoke(daemon, function, {"key": key})
        assert (answer["bytes"], answer["sha256"]) == (len(body), hashlib.sha256(body).hexdigest()), key
        assert answer["memory"] == "read-only"


def test_every_kind_of_store_says_why_there_is_no_object(daemon: Daemon, store: tuple[str, Backing]) -> None:
    function, backing = store
    for key in ("none", "folder/none"):
        kind, message = failure(daemon, function, {"key": key})
        assert kind == "Input.NotFound" and "there is no such" in message, message
    for key in ("../x", "a//b", "", "/etc/passwd", "a\u0000b"):
        assert failure(daemon, function, {"key": key})[0] == "Input.KeyError"
    backing.put("huge.bin", bytes(111 * MIB))
    kind, message = failure(daemon, function, {"key": "huge.bin"})
    assert kind == "Input.TooLarge" and "it has 111 MB" in message and "data.input_mb" in message


def test_an_object_that_was_changed_in_the_store_is_broken(daemon: Daemon, bucket: Bucket) -> None:
    for algorithm in ("CRC32", "SHA256"):
        bucket.client.put_object(Bucket="photos", Key="changed", Body=b"right", ChecksumAlgorithm=algorithm)
        _, said = invoke(daemon, "digest", {"key": "changed"})
        assert said["sha256"] == hashlib.sha256(b"right").hexdigest(), said
        # Of the same length, behind the server's back. Another key has nothing that is kept.
        bucket.client.put_object(Bucket="photos", Key=f"changed-{algorithm}", Body=b"right", ChecksumAlgorithm=algorithm)
        with (bucket.folder / f"changed-{algorithm}").open("r+b") as file:
            file.write(b"wrong")
        kind, problem = failure(daemon, "digest", {"key": f"changed-{algorithm}"})
        assert kind == "Input.Broken" and algorithm in problem, problem


@pytest.mark.parametrize("function", ["digest-by-program", "digest-by-program-fresh"])
def test_a_program_that_the_function_starts_reads_an_input_by_its_path(daemon: Daemon, folder: Folder, function: str) -> None:
    body = os.urandom(100_000)
    folder.put("for-programs", body)
    _, said = invoke(daemon, function, {"key": "for-programs"})
    assert said == {"sha256": hashlib.sha256(body).hexdigest(), "problem": ""}


def test_a_server_whose_certificate_is_not_known_gets_no_request(daemon: Daemon, tmp_path: Path) -> None:
    status, said = deployed(daemon, tmp_path, "https://untrusted/x")
    assert status == 0, said
    kind, message = failure(daemon, "guest", {})
    assert kind == "Input.StoreUnavailable" and "certificate" in message, message


def test_a_failed_fetch_is_an_error_of_that_invocation_alone(daemon: Daemon, bucket: Bucket) -> None:
    bucket.put("there", b"x")
    kind, message = failure(daemon, "digest", {"key": "not/there"})
    assert kind == "Input.NotFound"
    assert 'input "image" from s3://photos/not/there: there is no such object' in message
    kind, message = failure(daemon, "digest", {})
    assert kind == "Input.KeyError" and "{event.key} has no value in this invocation" in message
    for event in ({"key": "../x"}, {"key": "a//b"}, {"key": ""}, {"key": "/etc/passwd"}):
        assert failure(daemon, "digest", event)[0] == "Input.KeyError"
    _, answer = invoke(daemon, "digest", {"key": "there"})
    assert answer["bytes"] == 1
    log = daemon.request("GET", "/_pilot/v1/functions/digest/logs").read().decode()
    assert "there is no such object" in log and "Status: input_error" in log


def test_an_optional_input_reaches_the_handler_as_an_exception(daemon: Daemon, bucket: Bucket) -> None:
    bucket.put("public/a.txt", b"a")
    bucket.put("mask.txt", b"m")
    _, answer = invoke(daemon, "maybe", {"key": "a.txt", "mask": "mask.txt"})
    assert answer == {"image": "a", "mask": "here", "names": ["image", "mask"]}
    _, answer = invoke(daemon, "maybe", {"key": "a.txt", "mask": "none"})
    assert answer == {"image": "a", "mask": "input 'mask': there is no such object", "names": ["image"]}


def test_a_value_cannot_leave_the_folder_of_its_location(daemon: Daemon, bucket: Bucket) -> None:
    bucket.put("private.txt", b"private")
    kind, _ = failure(daemon, "maybe", {"key": "../private.txt", "mask": "x"})
    assert kind == "Input.KeyError"


@pytest.mark.parametrize(
    ("location", "said"),
    [
        ("s3://none/x", 'there is no store "none": the operator adds [stores.none] to pilotd.toml'),
        ("s3://photos/x", "the store \"photos\" is not for function 'guest'"),
        ("ftp://photos/x", "is not a kind of store"),
        ("http://site/x", "is reached by https://site/"),
        ("s3://wrong/{secret.x}", "is not a placeholder"),
        # No invocation could use these keys.
        ("s3://wrong/../x", 'the key "../x" has an empty, "." or ".." part'),
        ("s3://wrong/{event.a}//x", 'the key "*//x" has an empty'),
    ],
)
def test_a_function_cannot_name_a_store_that_it_was_not_given(
    daemon: Daemon, tmp_path: Path, location: str, said: str
) -> None:
    assert said in deployed(daemon, tmp_path, location)[1]


def deployed(daemon: Daemon, folder: Path, location: str) -> tuple[int, str]:
    (folder / "pilot.toml").write_text(f'[functions.guest]\nhandler = "app.handler"\n[functions.guest.inputs]\nx = "{location}"\n')
    (folder / "app.py").write_text("def handler(event, context):\n    return bytes(context.inputs['x']).decode()\n")
    done = daemon.up(folder)
    return done.returncode, done.stdout + done.stderr


def test_wrong_credentials_and_a_store_that_is_gone_say_so(daemon: Daemon, bucket: Bucket, tmp_path: Path) -> None:
    status, said = deployed(daemon, tmp_path, "s3://wrong/x")
    assert status == 0, said
    kind, message = failure(daemon, "guest", {})
    assert kind == "Input.AccessDenied", message
    assert "refuses the daemon's credentials: SignatureDoesNotMatch" in message
    assert deployed(daemon, tmp_path, "rediss://wrong-cache/x")[0] == 0
    kind, message = failure(daemon, "guest", {})
    assert kind == "Input.AccessDenied" and SECRET not in message, message
    (tmp_path / "pilot.toml").write_text(
        '[functions.guest]\nhandler = "app.handler"\ntimeout_s = 1\n[functions.guest.inputs]\nx = "s3://nobody/x"\n'
    )
    assert daemon.up(tmp_path).returncode == 0
    began = time.monotonic()
    kind, message = failure(daemon, "guest", {})
    assert kind in {"Input.TimedOut", "Input.StoreUnavailable"} and time.monotonic() - began < 5, message


def test_a_value_that_changes_while_it_is_read_is_never_mixed(daemon: Daemon, redis: Redis) -> None:
    bodies = [bytes([letter]) * (40 * MIB) for letter in b"ab"]
    stop = threading.Event()

    def write() -> None:
        for turn in range(1000):
            if stop.is_set():
                break
            redis.put("busy", bodies[turn % 2])
            stop.wait(0.3)

    redis.put("busy", bodies[0])
    writer = threading.Thread(target=write)
    writer.start()
    try:
        whole = {hashlib.sha256(body).hexdigest() for body in bodies}
        for _ in range(8):
            _, answer = invoke(daemon, "digest-redis", {"key": "busy"})
            if "sha256" in answer:
                assert answer["sha256"] in whole
            else:
                assert "it changed while it was read" in answer["errorMessage"]
    finally:
        stop.set()
        writer.join()
    # A slow machine may have met a change each time.
    _, answer = invoke(daemon, "digest-redis", {"key": "busy"})
    assert answer["sha256"] in whole


def test_a_redis_whose_memory_is_used_up_is_read(daemon: Daemon, redis: Redis) -> None:
    redis.put("kept", b"value")
    redis.ask(b"CONFIG", b"SET", b"maxmemory", b"1mb")
    try:
        with pytest.raises(AssertionError, match="OOM"):
            redis.put("more", b"value")
        _, answer = invoke(daemon, "digest-redis", {"key": "kept"})
    finally:
        redis.ask(b"CONFIG", b"SET", b"maxmemory", b"0")
    assert answer["sha256"] == hashlib.sha256(b"value").hexdigest(), answer


def test_what_is_no_string_of_redis_is_said(daemon: Daemon, redis: Redis) -> None:
    redis.ask(b"RPUSH", b"a-list", b"x")
    kind, message = failure(daemon, "digest-redis", {"key": "a-list"})
    assert kind == "Input.KeyError" and "it is a list, must be a string" in message


def test_what_a_function_keeps_counts_as_its_share_and_harms_nobody_else(daemon: Daemon, bucket: Bucket) -> None:
    for number in (1, 2, 3):
        bucket.put(f"part-{number}.bin", bytes(60 * MIB))
    for kept in (1, 2):
        assert invoke(daemon, "holds-on", {"key": f"part-{kept}.bin"})[1] == kept
    # What it has already does not count again.
    assert invoke(daemon, "holds-on", {"key": "part-1.bin"})[1] == 3
    kind, _ = failure(daemon, "holds-on", {"key": "part-3.bin"})
    assert kind == "Input.TimedOut"
    assert invoke(daemon, "digest", {"key": "part-3.bin"})[1]["bytes"] == 60 * MIB
    daemon.retire("holds-on")
    assert invoke(daemon, "holds-on", {"key": "part-3.bin"})[1] == 1
    daemon.retire("holds-on")


def test_nothing_is_left_of_many_fetches(daemon: Daemon, bucket: Bucket) -> None:
    bucket.put("part.bin", bytes(60 * MIB))
    invoke(daemon, "digest", {"key": "part.bin"})
    pid = daemon.process.pid
    descriptors = len(os.listdir(f"/proc/{pid}/fd"))
    before = rss_mib(pid)
    for _ in range(20):
        invoke(daemon, "digest", {"key": "part.bin"})
    assert rss_mib(pid) < before + 32
    # Large files are closed beside the invocations, and by workers when they end.
    deadline = time.monotonic() + 30
    while True:
        now, left = len(os.listdir(f"/proc/{pid}/fd")), memory_files_mib(pid)
        if now <= descriptors + 4 and sum(left.values()) < 256:
            break
        assert time.monotonic() < deadline, f"{now} descriptors, {descriptors} before; memory files, MiB: {left}"
        time.sleep(0.05)
