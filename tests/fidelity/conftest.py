"""One daemon for the whole run. Functions are deployed when a test needs them."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pilot_daemon import Daemon

FUNCTIONS = Path(__file__).resolve().parent / "functions"


@pytest.fixture(scope="session")
def daemon() -> Iterator[Daemon]:
    home = Path(tempfile.mkdtemp(prefix="pilot-fidelity-"))
    daemon = Daemon(home)
    try:
        yield daemon
    finally:
        daemon.stop()
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(scope="session")
def deploy(daemon: Daemon) -> Callable[[str], str]:
    """Deploys a folder of `functions/` and returns what `pilot up` printed."""

    def deploy(name: str) -> str:
        done = daemon.up(FUNCTIONS / name)
        if done.returncode != 0:
            pytest.fail(f"deploying {name} failed:\n{done.stdout}{done.stderr}", pytrace=False)
        return done.stdout + done.stderr

    return deploy
