"""Descriptors that a worker has, that it sends, and that are handed over with calls."""

import ctypes
import errno
import os
import socket
import stat
import struct
import time

from .kernel import libc


def try_descriptors():
    """Inherited descriptors: a directory or a second socket could be used to escape."""
    said = {}
    bad = []
    sockets = 0
    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        try:
            said[name] = os.readlink(f"/proc/self/fd/{name}")
            mode = os.fstat(fd).st_mode
        except OSError:
            continue
        if stat.S_ISDIR(mode) and not said[name].endswith(("/fd", "/fd (deleted)")) and f"/{os.getpid()}/fd" not in said[name]:
            bad.append(said[name])
        if stat.S_ISSOCK(mode):
            sockets += 1
        if said[name].startswith(("mnt:", "net:", "pid:", "ipc:", "uts:", "user:", "cgroup:")) or "/cgroup" in said[name]:
            bad.append(said[name])
        if "pidfd" in said[name]:
            bad.append(said[name])
    # The channel, and the socket for calls if the function may invoke others.
    if sockets > (2 if may_invoke() else 1):
        bad.append(f"{sockets} sockets")
    return [bool(bad), [bad, said]]


def may_invoke():
    import pilotlight

    try:
        return pilotlight.invoke.__globals__["_calls"].current() is not None
    except Exception:
        return False


def try_send_descriptor():
    """The daemon would have to close what it is sent, and the close of a lingering socket blocks."""
    sent = []
    for name in os.listdir("/proc/self/fd"):
        try:
            if not stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                continue
            there = socket.socket(fileno=os.dup(int(name)))
        except OSError:
            continue
        with there:
            if there.family != socket.AF_UNIX:
                continue
            try:
                # Without a byte, a stream socket sends nothing at all. The daemon ends a worker that sends this one.
                there.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", there.fileno()))])
                sent.append(name)
            except OSError as error:
                sent.append(errno.errorcode[error.errno])
    return [any(said.isdigit() for said in sent) or not sent, sent]


PEERS = []


def try_send_lingering():
    """A socket whose close waits: it lingers, and its peer reads nothing. The last one to close it would be the daemon."""
    listener = socket.create_server(("127.0.0.1", 0))
    lingering = socket.create_connection(listener.getsockname())
    # Open as long as the worker lives.
    PEERS.append((listener, listener.accept()))
    lingering.setblocking(False)
    try:
        while True:
            lingering.send(bytes(1 << 16))
    except BlockingIOError:
        pass
    lingering.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 20))
    sent = False
    for name in os.listdir("/proc/self/fd"):
        try:
            channel = socket.socket(fileno=os.dup(int(name)))
        except OSError:
            continue
        with channel:
            if channel.family == socket.AF_UNIX:
                try:
                    channel.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", lingering.fileno()))])
                    sent = True
                except OSError:
                    pass
    if not sent:
        lingering.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 0, 0))
    lingering.close()
    return [False, sent]


def try_hold_buffer(seconds):
    import pilotlight

    with pilotlight.buffer(1 << 20) as held:
        held.write(b"another's")
        held.seal()
        time.sleep(seconds)
    return [False, ""]


def try_write_after_handover():
    """Keeps every way to the memory that a process can have, and tries each after the hand-over."""
    import mmap

    import pilotlight

    buffer = pilotlight.buffer(1 << 16)
    buffer.write(b"handed over")
    own = os.dup(buffer._descriptor)
    try:
        again = os.open(f"/proc/self/fd/{own}", os.O_RDWR)
        return [True, f"opened again for writing: {again}"]
    except OSError as error:
        seen = [error.strerror]
    pilotlight.invoke("victim", {"try": "tmp_list"}, data=buffer)
    ways = {
        "write": lambda: os.pwrite(own, b"changed", 0),
        "map": lambda: mmap.mmap(own, 1 << 16),
        "shrink": lambda: os.ftruncate(own, 1),
        "grow": lambda: os.ftruncate(own, 1 << 20),
        "allocate": lambda: os.posix_fallocate(own, 1 << 16, 4096),
        "punch": lambda: punch(own),
        "open": lambda: os.open(f"/proc/self/fd/{own}", os.O_RDWR),
    }
    escaped = False
    for name, way in ways.items():
        try:
            way()
            seen.append(f"{name} worked")
            escaped = True
        except (OSError, ValueError) as error:
            seen.append(f"{name}: {error}")
    with mmap.mmap(own, 1 << 16, prot=mmap.PROT_READ) as view:
        escaped = escaped or view[:11] != b"handed over"
    return [escaped, seen]


def punch(descriptor):
    """Makes a hole: FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE (fallocate(2))."""
    if libc.fallocate(descriptor, 3, ctypes.c_long(0), ctypes.c_long(4096)):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def try_buffer_of_another():
    """Names every likely buffer, and inputs, in calls that it may make."""
    import pilotlight

    calls = pilotlight.invoke.__globals__["_calls"].current()
    reasons = set()
    for number in [*range(100), 2**31, 2**32 - 1]:
        for ask in ({"op": "call", "function": "victim", "buffer": number}, {"op": "seal", "buffer": number}):
            event = b"{}" if ask["op"] == "call" else b""
            _, answer, _ = calls.wait([calls.begin(event, **ask)])
            reasons.add(answer.get("reason", "done"))
    for name in ("data", "image", ":calls", "", "../data"):
        _, answer, _ = calls.wait([calls.begin(b"{}", op="call", function="victim", input=name)])
        reasons.add(answer.get("reason", "done"))
    return [reasons != {"NotFound"}, sorted(reasons)]
