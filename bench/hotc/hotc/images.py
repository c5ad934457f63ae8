"""Root file systems for containers, made from the files of this machine, without a registry. An image has busybox, one interpreter, and
the libraries that `ldd` lists."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

from .engine import Engine

# Parts of Python's library that no program needs here: tests and editors.
LEFT_OUT = ("test", "idlelib", "tkinter", "turtledemo", "ensurepip", "lib2to3")
APPLETS = ("sh", "cat", "sleep", "env", "ls", "mkdir", "rm")


class Missing(RuntimeError):
    """This machine lacks a program for an image."""


def program(name: str) -> Path:
    """The path of a program of the system, not of a version manager's shim."""
    for folder in ("/usr/local/bin", "/usr/bin", "/bin"):
        if (path := Path(folder) / name).exists():
            return path.resolve()
    raise Missing(f"{name} is not installed in /usr")


def libraries(files: list[Path]) -> set[Path]:
    """The shared objects that these programs need, including the loader."""
    said = subprocess.run(["ldd", *map(str, files)], capture_output=True, text=True).stdout
    # For several files, it prints the name of each, followed by a colon.
    words = [word for word in said.split() if word.startswith("/") and not word.endswith(":")]
    return {Path(word) for word in words}


class Root:
    """A tar file that is being written: each path once, with links resolved."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._tar = tarfile.open(path, "w")
        self._seen: set[str] = set()

    def __enter__(self) -> Root:
        for folder in ("proc", "sys", "dev", "tmp", "etc", "root", "var", "run", "usr/bin"):
            self._folder(folder, 0o1777 if folder == "tmp" else 0o755)
        busybox = program("busybox")
        self.add(busybox, "/bin/busybox")
        for library in libraries([busybox]):
            self.add(library)
        for applet in APPLETS:
            self._link(f"bin/{applet}", "busybox")
        return self

    def __exit__(self, *_: object) -> None:
        self._tar.close()

    def add(self, host: Path, inside: str | None = None) -> None:
        name = (inside or str(host)).lstrip("/")
        if name not in self._seen:
            self._seen.add(name)
            self._tar.add(host.resolve(), name, recursive=False)

    def add_folder(self, host: Path, inside: str | None = None) -> None:
        base = inside or str(host)
        for path in walk(host):
            self.add(path, f"{base}/{path.relative_to(host)}")

    def add_program(self, host: Path, inside: str) -> None:
        self.add(host, inside)
        for library in libraries([host]):
            self.add(library)

    def _folder(self, name: str, mode: int) -> None:
        info = tarfile.TarInfo(name)
        info.type, info.mode = tarfile.DIRTYPE, mode
        self._tar.addfile(info)

    def _link(self, name: str, target: str) -> None:
        info = tarfile.TarInfo(name)
        info.type, info.linkname = tarfile.SYMTYPE, target
        self._tar.addfile(info)


def walk(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if path.name in LEFT_OUT or path.name.startswith("config-"):
            continue
        if path.is_dir():
            yield from walk(path)
        elif path.is_file():
            yield path


def base(root: Root) -> None:
    """Only busybox, for static programs and shell scripts."""


def python(root: Root) -> None:
    interpreter = program("python3")
    library = Path("/usr/lib") / interpreter.name
    if not library.is_dir():
        raise Missing(f"{interpreter} has no library at {library}")
    root.add_program(interpreter, "/usr/bin/python3")
    root.add_folder(library)
    for shared in libraries(list((library / "lib-dynload").glob("*.so"))):
        root.add(shared)


def node(root: Root) -> None:
    root.add_program(program("node"), "/usr/bin/node")


def java(root: Root, runtime: Path) -> None:
    root.add_folder(runtime, "/opt/java")
    for shared in libraries([runtime / "bin" / "java", *(runtime / "lib").glob("**/*.so")]):
        if not shared.is_relative_to(runtime):
            root.add(shared)


class Images:
    """Images, which are created at their first use."""

    def __init__(self, engine: Engine, home: Path) -> None:
        self.engine, self.home = engine, home
        self._made: dict[str, str] = {}

    def get(self, name: str, runtime: Path | None = None) -> str:
        """The image's reference. `runtime`: the folder of `java`.

        Raises `Missing` if this machine lacks a program for it."""
        if name not in self._made:
            tar = self.home / f"{name}.tar"
            with Root(tar) as root:
                if name == "java":
                    assert runtime, "the image of Java needs its runtime"
                    java(root, runtime)
                else:
                    {"base": base, "python": python, "node": node}[name](root)
            self._made[name] = self.engine.import_image(name, tar)
            tar.unlink()
        return self._made[name]


def available(name: str) -> bool:
    return shutil.which(name) is not None
