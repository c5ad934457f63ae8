"""Files in memory and in the folder for temporary files."""

import tempfile

import fsspec

MEMORY = fsspec.filesystem("memory")
MEMORY.pipe("/a/b.txt", b"of the import")


def work():
    MEMORY.pipe("/a/c.txt", b"of the worker")
    own = f"{tempfile.gettempdir()}/own.txt"
    with fsspec.open(f"local://{own}", "w") as file:
        file.write("written")
    return [MEMORY.ls("/a", detail=False), MEMORY.cat("/a/b.txt").decode(), fsspec.filesystem("local").exists(own)]


def fail():
    MEMORY.cat("/missing")
