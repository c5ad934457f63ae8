"""Starts a benchmark in its virtual environment, which is created once. The script `run` calls it with any Python, so nothing else of
benchlib is imported here.
"""

from __future__ import annotations

import hashlib
import os
import runpy
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def launch(script: str, package: str, bare: str | None = None) -> None:
    """Runs `package`, which is beside the script and its requirements. With the option `bare`, it uses no virtual environment."""
    here = Path(script).resolve().parent
    if bare not in sys.argv[1:]:
        folder = environment(here)
        if not os.path.samefile(folder, sys.prefix):
            # Runs the script again in the environment. PYTHONPATH would also affect the processes that the benchmark starts.
            python = str(folder / "bin" / "python")
            os.execv(python, [python, script, *sys.argv[1:]])
    runpy.run_module(package, run_name="__main__", alter_sys=True)


def environment(here: Path) -> Path:
    """The virtual environment, which is created at the first use and when the requirements change."""
    requirements = here / "requirements.txt"
    digest = hashlib.sha256(requirements.read_bytes()).hexdigest()[:12]
    folder = ROOT / "target" / f"{here.name}-venv-{digest}"
    done = folder / ".complete"
    if not done.exists():
        print(f"installing {requirements.relative_to(ROOT)} into {folder.relative_to(ROOT)} (once)", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        subprocess.run([folder / "bin" / "pip", "install", "--quiet", "-r", requirements], check=True)
        done.touch()
    return folder
