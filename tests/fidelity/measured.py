"""Deploys the functions of one package, runs them in the three ways, and collects what there is to compare and to report."""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import outside
from comparison import OFF, OUTSIDE, Difference, Run, aspects, differences, repeated
from packages import PLAIN, Package
from pilot_daemon import Daemon

FUNCTIONS = Path(__file__).resolve().parent / "functions"
# The largest packages have 200 MB.
DEPLOY_S_MAX = 900
# Paths inside a sandbox.
CODE, PACKAGES, TMP = "/var/task", "/opt/environment", "/tmp"

MANIFEST = """
[functions.{name}]
handler = "app.handler"
memory_mb = 1024
timeout_s = 60

[functions.{name}-off]
handler = "app.handler"
memory_mb = 1024
timeout_s = 60
template = "off"
"""


@dataclass(frozen=True)
class Measured:
    """One package. `reason` says why it does not fork; `findings` is what the deployment reports about its imports."""

    package: Package
    is_forkable: bool
    reason: str
    findings: list[str]
    cold_ms: float
    cold_off_ms: float
    forked: Run
    forked_again: Run
    off: Run
    outside: Run

    def differences(self, plain: Measured) -> list[Difference]:
        forked = aspects(self.forked, plain.forked)
        return [
            *differences(forked, aspects(self.off, plain.off), OFF),
            *differences(forked, aspects(self.outside, plain.outside), OUTSIDE),
        ]

    def repeated(self) -> list[str]:
        return repeated([self.forked, self.forked_again, self.off, self.outside])

    def import_s(self) -> float:
        """How long a new interpreter needs for the import."""
        seconds: float = self.off.answer["import_s"]
        return seconds


def measure(daemon: Daemon, package: Package, home: Path) -> Measured:
    name, off_name = package.function, f"{package.function}-off"
    code = write(package, home / name)
    template = deploy(daemon, code)[name]["template"]
    again, again_ms = run(daemon, name)
    daemon.retire(name)
    forked, cold_ms = run(daemon, name)
    assert forked.answer["pid"] != again.answer["pid"], "the first worker was not retired"
    off, cold_off_ms = run(daemon, off_name)
    # The template above the function's has imported the package already, so what is given is known from the fresh interpreter.
    forked.answer["given"] = off.answer["given"]
    beyond = run_outside(daemon, name, code, off)
    for one in (name, off_name):
        response = daemon.request("DELETE", f"/_pilot/v1/functions/{one}")
        assert response.status == 204, response.read()
    return Measured(
        package=package,
        is_forkable=template["forkable"],
        reason=template["reason"] or "",
        findings=[f"{one['where']} {one['what']}: {one['instead']}".strip() for one in template["findings"]],
        cold_ms=min(cold_ms, again_ms),
        cold_off_ms=cold_off_ms,
        forked=forked,
        forked_again=again,
        off=off,
        outside=beyond,
    )


def write(package: Package, folder: Path) -> Path:
    folder.mkdir(parents=True)
    common = FUNCTIONS / "common"
    for name in ("app.py", "surroundings.py"):
        shutil.copy(common / name, folder / name)
    shutil.copy(common / "plain.py" if package is PLAIN else FUNCTIONS / "packages" / f"{package.file}.py", folder / "case.py")
    (folder / "pilot.toml").write_text(MANIFEST.format(name=package.function))
    if package.requirement:
        (folder / "requirements.txt").write_text(f"{package.requirement}\n")
    return folder


def deploy(daemon: Daemon, folder: Path) -> dict[str, Any]:
    """The reports of the functions in the folder, by name."""
    done = daemon.up(folder, "--json", timeout_s=DEPLOY_S_MAX)
    if done.returncode != 0:
        raise AssertionError(f"deploying {folder.name} failed:\n{done.stdout}{done.stderr}")
    return {report["name"]: report for report in json.loads(done.stdout)}


def run(daemon: Daemon, function: str) -> tuple[Run, float]:
    """In a new worker. Also returns the milliseconds of its first invocation."""
    begun = time.perf_counter()
    response = invoke(daemon, function, {})
    body = response.read()
    cold_ms = (time.perf_counter() - begun) * 1000
    assert response.status == 200 and response.headers["X-Amz-Function-Error"] is None, body
    assert response.headers["X-Pilot-Start"] == "cold", "the worker is not new"
    failed = invoke(daemon, function, {"fail": True})
    error = failed.read()
    assert failed.headers["X-Amz-Function-Error"] == "Unhandled", error
    return Run(json.loads(body.replace(b"-off", b"")), json.loads(error)), cold_ms


def invoke(daemon: Daemon, function: str, event: object) -> Any:
    return daemon.request("POST", f"/2015-03-31/functions/{function}/invocations", event, timeout_s=90)


def run_outside(daemon: Daemon, name: str, code: Path, off: Run) -> Run:
    """With the same variables as inside. Paths are replaced by those inside."""
    described = json.loads(daemon.request("GET", f"/_pilot/v1/functions/{name}").read())
    packages = daemon.data / "environments" / described["environment"] / "packages"
    home = code.parent / f"{name}-outside"
    with outside.Function(code, packages, home, off.answer["given"]["environment"]) as function:
        answer, error = function.call({}), function.call({"fail": True})
    assert (answer.to, error.to) == ("response", "error"), (answer, error)
    places = {str(home / "tmp"): TMP, str(packages): PACKAGES, str(code): CODE}

    def inside(body: object) -> dict[str, Any]:
        text = json.dumps(body)
        for here, there in places.items():
            text = text.replace(here, there)
        replaced: dict[str, Any] = json.loads(text)
        return replaced

    return Run(inside(answer.body), inside(error.body))
