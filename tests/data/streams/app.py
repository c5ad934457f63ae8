"""Functions that read an input while it arrives."""

import fcntl
import hashlib
import io
import json
import mmap
import os
import shutil
import threading
import zipfile

import pilotlight

kept = []


def echo(environ, start_response):
    """Sends on what has arrived."""
    start_response("200 OK", [("Content-Type", "application/octet-stream")])
    with environ["pilot.inputs"].open("video") as file:
        while piece := file.read1(1 << 20):
            yield piece


def watch(environ, start_response):
    """Sends the first bytes on, and then how the rest ended."""
    start_response("200 OK", [("Content-Type", "application/octet-stream")])
    digest = hashlib.sha256()
    with environ["pilot.inputs"].open("video") as file:
        start = file.read1(1000)
        digest.update(start)
        yield start
        try:
            digest.update(file.read())
            end = {"sha256": digest.hexdigest()}
        except OSError as error:
            end = {"type": type(error).__name__, "said": str(error), "lookup": isinstance(error, LookupError)}
    yield json.dumps(end).encode()


def use(event, context):
    inputs = context.inputs
    how = event.get("how", "read")
    if how == "view":
        return described(inputs["video"])
    if how == "path":
        with open(inputs.path("video"), "rb") as file:
            return described(file.read())
    if how == "copy":
        into = io.BytesIO()
        with inputs.open("video") as file:
            shutil.copyfileobj(file, into)
        return described(into.getvalue())
    if how == "zip":
        with inputs.open("video") as file, zipfile.ZipFile(file) as archive:
            return {name: described(archive.read(name)) for name in archive.namelist()}
    if how == "seek":
        with inputs.open("video") as file:
            start = file.read(4)
            file.seek(-4, os.SEEK_END)
            end = file.read()
            file.seek(2)
            again = file.read(2)
            file.seek(10, os.SEEK_CUR)
            return [start.hex(), end.hex(), again.hex(), file.tell()]
    if how == "threads":
        found = []
        threads = [threading.Thread(target=lambda: found.append(read(inputs))) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return found
    if how == "twice":
        return [read(inputs), described(inputs["video"]), read(inputs)]
    return read(inputs)


def described(data):
    return {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}


def read(inputs):
    digest, count = hashlib.sha256(), 0
    with inputs.open("video") as file:
        for piece in iter(lambda: file.read(1 << 16), b""):
            digest.update(piece)
            count += len(piece)
    return {"sha256": digest.hexdigest(), "bytes": count}


def relay(event, context):
    """Hands the input on while it arrives, which waits for the whole."""
    return pilotlight.invoke("sink", {}, data=context.inputs["video"])


def sink(event, context):
    return described(context.inputs["data"])


def first(event, context):
    """Leaves after the first bytes."""
    file = context.inputs.open("video")
    start = file.read1(16)
    if event.get("keep"):
        kept.append(file)
    return {"start": len(start), "kept": len(kept)}


def starts(event, context):
    """Whether it was called before the input was whole."""
    return {"whole": context.inputs.raw("video").is_whole}


def hostile(environ, start_response):
    """Tries to change an input that still arrives, and says what it achieved. Then again, when it is whole."""
    start_response("200 OK", [("Content-Type", "text/plain")])
    given = environ["pilot.inputs"].raw("video")
    given.wait(1)
    descriptor = given.fileno()
    yield (" ".join(attacks(descriptor)) + "\n").encode()
    given.whole()
    yield (" ".join(attacks(descriptor)) + "\n").encode()
    yield hashlib.sha256(os.pread(descriptor, 1 << 20, 0)).hexdigest().encode()


def attacks(descriptor):
    path = f"/proc/self/fd/{descriptor}"
    for name, attack in {
        "chmod": lambda: os.fchmod(descriptor, 0o666),
        "chown": lambda: os.fchown(descriptor, os.getuid(), os.getgid()),
        "open": lambda: os.open(path, os.O_RDWR),
        "append": lambda: os.open(path, os.O_WRONLY | os.O_APPEND),
        "truncate": lambda: os.truncate(path, 0),
        "write": lambda: os.pwrite(descriptor, b"x", 0),
        "map": lambda: mmap.mmap(descriptor, 1, prot=mmap.PROT_READ | mmap.PROT_WRITE),
        "seal": lambda: fcntl.fcntl(descriptor, 1033, 0x0008),  # F_ADD_SEALS, F_SEAL_WRITE: the daemon could not write on
        "lease": lambda: fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK),
    }.items():
        try:
            attack()
            yield f"{name}:done"
        except (OSError, ValueError):
            pass
    yield "tried"
