"""Attempts to become somebody else, or to have rights again."""

import ctypes
import os
import platform
import resource
import stat
import struct
import sys

from .kernel import in_child, libc, raw, status


def try_identity():
    s = status()
    return [s, [os.getresuid(), os.getresgid(), os.getgroups()]]


def try_become(kind):
    calls = {
        "setuid": lambda: os.setuid(0),
        "setresuid": lambda: os.setresuid(0, 0, 0),
        "seteuid": lambda: os.seteuid(0),
        "setgid": lambda: os.setgid(0),
        "setgroups": lambda: os.setgroups([0]),
        "other_uid": lambda: os.setuid(os.getuid() + 1),
    }
    said = in_child(lambda: (calls[kind](), "became it")[1])
    return [said == "became it", said]


def try_become_any_user():
    """The users of functions and environments are 2000 and those after it, in the user namespace that is around all of theirs. Without
    root there is one user, 0, which everybody is."""

    def attempt():
        became = []
        for number in {0, *range(1990, 2200), 61999, 65534} - {os.getuid()}:
            for become in (os.setuid, os.seteuid, lambda uid: os.setreuid(uid, -1), lambda uid: os.setresuid(-1, -1, uid), os.setgid):
                try:
                    become(number)
                    became.append(number)
                except OSError:
                    pass
        return str(became)

    said = in_child(attempt)
    return [said != "[]", said]


def try_regain_capabilities():
    """capset with everything, and PR_CAP_AMBIENT_RAISE of CAP_SYS_ADMIN."""

    def attempt():
        header = struct.pack("Ii", 0x20080522, 0)
        everything = struct.pack("6I", *[0xFFFFFFFF] * 6)
        result = libc.syscall(ctypes.c_long(126 if platform.machine() == "x86_64" else 91), header, everything)
        libc.prctl(47, 2, 21, 0, 0)
        return f"{result} {status()['CapEff'].strip('0')}"

    said = in_child(attempt)
    return [said.startswith("0 "), said]


def try_set_user_id():
    """A set-user-id file of the function and one of the system give no privileges."""
    got = []
    for root, _, files in list(os.walk("/bin"))[:1] + list(os.walk("/usr/bin"))[:1]:
        for name in files:
            path = os.path.join(root, name)
            try:
                if os.stat(path).st_mode & stat.S_ISUID and name == "su":
                    read, write = os.pipe()
                    child = os.fork()
                    if child == 0:
                        os.dup2(write, 1)
                        os.execv(path, [path, "-c", "id -u"])
                    os.close(write)
                    said = os.read(read, 100)
                    os.waitpid(child, 0)
                    if said.strip() == b"0":
                        got.append(path)
            except OSError:
                pass
    return [bool(got), got]


def try_as_root():
    """Becomes user 0 if possible, and then tries to use its files, kernel settings and other processes."""

    def attempt():
        for become in (lambda: os.setgid(0), lambda: os.setuid(0)):
            try:
                become()
            except OSError:
                pass
        got = []
        for path in (
            "/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sys/kernel/hostname", "/proc/sys/vm/overcommit_memory",
            "/proc/sys/fs/binfmt_misc/register", "/proc/sysrq-trigger", "/proc/1/oom_score_adj", "/dev/mem", "/dev/kmsg",
            "/var/task/app.py", "/etc/passwd", "/etc/ld.so.preload", "/usr/bin/env", sys.executable,
        ):  # fmt: skip
            try:
                os.close(os.open(path, os.O_WRONLY))
                got.append("write " + path)
            except OSError:
                pass
        for path in ("/etc/shadow", "/proc/kcore", "/root/.bashrc", "/proc/1/root/etc/shadow", "/proc/1/environ", "/proc/keys"):
            try:
                with open(path, "rb") as file:
                    if file.read(1):
                        got.append("read " + path)
            except OSError:
                pass
        return f"{os.getuid()} {got}"

    said = in_child(attempt)
    return [not said.endswith("[]"), said]


def try_rlimits():
    bad = []
    # 1 byte is none, also for a core that the kernel pipes to a program (core(5)).
    if resource.getrlimit(resource.RLIMIT_CORE)[1] != 1:
        bad.append("core dumps")
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard > 65536 or hard == resource.RLIM_INFINITY:
        bad.append(f"{hard} descriptors")
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard + 1, hard + 1))
        bad.append("raised a hard limit")
    except (OSError, ValueError):
        pass
    try:
        os.nice(-5)
        bad.append("nice")
    except OSError:
        pass
    return [bool(bad), bad]


def try_slice():
    """sched_setattr with the default policy and the longest time slice."""
    attributes = struct.pack("IIQiIQQQ", 48, 0, 0, 0, 0, 100_000_000, 0, 0)
    number = 314 if platform.machine() == "x86_64" else 274
    said = raw(number, 0, ctypes.create_string_buffer(attributes), 0)
    return [said != "EPERM", said]
