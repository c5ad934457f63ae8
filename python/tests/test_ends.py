"""How a worker ends: what user code still has to do then is done as at the end of an ordinary interpreter."""

from __future__ import annotations

import time

import pytest
from conftest import Functions
from harness import PATIENCE_S, Log, Stream, Template

POOL = """
import atexit, sys
from concurrent.futures import ProcessPoolExecutor
atexit.register(print, "registered first")
pool = ProcessPoolExecutor(1)
def handler(event, context):
    pool.submit(abs, -1).result()
    if event == "exit":
        sys.exit(7)
"""

# anyio, which runs `def` endpoints of Starlette and FastAPI, has such threads.
THREAD_OF_THE_LOOP = """
import asyncio, queue, sys, threading
calls = queue.Queue()
def work():
    while calls.get() is not None:
        pass
    print("thread ended")
def start():
    (main,) = [task for task in asyncio.all_tasks() if task._callbacks]
    main.add_done_callback(lambda task: calls.put(None))
    threading.Thread(target=work).start()
"""

# No loop is inherited with it.
OWN_LOOP = """
class Policy(asyncio.DefaultEventLoopPolicy): pass
asyncio.set_event_loop_policy(Policy())
"""


def begun(functions: Functions, source: str, **changes: object) -> tuple[Template, Stream]:
    template = functions.template(source, **changes)
    worker = template.worker(log=functions.log.write_fd)
    worker.ready()
    return template, worker


def test_a_handler_can_end_a_worker_that_has_a_pool_of_processes(functions: Functions) -> None:
    template, worker = begun(functions, POOL)
    worker.ask("exit")
    assert Functions.exit_of(template, 1) == {"code": 7}
    assert functions.log.read_now() == "registered first\n"


def test_a_worker_that_has_a_pool_of_processes_ends_when_it_is_retired(functions: Functions) -> None:
    template, worker = begun(functions, POOL)
    worker.result({})
    worker.close()
    assert Functions.exit_of(template, 1) == {"code": 0}
    assert functions.log.read_now() == "registered first\n"


@pytest.mark.parametrize("end", ["retired", "exit"])
@pytest.mark.parametrize("concurrency", [1, 2])
def test_threads_and_their_queues_are_waited_for_before_atexit_functions_run(
    functions: Functions, end: str, concurrency: int
) -> None:
    template, worker = begun(
        functions,
        """
import atexit, sys, threading, time
from concurrent.futures import ThreadPoolExecutor
pool = ThreadPoolExecutor(1)
closed = threading.Event()
def work(text):
    closed.wait(0.05)
    print(text)
def handler(event, context):
    for number in range(3):
        pool.submit(work, number)
    threading.Thread(target=work, args=("thread",)).start()
    atexit.register(print, "last")
    if event == "exit":
        sys.exit(3)
""",
        concurrency=concurrency,
    )
    if end == "exit":
        worker.ask("exit")
    else:
        worker.result({})
        worker.close()
    assert Functions.exit_of(template, 1) == {"code": 3 if end == "exit" else 0}
    *before, last = functions.log.read_now().split()
    assert (sorted(before), last) == (["0", "1", "2", "thread"], "last")


def test_what_a_pool_raises_at_the_end_is_logged_and_atexit_functions_run(functions: Functions) -> None:
    template, worker = begun(
        functions,
        """
import atexit, threading
atexit.register(print, "last")
threading._register_atexit(lambda: 1 / 0)
def handler(event, context): pass
""",
    )
    worker.close()
    assert Functions.exit_of(template, 1) == {"code": 0}
    log = functions.log.read_now()
    assert log.startswith("[ERROR] ZeroDivisionError") and log.endswith("last\n")


def test_daemon_threads_are_not_waited_for(functions: Functions) -> None:
    template, worker = begun(
        functions,
        """
import threading
def handler(event, context):
    threading.Thread(target=threading.Event().wait, daemon=True).start()
""",
    )
    worker.result({})
    began = time.monotonic()
    worker.close()
    assert Functions.exit_of(template, 1) == {"code": 0}
    assert time.monotonic() - began < PATIENCE_S / 2


@pytest.mark.parametrize("interface", ["event", "asgi"])
@pytest.mark.parametrize("own_loop", [False, True])
def test_a_coroutine_can_end_a_worker_whose_threads_wait_for_the_end_of_its_loop(
    functions: Functions, interface: str, own_loop: bool
) -> None:
    parameters = {"event": "event, context", "asgi": "scope, receive, send"}[interface]
    template, worker = begun(
        functions,
        f"""
import warnings
warnings.simplefilter("ignore")
{THREAD_OF_THE_LOOP}{OWN_LOOP if own_loop else ""}
async def handler({parameters}):
    if {interface == "asgi"}:
        assert scope["type"] == "http"
    start()
    await asyncio.sleep(0)
    sys.exit(5)
""",
        interface=interface,
    )
    if interface == "event":
        worker.ask({})
    else:
        worker.ask_http()
    assert Functions.exit_of(template, 1) == {"code": 5}
    assert functions.log.read_now() == "thread ended\n"


# Does `work` behind its response, and `shut_down` at its end.
APPLICATION = """
import asyncio, warnings
warnings.simplefilter("ignore")
async def handler(scope, receive, send):
    if scope["type"] == "lifespan":
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        shut_down()
        await send({"type": "lifespan.shutdown.complete"})
        return
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b""})
    await asyncio.sleep(float(scope["query_string"]))
    work()
"""
BACKGROUND = f"""{APPLICATION}
def work():
    print("done in the background")
def shut_down():
    print("shut down")
"""


@pytest.mark.parametrize("own_loop", [False, True])
def test_what_an_application_does_after_its_response_is_waited_for(functions: Functions, own_loop: bool) -> None:
    template, worker = begun(functions, BACKGROUND + (OWN_LOOP if own_loop else ""), interface="asgi")
    assert worker.http(query="0.05")[0] == 200
    worker.close()
    assert Functions.exit_of(template, 1) == {"code": 0}
    assert functions.log.read_now() == "done in the background\nshut down\n"


@pytest.mark.parametrize("own_loop", [False, True])
def test_what_takes_too_long_after_a_response_is_cut_off_and_the_log_says_so(functions: Functions, own_loop: bool) -> None:
    template, worker = begun(functions, BACKGROUND + (OWN_LOOP if own_loop else ""), interface="asgi")
    assert worker.http(query="1000")[0] == 200
    began = time.monotonic()
    worker.close()
    assert Functions.exit_of(template, 1) == {"code": 0}
    assert time.monotonic() - began < 2, "the daemon would have killed it"
    first, *others = functions.log.read_now().splitlines()
    assert first == "[WARNING] a background task was cut off: the worker ended, and waited 1.4 s"
    assert others[0] == "[ERROR] CancelledError" and others[-1] == "shut down"


UNREAD = {
    "plain": (
        "event",
        1,
        """
def handler(event, context):
    threading.Thread(target=work).start()
""",
    ),
    "threads": (
        "event",
        2,
        """
def handler(event, context):
    threading.Thread(target=work).start()
""",
    ),
    "asgi": (
        "asgi",
        1,
        f"""{APPLICATION}
def shut_down():
    print("shut down")
    os.write(told, b"shut down ")
""",
    ),
}


@pytest.mark.parametrize("kind", UNREAD)
def test_what_still_runs_can_print_although_nobody_reads_it(functions: Functions, kind: str) -> None:
    interface, concurrency, handler = UNREAD[kind]
    source = f"""
import atexit, os, threading, time
told = os.open({str(functions.directory / "told")!r}, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
def work():
    time.sleep(0.1)
    print("done")
    os.write(told, b"done ")
def last():
    print("last")
    os.write(told, b"last")
atexit.register(last)
{handler}"""
    template = functions.template(source, interface=interface, concurrency=concurrency)
    log = Log()
    worker = template.worker(log=log.write_fd)
    worker.ready()
    if interface == "event":
        worker.result({})
    else:
        worker.http(query="0.1")
    worker.close()  # the daemon closes both
    log.close()
    assert Functions.exit_of(template, 1) == {"code": 0}
    assert (functions.directory / "told").read_text().split() == (
        ["done", "shut", "down", "last"] if interface == "asgi" else ["done", "last"]
    )


PRINTS_IN_C = """
import ctypes, os
C = ctypes.CDLL(None)
C.printf(b"import ")
def handler(event, context):
    C.printf(event.encode())
    if event == "exit":
        raise SystemExit(3)
"""


def test_what_c_code_prints_is_in_the_log_with_each_line_and_at_the_end(functions: Functions) -> None:
    template, worker = begun(functions, PRINTS_IN_C)
    assert functions.log.read_now() == "import ", "once, and not by each worker"
    worker.result("a line\n")
    assert functions.log.read_now() == "a line\n"
    worker.result("retired")
    worker.close()
    assert Functions.exit_of(template, 1) == {"code": 0}
    assert functions.log.read_now() == "retired"
    again = template.worker(log=functions.log.write_fd)
    again.ready()
    again.ask("exit")
    assert Functions.exit_of(template, 2) == {"code": 3}
    assert functions.log.read_now() == "exit"
