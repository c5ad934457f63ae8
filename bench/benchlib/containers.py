"""Containers for experiments: an engine of their own (scripts/dockerd), and root file systems that are made of files of this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from benchlib.launch import ROOT

SCRIPT = ROOT / "scripts" / "dockerd"
LEFT_OUT = ("test", "idlelib", "tkinter", "lib2to3", "ensurepip", "site-packages", "dist-packages", "config-*")


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

    def image(self, name: str, root: Path, *changes: str) -> str:
        """Imports a root file system as an image with one layer, with these lines of a Dockerfile."""
        packed = subprocess.Popen(["tar", "-C", str(root), "-c", "."], stdout=subprocess.PIPE)
        command = ["docker", "import", *(word for change in changes for word in ("--change", change)), "-", name]
        environment = {**os.environ, "DOCKER_HOST": self.address}
        done = subprocess.run(command, stdin=packed.stdout, env=environment, capture_output=True, text=True)
        if packed.wait() != 0 or done.returncode != 0:
            raise RuntimeError(f"{name}: {done.stderr.strip()}")
        return name


def python_root(folder: Path) -> Path:
    """Makes a root file system with this Python as `python3`, without the shared objects that programs need ([`bring`]). Returns the
    interpreter, which is at the same path there.
    """
    for name in ("proc", "sys", "dev", "tmp", "etc", "usr/bin"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "tmp").chmod(0o1777)
    (folder / "etc" / "passwd").write_text("root:x:0:0:root:/root:/bin/sh\napp:x:1000:1000::/app:/bin/sh\n")
    # That of a virtual environment has the base's library.
    interpreter = Path(os.path.realpath(sys.executable))
    library = Path(sysconfig.get_path("stdlib"))
    shutil.copytree(library, inside(folder, library), ignore=shutil.ignore_patterns(*LEFT_OUT))
    (folder / "usr" / "bin" / "python3").symlink_to(interpreter)
    return interpreter


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


def unmount_below(folder: Path) -> None:
    """A daemon that had to be killed leaves the mounts of its containers."""
    below = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines() if f" {folder}/" in line]
    for place in sorted(below, reverse=True):
        subprocess.run(["umount", "--lazy", place], check=False)
