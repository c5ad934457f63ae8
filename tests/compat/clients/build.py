#!/usr/bin/env python3
"""Builds the Runtime API clients that are not Python, below target/. Clients that are up to date are not built again.

    tests/compat/clients/build.py           all of them; the exit status is 1 if one cannot be built
    tests/compat/clients/build.py go rust   some

If the machine lacks a tool for a client, that is reported (`Missing`) and not a failure, except for cargo in CI. Packages come from the
language's package registry, in the versions of the lock files.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent.parent
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))

# Longest time of one build.
BUILD_S_MAX = 900

# Messages that show that a registry cannot be reached.
OFFLINE = (
    "ENOTFOUND",
    "EAI_AGAIN",
    "ECONNREFUSED",
    "ETIMEDOUT",
    "dial tcp",
    "Could not resolve host",
    "Could not connect",
    "failed to download",
)


class Missing(Exception):
    """What the machine lacks."""


class Failed(Exception):
    """A failed build, with its last lines."""


def run(*command: str | Path, cwd: Path, **variables: str) -> None:
    done = subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=BUILD_S_MAX,
    )
    if done.returncode == 0:
        return
    tail = "\n".join(done.stdout.decode("utf-8", "replace").splitlines()[-30:])
    if any(sign in tail for sign in OFFLINE):
        raise Missing(f"the registry of {Path(command[0]).name} cannot be reached:\n{tail}")
    raise Failed(f"{' '.join(map(str, command))} failed:\n{tail}")


def tool(name: str, *elsewhere: Path) -> Path:
    found = shutil.which(name) or next((str(path) for path in elsewhere if path.exists()), None)
    if found is None:
        raise Missing(f"there is no {name} on PATH")
    return Path(found)


def rust() -> Path:
    """The program with `lambda_runtime`. cargo knows what is up to date."""
    cargo = tool("cargo", Path.home() / ".cargo" / "bin" / "cargo")
    folder = TARGET / "compat-rust"
    # A debug build, because its speed is not measured.
    run(cargo, "build", "--locked", "--quiet", cwd=HERE / "rust", CARGO_TARGET_DIR=str(folder), CARGO_INCREMENTAL="0")
    return folder / "debug" / "bootstrap"


def go() -> Path:
    """The static program with aws-lambda-go. go knows what is up to date."""
    program = TARGET / "compat-go" / "bootstrap"
    program.parent.mkdir(parents=True, exist_ok=True)
    command = ["build", "-trimpath", "-buildvcs=false", "-tags=lambda.norpc", "-ldflags=-s -w", "-o", program, "."]
    # No toolchain is downloaded. A toolchain that is too old reports an error.
    run(
        tool("go", Path("/usr/local/go/bin/go")),
        *command,
        cwd=HERE / "go",
        CGO_ENABLED="0",
        GOTOOLCHAIN="local",
        GOFLAGS="-mod=readonly",
    )
    return program


def node() -> Path:
    """`node_modules` with aws-lambda-ric, whose installation compiles its own curl and C++ client."""
    program = tool("node").resolve()
    for compiler in ("cmake", "make", "g++"):
        tool(compiler)
    prefix = program.parent.parent
    if not (prefix / "include" / "node" / "node_api.h").exists():
        # Otherwise node-gyp would download the headers, and not from a package registry.
        raise Missing(f"there are no headers of Node.js in {prefix}/include/node")
    # Optimising would take longer than the tests.
    flags = {"CFLAGS": "-O0", "CXXFLAGS": "-O0", "npm_config_nodedir": str(prefix)}
    return installed("node", TARGET / "compat-node", flags) / "node_modules"


def installed(name: str, folder: Path, flags: dict[str, str]) -> Path:
    """The folder with the packages of this client's package.json."""
    npm, program = tool("npm"), tool("node").resolve()
    files = [HERE / name / file for file in ("package.json", "package-lock.json")]
    version = subprocess.check_output([program, "--version"])
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in files) + version).hexdigest()
    done = folder / ".complete"
    if not done.exists() or done.read_text() != digest:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for file in files:
            shutil.copy(file, folder)
        run(npm, "ci", "--no-audit", "--no-fund", "--no-progress", cwd=folder, **flags)
        done.write_text(digest)
    return folder


def sdk() -> Path:
    """The folder with the AWS SDK for JavaScript."""
    return installed("sdk", TARGET / "compat-sdk", {})


BUILDS: dict[str, Callable[[], Path]] = {"rust": rust, "go": go, "node": node, "sdk": sdk}


def needed(name: str) -> bool:
    """Whether a missing client is a failure."""
    return name == "rust" and os.environ.get("CI") == "true"


def main(names: list[str]) -> int:
    passed = failed = skipped = 0
    for name in names or BUILDS:
        try:
            print(f"{name}: {BUILDS[name]()}", flush=True)
            passed += 1
        except Missing as missing:
            if needed(name):
                print(f"*** {name}: {missing} ***", flush=True)
                failed += 1
            else:
                print(f"*** {name}: SKIPPED: {missing} ***", flush=True)
                skipped += 1
        except (Failed, subprocess.TimeoutExpired) as problem:
            print(f"*** {name}: {problem} ***", flush=True)
            failed += 1
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
