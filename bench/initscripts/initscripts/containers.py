"""An image with the functions of the experiments, made of files of this machine."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

from benchlib.containers import bring, inside, python_root
from benchlib.launch import ROOT

HERE = Path(__file__).resolve().parents[1]
# Where the image has the functions, and what they import.
CODE, PACKAGES = "/app/code", "/app/packages"
COMMAND = ["python3", f"{CODE}/bootstrap.py"]
# How the image finds the packages.
ENVIRONMENT = f"ENV PYTHONPATH={PACKAGES}"


def root_of(folder: Path, requirements: list[Path], programs: list[Path]) -> Path:
    """A root file system: this Python, the packages, the functions, and further programs at the paths that they have here."""
    interpreter = python_root(folder)
    shutil.copytree(HERE / "functions", inside(folder, Path(CODE)), ignore=shutil.ignore_patterns("node", "container", "*.txt"))
    # What only containers have replaces what the functions have elsewhere, and the client of S3 has another name there.
    shutil.copy(HERE / "functions" / "storage.py", inside(folder, Path(CODE)) / "storage_s3.py")
    shutil.copytree(HERE / "functions" / "container", inside(folder, Path(CODE)), dirs_exist_ok=True)
    if requirements:
        packages = packages_of(requirements)
        shutil.copytree(packages, inside(folder, Path(PACKAGES)))
    bring(folder, [interpreter, *programs, *folder.glob("**/*.so*")])
    return folder


def packages_of(requirements: list[Path]) -> Path:
    """A folder with the packages, which is made once."""
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in requirements) + sys.version.encode()).hexdigest()[:12]
    folder = ROOT / "target" / "initscripts-packages" / digest
    if not (folder / ".complete").exists():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder)]
        for file in requirements:
            command += ["-r", str(file)]
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
        (folder / ".complete").touch()
    return folder
