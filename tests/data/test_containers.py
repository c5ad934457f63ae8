"""Inputs of functions in containers, by the three contracts: the same checks as for servers and runtimes without a container."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import KEY_ID, SECRET, Bucket
from pilot_daemon import ROOT, Daemon
from test_decoded_files import INPUTS, PROVIDED, check_files, objects, usage
from test_decoded_files import PROGRAM as DECODED_PROGRAM
from test_decoded_files import SERVER as DECODED_SERVER
from test_inputs import invoke
from test_other_runtimes import BOOTSTRAP, SERVER, check_runtime, check_server, sha256

pytestmark = pytest.mark.timeout(240)
SCRIPT = ROOT / "scripts" / "dockerd"


@pytest.fixture(scope="module")
def engine() -> Iterator[str]:
    """A container engine of its own, with images. Skips where none can run."""
    # Sockets are below it, so the path is short.
    folder = tempfile.mkdtemp(prefix="pilot-e-", dir="/tmp")

    def script(verb: str) -> subprocess.CompletedProcess[str]:
        command = [str(SCRIPT), verb, folder]
        return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)

    started = script("start")
    if started.returncode != 0:
        script("stop")
        pytest.skip(f"inputs of containers are not tested: {started.stderr.strip()}")
    try:
        images = script("images")
        assert images.returncode == 0, images.stderr
        yield started.stdout.strip()
    finally:
        script("stop")


@pytest.fixture(scope="module")
def containers(engine: str, bucket: Bucket, home: Path) -> Iterator[Daemon]:
    folder = home / "containers"
    folder.mkdir()
    secret = folder / "secret"
    secret.write_text(SECRET)
    secret.chmod(0o600)
    config = folder / "pilotd.toml"
    config.write_text(
        f"""
container_engine = "{engine}"
[stores.photos]
functions = ["client-*"]
kind = "s3"
endpoint = "{bucket.endpoint}"
region = "us-east-1"
access_key_id = "{KEY_ID}"
secret_access_key_file = "{secret}"
"""
    )
    daemon = Daemon(folder, "--config", str(config))
    yield daemon
    pid = daemon.process.pid
    daemon.stop()
    # Also where only the engine has made groups, such as the hierarchy of version 2 beside version 1.
    groups = [Path(above, name) for above, names, _ in os.walk("/sys/fs/cgroup") for name in names]
    assert [group for group in groups if group.name.startswith(f"pilotlightd-{pid}-")] == []
    assert [line for line in Path("/proc/self/mounts").read_text().splitlines() if str(folder) in line] == []


def container(contract: str, *command: str) -> str:
    """Keys of a manifest."""
    words = ", ".join(json.dumps(word) for word in command)
    return f'runtime = "container"\nimage = "pilot-test/python:1"\ncontract = "{contract}"\ncommand = [{words}]'


def test_a_server_in_a_container_gets_the_paths_of_its_inputs_in_headers(
    containers: Daemon, bucket: Bucket, tmp_path: Path
) -> None:
    check_server(containers, bucket, tmp_path, container("http", "python3", "-c", SERVER) + "\nconcurrency = 4")


def test_a_runtime_in_a_container_gets_a_path_for_each_input(containers: Daemon, bucket: Bucket, tmp_path: Path) -> None:
    check_runtime(containers, bucket, tmp_path, container("provided", "python3", "-c", BOOTSTRAP))


PROGRAM = """
import hashlib, json, os

seen = {}
for name, value in os.environ.items():
    if name.startswith("PILOT_INPUT_"):
        with open(value, "rb") as file:
            seen[name[12:].lower()] = hashlib.sha256(file.read()).hexdigest()
    elif name.startswith("PILOT_FAILED_INPUT_"):
        seen[name[19:].lower()] = value
print(json.dumps(seen))
"""


def test_a_program_in_a_container_finds_the_paths_of_its_inputs_in_its_environment(
    containers: Daemon, bucket: Bucket, tmp_path: Path
) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    check_runtime(containers, bucket, tmp_path, container("shim", "python3", "program.py"))
    # A large one, and one that is missing.
    (tmp_path / "pilot.toml").write_text(
        f"[functions.client-program]\n{container('shim', 'python3', 'program.py')}\n"
        '[functions.client-program.inputs]\nthe-image = "s3://photos/{event.key}"\n'
    )
    done = containers.up(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    body = os.urandom(20 << 20)
    bucket.put("large", body)
    _, seen = invoke(containers, "client-program", {"key": "large"})
    assert seen == {"the_image": sha256(body)}
    _, seen = invoke(containers, "client-program", {"key": "not-there"})
    assert seen["errorType"] == "Input.NotFound", seen


@pytest.mark.parametrize(
    ("contract", "code"),
    [("http", DECODED_SERVER), ("provided", PROVIDED), ("shim", DECODED_PROGRAM)],
    ids=["http", "provided", "shim"],
)
def test_a_container_gets_decoded_inputs_as_files_of_known_formats(
    containers: Daemon, bucket: Bucket, tmp_path: Path, contract: str, code: str
) -> None:
    for key, body in objects().items():
        bucket.put(key, body)
    inputs = INPUTS.replace("file://disk/", "s3://photos/")
    (tmp_path / "pilot.toml").write_text(
        f"[functions.client-decoded]\n{container(contract, 'python3', '-c', code)}\n[functions.client-decoded.inputs]{inputs}"
    )
    done = containers.up(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    invoke(containers, "client-decoded", {})
    usage(containers, "--parquet", "--output", tmp_path / "usage.parquet")
    bucket.put("usage.parquet", (tmp_path / "usage.parquet").read_bytes())
    check_files(invoke(containers, "client-decoded", {})[1])
