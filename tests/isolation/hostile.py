"""A function that tries to escape. The isolation suite deploys it; never run it without a sandbox.

`handler({"try": NAME, ...})` runs one attempt and returns `[escaped, what it saw]`. Attempts that may end the process run in a child.
`AT_IMPORT` has the results of the same attempts during the import of the module, which runs in the template.
"""

import ctypes
import errno
import fcntl
import os
import platform
import resource
import signal
import socket
import stat
import struct
import sys
import time

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long

CLONE_FLAGS = {
    "NEWNS": 0x00020000,
    "NEWCGROUP": 0x02000000,
    "NEWUTS": 0x04000000,
    "NEWIPC": 0x08000000,
    "NEWUSER": 0x10000000,
    "NEWPID": 0x20000000,
    "NEWNET": 0x40000000,
}

# System call numbers of x86_64 and aarch64. None: that machine has no such call.
CALLS = {
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "setns": (308, 268),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "mount_setattr": (442, 442),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "pidfd_getfd": (438, 438),
    "kcmp": (312, 272),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "syslog": (103, 116),
    "iopl": (172, None),
    "ioperm": (173, None),
    "modify_ldt": (154, None),
    "open_by_handle_at": (304, 265),
    "fanotify_init": (300, 262),
    "lookup_dcookie": (212, 18),
    "vhangup": (153, 58),
    "move_pages": (279, 239),
    "migrate_pages": (256, 238),
    "nfsservctl": (180, 42),
    "tee": (276, 77),
}


def handler(event, context):
    what = event["try"]
    if what == "at_import":
        return AT_IMPORT[event["name"]]
    return globals()["try_" + what](*event.get("with", []))


def in_child(attempt, patience=10.0):
    """Runs `attempt` in a child. Returns its result as text, or how it ended."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        try:
            said = str(attempt())
        except BaseException as error:
            said = f"raised {type(error).__name__}: {error}"
        os.write(write, said.encode("utf-8", "replace")[:4000])
        os._exit(0)
    os.close(write)
    said = b""
    deadline = time.monotonic() + patience
    os.set_blocking(read, False)
    while time.monotonic() < deadline:
        try:
            part = os.read(read, 4096)
        except BlockingIOError:
            time.sleep(0.002)
            continue
        if not part:
            break
        said += part
    else:
        os.kill(child, signal.SIGKILL)
    os.close(read)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return f"ended by signal {os.WTERMSIG(status)}"
    return said.decode("utf-8", "replace")


def number_of(name):
    return CALLS[name][0 if platform.machine() == "x86_64" else 1]


def raw(number, *arguments):
    """Makes a system call in a child. Returns the name of its errno, `ok N`, or the signal that ended the child."""

    def attempt():
        ctypes.set_errno(0)
        result = libc.syscall(ctypes.c_long(number), *[ctypes.c_long(a) if isinstance(a, int) else a for a in arguments])
        return f"ok {result}" if result != -1 else errno.errorcode.get(ctypes.get_errno(), "E?")

    return in_child(attempt)


def try_slice():
    """sched_setattr with the default policy and the longest time slice."""
    attributes = struct.pack("IIQiIQQQ", 48, 0, 0, 0, 0, 100_000_000, 0, 0)
    number = 314 if platform.machine() == "x86_64" else 274
    said = raw(number, 0, ctypes.create_string_buffer(attributes), 0)
    return [said != "EPERM", said]


def status():
    return dict(line.split(":\t", 1) for line in open("/proc/self/status").read().splitlines() if ":\t" in line)


# Privileges.


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


# System calls.


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


# Files.


def try_read(paths):
    got = {}
    for path in paths:
        try:
            if os.path.isdir(path):
                got[path] = os.listdir(path)[:5]
            else:
                with open(path, "rb") as file:
                    got[path] = repr(file.read(60))
        except OSError:
            pass
    return [bool(got), got]


def try_write():
    """Creates a file in every directory and writes to every interesting file."""
    got = []
    for root, folders, _ in os.walk("/"):
        if root.startswith(("/proc", "/sys")) or root.count("/") > 4:
            folders.clear()
            continue
        path = os.path.join(root, "escaped")
        try:
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
            os.unlink(path)
            got.append(root)
        except OSError:
            pass
    for path in (
        "/proc/sysrq-trigger", "/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sys/vm/drop_caches",
        "/proc/1/oom_score_adj", "/sys/kernel/uevent_helper", "/sys/fs/cgroup/release_agent", "/dev/mem", "/dev/kmsg",
        "/etc/passwd", "/var/task/app.py",
    ):  # fmt: skip
        try:
            os.close(os.open(path, os.O_WRONLY))
            got.append(path)
        except OSError:
            pass
    return got


def try_change_secret():
    path = os.environ["OWN"]
    if open(path).read() != "the hostile function's own":
        return True, "it is not there"
    folder = os.path.dirname(path)
    if os.listdir(folder) != [os.path.basename(path)]:
        return True, os.listdir(folder)
    done = []
    for name, change in {
        "write": lambda: open(path, "w").close(),
        "chmod": lambda: os.chmod(path, 0o666),
        "chmod the folder": lambda: os.chmod(folder, 0o777),
        "remove": lambda: os.unlink(path),
        "create": lambda: open(folder + "/new", "w").close(),
        "move": lambda: os.rename(folder, "/tmp/secrets"),
    }.items():
        try:
            change()
            done.append(name)
        except OSError:
            pass
    return bool(done), done


def try_find(words, limit_s=8.0):
    """Searches for secrets in all readable files, file names, environments and command lines."""
    found = []
    wanted = [word.encode() for word in words]
    deadline = time.monotonic() + limit_s

    def look(path, content):
        found.extend(
            f"{word.decode()} in {path}" for word in wanted if word in content or word in path.encode("utf-8", "replace")
        )

    own = str(os.getpid())
    for root, folders, files in os.walk("/"):
        if time.monotonic() > deadline:
            break
        # Libraries are large and have no secrets of other functions. /sys and /proc/kcore are endless.
        if root in ("/sys", "/usr") or root.startswith(("/proc/sys", f"/proc/{own}", "/proc/self", "/proc/thread-self")):
            folders.clear()
            continue
        if "/site-packages" in root or "/lib/python" in root:
            folders.clear()
            continue
        for name in files:
            path = os.path.join(root, name)
            try:
                mode = os.lstat(path).st_mode
                if not stat.S_ISREG(mode) or name in ("kcore", "kmsg", "kpagecount", "kpageflags", "kpagecgroup", "pagemap"):
                    continue
                fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
            except OSError:
                look(path, b"")
                continue
            try:
                look(path, os.read(fd, 65536))
            except OSError:
                look(path, b"")
            finally:
                os.close(fd)
    return [bool(found), found]


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


def try_devices():
    got = []
    for name in os.listdir("/dev"):
        path = os.path.join("/dev", name)
        mode = os.lstat(path).st_mode
        if stat.S_ISBLK(mode) or (
            stat.S_ISCHR(mode) and name not in ("null", "zero", "full", "random", "urandom", "tty", "ptmx")
        ):
            got.append(path)
    try:
        os.mknod("/tmp/device", stat.S_IFBLK | 0o600, os.makedev(254, 0))
        got.append("mknod")
    except OSError:
        pass
    # Character and block devices and sockets, with and without a number that a driver has. Named pipes are allowed.
    for kind in (stat.S_IFCHR, stat.S_IFBLK, stat.S_IFSOCK, stat.S_IFDIR):
        try:
            os.mknod("/tmp/node", kind | 0o600, os.makedev(1, 3))
            got.append(f"mknod {kind:o}")
        except OSError:
            pass
    return [bool(got), got]


def try_mounts():
    """All mounts except /tmp, /dev and /proc are read-only. Writable mounts ignore set-user-id bits and devices."""
    bad = []
    for line in open("/proc/self/mountinfo"):
        left, right = line.split(" - ")
        point, options = left.split()[4], left.split()[5].split(",")
        kind = right.split()[0]
        writable = "rw" in options and "rw" in right.split()[2].split(",")
        if point.startswith(("/proc", "/dev")) or kind in ("devpts", "mqueue"):
            continue
        if writable and point not in ("/tmp", "/dev/shm", "/var/tmp"):
            bad.append(line.strip())
        if writable and "nosuid" not in options:
            bad.append("suid: " + line.strip())
    return [bool(bad), bad]


# Processes.


def visible_processes():
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def try_processes(limit):
    seen = visible_processes()
    commands = []
    for pid in seen:
        try:
            commands.append(f"{pid}: " + open(f"/proc/{pid}/cmdline").read().replace("\0", " ")[:80])
        except OSError:
            commands.append(f"{pid}: ?")
    return [len(seen) > limit, commands]


def try_command_lines(words):
    """The command lines of all visible processes, for words of the daemon's."""
    got = []
    for pid in visible_processes():
        try:
            line = open(f"/proc/{pid}/cmdline").read()
        except OSError:
            continue
        if pid != os.getpid() and any(word in line for word in words):
            got.append(f"{pid}: " + line.replace("\0", " ")[:200])
    return [bool(got), got]


def try_memory_of_others():
    """/proc/PID/mem, process_vm_readv, ptrace and pidfd_getfd on all visible processes."""
    got = []
    for pid in visible_processes():
        if pid == os.getpid():
            continue
        for path in (
            f"/proc/{pid}/mem",
            f"/proc/{pid}/environ",
            f"/proc/{pid}/maps",
            f"/proc/{pid}/root/etc",
            f"/proc/{pid}/cwd/.",
        ):
            try:
                if path.endswith(("etc", ".")):
                    os.listdir(path)
                else:
                    fd = os.open(path, os.O_RDONLY)
                    if path.endswith("/mem"):
                        pass
                    elif not os.read(fd, 1):
                        continue
                got.append(path)
            except OSError:
                pass
        if libc.ptrace(16, pid, 0, 0) == 0:  # PTRACE_ATTACH
            libc.ptrace(17, pid, 0, 0)
            got.append(f"ptrace {pid}")
    return [bool(got), got]


def try_signal(pids):
    """Signal 0 to host process ids."""
    got = []
    for pid in pids:
        try:
            os.kill(pid, 0)
            # The number may belong to one of our own processes.
            if pid not in visible_processes():
                got.append(pid)
        except OSError:
            pass
    return [bool(got), got]


def try_kill_everybody():
    """Runs in a child with its own session, so that there is still a result."""

    def attempt():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        try:
            os.kill(-1, signal.SIGCONT)
            return "sent"
        except OSError as error:
            return errno.errorcode[error.errno]

    return [False, in_child(attempt)]


def try_kill_parent():
    said = []
    for pid in {1, os.getppid()} - {0, os.getpid()}:
        try:
            os.kill(pid, signal.SIGKILL)
            said.append(f"{pid}: sent")
        except OSError as error:
            said.append(f"{pid}: {errno.errorcode[error.errno]}")
    return [False, said]


# Network and IPC.


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
        "FS_IOC_SETFLAGS": lambda: fcntl.ioctl(os.open("/tmp", os.O_RDONLY), 0x40086602, bytes(8)),
    }
    try:
        said = attempts[what]()
    except OSError as error:
        return [error.errno != errno.EPERM, str(error)]
    return [True, repr(said)]


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


def try_filter(what):
    """A filter of one's own."""
    program = (ctypes.c_uint64 * 1)(0x7FFF000000000006)
    filters = ctypes.create_string_buffer(struct.pack("HxxxxxxP", 1, ctypes.addressof(program)))
    if what == "prctl":
        said = raw(157 if platform.machine() == "x86_64" else 167, 22, 2, filters)
    else:
        said = raw(317 if platform.machine() == "x86_64" else 277, 1, 0, filters)
    return [said != "EPERM", said]


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


# /tmp.


def try_tmp_write(name, text):
    with open(os.path.join("/tmp", name), "w") as file:
        file.write(text)
    return [False, os.listdir("/tmp")]


def try_tmp_list():
    seen = os.listdir("/tmp") + [
        os.path.join("shm", name) for name in (os.listdir("/dev/shm") if os.path.isdir("/dev/shm") else [])
    ]
    return [bool(seen), seen]


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


def try_tmp_fill(limit_mb):
    written = 0
    block = b"x" * (1 << 20)
    try:
        with open("/tmp/filled", "wb", buffering=0) as file:
            while written < limit_mb:
                file.write(block)
                written += 1
    except OSError as error:
        return [False, [written, errno.errorcode[error.errno]]]
    finally:
        os.unlink("/tmp/filled")
    return [True, [written, "no limit"]]


def try_tmp_inodes(limit):
    made = 0
    os.makedirs("/tmp/many", exist_ok=True)
    try:
        while made < limit:
            os.close(os.open(f"/tmp/many/{made}", os.O_CREAT))
            made += 1
    except OSError as error:
        return [False, [made, errno.errorcode[error.errno]]]
    return [True, [made, "no limit"]]


# Limits.


def try_memory(mb):
    kept = bytearray()
    step = bytes(range(256)) * 4096 * 4
    for _ in range(mb // 4):
        kept += step
    return [True, len(kept)]


def try_memory_of_children(children, mb):
    """Memory of several processes: the limit applies to their sum."""
    pids = []
    for _ in range(children):
        pid = os.fork()
        if pid == 0:
            kept = bytes(range(256)) * (mb * 4096)
            time.sleep(4)
            os._exit(0 if kept else 1)
        pids.append(pid)
    alive = 0
    for pid in pids:
        _, status = os.waitpid(pid, 0)
        alive += status == 0
    return [alive == children, f"{alive} of {children} lived"]


def try_memfd(mb):
    fd = os.memfd_create("hog")
    for _ in range(mb):
        os.write(fd, bytes(range(256)) * 4096)
    return [True, mb]


def try_cpu(seconds, processes):
    """CPU seconds that this number of busy processes uses in this time."""
    end = time.monotonic() + seconds
    pids = []
    for _ in range(processes - 1):
        pid = os.fork()
        if pid == 0:
            while time.monotonic() < end:
                pass
            os._exit(0)
        pids.append(pid)
    before = time.process_time()
    began = time.monotonic()
    while time.monotonic() < end:
        pass
    took = time.monotonic() - began
    own = time.process_time() - before
    for pid in pids:
        os.waitpid(pid, 0)
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = own + children.ru_utime + children.ru_stime
    return [False, [used, took]]


def try_pids(limit):
    pids = []
    said = "no limit"
    try:
        while len(pids) < limit:
            pid = os.fork()
            if pid == 0:
                time.sleep(30)
                os._exit(0)
            pids.append(pid)
    except OSError as error:
        said = errno.errorcode[error.errno]
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        for pid in pids:
            os.waitpid(pid, 0)
    return [said == "no limit", [len(pids), said]]


def try_inotify(limit):
    """Holds instances of inotify until the worker ends."""
    global kept
    kept = []
    while len(kept) < limit:
        descriptor = libc.inotify_init1(os.O_CLOEXEC)
        if descriptor == -1:
            return [False, [len(kept), errno.errorcode.get(ctypes.get_errno(), "E?")]]
        kept.append(descriptor)
    return [True, [len(kept), "no limit"]]


def try_unaccepted(seconds):
    """Sends to connections that nobody accepts. What they hold stays after they are closed."""
    listeners, sent, until = [], 0, time.monotonic() + seconds
    while time.monotonic() < until:
        listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
        listeners.append(listener)
        for _ in range(1000):
            if time.monotonic() > until:
                break
            with socket.socket() as connection:
                connection.setblocking(False)
                try:
                    connection.connect_ex(listener.getsockname())
                    sent += connection.send(bytes(100_000))
                except OSError:
                    pass
    return [True, f"{sent >> 20} MB sent"]


def try_kept_back(seconds, sockets):
    """Holds datagrams that are not complete."""
    kept_back = []
    for _ in range(sockets):
        one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        one.connect(("127.0.0.1", 9))
        for _ in range(20):
            one.send(bytes(3000), socket.MSG_MORE)
        kept_back.append(one)
    time.sleep(seconds)
    return [True, f"{len(kept_back)} datagrams kept back"]


def try_serve(connections, seconds):
    """What servers and clients do: many connections, and datagrams, that are accepted and read. Returns how many had an echo."""
    echoes = 0
    with socket.create_server(("127.0.0.1", 0), backlog=connections) as listener:
        clients = [socket.create_connection(listener.getsockname()) for _ in range(connections)]
        for client in clients:
            client.sendall(bytes(20_000))
        servers = [listener.accept()[0] for _ in clients]
        time.sleep(seconds)
        for client, server in zip(clients, servers):
            got = server.recv(20_000, socket.MSG_WAITALL)
            server.sendall(got)
            echoes += client.recv(20_000, socket.MSG_WAITALL) == got
            client.close()
            server.close()
    return [echoes != connections, echoes]


def try_release():
    global kept
    for descriptor in kept:
        os.close(descriptor)
    kept = []
    return [False, "closed"]


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


count = 0


def try_count():
    global count
    count += 1
    return [False, count]


# Results of the attempts during the import.


def _any(attempt, names):
    said = {name: attempt(name) for name in names}
    return [any(escaped for escaped, _ in said.values()), {name: seen for name, (_, seen) in said.items()}]


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


def _at_import():
    said = {}
    attempts = {
        "host files": lambda: try_read(
            ["/etc/shadow", "/root/.bashrc", "/root/.cargo", "/home", "/var/lib", "/proc/1/root/etc/shadow"]
        ),
        "namespaces": try_setns,
        "memory of others": try_memory_of_others,
        "mount": lambda: try_call("mount"),
        "identity": try_identity,
        "descriptors": try_descriptors,
        "control": try_control,
        "send descriptor": try_send_descriptor,
        "devices": try_devices,
        "writes": lambda: [False, try_write()],
        "network": try_network,
        "raw socket": lambda: try_socket("raw"),
        "chroot": lambda: try_call("chroot"),
        "bpf": lambda: try_call("bpf"),
        "ptrace": lambda: try_call("ptrace"),
        "setuid": lambda: try_become("setuid"),
        "as root": try_as_root,
        "unshare": lambda: _any(try_unshare, CLONE_FLAGS),
        "mount calls": lambda: _any(try_call, ["umount2", "pivot_root", "open_tree", "move_mount", "fsopen", "mount_setattr"]),
        "keyrings and the like": lambda: _any(
            try_call, ["keyctl", "add_key", "perf_event_open", "userfaultfd", "io_uring_setup", "reboot"]
        ),
        "processes": lambda: try_processes(8),
    }
    attempts.pop(os.environ.get("LEAVE_OUT"), None)
    for name, attempt in attempts.items():
        try:
            said[name] = attempt()
        except BaseException as error:
            said[name] = [None, f"{type(error).__name__}: {error}"]
    return said


AT_IMPORT = _at_import() if os.environ.get("TRY_AT_IMPORT") else {}
if os.environ.get("KILL_PARENT_AT_IMPORT"):
    AT_IMPORT["kill parent"] = try_kill_parent()
