"""Networks and what processes share: sockets and System V memory."""

import ctypes
import errno
import os
import socket

from .kernel import in_child, libc


def try_network():
    got = []
    for line in open("/proc/net/route").read().splitlines()[1:]:
        got.append("route " + line.split()[0])
    for line in open("/proc/net/dev").read().splitlines()[2:]:
        name = line.split(":")[0].strip()
        if name != "lo":
            flags = open(f"/sys/class/net/{name}/flags").read() if os.path.exists(f"/sys/class/net/{name}/flags") else "?"
            if flags == "?" or int(flags, 16) & 1:
                got.append("device " + name)
    return [bool(got), got]


def try_connect(address, port, timeout=2.0):
    try:
        with socket.create_connection((address, port), timeout=timeout):
            return [True, f"connected to {address}:{port}"]
    except OSError as error:
        return [False, f"{type(error).__name__}: {error}"]


def try_socket(name):
    families = {
        "raw": (socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP),
        "packet": (17, socket.SOCK_RAW, 0x0300),
        "vsock": (40, socket.SOCK_STREAM, 0),
        "alg": (38, socket.SOCK_SEQPACKET, 0),
        "netlink_netfilter": (16, socket.SOCK_RAW, 12),
        "bluetooth": (31, socket.SOCK_RAW, 1),
        "xdp": (44, socket.SOCK_RAW, 0),
        "sctp": (socket.AF_INET, socket.SOCK_STREAM, 132),
        "udplite": (socket.AF_INET6, socket.SOCK_DGRAM, 136),
        "dccp": (socket.AF_INET, 6, 33),
    }

    def attempt():
        socket.socket(*families[name])
        return "made"

    said = in_child(attempt)
    return [said == "made", said]


def try_bind_abstract(name):
    global kept
    kept = socket.socket(socket.AF_UNIX)
    kept.bind("\0" + name)
    kept.listen()
    return [False, "bound"]


def try_connect_abstract(name):
    try:
        socket.socket(socket.AF_UNIX).connect("\0" + name)
        return [True, "connected"]
    except OSError as error:
        return [False, str(error)]


def try_make_shm(key):
    ident = libc.shmget(key, 4096, 0o1666)
    return [False, ident if ident != -1 else errno.errorcode.get(ctypes.get_errno(), "E?")]


def try_open_shm(key):
    ident = libc.shmget(key, 0, 0)
    return [ident != -1, ident if ident != -1 else errno.errorcode.get(ctypes.get_errno(), "E?")]
