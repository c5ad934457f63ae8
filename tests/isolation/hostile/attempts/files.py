"""Files of the host, of other functions and of the daemon; devices, mounts and /tmp."""

import errno
import fcntl
import os
import stat
import time


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


def try_read_locks():
    """The locks of the whole machine: all programs that lock a file wait for who reads them."""
    mine = open("/tmp/locked", "w")
    fcntl.flock(mine, fcntl.LOCK_EX)
    with open("/proc/locks", "rb") as locks:
        seen = locks.read(100)
    return [bool(seen), repr(seen)]


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


def try_tmp_write(name, text):
    with open(os.path.join("/tmp", name), "w") as file:
        file.write(text)
    return [False, os.listdir("/tmp")]


def try_tmp_list():
    seen = os.listdir("/tmp") + [
        os.path.join("shm", name) for name in (os.listdir("/dev/shm") if os.path.isdir("/dev/shm") else [])
    ]
    return [bool(seen), seen]


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
