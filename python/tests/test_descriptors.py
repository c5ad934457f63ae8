"""What user code leaves open at import: no worker shares it with its siblings, and the template reports what it cannot carry."""

from __future__ import annotations

import os
import socket
import socketserver
import threading

import pytest
from at_import import CALLS, all_at_once, assert_no_answer_crosses, findings, ready
from conftest import Functions

HAS_WORK = """
import sys
def handler(event, context):
    return sys.modules["pilot_worker.forking.descriptors"].has_work()
"""


def test_a_worker_has_no_work_if_nothing_is_open(functions: Functions) -> None:
    template = functions.template(HAS_WORK)
    assert template.report["findings"] == []
    worker = template.worker()
    stamps = worker.ready()
    assert stamps["initialised_ns"] == stamps["sandboxed_ns"]  # READY was sent before the interpreter ran
    assert worker.result({}) is False


def test_watching_leaves_no_trace(functions: Functions) -> None:
    worker = functions.worker(
        "import _socket, socket, subprocess, threading\n"
        "def handler(event, context):\n"
        "    return [name in vars(socket.socket) for name in ('connect', 'connect_ex', 'bind', 'listen')] + [\n"
        "        type(_socket.socketpair).__name__, threading.Thread.start.__code__.co_filename.endswith('threading.py'),\n"
        "        subprocess.Popen.__init__.__code__.co_filename.endswith('subprocess.py')]\n"
    )
    assert worker.result({}) == [False] * 4 + ["builtin_function_or_method", True, True]


def test_what_a_program_replaces_itself_stays(functions: Functions) -> None:
    template = functions.template(
        "import inspect, socket\noriginal = socket.socket.connect\nsignature = str(inspect.signature(socket.create_connection))\n"
        "calls = []\n"
        "def connect(self, address):\n    calls.append(address[1])\n    return original(self, address)\n"
        "socket.socket.connect = connect\n"
        "def handler(event, context):\n"
        "    try:\n        socket.create_connection(('127.0.0.1', 1))\n    except ConnectionRefusedError:\n        return calls\n"
    )
    assert ready(template, 1)[0].result({}) == [1]


def test_a_connection_that_fails_at_import_has_the_stack_of_the_program(functions: Functions) -> None:
    error = functions.refused("import socket\nsocket.create_connection(('127.0.0.1', 1))\n")
    assert error["errorType"] == "ConnectionRefusedError"
    assert not any("opened.py" in line for line in error["stackTrace"])


# -- sockets without a connection --------------------------------------------------------------------------------------

LISTENING = """
import socket
server = socket.create_server(("127.0.0.1", 0))
local = socket.socket(socket.AF_UNIX)
local.bind("\\0pilot-test-%d")
local.listen()
def handler(event, context):
    try:
        server.accept()
    except OSError as error:
        return type(error).__name__
"""


def test_a_listening_socket_is_closed_and_reported(functions: Functions) -> None:
    template = functions.template(LISTENING % os.getpid())
    rows = findings(template)
    assert [row[0] for row in rows] == ["app.py:3", "app.py:6"]
    assert rows[0][1].startswith("listened on TCP 127.0.0.1:") and rows[1][1].startswith("listened on unix @pilot-test-")
    assert ready(template, 1)[0].result({}) == "OSError"
    name = rows[1][1].split("@")[1].split(" ")[0]
    with socket.socket(socket.AF_UNIX) as client, pytest.raises(ConnectionRefusedError):
        client.connect("\0" + name)  # the template does not hold it either


UNCONNECTED = """
import socket
sock = socket.socket()
sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
sock.settimeout(10)
def handler(event, context):
    sock.connect(("127.0.0.1", %d))
    sock.sendall(b"*2\\r\\n$4\\r\\nECHO\\r\\n$%%d\\r\\n%%s\\r\\n" %% (len(event), event.encode()))
    return [sock.recv(100).decode(), sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0]
"""


def test_each_worker_can_connect_an_unconnected_socket(functions: Functions, redis_port: int) -> None:
    template = functions.template(UNCONNECTED % redis_port)
    assert findings(template) == []
    for index, worker in enumerate(ready(template)):
        assert worker.result(f"w{index}") == [f"$2\r\nw{index}\r\n", True]


UDP = """
import socket
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sock.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
sock.connect(("127.0.0.1", %d))
sock.settimeout(10)
def handler(event, context):
    sock.send(event.encode())
    return sock.recv(100).decode()
"""


class _EchoDatagram(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        text, sock = self.request
        sock.sendto(text, self.client_address)


def test_a_connected_udp_socket_stays_usable_and_is_not_shared(functions: Functions) -> None:
    with socketserver.ThreadingUDPServer(("127.0.0.1", 0), _EchoDatagram) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            template = functions.template(UDP % server.server_address[1])
            assert findings(template) == []
            assert_no_answer_crosses(template)
        finally:
            server.shutdown()
            thread.join()


BOUND_UDP = """
import socket
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sock.bind(("127.0.0.1", 0))
def handler(event, context):
    return sock.getsockname()[1]
"""


def test_a_bound_udp_socket_gets_a_port_of_its_own(functions: Functions) -> None:
    template = functions.template(BOUND_UDP)
    ((where, what, instead),) = findings(template)
    assert where == "app.py:4" and what.startswith("bound UDP 127.0.0.1:") and "of its own" in instead
    workers = ready(template)
    assert len({worker.result({}) for worker in workers} - {0}) == len(workers)


SYSLOG = """
import logging.handlers
handler_ = logging.handlers.SysLogHandler(%r)
log = logging.Logger("x")
log.addHandler(handler_)
def handler(event, context):
    log.warning(event)
"""


def test_a_syslog_handler_of_the_import_still_reaches_its_socket(functions: Functions) -> None:
    path = str(functions.directory / "log")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind(path)
        server.settimeout(10)
        for worker in ready(functions.template(SYSLOG % path), 2):
            worker.result("hello")
            assert b"hello" in server.recv(100)


# -- objects of the kernel that every worker makes for itself ----------------------------------------------------------

LOOP = """
import asyncio, threading
loop = asyncio.new_event_loop()
asyncio.set_event_loop(loop)
async def work(event):
    future = loop.create_future()
    def later():
        loop.call_soon_threadsafe(future.set_result, event)
    threading.Timer(0.005, later).start()
    return await asyncio.wait_for(future, 5)
def handler(event, context):
    return loop.run_until_complete(work(event))
"""


def test_an_event_loop_of_the_import_works_in_all_workers_at_once(functions: Functions) -> None:
    template = functions.template(LOOP)
    assert findings(template) == []
    assert_no_answer_crosses(template)


PAIRS = """
import os, socket
r, w = os.pipe()
os.write(w, b"first ")
w2 = os.dup(w)
a, b = socket.socketpair()
a.sendall(b"waiting ")
b.sendall(b"back ")
dgram = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
os.set_blocking(r, False)
def handler(event, context):
    os.write(w if event[1] else w2, event.encode())
    a.sendall(event.encode())
    dgram[0].send(event.encode())
    return [os.read(r, 100).decode(), b.recv(100).decode(), a.recv(100).decode(), dgram[1].recv(100).decode(), os.get_blocking(r),
            os.get_blocking(w), os.get_inheritable(r)]
"""


def test_pipes_and_socket_pairs_are_made_again_with_what_waits_in_them(functions: Functions) -> None:
    template = functions.template(PAIRS)
    assert findings(template) == []
    workers = ready(template)
    events = [f"/{index}" for index in range(len(workers))]
    for event, (_, body) in zip(events, all_at_once(workers, events)):
        assert body == (f'["first {event}", "waiting {event}", "back ", "{event}", false, true, false]')


OBJECTS = """
import ctypes, os, select, signal, socket, struct
libc = ctypes.CDLL(None, use_errno=True)
counter = libc.eventfd(3, os.O_NONBLOCK)
timer = libc.timerfd_create(1, os.O_NONBLOCK)
setting = struct.pack("=4q", 0, 0, 3600, 0)
libc.timerfd_settime(timer, 0, setting, None)
soon = libc.timerfd_create(1, 0)
libc.timerfd_settime(soon, 0, struct.pack("=4q", 0, 0, 0, 20_000_000), None)
r, w = os.pipe()
poll = select.epoll()
poll.register(r, select.EPOLLIN)
outer = select.epoll()
outer.register(poll.fileno(), select.EPOLLIN)
raw = libc.epoll_create1(0)
libc.epoll_ctl(raw, 1, r, struct.pack("=IQ" if os.uname().machine == "x86_64" else "IQ", 1, 0x1234567890))
waiting = ctypes.create_string_buffer(16)
def handler(event, context):
    if event == "count":
        count = struct.unpack("Q", os.read(counter, 8))[0]
        os.write(counter, struct.pack("Q", 7))
        return count
    if event == "timers":
        now = ctypes.create_string_buffer(32)
        libc.timerfd_gettime(timer, now)
        left = struct.unpack("=4q", now.raw)[2]
        libc.timerfd_settime(timer, 0, struct.pack("=4q", 0, 0, 9999, 0), None)
        return [3500 < left <= 3600, struct.unpack("Q", os.read(soon, 8))[0]]
    before = outer.poll(0)
    os.write(w, b"x")
    libc.epoll_wait(raw, waiting, 1, 0)
    before.append((0x1234567890).to_bytes(8, "little") in waiting.raw)
    return [before, outer.poll(0) == [(poll.fileno(), 1)], poll.poll(0) == [(r, 1)], os.read(r, 10).decode()]
"""


def test_an_epoll_is_made_again_though_the_module_has_lost_it(functions: Functions) -> None:
    """As after `eventlet.monkey_patch()`."""
    code = "import select\npoll = select.epoll()\ndel select.epoll\ndef handler(e, c): return poll.poll(0)\n"
    template = functions.template(code)
    assert "must_not_fork" not in template.report and findings(template) == []
    worker = template.worker()
    worker.ready()
    assert worker.result({}) == []


def test_eventfds_timerfds_and_epolls_are_made_again(functions: Functions) -> None:
    template = functions.template(OBJECTS)
    assert findings(template) == []
    for worker in ready(template):
        assert worker.result("count") == 3
        assert worker.result("timers") == [True, 1]
        assert worker.result("poll") == [[True], True, True, "x"]


LMDB = """
import os, struct, tempfile
folder = tempfile.mkdtemp()
for name, magic in (("lock.mdb", 0xBEEFC0DE), ("words-lock", 0xBEEFC0DE), ("yarn-lock", 1)):
    with open(os.path.join(folder, name), "wb") as file:
        file.write(struct.pack("<II", magic, 2))
IMPORTED = os.getpid()
def handler(event, context): return IMPORTED == os.getpid()
"""


@pytest.mark.parametrize(("name", "is_lmdb"), [("lock.mdb", True), ("words-lock", True), ("yarn-lock", False)])
def test_an_environment_of_lmdb_that_is_open_makes_the_template_not_fork(
    functions: Functions, name: str, is_lmdb: bool
) -> None:
    """Forked workers would fail after 126 reads with MDB_READERS_FULL."""
    template = functions.template(LMDB + f"kept = os.open(os.path.join(folder, {name!r}), os.O_RDWR)\n")
    assert ("LMDB" in template.report.get("must_not_fork", "")) is is_lmdb
    assert [row[1].endswith(f"/{name} of LMDB at import") for row in findings(template)] == [True] * is_lmdb


def test_an_after_restore_hook_may_open_an_environment_of_lmdb_again(functions: Functions) -> None:
    hook = "from snapshot_restore_py import register_after_restore\nregister_after_restore(lambda: None)\n"
    template = functions.template(hook + LMDB + 'kept = os.open(os.path.join(folder, "lock.mdb"), os.O_RDWR)\n')
    assert "must_not_fork" not in template.report


SIGNALFD = """
import ctypes, os, signal
mask = 1 << (signal.SIGUSR1 - 1)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
fd = ctypes.CDLL(None).signalfd(-1, ctypes.create_string_buffer(mask.to_bytes(8, "little"), 128), 0)
inotify = ctypes.CDLL(None).inotify_init1(os.O_NONBLOCK)
ctypes.CDLL(None).inotify_add_watch(inotify, b"/tmp", 0x100)
def handler(event, context):
    os.kill(os.getpid(), signal.SIGUSR1)
    got = os.read(fd, 128)[0] == signal.SIGUSR1
    try:
        os.read(inotify, 10)
    except BlockingIOError:
        return got
"""


def test_signalfds_are_made_again_and_inotify_starts_empty(functions: Functions) -> None:
    template = functions.template(SIGNALFD)
    assert [row[1] for row in findings(template)] == ["watched files (inotify) at import"]
    assert all(worker.result({}) is True for worker in ready(template, 2))


# -- files ------------------------------------------------------------------------------------------------------------

FILES = """
import os
open("lines", "wb").write(b"".join(b"%07d\\n" % n for n in range(1000)))
raw = open("lines", "rb", buffering=0)
raw.read(8)
twin = os.dup(raw.fileno())
log = open("log", "ab", buffering=0)
os.unlink("lines")
def handler(event, context):
    if event == "append":
        log.write(b"%d\\n" % os.getpid())
        return None
    return [raw.read(8).decode(), os.read(twin, 8).decode()]
"""


def test_files_are_read_from_the_same_position_by_each_worker(functions: Functions) -> None:
    template = functions.template(FILES)
    assert findings(template) == []
    workers = ready(template)
    for call in range(3):
        for worker in workers:
            assert worker.result("read") == [f"{1 + 2 * call:07}\n", f"{2 + 2 * call:07}\n"]


def test_appended_lines_of_all_workers_are_kept(functions: Functions) -> None:
    template = functions.template(FILES)
    workers = ready(template)
    for _ in range(CALLS):
        all_at_once(workers, ["append"] * len(workers))
    assert len((functions.directory / "log").read_text().split()) == CALLS * len(workers)


SCRATCH = """
import ctypes, mmap, multiprocessing, os, tempfile
from multiprocessing import heap
scratch = tempfile.TemporaryFile(buffering=0)
scratch.write(b"import")
memory = os.memfd_create("m")
os.write(memory, b"memory")
view = mmap.mmap(-1, 3 * 4096)
view[4096:4100] = b"view"
both_fd = os.memfd_create("both")
os.ftruncate(both_fd, 4096)
both = mmap.mmap(both_fd, 4096)
value = multiprocessing.Value("i", 41)
lock = multiprocessing.Lock()
queue = multiprocessing.SimpleQueue()
def child():
    value.value += 100
def handler(event, context):
    lock.acquire()  # is never released: no other worker waits for it
    queue.put(event)
    before = [os.pread(scratch.fileno(), 20, 0).decode(), os.pread(memory, 20, 0).decode(), view[4096:4104].decode(), both[:8].decode(),
              value.value, queue.get()]
    scratch.write(event.encode())
    os.write(memory, event.encode())
    view[4096:4096 + len(event)] = event.encode()
    os.pwrite(both_fd, event.encode(), 0)
    value.value += 1
    if os.fork() == 0:
        child()
        os._exit(0)
    os.wait()
    return before + [os.pread(scratch.fileno(), 20, 0).decode(), both[:len(event)].decode(), value.value]
"""


def test_memory_and_files_without_a_name_are_not_shared(functions: Functions) -> None:
    template = functions.template(SCRATCH)
    assert findings(template) == []
    for index, worker in enumerate(ready(template)):
        event = f"event{index}"
        expected = ["import", "memory", "view\0\0\0\0", "\0" * 8, 41, event, "import" + event, event, 142]
        assert worker.result(event) == expected


def test_large_memory_with_a_name_is_reported(functions: Functions) -> None:
    template = functions.template(
        "import mmap\nf = open('big', 'w+b')\nf.truncate(9 << 20)\nm = mmap.mmap(f.fileno(), 0)\ndef handler(e, c): pass\n"
    )
    path = functions.directory / "big"
    assert [row[1:] for row in findings(template)] == [(f"mapped {path} at import", "all workers share this memory")]


def test_large_shared_memory_is_reported(functions: Functions) -> None:
    template = functions.template("import mmap\nm = mmap.mmap(-1, 64 << 20)\ndef handler(e, c): pass\n")
    assert [row[1:] for row in findings(template)] == [
        ("has 64 MiB of shared memory without a name since its import", "all workers share it")
    ]


SQLITE = """
import sqlite3
connection = sqlite3.connect("db", timeout=20, isolation_level=None, check_same_thread=False)
connection.execute("create table t (worker int)")
def handler(event, context):
    connection.execute("insert into t values (?)", (int(event),))
    return connection.execute("select count(*) from t where worker = ?", (int(event),)).fetchone()[0]
"""


def test_an_sqlite_connection_of_the_import_works_in_all_workers(functions: Functions) -> None:
    workers = ready(functions.template(SQLITE))
    for call in range(CALLS):
        got = all_at_once(workers, [str(index) for index in range(len(workers))])
        assert [body for _, body in got] == [str(call + 1)] * len(workers)


# Not in /tmp, where a worker has copies (tests/e2e/fidelity/folders.rs).
MOVED = """
import os
os.makedirs("below")
os.chdir("below")
open("written", "w").close()
def handler(event, context):
    return [os.path.basename(os.getcwd()), os.path.exists("written")]
"""


def test_the_working_directory_of_the_import_is_that_of_the_workers(functions: Functions) -> None:
    template = functions.template(MOVED)
    assert [worker.result({}) for worker in ready(template, 2)] == [["below", True]] * 2


LOCKED = """
import fcntl, os, tempfile
folder = tempfile.mkdtemp(dir="/var/tmp")
file = open(folder + "/guard", "w")
fcntl.flock(file, fcntl.LOCK_EX)
posix = open(folder + "/posix", "w")
fcntl.lockf(posix, fcntl.LOCK_EX)
def handler(event, context):
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
"""


def test_file_locks_are_reported(functions: Functions) -> None:
    template = functions.template(LOCKED)
    assert sorted(row[1:] for row in findings(template)) == [
        ("locked guard at import", "workers share the lock and the position in the file"),
        ("locked posix at import", "each worker is without the lock"),
    ]
    assert ready(template, 1)[0].result({}) is None


# -- what is not a descriptor -------------------------------------------------------------------------------------------

PROCESS = """
import subprocess
process = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
def handler(event, context):
    return [process.stdout.read(10).decode(), process.poll()]
"""


def test_a_process_of_the_import_is_reported_and_its_pipes_are_closed(functions: Functions) -> None:
    template = functions.template(PROCESS)
    assert [row[:2] for row in findings(template)] == [("app.py:3", "started the process cat at import")]
    assert ready(template, 1)[0].result({})[0] == ""


def test_threads_are_named_with_their_line(functions: Functions) -> None:
    template = functions.template(
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True, name='mine').start()\n"
        "import socket\nkept = socket.socketpair()\ndef handler(e, c): pass\n"
    )
    assert [row[:2] for row in findings(template)] == [("app.py:2", "started the thread mine at import")]


TIMER = """
import signal, time
rang = []
signal.signal(signal.SIGALRM, lambda *_: rang.append(1))
signal.setitimer(signal.ITIMER_REAL, 0.05)
def handler(event, context):
    end = time.monotonic() + 10
    while not rang and time.monotonic() < end:
        time.sleep(0.01)
    return len(rang)
"""


def test_an_interval_timer_of_the_import_runs_in_each_worker(functions: Functions) -> None:
    template = functions.template(TIMER)
    assert [row[1] for row in findings(template)] == ["set the timer ITIMER_REAL at import"]
    assert [worker.result({}) for worker in ready(template)] == [1] * 4


# -- the tree, and the bounds -------------------------------------------------------------------------------------------


def test_what_an_environment_opens_is_covered_below_it(functions: Functions, http_port: int) -> None:
    functions.write(
        "import os, socket, http.client\nopen('data', 'w').write('abcdefgh')\nfile = open('data', 'rb', buffering=0)\nfile.read(1)\n"
        f"r, w = os.pipe()\nconnection = http.client.HTTPConnection('127.0.0.1', {http_port}, timeout=10)\n"
        "connection.connect()\npair = socket.socketpair()\n",
        "library.py",
    )
    environment = functions.template(handler=None, level="environment", imports=["library"])
    expected = [("library.py:7", f"opened TCP 127.0.0.1:{http_port} at import", "each worker reconnects")]
    assert findings(environment) == expected
    functions.write(
        "import library, os\nlibrary.file.read(1)\n"
        "def handler(event, context):\n"
        "    os.write(library.w, event.encode())\n    library.pair[0].send(event.encode())\n"
        "    library.connection.request('GET', event)\n"
        "    return [library.file.read(1).decode(), os.read(library.r, 100).decode(), library.pair[1].recv(100).decode(),\n"
        "            library.connection.getresponse().read().decode()]\n"
    )
    first, second = environment.template(functions.spec()), environment.template(functions.spec())
    assert findings(first) == expected
    workers = [*ready(first, 2), *ready(second, 2), environment.worker(functions.spec())]
    workers[-1].ready()
    for index, worker in enumerate(workers):
        assert worker.result(f"/{index}") == ["c", f"/{index}", f"/{index}", f"/{index}"]


def test_a_program_that_closes_its_descriptors_after_a_fork_keeps_what_it_opens(functions: Functions) -> None:
    template = functions.template(
        "import os\nr, w = os.pipe()\n"
        "def again():\n    global r\n    os.close(r); os.close(w)\n    r = os.open('/dev/zero', os.O_RDONLY)\n"
        "os.register_at_fork(after_in_child=again)\n"
        "def handler(event, context):\n    return os.read(r, 3).hex()\n"
    )
    assert [worker.result({}) for worker in ready(template, 2)] == ["000000"] * 2


@pytest.mark.parametrize("count", [30, 300])
def test_many_descriptors_are_reported_within_bounds(functions: Functions, count: int) -> None:
    template = functions.template(
        "import socket\nkept = []\n"
        f"for n in range({count}):\n    s = socket.socket(socket.AF_UNIX)\n"
        "    s.bind('\\0' + 'a\\x1bö' * 15 + str(n) + %r)\n    s.listen()\n    kept.append(s)\n"
        % functions.directory.name[-20:]
        + "def handler(event, context): return kept[event].fileno()\n"
    )
    rows = template.report["findings"]
    assert 0 < len(rows) <= 50
    assert all(len(text) <= 200 and text.isprintable() for row in rows for text in row.values())
    worker = ready(template, 1)[0]
    assert worker.result(count - 1) > 0


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to take another user")
def test_a_worker_of_another_user_makes_them_too(functions: Functions) -> None:
    functions.directory.chmod(0o777)
    (functions.directory / "log").write_text("")
    (functions.directory / "log").chmod(0o666)
    for folder in functions.directory.parents:
        if folder.stat().st_uid == 0 and folder != folder.parent and "pytest" in str(folder):
            folder.chmod(0o755)
    template = functions.template(FILES, uid=65534, gid=65534)
    assert findings(template) == []
    for worker in ready(template, 2):
        assert worker.result("read") == ["0000001\n", "0000002\n"]


def test_a_fork_in_python_does_the_same(functions: Functions) -> None:
    """A request in the long form is carried out by `worker.run`."""
    template = functions.template(PAIRS)
    template.report["native"] = False
    for index, worker in enumerate(ready(template, 2)):
        assert worker.result(f"/{index}")[0] == f"first /{index}"


def test_what_a_before_snapshot_hook_closes_is_not_reported(functions: Functions, redis_port: int) -> None:
    template = functions.template(
        "import socket\nfrom snapshot_restore_py import register_before_snapshot\n"
        f"connection = socket.create_connection(('127.0.0.1', {redis_port}))\nregister_before_snapshot(connection.close)\n"
        "def handler(event, context): return connection.fileno()\n"
    )
    assert findings(template) == []
    assert ready(template, 1)[0].result({}) == -1


NAMED = """
import ctypes
from multiprocessing import shared_memory
segment = shared_memory.SharedMemory(create=True, size=16)
segment.buf[:4] = b"abcd"
page = ctypes.create_string_buffer(4096)
ctypes.CDLL(None).mlock(page, 4096)
def handler(event, context):
    again = shared_memory.SharedMemory(segment.name)
    return bytes(again.buf[:4]).decode()
"""


def test_locked_memory_is_reported_and_named_memory_is_found(functions: Functions) -> None:
    template = functions.template(NAMED)
    texts = [what for _, what, _ in findings(template)]
    assert any(text.startswith("locked ") and text.endswith(" kB of memory at import") for text in texts)
    # The tracker of multiprocessing, which removes segments, still has its pipe.
    assert [worker.result({}) for worker in ready(template, 2)] == ["abcd"] * 2
