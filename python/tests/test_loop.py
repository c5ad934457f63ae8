"""The loop of ASGI applications and `async def` handlers: tasks, contexts, and other work during and between requests."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from conftest import Functions, Start
from harness import PATIENCE_S, Stream, http_meta

from pilot_worker.protocol import wire

# Every application here ends with `answer`; `path` selects what it does before that.
ANSWER = """
import asyncio, os, threading, json
async def answer(send, value):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": json.dumps(value).encode()})
"""


def told(functions: Functions, text: str) -> None:
    """Waits until the function has printed `text`."""
    import select

    seen = ""
    end = time.monotonic() + PATIENCE_S
    while text not in seen:
        assert select.select([functions.log.read_fd], [], [], max(0.0, end - time.monotonic()))[0], f"{text!r} not in {seen!r}"
        seen += functions.log.read_now()


def asked(worker: Stream, **meta: object) -> object:
    return json.loads(worker.http(**meta)[2])


@pytest.mark.parametrize(
    "left",
    [
        pytest.param("asyncio.ensure_future(later())", id="a task"),
        pytest.param("asyncio.get_running_loop().run_in_executor(None, hold.wait).add_done_callback(tell)", id="a thread"),
        pytest.param("asyncio.get_running_loop().call_later(0.03, tell, None)", id="a timer"),
        pytest.param("asyncio.get_running_loop().add_reader(ends[0], tell, None); os.write(ends[1], b'x')", id="a descriptor"),
    ],
)
def test_what_a_request_leaves_on_the_loop_goes_on_without_another_request(
    functions: Functions, start: Start, left: str
) -> None:
    worker = start(
        ANSWER
        + f"""
hold, ends = threading.Event(), os.pipe()
def tell(_):
    asyncio.get_running_loop().remove_reader(ends[0])
    print("went on")
async def later():
    for _ in range(5):
        await asyncio.sleep(0)
    await asyncio.sleep(0.01)
    tell(None)
async def handler(scope, receive, send):
    assert scope["type"] == "http"
    {left}
    await answer(send, 1)
    threading.Timer(0.02, hold.set).start()
""",
        interface="asgi",
    )
    assert asked(worker) == 1
    told(functions, "went on")
    assert asked(worker) == 1


def test_each_request_is_a_task_with_a_context_of_its_own(start: Start) -> None:
    worker = start(
        ANSWER
        + """
import contextvars
left = contextvars.ContextVar("left", default=0)
seen = []
async def handler(scope, receive, send):
    assert scope["type"] == "http"
    task = asyncio.current_task()
    seen.append(task)
    before = left.get()
    left.set(before + 1)
    is_one = isinstance(task, asyncio.Task) and task in asyncio.all_tasks()
    await asyncio.sleep(0)
    is_one = is_one and task is asyncio.current_task()
    await answer(send, [before, left.get(), is_one, len({id(task) for task in seen})])
""",
        interface="asgi",
    )
    assert [asked(worker) for _ in range(3)] == [[0, 1, True, 1], [0, 1, True, 2], [0, 1, True, 3]]


def test_a_request_can_wait_time_out_and_be_cancelled(start: Start) -> None:
    worker = start(
        ANSWER
        + """
async def forever(): await asyncio.Event().wait()
async def handler(scope, receive, send):
    assert scope["type"] == "http"
    done = []
    try:
        await asyncio.wait_for(forever(), 0.01)
    except asyncio.TimeoutError:
        done.append("timed out")
    if hasattr(asyncio, "timeout"):
        try:
            async with asyncio.timeout(0.01):
                await forever()
        except TimeoutError:
            pass
    done.append(await asyncio.get_running_loop().run_in_executor(None, lambda: "thread"))
    done += await asyncio.gather(*[asyncio.sleep(0.01 * n, n) for n in range(3)])
    if scope["path"].endswith("/cancelled"):
        asyncio.get_running_loop().call_soon(asyncio.current_task().cancel)
        await forever()
    await answer(send, done)
""",
        interface="asgi",
    )
    assert asked(worker) == ["timed out", "thread", 0, 1, 2]
    stream = worker.ask_http(path="/cancelled")
    kind, answered, _, body = worker.frame()
    assert (kind, answered, json.loads(body)["errorType"]) == (wire.ERROR, stream, "CancelledError")
    assert asked(worker) == ["timed out", "thread", 0, 1, 2]


@pytest.mark.parametrize("concurrency", [1, 2])
def test_requests_that_come_together_or_in_pieces_are_all_answered(start: Start, concurrency: int) -> None:
    worker = start(
        ANSWER
        + """
async def handler(scope, receive, send):
    assert scope["type"] == "http"
    await answer(send, [scope["path"], len((await receive())["body"])])
""",
        interface="asgi",
        concurrency=concurrency,
    )
    frames = [
        wire.encode(wire.HTTP, n, json.dumps(http_meta(path=f"/{n}")).encode(), b"x" * size)
        for n, size in ((1, 0), (2, 300_000), (3, 5))
    ]
    whole = b"".join(frames)
    for cut in (len(whole), 7, 100_003):
        for at in range(0, len(whole), cut) if cut > 7 else (0, 7):
            worker.socket.sendall(whole[at : at + cut] if cut > 7 or at == 0 else whole[7:])
        answers = {stream: json.loads(body) for _, stream, _, body in (worker.frame() for _ in range(3))}
        assert answers == {1: ["/fn/test/1", 0], 2: ["/fn/test/2", 300_000], 3: ["/fn/test/3", 5]}


def test_what_is_printed_after_a_response_needs_no_other_response(functions: Functions, start: Start) -> None:
    worker = start(
        ANSWER
        + """
async def handler(scope, receive, send):
    assert scope["type"] == "http"
    await answer(send, 1)
    await asyncio.sleep(0.01)
    print("no line", end="")
""",
        interface="asgi",
    )
    assert asked(worker) == 1
    told(functions, "no line")


def test_an_application_may_bring_a_loop_of_its_own(functions: Functions, start: Start) -> None:
    """For example uvloop's, which does not use our selector."""
    worker = start(
        ANSWER
        + """
import selectors, warnings
warnings.simplefilter("ignore")
class Loop(asyncio.SelectorEventLoop):
    pass
class Policy(asyncio.DefaultEventLoopPolicy):
    def new_event_loop(self): return Loop(selectors.PollSelector())
asyncio.set_event_loop_policy(Policy())
async def handler(scope, receive, send):
    assert scope["type"] == "http"
    await asyncio.sleep(0.001)
    if scope["path"].endswith("/large"):
        await answer(send, "x" * 3_000_000)
    else:
        await answer(send, type(asyncio.get_running_loop()).__name__)
""",
        interface="asgi",
    )
    assert [asked(worker) for _ in range(2)] == ["Loop", "Loop"]
    assert asked(worker, path="/large") == "x" * 3_000_000


@pytest.mark.parametrize("interface", ["event", "asgi"])
def test_a_function_may_remove_epoll_from_the_standard_library(start: Start, interface: str) -> None:
    """As gevent.monkey.patch_all() does. Its loops then use the default selector, which is another one."""
    worker = start(
        ANSWER
        + """
import select, selectors
del select.epoll, selectors.EpollSelector
selectors.DefaultSelector = selectors.SelectSelector
async def selector():
    await asyncio.sleep(0.001)
    return type(asyncio.get_running_loop()._selector).__name__
"""
        + {
            "event": "async def handler(event, context):\n    return await selector()\n",
            "asgi": "async def handler(scope, receive, send):\n"
            "    assert scope['type'] == 'http'\n"
            "    await answer(send, await selector())\n",
        }[interface],
        interface=interface,
    )
    for _ in range(2):
        assert (worker.result({}) if interface == "event" else asked(worker)) == "SelectSelector"


def test_a_worker_whose_channel_is_closed_cancels_what_runs_and_ends(functions: Functions) -> None:
    template = functions.template(
        ANSWER
        + """
async def handler(scope, receive, send):
    assert scope["type"] == "http"
    print("waits")
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        print("cancelled")
        raise
""",
        interface="asgi",
    )
    worker = template.worker(log=functions.log.write_fd)
    worker.ready()
    worker.ask_http()
    told(functions, "waits")
    worker.close()
    assert Functions.exit_of(template, 1) == {"code": 0}


def test_a_response_that_nobody_reads_yet_is_sent_whole_in_the_end(start: Start) -> None:
    worker = start(
        ANSWER
        + """
async def handler(event, context):
    return "x" * event["length"]
""",
    )
    asked = [worker.ask({"length": length}) for length in (4_000_000, 3, 1_000_000)]
    lengths = {}
    for _ in asked:
        kind, stream, _, body = worker.frame()
        assert kind == wire.RESULT
        lengths[stream] = len(json.loads(body))
    assert list(lengths.values()) == [4_000_000, 3, 1_000_000]


TOLD = """
import asyncio, os, threading
def of(loop):
    return [os.fstat(end.fileno()).st_ino for end in (loop._ssock, loop._csock)]
async def handler(event, context):
    loop = asyncio.get_running_loop()
    assert loop is asyncio.get_event_loop() and await asyncio.sleep(0, 7) == 7
    return [of(loop), await loop.run_in_executor(None, os.getpid)]
"""


def test_each_worker_has_a_loop_that_only_its_own_threads_wake(functions: Functions) -> None:
    template = functions.template(TOLD)
    workers = [template.worker() for _ in range(3)]
    for worker in workers:
        worker.ready()
    for _ in range(3):
        told = [worker.result({}) for worker in workers]
        ends = [end for of, _ in told for end in of]
        assert len(set(ends)) == 6, ends
        assert len({pid for _, pid in told}) == 3


def test_a_template_that_runs_a_loop_takes_all_messages(functions: Functions) -> None:
    template = functions.template(TOLD)
    first = template.worker()
    first.ready()
    template.send({"op": "memory"})
    # With a specification, which the native loop does not read. The worker loads the function, and makes a loop.
    second = template.worker(functions.spec())
    second.ready()
    third = template.worker()
    third.ready()
    ends = [end for worker in (first, second, third) for end in worker.result({})[0]]
    assert len(set(ends)) == 6


@pytest.mark.parametrize("interface", ["event", "asgi"])
def test_a_hook_may_run_a_loop_of_its_own(start: Start, interface: str) -> None:
    body = "return seen" if interface == "event" else "await answer(send, seen)"
    arguments = "event, context" if interface == "event" else "scope, receive, send"
    worker = start(
        ANSWER
        + f"""
import sys
from snapshot_restore_py import register_after_restore
seen = []
async def connect():
    await asyncio.sleep(0.001)
    seen.append("connected")
loop = asyncio.new_event_loop()
asyncio.set_event_loop(loop)
@register_after_restore
def restore():
    if sys.version_info < (3, 12):  # later, asyncio forgets it in a child
        assert asyncio.get_event_loop() is loop
    loop.run_until_complete(connect())
    asyncio.run(connect())
    asyncio.new_event_loop().run_until_complete(connect())
async def handler({arguments}):
    await asyncio.sleep(0.001)
    {body}
""",
        interface=interface,
    )
    for _ in range(2):
        said = worker.result({}) if interface == "event" else asked(worker)
        assert said == ["connected"] * 3


@pytest.mark.parametrize(("raised", "kind"), [("ValueError('no')", "ValueError"), ("SystemExit(4)", None)])
def test_what_a_hook_of_an_asynchronous_function_raises_ends_its_worker(
    functions: Functions, raised: str, kind: str | None
) -> None:
    template = functions.template(
        f"""
from snapshot_restore_py import register_after_restore
@register_after_restore
def restore():
    raise {raised}
async def handler(event, context):
    return 1
"""
    )
    worker = template.worker()
    if kind is None:
        assert worker.is_closed()
    else:
        found, _, _, body = worker.frame()
        assert (found, json.loads(body)["errorType"]) == (wire.INIT_ERROR, kind)
    assert Functions.exit_of(template, 1) == {"code": 4 if kind is None else 1}


def test_a_worker_may_start_programs_handle_signals_and_fork_while_its_loop_runs(start: Start) -> None:
    worker = start(
        """
import asyncio, os, signal
async def handler(event, context):
    loop, got = asyncio.get_running_loop(), asyncio.Event()
    loop.add_signal_handler(signal.SIGUSR1, got.set)
    os.kill(os.getpid(), signal.SIGUSR1)
    await asyncio.wait_for(got.wait(), 10)
    loop.remove_signal_handler(signal.SIGUSR1)
    program = await asyncio.create_subprocess_exec("cat", stdin=-1, stdout=-1)
    said, _ = await program.communicate(b"cat")
    child = os.fork()
    if child == 0:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            os._exit(3)
        os._exit(4)
    return [said.decode(), os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])]
"""
    )
    for _ in range(2):
        assert worker.result({}) == ["cat", 3]


def test_what_ends_a_function_while_its_loop_runs_ends_its_worker(functions: Functions) -> None:
    template = functions.template(
        """
import sys
async def handler(event, context):
    sys.exit(event)
"""
    )
    worker = template.worker()
    worker.ready()
    worker.ask(5)
    assert worker.is_closed()
    assert Functions.exit_of(template, 1) == {"code": 5}


@pytest.mark.parametrize("interface", ["event", "asgi"])
def test_a_worker_that_was_started_ahead_copies_pages_before_its_first_call(functions: Functions, interface: str) -> None:
    arguments, answers = {
        "event": ("event, context", "return faults()"),
        "asgi": ("scope, receive, send", "await answer(send, faults())"),
    }[interface]
    template = functions.template(
        ANSWER
        + f"""
import resource
os.register_at_fork(after_in_child=lambda: os.write(1, b"%d " % os.getpid()))
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
async def handler({arguments}):
    {answers}
""",
        interface=interface,
    )

    def of_first_call() -> int:
        worker = template.worker(log=functions.log.write_fd)
        worker.ready()
        time.sleep(0.2)
        pid = functions.log.read_now().split()[-1]
        before = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[7])
        count = worker.result({}) if interface == "event" else asked(worker)
        worker.close()
        assert isinstance(count, int)
        return count - before

    seen = min(of_first_call() for _ in range(3))
    assert seen < 60, seen
