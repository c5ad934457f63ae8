"""Fixtures: one interpreter template for the whole run, and functions that are written into a test's own directory."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from at_import import Echo, Redis, serve
from harness import Log, Process, Stream, Template

REPOSITORY = Path(__file__).resolve().parents[2]


class Functions:
    """Deploys sources into a directory and starts them below the interpreter's template."""

    def __init__(self, root: Template, directory: Path) -> None:
        self.root = root
        self.directory = directory
        self.log = Log()
        self._open: list[Stream | Template] = []

    def write(self, source: str, name: str = "app.py") -> None:
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)

    def spec(self, **changes: Any) -> dict[str, Any]:
        return {
            "level": "function",
            "cwd": str(self.directory),
            "sys_path": [str(self.directory)],
            "imports": [],
            "handler": "app.handler",
            "interface": "event",
            "environment": {"PATH": os.environ["PATH"], "AWS_LAMBDA_FUNCTION_NAME": "test", "TZ": "UTC"},
            "keep_caps": True,
            "filter": None,
            "concurrency": 1,
            "function": {"name": "test", "version": "1", "memory_mb": 128, "timeout_s": 3, "arn": "arn:test"},
            **changes,
        }

    def template(self, source: str | None = None, **changes: Any) -> Template:
        if source is not None:
            self.write(source)
        template = self.root.template(self.spec(**changes), log=self.log.write_fd)
        self._open.append(template)
        return template

    def worker(self, source: str, **changes: Any) -> Stream:
        """A worker that has said READY, forked from a template of its function."""
        worker = self.template(source, **changes).worker(log=self.log.write_fd)
        self._open.append(worker)
        worker.ready()
        worker.makes_room = changes.get("concurrency", 1) > 1
        return worker

    def refused(self, source: str, **changes: Any) -> dict[str, Any]:
        """The `error` in the `ready` message of the function's template."""
        self.write(source)
        fork_id, sock = self.root.fork("template", self.spec(**changes), log=self.log.write_fd)
        template = Template(sock)
        error: dict[str, Any] = template.message("ready")["error"]
        assert self.exit_of(self.root, fork_id) == {"code": 1}
        template.close()
        return error

    @staticmethod
    def exit_of(template: Template, fork_id: int) -> dict[str, int]:
        message = template.message("exited", fork_id)
        return {key: value for key, value in message.items() if key in ("code", "signal")}

    def close(self) -> None:
        for each in self._open:
            each.close()
        self.log.close()


def pytest_configure(config: pytest.Config) -> None:
    """Compiles the native loop beside the package, where the binary unpacks it. Without a compiler its tests cannot run.

    Once: the processes of pytest-xdist begin after that, and each would replace what the others use."""
    if hasattr(config, "workerinput"):
        return
    source = REPOSITORY / "crates/base/sys/native/fork_server.c"
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.exit("no C compiler (cc): the templates' native loop cannot be tested", returncode=2)
    flags = ["-O2", "-std=c11", "-ffreestanding", "-fno-stack-protector", "-nostdlib", "-shared", "-fPIC"]
    subprocess.run([compiler, *flags, "-o", str(REPOSITORY / "python/fork_server.so"), str(source)], check=True)


@pytest.fixture(scope="session")
def root() -> Iterator[Template]:
    process = Process("template", socket.SOCK_SEQPACKET)
    template = Template(process.ours)
    template.report = template.message("ready")
    yield template
    assert process.end() == 0


@pytest.fixture
def functions(root: Template, tmp_path: Path) -> Iterator[Functions]:
    deployed = Functions(root, tmp_path)
    yield deployed
    deployed.close()


@pytest.fixture
def http_port() -> Iterator[int]:
    yield from serve(Echo)


@pytest.fixture
def redis_port() -> Iterator[int]:
    yield from serve(Redis)


Start = Callable[..., Stream]


@pytest.fixture
def start(functions: Functions) -> Start:
    return functions.worker
