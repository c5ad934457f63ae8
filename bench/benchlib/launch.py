"""How a bench is started: its virtual environment is made, once, and the bench runs in it. Called by its script `run`, with whatever
Python there is: nothing else of benchlib is imported here.
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
    """Runs `package`, which lies beside the script and its requirements. With the option `bare` it does without an environment."""
    here = Path(script).resolve().parent
    if bare not in sys.argv[1:]:
        folder = environment(here)
        if not os.path.samefile(folder, sys.prefix):
            # The same again, in there. Not by PYTHONPATH: whatever the bench starts would have it, too.
            python = str(folder / "bin" / "python")
            os.execv(python, [python, script, *sys.argv[1:]])
    runpy.run_module(package, run_name="__main__", alter_sys=True)


def environment(here: Path) -> Path:
    """The virtual environment, made on first use and again when the requirements change."""
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
