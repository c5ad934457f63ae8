"""Threads that packages start at import: those with a row in `forkable.py` are ended before the fork and come again in a worker.
The packages themselves are in tests/fidelity. Here are modules with their names and the parts of them that the rows use."""

from __future__ import annotations

import os

import pytest
from conftest import Functions

POOL = """
import os, threading
from concurrent.futures import ThreadPoolExecutor
pool = ThreadPoolExecutor(3)
at_import = list(pool.map(lambda n: n * n, range(8)))
def handler(event, context):
    found = list(pool.map(lambda n: n + 1, range(8)))
    return [at_import, found, len(pool._threads) <= 3, pool._idle_semaphore._value <= 3]
"""

BUSY_POOL = """
import threading
from concurrent.futures import ThreadPoolExecutor
pool, go = ThreadPoolExecutor(1), threading.Event()
jobs = [pool.submit(go.wait), pool.submit(go.wait)]
def handler(event, context):
    go.set()
    return [job.result(5) for job in jobs]
"""

# fsspec: one loop in a thread. What its own function for forks does comes before ours.
ASYN = """
import asyncio, os, threading
loop, iothread = [asyncio.new_event_loop()], [None]
iothread[0] = threading.Thread(target=loop[0].run_forever, daemon=True, name="fsspecIO")
iothread[0].start()
def forget():
    loop[0] = iothread[0] = None
os.register_at_fork(after_in_child=forget)
class AsyncFileSystem:
    def __init__(self):
        self._loop, self._pid = loop[0], os.getpid()
    def run(self, work):
        assert self._pid == os.getpid(), "not fork-safe"
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(5)
"""
USES_ASYN = """
import asyncio, threading
from fsspec import asyn
system = asyn.AsyncFileSystem()
async def double(n):
    await asyncio.sleep(0.001)
    return 2 * n
at_import = system.run(double(4))
def handler(event, context):
    return [at_import, system.run(double(event)), asyn.loop[0] is system._loop, threading.active_count()]
"""

EXECUTORS = """
import threading, weakref
class PeriodicExecutor:
    def __init__(self):
        self._stopped, self._event = False, threading.Event()
        self._thread = threading.Thread(target=self._event.wait, daemon=True)
        self._thread.start()
        _EXECUTORS.add(weakref.ref(self))
    def close(self):
        self._stopped = True
        self._event.set()
    def join(self, timeout=None):
        self._thread.join(timeout)
_EXECUTORS = set()
"""

BATCHES = """
import collections, threading, os
class BatchProcessor:
    def __init__(self, exported):
        self._exported, self._queue = exported, collections.deque([], 5)
        self._shutdown, self._worker_awaken = False, threading.Event()
        os.register_at_fork(after_in_child=self._start)
        self._start()
    def _start(self):
        self._queue.clear()
        self._worker_awaken = threading.Event()
        self._worker_thread = threading.Thread(target=self.worker, daemon=True)
        self._worker_thread.start()
    def worker(self):
        while not self._shutdown:
            self._worker_awaken.wait()
        while self._queue:
            self._exported.append(self._queue.pop())
    def finish(self):
        self._shutdown = True
        self._worker_awaken.set()
        self._worker_thread.join(5)
"""
USES_BATCHES = """
from opentelemetry.sdk._shared_internal import BatchProcessor
exported = []
processor = BatchProcessor(exported)
processor._queue.appendleft("of the import")
def handler(event, context):
    before = list(exported)
    processor._queue.appendleft("of the worker")
    processor.finish()
    return [before, exported]
"""


def test_an_idle_pool_of_threads_is_ended_and_starts_again_in_each_worker(functions: Functions) -> None:
    template = functions.template(POOL)
    assert template.report["threads"] == 1
    for _ in range(2):
        worker = template.worker()
        worker.ready()
        squares, found, *bounds = worker.result({})
        assert squares == [n * n for n in range(8)] and found == list(range(1, 9)) and bounds == [True, True]


def test_a_pool_of_threads_that_is_busy_is_left_alone(functions: Functions) -> None:
    template = functions.template(BUSY_POOL)
    assert template.report["threads"] == 2
    worker = functions.root.worker(functions.spec())
    worker.ready()
    assert worker.result({}) == [True, True]


LISTENER = """
import logging, logging.handlers, queue
class Kept(logging.Handler):
    def emit(self, record): kept.append(record.getMessage())
kept, records = [], queue.Queue()
listener = logging.handlers.QueueListener(records, Kept())
never_started = logging.handlers.QueueListener(queue.Queue())
listener.start()
log = logging.getLogger("app")
log.addHandler(logging.handlers.QueueHandler(records))
log.setLevel("INFO")
log.info("import")
def handler(event, context):
    log.info("worker %s", event)
    listener.stop()
    listener.start()
    return kept
"""


def test_a_listener_of_a_queue_of_log_records_is_ended_and_starts_again_in_each_worker(functions: Functions) -> None:
    template = functions.template(LISTENER)
    assert template.report["threads"] == 1 and template.report["findings"] == []
    for number in range(2):
        worker = template.worker()
        worker.ready()
        assert worker.result(number) == ["import", f"worker {number}"]
        assert worker.result("again") == ["import", f"worker {number}", "worker again"]


# The parts of loguru that matter: a sink with `enqueue=True`.
LOGURU = """
import multiprocessing, os
from threading import Thread
class Handler:
    def __init__(self, write):
        self._write, self._queue, self._done = write, multiprocessing.SimpleQueue(), multiprocessing.Event()
        self._owner_process_pid = os.getpid()
        self._thread = Thread(target=self._queued_writer, daemon=True, name="loguru-writer-1")
        self._thread.start()
    def _queued_writer(self):
        while (message := self._queue.get()) is not None:
            self._done.set() if message is True else self._write(message)
    def complete_queue(self):
        self._queue.put(True)
        self._done.wait()
        self._done.clear()
"""

USES_LOGURU = """
import os
from loguru._handler import Handler
written = []
sink = Handler(written.append)
sink._queue.put("import")
def handler(event, context):
    sink._queue.put(f"worker {event}")
    sink.complete_queue()
    return [written, sink._owner_process_pid == os.getpid(), sink._thread.name]
"""


def test_a_queued_sink_of_loguru_is_ended_and_starts_again_in_each_worker(functions: Functions) -> None:
    functions.write("", "loguru/__init__.py")
    functions.write(LOGURU, "loguru/_handler.py")
    template = functions.template(USES_LOGURU)
    assert template.report["threads"] == 1 and template.report["findings"] == []
    workers = [template.worker() for _ in range(3)]
    for worker in workers:
        worker.ready()
    answers = [worker.result(number) for number, worker in enumerate(workers)]
    assert answers == [[["import", f"worker {number}"], True, "loguru-writer-1"] for number in range(3)]


def test_a_loop_in_a_thread_runs_again_in_each_worker(functions: Functions) -> None:
    functions.write("", "fsspec/__init__.py")
    functions.write(ASYN, "fsspec/asyn.py")
    template = functions.template(USES_ASYN)
    assert template.report["threads"] == 1 and template.report["findings"] == []
    workers = [template.worker() for _ in range(3)]
    for worker in workers:
        worker.ready()
    assert [worker.result(n) for n, worker in enumerate(workers)] == [[8, 2 * n, True, 2] for n in range(3)]


def test_a_loop_of_a_template_above_runs_in_a_worker(functions: Functions) -> None:
    functions.write("", "fsspec/__init__.py")
    functions.write(ASYN, "fsspec/asyn.py")
    above = functions.template(handler=None, level="environment", imports=["fsspec.asyn"])
    assert above.report["threads"] == 1
    functions.write(USES_ASYN)
    template = above.template(functions.spec())
    assert template.report["threads"] == 1
    worker = template.worker()
    worker.ready()
    assert worker.result(3) == [8, 6, True, 2]


def test_what_a_batch_processor_has_collected_is_exported_by_each_worker(functions: Functions) -> None:
    for name in ("opentelemetry", "opentelemetry/sdk"):
        functions.write("", f"{name}/__init__.py")
    functions.write(BATCHES, "opentelemetry/sdk/_shared_internal.py")
    template = functions.template(USES_BATCHES)
    assert template.report["threads"] == 1
    for _ in range(2):
        worker = template.worker()
        worker.ready()
        assert worker.result({}) == [[], ["of the import", "of the worker"]]


DUCKDB = """
import threading
class Connection:
    def __init__(self, database=None):
        self.database = database or {"async_threads": 8, "threads": 2, "running": []}
        self.seeds = []
        self.apply()
    def cursor(self):
        return Connection(self.database)
    def close(self):
        pass
    def execute(self, text):
        word, _, rest = text.partition(" ")
        if word == "set":
            name, _, value = rest.partition(" = ")
            self.database[name] = int(value)
            self.apply()
        elif "setseed" in text:
            self.seeds.append(text)
        else:
            self.answer = [(self.database[text.split("'")[1]],)]
        return self
    def fetchall(self):
        return self.answer
    def apply(self):
        for ends, thread in self.database["running"]:
            ends.set()
            thread.join()
        self.database["running"] = []
        for _ in range(self.database["async_threads"] + self.database["threads"] - 1):
            ends = threading.Event()
            thread = threading.Thread(target=ends.wait, daemon=True)
            thread.start()
            self.database["running"].append((ends, thread))
connect = Connection
def default_connection():
    raise AssertionError("nobody uses it")
"""
USES_DUCKDB = """
import duckdb
database = duckdb.connect()
def handler(event, context):
    running = sum(thread.is_alive() for _, thread in database.database["running"])
    return [running, database.seeds, hasattr(duckdb.connect, "__wrapped__")]
"""


def test_databases_have_their_threads_and_a_seed_of_their_own_in_each_worker(functions: Functions) -> None:
    functions.write(DUCKDB, "duckdb.py")
    above = functions.template(handler=None, level="environment", imports=["duckdb"])
    functions.write(USES_DUCKDB)
    template = above.template(functions.spec())
    assert template.report["threads"] == 1
    workers = [template.worker() for _ in range(2)]
    for worker in workers:
        worker.ready()
    (running, seeds, is_watched), (_, other_seeds, _) = [worker.result({}) for worker in workers]
    assert (running, len(seeds), is_watched) == (9, 1, False)
    assert seeds != other_seeds


def test_threads_that_watch_servers_are_ended(functions: Functions) -> None:
    functions.write("", "pymongo/__init__.py")
    functions.write(EXECUTORS, "pymongo/periodic_executor.py")
    source = "from pymongo.periodic_executor import PeriodicExecutor\nwatches = [PeriodicExecutor(), PeriodicExecutor()]\n"
    template = functions.template(source + "def handler(e, c): return [one._stopped for one in watches]\n")
    assert template.report["threads"] == 1
    worker = template.worker()
    worker.ready()
    assert worker.result({}) == [True, True]


def test_a_pool_with_a_setting_has_its_size_again_in_a_worker(functions: Functions) -> None:
    pool = """
import threading
threads, ends = [], threading.Event()
def set_num_threads(count):
    before = len(threads) or 1
    ends.set()
    [thread.join() for thread in threads]
    ends.clear()
    threads[:] = [threading.Thread(target=ends.wait, daemon=True) for _ in range(count if count > 1 else 0)]
    [thread.start() for thread in threads]
    return before
set_num_threads(3)
"""
    functions.write(pool, "numexpr.py")
    template = functions.template("import numexpr\ndef handler(e, c): return sum(one.is_alive() for one in numexpr.threads)\n")
    assert template.report["threads"] == 1
    worker = template.worker()
    worker.ready()
    assert worker.result({}) == 3


@pytest.mark.parametrize("module", ["_EXECUTORS = [1]", "_EXECUTORS = 5", ""])
def test_a_version_that_the_row_does_not_fit_is_left_alone(functions: Functions, module: str) -> None:
    functions.write("", "pymongo/__init__.py")
    functions.write(module, "pymongo/periodic_executor.py")
    source = (
        "import threading, pymongo.periodic_executor\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    )
    template = functions.template(source + "def handler(e, c): return 1\n")
    assert template.report["threads"] == 2
    assert [row["where"] for row in template.report["findings"]] == ["app.py:2"]


def test_threads_that_may_be_left_behind_are_not_counted(functions: Functions) -> None:
    source = """
import ctypes, threading
started = threading.Event()
def wait():
    ctypes.CDLL(None).prctl(15, b"jemalloc_bg_thd", 0, 0, 0)  # PR_SET_NAME
    started.set()
    threading.Event().wait()
threading.Thread(target=wait, daemon=True).start()
started.wait()
def handler(event, context):
    import os
    return len(os.listdir("/proc/self/task"))
"""
    template = functions.template(source)
    assert template.report["threads"] == 1 and template.report["findings"] == []
    worker = template.worker()
    worker.ready()
    assert worker.result({}) == 1


def test_libraries_are_asked_for_one_thread_at_import_and_have_their_own_choice_later(functions: Functions) -> None:
    source = """
import ctypes, os
library = ctypes.CDLL(None)
library.getenv.restype = ctypes.c_char_p
def seen():
    return [[(library.getenv(name.encode()) or b"").decode(), os.environ.get(name)] for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")]
at_import = seen()
def handler(event, context):
    return [at_import, seen()]
"""
    environment = {**functions.spec()["environment"], "MKL_NUM_THREADS": "3"}
    worker = functions.worker(source, environment=environment)
    of_user = ["3", "3"]
    assert worker.result({}) == [[["1", None], of_user], [["", None], of_user]]


@pytest.mark.skipif("PILOT_TEST_SITE_PACKAGES" not in os.environ, reason="needs a site-packages folder with numpy")
def test_openblas_has_as_many_threads_as_the_user_asks_for(functions: Functions) -> None:
    source = """
import os, numpy
matrix = numpy.ones((500, 500))
at_import = float((matrix @ matrix).sum())
def handler(event, context):
    before = len(os.listdir("/proc/self/task"))
    return [at_import, float((matrix @ matrix).sum()), before, len(os.listdir("/proc/self/task"))]
"""
    environment = {**functions.spec()["environment"], "OPENBLAS_NUM_THREADS": "2"}
    sys_path = [str(functions.directory), os.environ["PILOT_TEST_SITE_PACKAGES"]]
    template = functions.template(source, environment=environment, sys_path=sys_path)
    assert template.report["threads"] == 1
    worker = template.worker()
    worker.ready()
    threads = min(2, len(os.sched_getaffinity(0)))  # OpenBLAS has at most one for each CPU
    assert worker.result({}) == [1.25e8, 1.25e8, 1, threads]


def test_variables_that_a_module_of_a_template_above_has_set_are_in_the_worker(functions: Functions) -> None:
    functions.write("import os\nos.environ['OF_LIBRARY'] = 'a'\nos.environ['TZ'] = 'Europe/Berlin'\n", "library.py")
    above = functions.template(handler=None, level="environment", imports=["library"], environment={"HOME": "/tmp"})
    functions.write("import library, os\ndef handler(event, context): return dict(os.environ)\n")
    variables = {"AWS_LAMBDA_FUNCTION_NAME": "test", "TZ": "UTC"}
    for worker in (
        above.template(functions.spec(environment=variables)).worker(),
        above.worker(functions.spec(environment=variables)),
    ):
        worker.ready()
        assert worker.result({}) == {**variables, "OF_LIBRARY": "a"}


# As pony: a pool has one connection in each thread, and opens another one in another process.
SQLITE = """
import os, sqlite3, threading
class SQLitePool(threading.local):
    is_shared_memory_db = False
    def __init__(self, filename):
        self.filename, self.con, self.pid = filename, None, None
    def connect(self):
        if self.con is None or self.pid != os.getpid():
            self.con, self.pid = sqlite3.connect(self.filename), os.getpid()
        return self.con
"""
USES_SQLITE = """
from pony.orm.dbproviders.sqlite import SQLitePool
memory, file = SQLitePool(":memory:"), SQLitePool("file.db")
for pool in (memory, file):
    pool.connect().execute("create table t(x)")
    pool.connect().execute("insert into t values (1)")
    pool.connect().commit()
inherited = [memory.con, file.con]
def handler(event, context):
    memory.connect().execute("insert into t values (2)")
    counts = [pool.connect().execute("select count(*) from t").fetchone()[0] for pool in (memory, file)]
    return [counts, memory.con is inherited[0], file.con is inherited[1]]
"""


def test_a_database_in_memory_that_belongs_to_a_process_is_each_workers(functions: Functions) -> None:
    functions.write(SQLITE, "pony/orm/dbproviders/sqlite.py")
    template = functions.template(USES_SQLITE)
    for _ in range(2):
        worker = template.worker(log=functions.log.write_fd)
        worker.ready()
        assert worker.result(None) == [[2, 1], True, False]
        assert worker.result(None) == [[3, 1], True, False]


# As filelock 4: a child releases what its parent holds, and refuses what its parent has made.
CORE_FORK = """
import os, weakref
_FORK_OBJECTS = weakref.WeakValueDictionary()
class Lock:
    def __init__(self):
        self.lock_counter, self._creator_pid = 0, os.getpid()
        _FORK_OBJECTS[id(self)] = self
    def acquire(self, blocking=True):
        if self._creator_pid != os.getpid():
            raise RuntimeError("was inherited across fork; construct a new instance")
        self.lock_counter += 1
class AsyncLock(Lock):
    async def __aenter__(self):
        pass
class Other:
    pass
kept = Other()
_FORK_OBJECTS[1] = kept
def after():
    for lock in _FORK_OBJECTS.values():
        lock.lock_counter, lock._creator_pid = 0, -1
os.register_at_fork(after_in_child=after)
"""

USES_LOCKS = """
from filelock._core import _fork
idle, held, other = _fork.Lock(), _fork.Lock(), _fork.AsyncLock()
held.acquire()
held.acquire()
def handler(event, context):
    idle.acquire()
    other.acquire()
    return [idle.lock_counter, held.lock_counter, other.lock_counter]
"""


def _write_filelock(functions: Functions) -> None:
    functions.write("", "filelock/__init__.py")
    functions.write("", "filelock/_core/__init__.py")
    functions.write(CORE_FORK, "filelock/_core/_fork.py")


def test_a_lock_on_a_file_works_in_a_worker_and_is_held_as_at_import(functions: Functions) -> None:
    _write_filelock(functions)
    template = functions.template(USES_LOCKS)
    for _ in range(2):
        worker = template.worker(log=functions.log.write_fd)
        worker.ready()
        assert worker.result(None) == [1, 2, 1]


def test_a_lock_on_a_file_of_a_template_above_works_at_import_and_in_a_worker(functions: Functions) -> None:
    _write_filelock(functions)
    functions.write("from filelock._core import _fork\nlock = _fork.Lock()\n", "shared.py")
    above = functions.template(handler=None, level="environment", imports=["shared"])
    functions.write(
        "import shared\nshared.lock.acquire()\n"
        "def handler(e, c):\n    shared.lock.acquire()\n    return shared.lock.lock_counter\n"
    )
    worker = above.template(functions.spec()).worker()
    worker.ready()
    assert worker.result(None) == 2


def test_a_lock_of_readers_and_writers_makes_the_template_not_fork(functions: Functions) -> None:
    """filelock's own has a connection to SQLite, and refuses to work in a child."""
    _write_filelock(functions)
    template = functions.template(
        "from filelock._core import _fork\nclass ReadWriteLock(_fork.Lock):\n    def acquire_read(self): pass\n"
        "kept = ReadWriteLock()\ndef handler(e, c): pass\n"
    )
    assert template.report["must_not_fork"].startswith("created a ReadWriteLock of filelock at import")


BACKGROUND_LOOP = """
import asyncio, os, threading, warnings
class BackgroundEventLoop:
    def __init__(self):
        self._start()
    def _start(self):
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, name="LanceDBBackgroundEventLoop", daemon=True)
        self.thread.start()
    def run(self, work):
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(5)
LOOP = BackgroundEventLoop()
_FORK_WARNED = False
def _reset_after_fork():
    LOOP._start()
    if not _FORK_WARNED:
        raise AssertionError("warns")
os.register_at_fork(after_in_child=_reset_after_fork)
"""

USES_BACKGROUND_LOOP = """
import asyncio, threading
from lancedb.background_loop import LOOP
async def double(n):
    await asyncio.sleep(0.001)
    return 2 * n
at_import = LOOP.run(double(4))
def handler(event, context):
    return [at_import, LOOP.run(double(event)), threading.active_count(), "_start" in vars(LOOP)]
"""


@pytest.mark.parametrize("is_above", [False, True])
def test_the_loop_of_lancedb_starts_after_a_worker_is_in_its_sandbox(functions: Functions, is_above: bool) -> None:
    functions.write("", "lancedb/__init__.py")
    functions.write(BACKGROUND_LOOP, "lancedb/background_loop.py")
    if is_above:
        above = functions.template(handler=None, level="environment", imports=["lancedb.background_loop"])
        assert above.report["threads"] == 1
        functions.write(USES_BACKGROUND_LOOP)
        template = above.template(functions.spec())
    else:
        template = functions.template(USES_BACKGROUND_LOOP)
    assert template.report["threads"] == 1 and template.report["findings"] == []
    for n in range(2):
        worker = template.worker(log=functions.log.write_fd)
        worker.ready()
        assert worker.result(n) == [8, 2 * n, 2, False]
