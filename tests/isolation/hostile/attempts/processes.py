"""Other processes: their names, their memory, signals."""

import errno
import os
import signal

from .kernel import in_child, libc


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
