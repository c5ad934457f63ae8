"""Makes templates forkable whose packages start threads at import.

A process with several threads must not be forked, because the others do not exist in the child, and what they had locked
stays locked. For some packages it is known how their threads can be ended in the template and started again in a worker. This
file is the table of them. A package without a row, or of a version that a row does not fit, is left alone: its template then
has threads and is not forked, and the deployment reports it.

- `VARIABLES` are set while a template imports.
- `STOPS` has a function for each module, which ends its threads. It is only called if there are any.
- `LEFT_BEHIND` are threads that nobody has to end.
- `OWNED` has a function for each module whose objects remember the process that made them, and are lost in another one.

What a worker has to do itself is done after its descriptors were made (`descriptors.in_child`). A worker of a template without
such a package runs nothing of this file.
"""

from __future__ import annotations

import ctypes
import gc
import os
import posix
import sys
import threading
import time

from ..importing import namesakes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Iterator, List, Optional

# Only C libraries see them: `os.environ` stays as the function's configuration says. What the user has set stays, too.
VARIABLES = {
    # Pools of numerical libraries would start when they are loaded. With one thread they have none, and a worker that may use
    # one CPU needs none. A library that a worker itself loads may have a pool, so these variables are removed after the
    # template's imports.
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "BLIS_NUM_THREADS": "1",
    "VECLIB_MAXIMUM_THREADS": "1",
    # onnxruntime: a session computes in the thread that calls it. The pool of a session cannot be ended or started again
    # (microsoft/onnxruntime#31961), so a session of the import keeps one thread. Those that a worker opens have all.
    "ORT_INTRA_OP_NUM_THREADS": "1",
    "ORT_INTER_OP_NUM_THREADS": "1",
    # The thread that sends telemetry starts when onnxruntime is imported.
    "ORT_DISABLE_TELEMETRY": "1",
}

# The names of threads (/proc/PID/task/TID/comm), which the kernel cuts off after 15 characters.
LEFT_BEHIND = frozenset(
    (
        # Returns unused memory to the system (pyarrow, polars). jemalloc has its own pthread_atfork functions, which wait for
        # this thread before a fork and turn it off in the child (jemalloc, src/background_thread.c). The child then returns
        # memory itself.
        "jemalloc_bg_thd",
        # Deletes files that polars has spilled to disk, which it does only if POLARS_OOC_MEMORY_BUDGET_MB is set. It waits in a
        # channel without a lock (polars, crates/polars-ooc/src/cleaner.rs).
        "polars-ooc-clea",
    )
)

JOIN_S_MAX = 2.0
EXIT_S_MAX = 0.5


class _State:
    def __init__(self) -> None:
        self.in_child: List[Callable[[], None]] = []
        self.duckdb: List[Any] = []
        self.is_importing = False


_state = _State()


def loaded(name: str) -> None:
    """To be called after each import."""
    if name == "duckdb":
        _watch_duckdb()


def count_threads() -> int:
    """The threads of this process, without those that may be left behind."""
    try:
        numbers = os.listdir("/proc/self/task")
    except OSError:  # no /proc in this mount namespace: count at least Python's own threads
        return threading.active_count()
    if len(numbers) == 1:
        return 1
    own = str(os.getpid())
    return sum(number == own or _name(number) not in LEFT_BEHIND for number in numbers)


def begin() -> None:
    """Before the imports of a template."""
    _state.is_importing = True


def stop_threads(has_templates_below: bool) -> int:
    """After the imports of a template. Returns how many threads there are then."""
    for name, own in OWNED.items():
        if name in sys.modules:
            _carry_out(own, sys.modules[name])
    count = count_threads()
    if count > 1:
        gc.unfreeze()  # what a template above has made is looked at, too
        for name, stop in STOPS.items():
            if name in sys.modules:
                _carry_out(stop, sys.modules[name])
        count = _count_when_settled()
    _state.is_importing = False
    _state.duckdb.clear()
    if not has_templates_below:
        _unwatch_duckdb()
    return count


def _count_when_settled() -> int:
    """The threads that are left. The kernel removes a thread a little after `join` has returned."""
    until = time.monotonic() + EXIT_S_MAX
    while (count := count_threads()) > 1 and time.monotonic() < until:
        time.sleep(0.001)
    return count


def _carry_out(stop: Callable[[Any], Optional[Callable[[], None]]], module: Any) -> None:
    try:
        again = stop(module)
    except Exception:  # another version of the package: its threads are counted and reported
        return
    if again is not None:
        _state.in_child.append(again)


def unusable() -> List[str]:
    """What the import made and no forked worker could use."""
    module: Any = sys.modules.get("filelock._core._fork")
    if module is None:
        return []
    names = {type(one).__name__ for one in module._FORK_OBJECTS.values() if hasattr(one, "acquire_read")}
    return [f"created a {name} of filelock at import" for name in sorted(names)]


def has_work() -> bool:
    """Whether a child has to start something."""
    return bool(_state.in_child)


def in_child() -> None:
    """In a worker, or in a template below, which stops again what this has started."""
    while _state.in_child:
        _state.in_child.pop(0)()


def _name(number: str) -> str:
    try:
        with open(f"/proc/self/task/{number}/comm", encoding="utf-8", errors="replace") as file:
            return file.read().rstrip("\n")
    except OSError:
        return ""  # it has ended


def _instances(kind: Any) -> Iterator[Any]:
    for one in gc.get_objects():
        if issubclass(type(one), kind):  # isinstance() would ask `__class__`, which runs code of lazy objects
            yield one


def _stop_executors(module: Any) -> None:
    """`concurrent.futures.ThreadPoolExecutor`, if it has nothing to do. The next `submit` starts threads again."""
    for pool in _instances(module.ThreadPoolExecutor):
        if pool._shutdown or not pool._work_queue.empty():
            continue
        pool._shutdown = True  # for threads that receive None: end
        for _ in pool._threads:
            pool._work_queue.put(None)
        for thread in pool._threads:
            thread.join(JOIN_S_MAX)
        while not pool._work_queue.empty():
            pool._work_queue.get_nowait()
        pool._shutdown = False
        if not any(thread.is_alive() for thread in pool._threads):
            pool._threads.clear()
            pool._idle_semaphore = threading.Semaphore(0)


def _stop_listeners(module: Any) -> Optional[Callable[[], None]]:
    """`logging.handlers.QueueListener`: a thread that hands records of a queue to handlers. Those of the import come first."""
    stopped = []
    for listener in _instances(module.QueueListener):
        thread = listener._thread
        if thread is None:
            continue
        listener.enqueue_sentinel()  # `stop` would wait without limit
        thread.join(JOIN_S_MAX)
        if not thread.is_alive():
            listener._thread = None
            stopped.append(listener)

    def again() -> None:
        for listener in stopped:
            listener.start()

    return again if stopped else None


def _stop_loguru(module: Any) -> Optional[Callable[[], None]]:
    """loguru's sinks with `enqueue=True`: a thread writes the messages of a queue. Those of the import are written first."""
    stopped = []
    for handler in _instances(module.Handler):
        thread = handler._thread
        if thread is None or not thread.is_alive():
            continue
        handler._queue.put(None)
        thread.join(JOIN_S_MAX)
        if not thread.is_alive():
            stopped.append(handler)

    def again() -> None:
        for handler in stopped:
            handler._owner_process_pid = os.getpid()
            name = handler._thread.name
            handler._thread = threading.Thread(target=handler._queued_writer, daemon=True, name=name)
            handler._thread.start()

    return again if stopped else None


def _stop_opencv(module: Any) -> None:
    """The pool ends when one thread is asked for. With the old number it starts at the next parallel function."""
    count = module.getNumThreads()
    module.setNumThreads(1)
    module.setNumThreads(count)


def _watch_duckdb() -> None:
    """Connections cannot be found later, so they are noted. Where a program has copied the replacement with
    `from duckdb import connect`, it stays and calls the original."""
    module: Any = sys.modules.get("duckdb")
    original = getattr(module, "connect", None)
    if original is None or hasattr(original, "__wrapped__"):
        return

    def connect(*args: Any, **kwargs: Any) -> Any:
        made = original(*args, **kwargs)
        if _state.is_importing:
            _state.duckdb.append(made)
        return made

    connect.__doc__, connect.__wrapped__ = original.__doc__, original  # type: ignore[attr-defined]  # for inspect.signature
    module.connect = connect


def _unwatch_duckdb() -> None:
    module: Any = sys.modules.get("duckdb")
    original = getattr(getattr(module, "connect", None), "__wrapped__", None)
    if original is not None:
        module.connect = original


def _stop_duckdb(module: Any) -> Optional[Callable[[], None]]:
    """Each database has a pool. It is ended with a setting, and a worker sets the old numbers. Each connection has a generator
    of random numbers, which a worker seeds again. A result of `execute` that the import has not fetched is lost by that."""
    before = []
    connections = []

    def stop(connection: Any) -> None:
        for name, least in (("async_threads", 0), ("threads", 1)):
            try:
                cursor = connection.cursor()  # a connection of its own to the same database
                ((count,),) = cursor.execute(f"select current_setting('{name}')").fetchall()
                cursor.execute(f"set {name} = {least}")
            except Exception:  # closed by the program, or a version without this setting
                continue
            before.append((cursor, name, count))
            if connection not in connections:
                connections.append(connection)

    for connection in _state.duckdb:
        stop(connection)
    if _count_when_settled() > 1:
        stop(module.default_connection())  # of `duckdb.sql`; it is made here if there was none

    def again() -> None:
        for cursor, name, count in before:
            cursor.execute(f"set {name} = {count}")
            cursor.close()
        for connection in connections:
            connection.execute(f"select setseed({int.from_bytes(os.urandom(6), 'big') / 2**47 - 1})")

    return again if before else None


def _stop_batches(module: Any) -> Optional[Callable[[], None]]:
    """OpenTelemetry's batch processors of spans and log records. They start their thread again in a child, with an empty queue.
    What was recorded at import would be lost, so it is kept for the worker."""
    kept = []
    for processor in _instances(module.BatchProcessor):
        queue = processor._queue
        processor._queue = type(queue)((), queue.maxlen)  # or the thread would export it at its end
        processor._shutdown = True
        processor._worker_awaken.set()
        processor._worker_thread.join(JOIN_S_MAX)
        processor._shutdown = False
        processor._queue = queue
        kept.append((processor, list(queue)))

    def again() -> None:  # after the function that OpenTelemetry itself has registered
        for processor, records in kept:
            processor._queue.extend(records)

    return again if kept else None


def _stop_metric_readers(module: Any) -> None:
    """OpenTelemetry's readers that export periodically. They start their thread again in a child."""
    for reader in _instances(module.PeriodicExportingMetricReader):
        if reader._daemon_thread is None:
            continue
        reader.collect = lambda *args, **kwargs: None  # the thread collects once more at its end
        reader._shutdown_event.set()
        reader._daemon_thread.join(JOIN_S_MAX)
        reader._shutdown_event.clear()
        del reader.collect


def _stop_file_systems(module: Any) -> Optional[Callable[[], None]]:
    """fsspec (s3fs, gcsfs) runs one event loop in a thread. File systems refuse to work after a fork, because that thread is
    missing. A worker runs the same loop in a new thread. `descriptors.py` has made what the loop has open."""
    loop, thread = module.loop[0], module.iothread[0]
    if loop is None or thread is None:
        return None
    loop.call_soon_threadsafe(loop.stop)
    thread.join(JOIN_S_MAX)
    systems = list(_instances(module.AsyncFileSystem))

    def again() -> None:  # after the function that fsspec itself has registered, which forgets the loop
        module.loop[0] = loop
        module.iothread[0] = threading.Thread(target=loop.run_forever, name=thread.name, daemon=True)
        module.iothread[0].start()
        for system in systems:
            system._pid = os.getpid()

    return again


def _stop_lancedb(module: Any) -> Optional[Callable[[], None]]:
    """Its event loop runs in a thread from the import on. Its own function starts it again in each child: too early, since a
    process with threads cannot enter the sandbox. It would also warn of forks in every worker. A connection has threads in
    machine code, which stay."""
    background = module.LOOP
    if not hasattr(module, "_FORK_WARNED"):
        return None  # a version that does nothing after a fork
    background.loop.call_soon_threadsafe(background.loop.stop)
    background.thread.join(JOIN_S_MAX)
    if background.thread.is_alive():
        return None
    background.loop.close()
    background._start = lambda: None
    module._FORK_WARNED = True

    def again() -> None:
        del background._start
        background._start()

    return again


def _stop_mongo(module: Any) -> None:
    """pymongo's clients watch their servers from threads. The first operation in a child starts them again (Topology.open). Its
    warning about that would be in the log of every worker."""
    executors = [executor for executor in (reference() for reference in list(module._EXECUTORS)) if executor is not None]
    for executor in executors:
        executor.close()
    for executor in executors:
        executor.join(JOIN_S_MAX)
    namesakes.standard("warnings").filterwarnings("ignore", "MongoClient opened before fork")


def _stop_numexpr(module: Any) -> Callable[[], None]:
    """Its pool starts when it is imported."""
    count = module.set_num_threads(1)

    def again() -> None:
        module.set_num_threads(count)

    return again


def _stop_openblas(module: Any) -> None:
    """OpenBLAS ends its pool before every fork, in a function of pthread_atfork(3), and starts it again at the next operation.
    So one fork is enough. There is a pool only if the function's configuration sets OPENBLAS_NUM_THREADS."""
    child = ctypes.PyDLL(None).fork()  # not os.fork, whose functions of Python are not needed
    if child == 0:
        os._exit(0)
    posix.waitpid(child, 0)


def _own_file_locks(module: Any) -> Optional[Callable[[], None]]:
    """filelock 4 releases in a child what its parent holds, and a lock refuses to work there, also one that nobody held. A
    worker holds the same locks, on its own copies of the files."""
    locks = [one for one in module._FORK_OBJECTS.values() if hasattr(one, "lock_counter")]
    held = [(one, one.lock_counter) for one in locks if one.lock_counter and not hasattr(one, "__aenter__")]

    def again() -> None:  # after the function that filelock itself has registered
        for lock in locks:
            lock._creator_pid = os.getpid()
        for lock, count in held:
            try:
                for _ in range(count):
                    lock.acquire(blocking=False)
            except Exception:  # the file is not in a folder of the worker's own, so the template has the lock
                continue

    return again if locks else None


def _own_pony(module: Any) -> Optional[Callable[[], None]]:
    """pony opens another connection in another process. For a database in memory, that would be an empty database."""
    pools = [
        pool
        for pool in _instances(module.SQLitePool)
        if pool.con is not None and (pool.filename == ":memory:" or pool.is_shared_memory_db)
    ]

    def again() -> None:
        for pool in pools:
            pool.pid = os.getpid()

    return again if pools else None


OWNED: Dict[str, Callable[[Any], Optional[Callable[[], None]]]] = {
    "filelock._core._fork": _own_file_locks,
    "pony.orm.dbproviders.sqlite": _own_pony,
}

STOPS: Dict[str, Callable[[Any], Optional[Callable[[], None]]]] = {
    "concurrent.futures.thread": _stop_executors,
    "cv2": _stop_opencv,
    "duckdb": _stop_duckdb,
    "fsspec.asyn": _stop_file_systems,
    "lancedb.background_loop": _stop_lancedb,
    "logging.handlers": _stop_listeners,
    "loguru._handler": _stop_loguru,
    "numexpr": _stop_numexpr,
    "numpy": _stop_openblas,
    "opentelemetry.sdk._shared_internal": _stop_batches,
    "opentelemetry.sdk.metrics._internal.export": _stop_metric_readers,
    "pymongo.periodic_executor": _stop_mongo,
}
