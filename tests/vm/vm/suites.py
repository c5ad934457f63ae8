"""What runs in the machine, and how its results are read."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from vm.image import Unavailable
from vm.machine import Machine

ROOT = Path(__file__).resolve().parents[3]
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve()
NEXTEST = ROOT / "target" / "nextest"
# Time limit of one suite.
SUITE_S_MAX = 2400

# The programs of the Rust suites.
E2E, ISOLATION, ENGINE = "pilot::e2e", "pilot::isolation", ["pilot-sandbox::fork", "pilot-sandbox::outbound"]

# What the clients of package registries are told on this machine, and so in the other one.
PASSED_ON = re.compile(r"^((https?|no|all)_proxy|PIP_.*|UV_.*|npm_config_.*|SSL_CERT_FILE|PILOT_TEST_.*)$", re.IGNORECASE)


@dataclass(frozen=True)
class Tally:
    """Tests by result."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0

    def __add__(self, other: Tally) -> Tally:
        return Tally(self.passed + other.passed, self.failed + other.failed, self.skipped + other.skipped)

    def __str__(self) -> str:
        return f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"


@dataclass(frozen=True)
class Options:
    """What the user asked for."""

    only: str


@dataclass(frozen=True)
class Workspace:
    """Where a run has its files. The machine sees both folders, and can write to `results` alone."""

    given: Path
    results: Path
    options: Options

    @property
    def program(self) -> Path:
        """The stripped binary, which the machine reads faster."""
        return self.given / "pilot"

    @property
    def component(self) -> Path:
        """The component of the tests, if it could be built."""
        return self.given / "component.wasm"

    @property
    def skips(self) -> Path:
        """Where end-to-end tests say what they skip: the runner does not show what tests print that pass."""
        return self.results / "skips.txt"

    def environment(self, patience: int = 1) -> dict[str, str]:
        """For commands in the machine. `patience`: by which factor it is slower."""
        passed_on = {name: value for name, value in os.environ.items() if PASSED_ON.match(name)}
        own = {
            "PILOT_BIN": str(self.program),
            "PILOT_VM_PACKAGE": str(self.given / "package"),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONUNBUFFERED": "1",
            "PILOT_TEST_PATIENCE": str(patience),
            "PILOT_TEST_SKIPS": str(self.skips),
            "NO_COLOR": "1",
        }
        if self.component.exists():
            own["PILOT_TEST_COMPONENT"] = str(self.component)
        return {**passed_on, **own}


@dataclass(frozen=True)
class Suite:
    """`prepare` runs on this machine, before the other one is booted."""

    name: str
    what: str
    prepare: Callable[[Workspace], None]
    run: Callable[[Machine, Workspace], Tally]


def _binaries(workspace: Workspace) -> None:
    """The programs of the Rust suites, and what cargo and nextest know about them."""
    # All tests of the workspace: with some of them, dependencies have fewer features, and everything would be built twice.
    listed = ["cargo", "nextest", "list", "--workspace", "--locked", "--list-type", "binaries-only", "--message-format", "json"]
    metadata = ["cargo", "metadata", "--format-version", "1", "--locked", "--offline"]
    for command, name in ((listed, "binaries.json"), (metadata, "metadata.json")):
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True, stdin=subprocess.DEVNULL)
        (workspace.given / name).write_bytes(done.stdout)
    nextest = shutil.which("cargo-nextest")
    if nextest is None:
        raise Unavailable("cargo-nextest is not installed: scripts/test rust installs it")
    subprocess.run(["strip", "-o", workspace.given / "cargo-nextest", nextest], check=True)


def _end_to_end(workspace: Workspace) -> None:
    """The same, and the component of the tests, which the machine cannot build. Without it, they skip what needs it."""
    _binaries(workspace)
    NEXTEST.mkdir(parents=True, exist_ok=True)
    target = TARGET / "component"
    build = ["cargo", "build", "--release", "--locked", "--quiet", "--target", "wasm32-wasip2", "--target-dir", str(target)]
    if subprocess.run(build, cwd=ROOT / "tests/e2e/fixtures/component", stdin=subprocess.DEVNULL).returncode == 0:
        shutil.copyfile(target / "wasm32-wasip2/release/hostile_component.wasm", workspace.component)


def _package(workspace: Workspace) -> None:
    """The Debian package, as `make package` makes it, with the debug binary or the one that PILOT_BIN names."""
    binary = Path(os.environ.get("PILOT_BIN", TARGET / "debug" / "pilot")).resolve()
    if not binary.exists():
        raise Unavailable(f"there is no {binary}: run `cargo build --workspace`, or set PILOT_BIN")
    subprocess.run(["strip", "-o", workspace.program, binary], check=True)
    command = ["scripts/package", "--deb", "--binary", str(binary), "--out", str(workspace.given / "package")]
    environment = {**os.environ, "DPKG_DEB_COMPRESSOR_TYPE": "none"}
    subprocess.run(command, cwd=ROOT, check=True, stdin=subprocess.DEVNULL, env=environment)


def _nextest(machine: Machine, workspace: Workspace) -> Tally:
    given = workspace.given
    command = [str(given / "cargo-nextest"), "nextest", "run", "--binaries-metadata", str(given / "binaries.json")]
    command += ["--cargo-metadata", str(given / "metadata.json"), "--workspace-remap", str(ROOT)]
    chosen = f"binary_id({E2E})"
    if workspace.options.only:
        chosen += f" & test({workspace.options.only})"
    command += ["-E", chosen]
    log = workspace.results / "e2e.log"
    # The runner writes a report there, which the machine cannot: without one it would fail.
    script = f"mount -t tmpfs nextest '{NEXTEST}' && cd '{ROOT}' && {shlex.join(command)}"
    done = machine.run(script, SUITE_S_MAX, workspace.environment(machine.patience), log)
    text = log.read_text(errors="replace")
    lines = re.findall(r"^\s*Summary \[.*\] +(?:\d+/)?(\d+) tests? run: (\d+) passed.*$", text, re.MULTILINE)
    if not lines:
        return _ran_nothing("e2e", done.status)
    ran, passed = map(int, lines[-1])
    skips = workspace.skips.read_text() if workspace.skips.exists() else ""
    print(skips, end="", flush=True)
    # A test of which a part is skipped counts as skipped.
    skipped = len(set(re.findall(r"SKIPPED: (\S+)", skips)))
    return Tally(passed - skipped, max(ran - passed, 1 if done.status else 0), skipped)


def _own_harness(packages: list[str]) -> Callable[[Machine, Workspace], Tally]:
    """Binaries with a harness of their own, whose last line is `N passed, N failed, N skipped`."""

    def run(machine: Machine, workspace: Workspace) -> Tally:
        found = json.loads((workspace.given / "binaries.json").read_text())["rust-binaries"]
        total = Tally()
        for name in packages:
            program, folder = found[name]["binary-path"], _package_folder(workspace, found[name]["package-id"])
            log = workspace.results / (re.sub(r"\W+", "-", name) + ".log")
            command = shlex.join([program, *filter(None, [workspace.options.only])])
            done = machine.run(f"cd '{folder}' && {command}", SUITE_S_MAX, workspace.environment(machine.patience), log)
            pattern = r"^(\d+) passed, (\d+) failed(?:, (\d+) skipped)?$"
            lines = re.findall(pattern, log.read_text(errors="replace"), re.MULTILINE)
            if not lines:
                total += _ran_nothing(name, done.status)
                continue
            passed, failed, skipped = (int(number or 0) for number in lines[-1])
            total += Tally(passed, max(failed, 1 if done.status else 0), skipped)
        return total

    return run


def _package_folder(workspace: Workspace, package: str) -> Path:
    packages = json.loads((workspace.given / "metadata.json").read_text())["packages"]
    return next(Path(one["manifest_path"]).parent for one in packages if one["id"] == package)


def _guest(machine: Machine, workspace: Workspace) -> Tally:
    report = workspace.results / "guest.xml"
    command = ["python3", "-m", "pytest", "-p", "no:cacheprovider", f"--junit-xml={report}", str(ROOT / "tests/vm/guest")]
    command += ["--timeout", str(300 * machine.patience), "--tb", "short"]
    command += ["-k", workspace.options.only] if workspace.options.only else []
    # Not below the shared folder, where pytest would look for its configuration.
    done = machine.run(
        shlex.join(command), SUITE_S_MAX, workspace.environment(machine.patience), workspace.results / "guest.log"
    )
    if not report.exists():
        return _ran_nothing("guest", done.status)
    suite = ElementTree.parse(report).getroot()[0]
    ran, failures, errors, skipped = (int(suite.attrib[name]) for name in ("tests", "failures", "errors", "skipped"))
    failed = max(failures + errors, 1 if done.status else 0)
    return Tally(ran - failures - errors - skipped, failed, skipped)


def _ran_nothing(name: str, status: int) -> Tally:
    print(f"*** {name} ran no tests (exit status {status}) ***", flush=True)
    return Tally(failed=1)


SUITES = [
    Suite("guest", "the package, its units and control groups, as a user has them", _package, _guest),
    Suite("isolation", "escape attempts", _binaries, _own_harness([ISOLATION])),
    Suite("sandbox", "the engine", _binaries, _own_harness(ENGINE)),
    Suite("e2e", "end-to-end tests", _end_to_end, _nextest),
]
