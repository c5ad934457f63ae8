"""System calls that no function may make."""

import ctypes
import errno
import fcntl
import os
import platform
import shutil
import signal
import socket
import struct
import subprocess

from .kernel import CLONE_FLAGS, in_child, libc, number_of, raw
from .processes import visible_processes


def try_call(name):
    number = number_of(name)
    if number is None:
        return [False, "no such call here"]
    arguments = {
        "mount": [b"none", b"/tmp", b"tmpfs", 0, 0],
        "umount2": [b"/proc", 2],
        "pivot_root": [b"/tmp", b"/tmp"],
        "chroot": [b"/tmp"],
        "ptrace": [0, 0, 0, 0],
        "open_tree": [-100, b"/", 1],
        "fsopen": [b"tmpfs", 0],
        "keyctl": [0, -4, 1, 0, 0],
        "add_key": [b"user", b"isolation", b"x", 1, -4],
        "request_key": [b"user", b"isolation", 0, -4],
        "bpf": [0, bytes(struct.pack("IIIII", 1, 4, 4, 1, 0) + bytes(100)), 72],
        "perf_event_open": [struct.pack("IIQ", 1, 112, 0) + bytes(96), 0, -1, -1, 0],
        "userfaultfd": [0],
        "io_uring_setup": [4, bytes(120)],
        "sethostname": [b"escaped", 7],
        "setdomainname": [b"escaped", 7],
        "syslog": [3, bytes(256), 256],
        "swapoff": [b"/tmp/none"],
        "swapon": [b"/tmp/none", 0],
        "acct": [b"/tmp/none"],
        "iopl": [3],
        "ioperm": [0x80, 1, 1],
        "modify_ldt": [1, bytes(16), 16],
        "clock_settime": [0, struct.pack("qq", 1, 0)],
        "settimeofday": [struct.pack("qq", 1, 0), 0],
        "clock_adjtime": [0, struct.pack("I", 1) + bytes(256)],
        "reboot": [0, 0, 0, 0],
        "fanotify_init": [0, 0],
        "delete_module": [b"none", 0],
        "process_vm_readv": [os.getppid() or 1, 0, 0, 0, 0, 0],
        "process_vm_writev": [os.getppid() or 1, 0, 0, 0, 0, 0],
        "move_pages": [os.getppid() or 1, 0, 0, 0, 0, 0],
    }.get(name, [0, 0, 0, 0, 0])
    said = raw(number, *arguments)
    # Refused by the filter or because of a missing privilege. EINVAL, EFAULT or EBADF would mean that the kernel read the arguments.
    refused = said in ("EPERM", "EACCES", "ENOSYS") or said.startswith("ended by signal 31")
    return [not refused, said]


def try_x32():
    """The filter must also refuse the same calls with their x32 numbers."""
    if platform.machine() != "x86_64":
        return [False, "not x86_64"]
    said = raw(0x40000000 + 165, b"none", b"/tmp", b"tmpfs", 0, 0)
    return [said not in ("ENOSYS", "EPERM") and "signal" not in said, said]


def try_unshare(name):
    said = raw(272 if platform.machine() == "x86_64" else 97, CLONE_FLAGS[name])
    return [said.startswith("ok"), said]


def try_clone(name):
    """clone(2) with a namespace flag; the new process exits at once."""
    number = 56 if platform.machine() == "x86_64" else 220

    def attempt():
        ctypes.set_errno(0)
        result = libc.syscall(ctypes.c_long(number), ctypes.c_long(CLONE_FLAGS[name] | signal.SIGCHLD), *[ctypes.c_long(0)] * 4)
        if result == 0:
            os._exit(0)
        return f"ok {result}" if result != -1 else errno.errorcode.get(ctypes.get_errno(), "E?")

    said = in_child(attempt)
    return [said.startswith("ok"), said]


def try_clone3():
    """clone3 hides its flags from the filter, so it must not exist, or must not create a user namespace."""

    def attempt():
        ctypes.set_errno(0)
        arguments = struct.pack("11Q", CLONE_FLAGS["NEWUSER"], 0, 0, 0, signal.SIGCHLD, 0, 0, 0, 0, 0, 0)
        result = libc.syscall(ctypes.c_long(435), arguments, ctypes.c_long(len(arguments)))
        if result == 0:
            os._exit(0)
        return f"ok {result}" if result != -1 else errno.errorcode.get(ctypes.get_errno(), "E?")

    said = in_child(attempt)
    return [said.startswith("ok"), said]


def try_setns():
    """Tries to enter every namespace of all visible processes."""
    got = []
    for pid in visible_processes():
        for kind in ("mnt", "pid", "net", "ipc", "uts", "user", "cgroup"):

            def attempt(path=f"/proc/{pid}/ns/{kind}", own=f"/proc/self/ns/{kind}"):
                if os.readlink(path) == os.readlink(own):
                    return "own"
                fd = os.open(path, os.O_RDONLY)
                return "entered" if libc.setns(fd, 0) == 0 else "refused"

            if in_child(attempt) == "entered":
                got.append(f"{pid}/{kind}")
    return [bool(got), got]


def try_control(what):
    """Commands of descriptors that no function needs."""
    reading, writing = os.pipe()
    namespace = os.open("/proc/self/ns/user", os.O_RDONLY)
    attempts = {
        "F_SETPIPE_SZ": lambda: fcntl.fcntl(writing, 1031, 1 << 20),
        "F_NOTIFY": lambda: fcntl.fcntl(os.open("/tmp", os.O_RDONLY), 1026, 1),
        "NS_GET_USERNS": lambda: fcntl.ioctl(namespace, 0xB701),
        "NS_GET_PARENT": lambda: fcntl.ioctl(namespace, 0xB702),
        "NS_MNT_GET_NEXT": lambda: fcntl.ioctl(os.open("/proc/self/ns/mnt", os.O_RDONLY), 0x8010B70B, bytes(16)),
        "TIOCSTI": lambda: fcntl.ioctl(0, 0x5412, b"x"),
        "O_ASYNC": lambda: fcntl.fcntl(reading, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK),
        "FS_IOC_SETFLAGS": lambda: fcntl.ioctl(os.open("/tmp", os.O_RDONLY), 0x40086602, bytes(8)),
    }
    try:
        said = attempts[what]()
    except OSError as error:
        return [error.errno != errno.EPERM, str(error)]
    return [True, repr(said)]


def try_asynchronous():
    """A signal when a descriptor is ready, which nginx asks for with FIOASYNC: it must not fail, and have no effect."""
    reading, writing = os.pipe()
    for on in (1, 0):
        fcntl.ioctl(reading, 0x5452, struct.pack("i", on))
        if fcntl.fcntl(reading, fcntl.F_GETFL) & os.O_ASYNC:
            return [True, "it is set"]
    return [False, "no effect"]


def try_attributes():
    """Extended attributes of an own folder: an ACL that new files inherit, and one of the user."""
    os.makedirs("/tmp/attributes", exist_ok=True)
    descriptor = os.open("/tmp/attributes", os.O_RDONLY)
    acl = struct.pack("I", 2) + b"".join(struct.pack("HHI", tag, 7, 0xFFFFFFFF) for tag in (1, 4, 0x20))
    said = {}
    for name, value in (("system.posix_acl_default", acl), ("user.x", b"1")):
        for at in (descriptor, "/tmp/attributes"):
            for attempt in (lambda: os.setxattr(at, name, value), lambda: os.removexattr(at, name)):
                try:
                    attempt()
                    return [True, f"{name} of {at}"]
                except OSError as error:
                    said[f"{name} of {at}"] = error.errno
    return [set(said.values()) != {errno.EOPNOTSUPP}, said]


def try_copies():
    """What programs that copy files do must work without attributes. `escaped` means here that one failed."""
    os.makedirs("/tmp/copied/folder", exist_ok=True)
    with open("/tmp/copied/folder/file", "w") as file:
        file.write("text")
    shutil.copystat("/tmp/copied", "/tmp/copied/folder")
    shutil.copytree("/tmp/copied/folder", "/tmp/copied/by-shutil", dirs_exist_ok=True)
    commands = {
        "cp": ["cp", "-a", "/tmp/copied/folder", "/tmp/copied/by-cp"],
        "install": ["install", "-D", "-m", "640", "/tmp/copied/folder/file", "/tmp/copied/by-install/file"],
        "tar": ["sh", "-c", "mkdir -p /tmp/copied/by-tar && tar -C /tmp/copied/folder -c . | tar -C /tmp/copied/by-tar -xp"],
    }
    said = {}
    for name, command in commands.items():
        done = subprocess.run(command, capture_output=True, text=True)
        said[name] = [done.returncode, done.stderr]
    for name in ("by-shutil", "by-cp", "by-install", "by-tar"):
        said[name] = [0, "" if os.path.exists(f"/tmp/copied/{name}/file") else "is not there"]
    return [any(problem != [0, ""] for problem in said.values()), said]


def try_option(what):
    """Options of sockets that take what no limit counts, and filters."""
    program = (ctypes.c_uint64 * 1)(0x7FFF000000000006)  # return
    filters = struct.pack("HxxxxxxP", 1, ctypes.addressof(program))
    peer = struct.pack("=HH4s", socket.AF_INET, 0, socket.inet_aton("127.0.0.1"))
    md5_key = peer.ljust(128, b"\0") + struct.pack("=BBHI80s", 0, 0, 4, 0, b"abcd")  # struct tcp_md5sig, linux/tcp.h
    attempts = {
        "SO_ATTACH_FILTER": lambda: socket.socket(socket.AF_UNIX).setsockopt(socket.SOL_SOCKET, 26, filters),
        "SO_ATTACH_REUSEPORT_CBPF": lambda: socket.socket(socket.AF_INET).setsockopt(socket.SOL_SOCKET, 51, filters),
        "IP_OPTIONS": lambda: socket.socket(socket.AF_INET).setsockopt(socket.IPPROTO_IP, 4, b"\1" * 40),
        "IPV6_2292PKTOPTIONS": lambda: socket.socket(socket.AF_INET6).setsockopt(socket.IPPROTO_IPV6, 6, bytes(1000)),
        "TCP_MD5SIG": lambda: socket.socket().setsockopt(socket.IPPROTO_TCP, 14, md5_key),
        "TCP_MD5SIG_EXT": lambda: socket.socket().setsockopt(socket.IPPROTO_TCP, 32, md5_key),
        "TCP_AO_ADD_KEY": lambda: socket.socket().setsockopt(socket.IPPROTO_TCP, 38, bytes(300)),
        "TCP_ULP": lambda: socket.socket().setsockopt(socket.IPPROTO_TCP, 31, b"tls"),
        "IPV6_JOIN_GROUP": lambda: socket.socket(socket.AF_INET6, socket.SOCK_DGRAM).setsockopt(
            socket.IPPROTO_IPV6, 20, socket.inet_pton(socket.AF_INET6, "ff12::1") + struct.pack("=I", 1)
        ),
        "IP_ADD_SOURCE_MEMBERSHIP": lambda: socket.socket(type=socket.SOCK_DGRAM).setsockopt(
            socket.IPPROTO_IP, 39, b"".join(map(socket.inet_aton, ("232.0.0.1", "127.0.0.1", "127.0.0.2")))
        ),
        "UDP_ENCAP": lambda: socket.socket(type=socket.SOCK_DGRAM).setsockopt(socket.IPPROTO_UDP, 100, 2),
    }
    try:
        said = attempts[what]()
    except OSError as error:
        return [error.errno != errno.EPERM, str(error)]
    return [True, repr(said)]


def try_core_scheduling():
    """A cookie of one's own, with which nobody else runs beside (PR_SCHED_CORE, PR_SCHED_CORE_CREATE)."""
    said = raw(157 if platform.machine() == "x86_64" else 167, 62, 1, 0, 0, 0)
    return [said != "ENOSYS", said]


def try_filter(what):
    """A filter of one's own."""
    program = (ctypes.c_uint64 * 1)(0x7FFF000000000006)
    filters = ctypes.create_string_buffer(struct.pack("HxxxxxxP", 1, ctypes.addressof(program)))
    if what == "prctl":
        said = raw(157 if platform.machine() == "x86_64" else 167, 22, 2, filters)
    else:
        said = raw(317 if platform.machine() == "x86_64" else 277, 1, 0, filters)
    return [said != "EPERM", said]
