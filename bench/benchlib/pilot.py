"""The measured binary: its path, and the output of its commands."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
BUILDS = ("release", "debug")


def find_binary(given: Path | None) -> Path:
    """The release build, otherwise the debug build."""
    candidates = [given] if given else [ROOT / "target" / build / "pilot" for build in BUILDS]
    for path in candidates:
        if path.exists():
            return path.resolve()
    raise SystemExit("there is no pilot binary: run `cargo build --release -p pilot`")


def build_of(binary: Path) -> str:
    """The kind of build from the name of Cargo's folder; `other` for a binary elsewhere."""
    return next((build for build in BUILDS if build in binary.parts), "other")


def ask(binary: Path, *arguments: str, text: str | None = None, limit_s: float = 900) -> Any:
    """The output of `pilot … --json`; `text` is its standard input. Raises an exception with its error message."""
    return _answer([str(binary), *arguments, "--json"], text, limit_s)


def experiment(binary: Path, *arguments: str, text: str | None = None, limit_s: float = 900) -> Any:
    """The output of `pilot-experiments …` of the same build, which is beside `binary`."""
    experiments = binary.with_name("pilot-experiments")
    if not experiments.exists():
        raise RuntimeError(f"there is no {experiments}: run `cargo build --release -p pilot-experiments`")
    return _answer([str(experiments), *arguments], text, limit_s)


def _answer(command: list[str], text: str | None, limit_s: float) -> Any:
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=limit_s)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join([Path(command[0]).name, *command[1:]])}: {done.stderr.strip()}")
    return json.loads(done.stdout)
