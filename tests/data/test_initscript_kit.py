"""What comes with initscripts: shared ones, their metrics, `pilot new --initscript`, and scripts in C."""

from __future__ import annotations

import base64
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import Bucket, eventually
from pilot_daemon import ROOT, Daemon, binary
from test_initscripts import HERE, Site, cold, logged, site
from test_inputs import MIB, invoke, timing
from wasm import module, needs_rust

__all__ = ["site"]
CONNECT = ("connect", b"s3://photos")
PLAIN = """
[functions.client-{name}]
handler = "app.messages"
timeout_s = 20
"""
OWN = """
[functions.client-{name}.initscript]
module = "own.wasm"
timeout_ms = 20000
allow = ["s3://photos"]
"""
SHARED = """
[functions.client-{name}.shared_initscript]
module = "shared.wasm"
timeout_ms = 20000
allow = ["s3://photos"]
max_age_s = {age}
"""
WEIGHTS = module(CONNECT, ("send_rpc", 0, 1, b"GET shared/weights"), ("send_reply", 7, 0, 1), ("send_msg", 8, b"shared"))


def deploy(daemon: Daemon, folder: Path, manifest: str, **modules: bytes) -> None:
    for name, content in modules.items():
        (folder / f"{name}.wasm").write_bytes(content)
    if not (folder / "app.py").exists():
        shutil.copy(HERE / "scripted" / "app.py", folder)
        shutil.copy(HERE / "clients" / "requirements.txt", folder)
    (folder / "pilot.toml").write_text(manifest)
    done = daemon.up(folder)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}\n{daemon.log.read_text()}"


def encoded(body: bytes) -> list[object]:
    """As the function tells it: the view is read-only."""
    return [True, base64.b64encode(body).decode()]


def runs(daemon: Daemon, function: str) -> dict[str, int]:
    """The counts of its scripts' runs, by their end."""
    text = daemon.request("GET", "/metrics").read().decode()
    pattern = rf'^pilot_initscript_runs_total{{faas_name="client-{function}",end="(\w+)"}} (\d+)'
    return {end: int(count) for end, count in re.findall(pattern, text, re.MULTILINE)}


def ran(daemon: Daemon, function: str, expected: dict[str, int]) -> None:
    """A script that goes on may end, and be counted, a moment after the answer."""
    eventually(f"the runs to be {expected}", lambda: runs(daemon, function) == expected, 20)


def test_a_shared_script_runs_once_for_cold_and_warm_invocations(daemon: Daemon, bucket: Bucket, tmp_path: Path) -> None:
    own = module(CONNECT, ("send_rpc", 0, 1, b"GET shared/own"), ("send_reply", 0, 0, 1), ("send_msg", 8, b"own"))
    manifest = (PLAIN + OWN + SHARED).format(name="shared", age=3600)
    deploy(daemon, tmp_path, manifest, own=own, shared=WEIGHTS)
    weights = os.urandom(MIB)
    bucket.put("shared/weights", weights)
    bucket.put("shared/own", b"of this request")
    response, told = cold(daemon, "shared", {"ids": [0, 7, 8]})
    # Both scripts send message 8: that of the invocation's own script is given.
    assert told == {"0": encoded(b"of this request"), "7": encoded(weights), "8": encoded(b"own")}
    entries = timing(response)
    assert {"fetch.init.script", "fetch.init.shared", "fetch.init.7"} <= set(entries)
    # Nobody asks the store again: it has other weights now.
    bucket.put("shared/weights", b"new")
    response, told = invoke(daemon, "client-shared", {"ids": [0, 7, 8]})
    assert (told["7"], told["8"]) == (encoded(weights), encoded(b"shared")) and "did not send it" in told["0"]
    assert "fetch.init.7" in timing(response) and "fetch.init.shared" not in timing(response)
    _, told = cold(daemon, "shared", {"ids": [7]})
    assert told["7"] == encoded(weights)
    ran(daemon, "shared", {"ok": 3})


def test_a_shared_message_that_is_too_old_is_fetched_again(daemon: Daemon, bucket: Bucket, tmp_path: Path) -> None:
    deploy(daemon, tmp_path, (PLAIN + SHARED).format(name="aging", age=1), shared=WEIGHTS)
    bucket.put("shared/weights", b"old")
    assert cold(daemon, "aging", {"ids": [7]})[1]["7"] == encoded(b"old")
    bucket.put("shared/weights", b"new")
    deadline = time.monotonic() + 30
    while (told := invoke(daemon, "client-aging", {"ids": [7]})[1]["7"]) != encoded(b"new"):
        assert told == encoded(b"old") and time.monotonic() < deadline
        time.sleep(0.02)


def test_a_shared_script_runs_when_a_worker_is_started_ahead(daemon: Daemon, site: str, tmp_path: Path) -> None:
    """Nobody waits for the worker, and the first invocation finds the messages."""
    weights = module(("connect", site.encode()), ("send_rpc", 0, 1, b"GET /ahead"), ("send_reply", 7, 0, 1))
    manifest = (PLAIN + SHARED).format(name="ahead", age=3600).replace("s3://photos", site)
    deploy(daemon, tmp_path, manifest, shared=weights)
    before = Site.asked.count(("GET", "/ahead", b""))
    response = daemon.request("POST", "/_pilot/v1/functions/client-ahead/scale", {"workers": 1})
    assert response.status == 200, response.read()
    eventually("the request of the script", lambda: Site.asked.count(("GET", "/ahead", b"")) > before)
    response, told = invoke(daemon, "client-ahead", {"ids": [7]})
    assert told["7"] == encoded(b"task 7")
    assert Site.asked.count(("GET", "/ahead", b"")) == before + 1
    ran(daemon, "ahead", {"ok": 1})


def test_a_shared_script_that_fails_is_left_behind_and_says_why(daemon: Daemon, bucket: Bucket, tmp_path: Path) -> None:
    bucket.client.delete_object(Bucket="photos", Key="shared/weights")
    deploy(daemon, tmp_path, (PLAIN + SHARED).format(name="weightless", age=60), shared=WEIGHTS)
    _, told = cold(daemon, "weightless", {"ids": [7, 8, 9]})
    problem = "message 7, s3://photos/shared/weights: there is no such object"
    assert told == {
        "7": "message 7: there is no such object",
        "8": encoded(b"shared"),
        "9": f"message 9: {problem}",
    }
    logged(daemon, "weightless", problem)


def test_metrics_count_runs_by_their_end(daemon: Daemon, tmp_path: Path) -> None:
    scripts = {
        "ok": module(),
        "exit": module(("exit", 7)),
        "trap": module(("send_msg", 0, 65_000, 5_000)),
        "limit": module(loops=True),
        "message": module(CONNECT, ("send_rpc", 0, 1, b"GET scripts/none"), ("send_reply", 0, 0, 1)),
    }
    for end, script in scripts.items():
        deploy(daemon, tmp_path, (PLAIN + OWN).format(name="ends"), own=script)
        before = runs(daemon, "ends")
        cold(daemon, "ends", {"ids": []})
        ran(daemon, "ends", {**before, end: 1})
    text = daemon.request("GET", "/metrics").read().decode()
    assert f'pilot_initscript_duration_seconds_count{{faas_name="client-ends"}} {len(scripts)}\n' in text


def test_new_writes_a_function_with_an_initscript_that_deploy_builds(daemon: Daemon, tmp_path: Path) -> None:
    needs_rust()
    folder = tmp_path / "client-greeter"
    done = subprocess.run([binary(), "new", "--initscript", folder], capture_output=True, text=True, check=True)
    assert "rustup target add wasm32-unknown-unknown" in done.stdout and "pilot deploy" in done.stdout
    assert not (folder / "init.wasm").exists()
    control = f"unix:{daemon.data / 'control.sock'}"
    deployed = subprocess.run([binary(), "deploy", folder, "--endpoint", control], capture_output=True, text=True, timeout=200)
    assert deployed.returncode == 0, deployed.stdout + deployed.stderr
    assert (folder / "init.wasm").stat().st_size <= 20 * 1024
    _, told = cold(daemon, "greeter", {"name": "Ada"})
    assert told == {"message": "Hello, Ada!", "from": "initscript"}
    _, told = invoke(daemon, "client-greeter", {"name": "Ada"})
    assert told == {"message": "Hello, Ada!", "from": "handler"}
    # An unchanged script makes no new version, and a changed one does.
    again = daemon.up(folder, "--json")
    assert json.loads(again.stdout)[0]["changed"] is False
    script = folder / "initscript" / "src" / "lib.rs"
    script.write_text(script.read_text().replace("name.as_bytes()", 'b"Eve"'))
    assert json.loads(daemon.up(folder, "--json").stdout)[0]["changed"] is True
    assert cold(daemon, "greeter", {"name": "Ada"})[1]["message"] == "Hello, Eve!"
    script.write_text(script.read_text().replace("Result<", "Resolt<"))
    broken = daemon.up(folder)
    assert broken.returncode != 0 and "cargo could not build it" in broken.stdout + broken.stderr
    assert "Resolt" in broken.stdout + broken.stderr


def test_deploy_says_what_is_missing_to_build_a_script(daemon: Daemon, tmp_path: Path) -> None:
    folder = tmp_path / "client-greeter"
    subprocess.run([binary(), "new", "--initscript", folder], capture_output=True, check=True)
    tools = tmp_path / "tools"
    tools.mkdir()
    command = [binary(), "deploy", folder, "--endpoint", f"unix:{daemon.data / 'control.sock'}"]

    def said() -> str:
        done = subprocess.run(command, capture_output=True, text=True, env={"PATH": str(tools), "COLUMNS": "500"})
        assert done.returncode != 0
        return " ".join((done.stdout + done.stderr).split())

    assert "install Rust (https://rustup.rs)" in said()
    # A Rust without the target.
    rustc = tools / "rustc"
    rustc.write_text("#!/bin/sh\necho /nowhere\n")
    rustc.chmod(0o755)
    assert "run `rustup target add wasm32-unknown-unknown`, once" in said()
    (folder / "initscript" / "Cargo.toml").unlink()
    assert 'functions.client-greeter.initscript.source = "initscript"' in said() and "has no Cargo.toml" in said()


def c_compiler() -> list[str] | None:
    """clang with a linker for WebAssembly, or zig of PyPI's `ziglang`."""
    if shutil.which("clang") and shutil.which("wasm-ld"):
        return ["clang", "--target=wasm32"]
    if importlib.util.find_spec("ziglang"):
        return [sys.executable, "-m", "ziglang", "cc", "--target=wasm32-freestanding"]
    return None


def test_a_script_in_c_is_small_and_fetches_two_objects(daemon: Daemon, bucket: Bucket, tmp_path: Path) -> None:
    compiler = c_compiler()
    if compiler is None:
        reason = "there is no C compiler for WebAssembly: pip install ziglang"
        print(f"\nSKIPPED: {reason}")
        pytest.skip(reason)
    folder = ROOT / "sdk" / "initscript" / "c"
    # As the header says.
    options = re.search(r"--target=wasm32 (.*) -o init.wasm init.c", (folder / "pilotlight_initscript.h").read_text())
    assert options
    command = [
        *compiler,
        *options[1].split(),
        "-Wall",
        "-Wextra",
        "-Werror",
        "-o",
        tmp_path / "own.wasm",
        folder / "two_objects.c",
    ]
    subprocess.run(command, check=True, timeout=200, env={**os.environ, "HOME": str(tmp_path)})
    script = (tmp_path / "own.wasm").read_bytes()
    assert len(script) <= 20 * 1024
    deploy(daemon, tmp_path, (PLAIN + OWN).format(name="in-c"), own=script)
    bucket.put("scripts/of the event", b"a cat")
    bucket.put("models/labels.json", b"[]")
    _, told = cold(daemon, "in-c", {"key": "scripts/of the event", "ids": [0, 1]})
    assert told == {"0": encoded(b"a cat"), "1": encoded(b"[]")}
    _, told = cold(daemon, "in-c", {"ids": [0]})
    assert "status 1" in told["0"]
    logged(daemon, "in-c", "no string, number or boolean there")


CRATE = """
[workspace]
[package]
name = "init"
version = "0.1.0"
edition = "2024"
[lib]
crate-type = ["cdylib"]
[dependencies]
initscript = {{ path = "{sdk}", package = "pilotlight-initscript", features = {features} }}
[profile.release]
panic = "abort"
"""
WITHOUT_STD = '#![no_std]\nuse initscript::*;\nmain!(init);\nfn init() -> Result<(), Error> { send_msg(7, b"7") }\n'
WITH_STD = 'use initscript::*;\nmain!(init);\nfn init() -> Result<(), Error> { send_msg(7, format!("{}", 7).as_bytes()) }\n'


@pytest.mark.parametrize(("code", "features"), [(WITHOUT_STD, "[]"), (WITH_STD, '["std"]')], ids=["no_std", "std"])
def test_a_script_may_use_std(daemon: Daemon, tmp_path: Path, code: str, features: str) -> None:
    needs_rust()
    crate, folder = tmp_path / "crate", tmp_path / "function"
    (crate / "src").mkdir(parents=True)
    folder.mkdir()
    (crate / "src" / "lib.rs").write_text(code)
    (crate / "Cargo.toml").write_text(CRATE.format(sdk=ROOT / "sdk" / "initscript", features=features))
    build = ["cargo", "build", "--release", "--offline", "--quiet", "--target", "wasm32-unknown-unknown"]
    subprocess.run(build, cwd=crate, check=True, timeout=300)
    script = (crate / "target" / "wasm32-unknown-unknown" / "release" / "init.wasm").read_bytes()
    deploy(daemon, folder, (PLAIN + OWN).format(name="std"), own=script)
    _, told = cold(daemon, "std", {"ids": [7]})
    assert told["7"] == encoded(b"7")


def test_a_reply_that_is_too_large_is_a_failure_of_its_message(daemon: Daemon, bucket: Bucket, tmp_path: Path) -> None:
    own = module(CONNECT, ("send_rpc", 0, 1, b"GET shared/large"), ("send_reply", 7, 0, 1), ("send_msg", 8, b"own"))
    bucket.put("shared/large", bytes(111 * MIB))
    deploy(daemon, tmp_path, (PLAIN + OWN).format(name="large"), own=own)
    _, told = cold(daemon, "large", {"ids": [7, 8]})
    assert told["8"] == encoded(b"own") and "data.input_mb" in str(told["7"]), told
    logged(daemon, "large", "data.input_mb")
