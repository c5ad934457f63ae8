"""Containers for the experiments: an engine of their own (scripts/dockerd), and an image with the functions, made of files of this machine."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from benchlib.launch import ROOT

HERE = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "scripts" / "dockerd"
LEFT_OUT = ("test", "idlelib", "tkinter", "lib2to3", "ensurepip", "site-packages", "dist-packages", "config-*")
# Where the image has the functions, and what they import.
CODE, PACKAGES = "/app/code", "/app/packages"
COMMAND = ["python3", f"{CODE}/bootstrap.py"]


class NoEngineError(RuntimeError):
    """No engine can run here."""


class Engine:
    """A container engine whose containers with the host's network reach the servers of this machine."""

    def __init__(self) -> None:
        # Sockets are below it, so the path is short.
        self.folder = tempfile.mkdtemp(prefix="pilot-e-", dir="/tmp")
        self.address = ""

    def __enter__(self) -> Engine:
        done = self._script("start", "--host-network")
        if done.returncode != 0:
            self._script("stop")
            raise NoEngineError(done.stderr.strip() or f"scripts/dockerd ended with {done.returncode}")
        self.address = done.stdout.strip()
        return self

    def __exit__(self, *_: object) -> None:
        self._script("stop")

    def _script(self, verb: str, *flags: str) -> subprocess.CompletedProcess[str]:
        command = [str(SCRIPT), verb, self.folder, *flags]
        return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)

    def image(self, name: str, root: Path) -> str:
        """Imports a root file system as an image with one layer."""
        packed = subprocess.Popen(["tar", "-C", str(root), "-c", "."], stdout=subprocess.PIPE)
        command = ["docker", "import", "--change", f"ENV PYTHONPATH={PACKAGES}", "-", name]
        environment = {**os.environ, "DOCKER_HOST": self.address}
        done = subprocess.run(command, stdin=packed.stdout, env=environment, capture_output=True, text=True)
        if packed.wait() != 0 or done.returncode != 0:
            raise RuntimeError(f"{name}: {done.stderr.strip()}")
        return name


def root_of(folder: Path, requirements: list[Path], programs: list[Path]) -> Path:
    """A root file system: this Python, the packages, the functions, and further programs at the paths that they have here."""
    for name in ("proc", "sys", "dev", "tmp", "etc", "usr/bin"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "tmp").chmod(0o1777)
    (folder / "etc" / "passwd").write_text("root:x:0:0:root:/root:/bin/sh\napp:x:1000:1000::/app:/bin/sh\n")
    # That of a virtual environment has the base's library.
    interpreter = Path(os.path.realpath(sys.executable))
    library = Path(sysconfig.get_path("stdlib"))
    shutil.copytree(library, inside(folder, library), ignore=shutil.ignore_patterns(*LEFT_OUT))
    shutil.copytree(HERE / "functions", inside(folder, Path(CODE)), ignore=shutil.ignore_patterns("node", "container", "*.txt"))
    # What only containers have replaces what the functions have elsewhere, and the client of S3 has another name there.
    shutil.copy(HERE / "functions" / "storage.py", inside(folder, Path(CODE)) / "storage_s3.py")
    shutil.copytree(HERE / "functions" / "container", inside(folder, Path(CODE)), dirs_exist_ok=True)
    if requirements:
        packages = packages_of(requirements)
        shutil.copytree(packages, inside(folder, Path(PACKAGES)))
    bring(folder, [interpreter, *programs, *folder.glob("**/*.so*")])
    (folder / "usr" / "bin" / "python3").symlink_to(interpreter)
    return folder


def inside(folder: Path, path: Path) -> Path:
    return folder / path.relative_to("/")


def bring(folder: Path, files: list[Path]) -> None:
    """Copies programs, and the shared objects that they and the others need, to where they are here."""
    said = subprocess.run(["ldd", *map(str, files)], capture_output=True, text=True).stdout
    needed = [Path(word) for word in said.split() if word.startswith("/") and not word.endswith(":")]
    for file in [*(file for file in files if not file.is_relative_to(folder)), *needed]:
        there = inside(folder, file)
        if file.is_relative_to(folder) or there.exists() or not file.exists():
            continue
        there.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, there)


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
