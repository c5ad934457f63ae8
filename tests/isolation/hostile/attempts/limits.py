"""More than the function may have: memory, CPU time, processes, and what the kernel keeps for sockets."""

import ctypes
import errno
import fcntl
import os
import platform
import resource
import select
import signal
import socket
import subprocess
import threading
import time

from .kernel import libc


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


def try_inotify_watches(limit):
    """Watches files and folders of /usr until there are more watches than `limit`."""
    global kept
    kept = [libc.inotify_init1(os.O_CLOEXEC)]
    watches = set()
    for folder, _, files in os.walk("/usr"):
        for name in (".", *files):
            # The same one for each path of a file.
            watch = libc.inotify_add_watch(kept[0], os.fsencode(os.path.join(folder, name)), 2)
            if watch != -1:
                watches.add(watch)
            elif ctypes.get_errno() == errno.ENOSPC:
                return [False, [len(watches), "ENOSPC"]]
            if len(watches) > limit:
                return [True, [len(watches), "no limit"]]
    return [False, [len(watches), "no more files"]]


def try_release():
    global kept
    for descriptor in kept:
        os.close(descriptor)
    kept = []
    return [False, "closed"]


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


def try_many_locks(locks, seconds):
    """Locks bytes of files, 1,000 in each, and sleeps."""
    files = []
    for number in range(locks // 1000):
        file = open(f"/tmp/locked-{number}", "w")
        files.append(file)
        for at in range(1000):
            fcntl.lockf(file, fcntl.LOCK_EX, 1, at * 2)
    time.sleep(seconds)
    return [True, len(files) * 1000]


def try_many_leases(children, leases, seconds):
    """Leases of files, one for each descriptor, in some children, which sleep."""
    pids, (done, told) = [], os.pipe()
    for child in range(children):
        pid = os.fork()
        if pid == 0:
            files = []
            for number in range(leases):
                file = open(f"/tmp/leased-{child}-{number}", "w")
                fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
                files.append(file)
            os.write(told, b".")
            time.sleep(seconds)
            os._exit(0 if files else 1)
        pids.append(pid)
    for _ in pids:
        os.read(done, 1)
    for pid in pids:
        os.waitpid(pid, 0)
    return [True, f"{leases * children} leases"]


def try_many_watches(instances, seconds):
    """Watches one pipe by 400 descriptors in each of some instances of epoll, and sleeps."""
    reading, _ = os.pipe()
    descriptors = [os.dup(reading) for _ in range(400)]
    epolls = [select.epoll() for _ in range(instances)]
    for epoll in epolls:
        for descriptor in descriptors:
            epoll.register(descriptor, select.EPOLLIN | select.EPOLLET)
    time.sleep(seconds)
    return [True, len(epolls) * len(descriptors)]


def try_many_folders(descriptors, names, seconds):
    """Opens a folder that is in both layers of an overlay, and lists it with each descriptor after a change, and sleeps."""
    for name in range(names):
        os.close(os.open(f"/tmp/{name:06}{'x' * 240}", os.O_CREAT | os.O_WRONLY))
    kept = []
    for descriptor in range(descriptors):
        folder = os.open("/tmp", os.O_RDONLY)
        kept.append((folder, next(os.scandir(folder))))
        os.close(os.open(f"/tmp/changed-{descriptor}", os.O_CREAT | os.O_WRONLY))
    time.sleep(seconds)
    return [True, len(kept)]


def try_many_locks_without_first_thread(locks, seconds):
    """The same in a child whose first thread has ended."""
    if os.fork() == 0:
        threading.Thread(target=try_many_locks, args=[locks, seconds]).start()
        libc.syscall({"x86_64": 60}.get(platform.machine(), 93), 0)
    time.sleep(seconds)
    return [True, locks]


def try_keep(seconds):
    """Keeps the files that other workers of the function send."""
    kept, receiver = [], socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    receiver.bind("\0receiver")
    receiver.settimeout(seconds)
    until = time.monotonic() + seconds
    try:
        while time.monotonic() < until:
            kept += socket.recv_fds(receiver, 1, 1)[1]
    except TimeoutError:
        pass
    return [True, sum(os.fstat(file).st_blocks for file in kept) * 512]


def try_send(mb, seconds):
    """Sends a file of memory to who keeps it."""
    file = os.memfd_create("sent")
    for _ in range(mb):
        os.write(file, bytes(1 << 20))
    sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    until = time.monotonic() + seconds
    while sender.connect_ex("\0receiver") != 0:
        if time.monotonic() > until:
            return [False, "nobody keeps it"]
        time.sleep(0.01)
    socket.send_fds(sender, [b"x"], [file])
    return [True, mb]


def try_lower_oom_score():
    """The score with which the kernel chooses whom it ends, as a program has it that tried to lower it."""
    path = "/proc/self/oom_score_adj"
    before = subprocess.run(["cat", path], capture_output=True, text=True).stdout
    lower = f"for score in -1000 0 299; do echo $score 2>/dev/null > {path}; done; cat {path}"
    after = subprocess.run(["sh", "-c", lower], capture_output=True, text=True).stdout
    return [int(after) < int(before) or int(before) < 300, [before, after]]


def try_many_sockets(seconds, children):
    """Binds 4,000 sockets in each of some children, which sleep."""
    pids, (done, told) = [], os.pipe()
    for child in range(children):
        pid = os.fork()
        if pid == 0:
            sockets = []
            for port in range(10_000, 14_000):
                one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
                one.bind((f"127.0.{child}.1", port))
                sockets.append(one)
            os.write(told, b".")
            time.sleep(seconds)
            os._exit(0 if sockets else 1)
        pids.append(pid)
    for _ in pids:
        os.read(done, 1)
    for pid in pids:
        os.waitpid(pid, 0)
    return [True, f"{4000 * children} sockets"]


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
