"""Plain handlers: context, errors in Lambda's form, output, and concurrency."""

from __future__ import annotations

import json
import time

import pytest
from conftest import Functions, Start
from harness import invoke_meta

from pilot_worker.protocol import wire

ID = invoke_meta()["id"]


def test_the_context_has_lambdas_attributes(start: Start) -> None:
    worker = start("""
def handler(event, c):
    left = c.get_remaining_time_in_millis()
    return [c.function_name, c.function_version, c.invoked_function_arn, c.memory_limit_in_mb, c.aws_request_id,
            c.log_group_name, c.identity.cognito_identity_id, c.client_context.custom["a"], c.client_context.client.app_title,
            0 < left <= 30000, isinstance(left, int)]
""")
    sent = json.dumps({"custom": {"a": 1}, "client": {"app_title": "t"}})
    answer = worker.result({}, client_context=sent)
    assert answer == ["test", "1", invoke_meta()["arn"], "128", ID, None, None, 1, "t", True, True]


def test_programs_see_a_trace_that_is_recorded(start: Start) -> None:
    code = "import os, subprocess\ndef handler(e, c): return [os.environ.get('_X_AMZN_TRACE_ID'), subprocess.getoutput('echo $_X_AMZN_TRACE_ID')]\n"
    worker = start(code)
    for trace, exported in [("Root=1;Sampled=1", "Root=1;Sampled=1"), ("Root=2;Sampled=0", ""), ("Root=3", "Root=3")]:
        assert worker.result({}, trace=trace) == [trace, exported]
    assert worker.result({}) == [None, ""]


def test_a_recorded_trace_is_told_in_w3cs_form_too(start: Start) -> None:
    names = "'TRACEPARENT', 'TRACESTATE'"
    worker = start(f"import os\ndef handler(e, c): return [c.traceparent, c.tracestate, *map(os.environ.get, ({names}))]\n")
    header = "Root=1-0af76519-16cd43dd8448eb211c80319c;Parent=b7ad6b7169203331;Sampled=1"
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    assert worker.result({}, trace=header, trace_state="a=1") == [parent, "a=1", parent, "a=1"]
    assert worker.result({}, trace=header) == [parent, None, parent, None]
    assert worker.result({}, trace=header.replace("Sampled=1", "Sampled=0")) == [None] * 4
    assert worker.result({}, trace=header)[2] == parent
    for odd in ("Root=1;Sampled=1", "Root=1-2-3;Parent=4;Sampled=1", "Sampled=1"):
        assert worker.result({}, trace=odd) == [None] * 4
    assert worker.result({}, trace=header)[2] == parent
    assert worker.result({}) == [None] * 4


def test_traces_that_are_not_recorded_take_no_memory(start: Start) -> None:
    worker = start("def handler(e, c): return int(open('/proc/self/statm').read().split()[1])\n")
    text = "Root=1-%08x-aaaaaaaaaaaaaaaaaaaaaaaa;Parent=bbbbbbbbbbbbbbbb;Sampled=0"
    pages = [worker.result({}, trace=text % number) for number in range(6000)]
    # Python's allocator takes 64 pages at a time; a kilobyte per invocation would be 1,250.
    assert pages[-1] - pages[1000] < 400, "kB per invocation are lost"


def test_the_trace_is_there_only_during_its_invocation(start: Start) -> None:
    worker = start("import os\ndef handler(e, c): return os.environ.get('_X_AMZN_TRACE_ID')\n")
    assert worker.result({}, trace="Root=1") == "Root=1"
    assert worker.result({}) is None


def test_an_exception_has_lambdas_form_without_our_frames(start: Start, functions: Functions) -> None:
    worker = start("def f():\n    raise ValueError('böse')\ndef handler(e, c):\n    f()\n")
    error = worker.error({})
    assert error == {
        "errorType": "ValueError",
        "errorMessage": "böse",
        "requestId": ID,
        "stackTrace": [
            f'  File "{functions.directory}/app.py", line 4, in handler\n    f()\n',
            f"  File \"{functions.directory}/app.py\", line 2, in f\n    raise ValueError('böse')\n",
        ],
    }
    assert "[ERROR] ValueError: böse\nTraceback (most recent call last):\n" in functions.log.read_now()


@pytest.mark.parametrize(
    ("body", "kind", "message"),
    [
        ("raise KeyboardInterrupt", "KeyboardInterrupt", ""),
        ("raise BaseException('base')", "BaseException", "base"),
        (
            "return object()",
            "Runtime.MarshalError",
            "Unable to marshal response: Object of type object is not JSON serializable",
        ),
        ("a = []; a.append(a); return a", "Runtime.MarshalError", "Unable to marshal response: Circular reference detected"),
        ("return bytes(65 * 1024 * 1024)", "Function.ResponseSizeTooLarge", "Response payload size exceeded"),
    ],
)
def test_a_failure_leaves_the_worker_alive(start: Start, body: str, kind: str, message: str) -> None:
    worker = start(f"def handler(e, c):\n    if e == 'well': return 1\n    {body}\n")
    error = worker.error({})
    assert error["errorType"] == kind and error["errorMessage"].startswith(message)
    assert worker.result("well") == 1


def test_an_event_that_is_not_json_is_an_error_of_its_own(start: Start) -> None:
    worker = start("def handler(e, c): return 1\n")
    for event in (b"{", b"[" * 100_000 + b"]" * 100_000):
        worker.send(wire.INVOKE, 9, invoke_meta(), event)
        kind, stream, _, body = worker.frame()
        assert (kind, stream) == (wire.ERROR, 9)
        assert json.loads(body)["errorType"] == "Runtime.UnmarshalError"
    worker.ask_http()
    assert json.loads(worker.frame()[3])["errorType"] == "Runtime.BadRequest"


@pytest.mark.parametrize(
    ("result", "expected"),
    [("'ü'", "ü"), ("decimal.Decimal('1.5')", 1.5), ("decimal.Decimal('3')", 3), ("b'[1]'", [1]), ("'\\ud800'", "\ud800")],
)
def test_results_are_written_as_lambda_writes_them(start: Start, result: str, expected: object) -> None:
    assert start(f"import decimal\ndef handler(e, c): return {result}\n").result({}) == expected


def test_a_decimal_keeps_its_digits(start: Start) -> None:
    worker = start(
        "import collections, decimal\nPrice = collections.namedtuple('Price', 'net gross')\n"
        "def handler(e, c): return [Price(decimal.Decimal('19.90'), decimal.Decimal('9007199254740993.10'))]\n"
    )
    worker.ask({})
    assert worker.frame()[3] == b'[{"net": 19.90, "gross": 9007199254740993.10}]'


@pytest.mark.parametrize(
    ("source", "handler", "kind", "message"),
    [
        (
            "import nothing",
            "app.handler",
            "Runtime.ImportModuleError",
            "Unable to import module 'app': No module named 'nothing'",
        ),
        ("", "nowhere.handler", "Runtime.ImportModuleError", "Unable to import module 'nowhere': No module named 'nowhere'"),
        ("", "app.handler", "Runtime.HandlerNotFound", "Handler 'handler' missing on module 'app'"),
        ("", "handler", "Runtime.MalformedHandlerName", "Bad handler 'handler'"),
        ("def", "app.handler", "Runtime.UserCodeSyntaxError", "Syntax error in module 'app': "),
        ("", "sys.exit", "Runtime.BuiltInModuleConflict", "Cannot use built-in module sys as a handler module"),
        ("1/0", "app.handler", "ZeroDivisionError", "division by zero"),
        ("import sys; sys.exit(4)", "app.handler", "SystemExit", "4"),
    ],
)
def test_a_handler_that_cannot_be_found_says_why(
    functions: Functions, source: str, handler: str, kind: str, message: str
) -> None:
    error = functions.refused(source + "\n", handler=handler)
    assert error["errorType"] == kind and error["errorMessage"].startswith(message)
    if kind in ("ZeroDivisionError", "Runtime.ImportModuleError") and handler == "app.handler":
        assert len(error["stackTrace"]) == 1 and "app.py" in error["stackTrace"][0]


APPLICATIONS = """
class Base:
    async def __call__(self, scope, receive, send): pass
class Framework(Base): pass
class Flask:
    def __call__(self, environ, start_response): pass
    def method(self, environ, start_response): pass
class Handler:
    def __call__(self, event, context): return "handled"
async def asgi(scope, receive, send): pass
def wsgi(environ, start_response): pass
def other(receive, send): pass
framework, flask, method, handled = Framework(), Flask(), Flask().method, Handler()
"""


@pytest.mark.parametrize("interface", ["event", "asgi", "wsgi"])
def test_an_application_of_another_interface_is_refused_with_the_right_one(functions: Functions, interface: str) -> None:
    for name, of in [("asgi", "asgi"), ("framework", "asgi"), ("wsgi", "wsgi"), ("flask", "wsgi"), ("method", "wsgi")]:
        if of == interface:
            functions.template(APPLICATIONS, interface=interface, handler=f"app.{name}").close()
            continue
        error = functions.refused(APPLICATIONS, interface=interface, handler=f"app.{name}")
        assert error["errorType"] == "Runtime.WrongInterface", name
        assert error["errorMessage"].endswith(f'set interface = "{of}" in pilot.toml'), name


def test_what_is_called_with_other_names_may_be_a_handler(functions: Functions) -> None:
    assert functions.worker(APPLICATIONS, handler="app.handled").result({}) == "handled"
    assert functions.worker(APPLICATIONS, handler="app.other").result({}) is None


OUTPUT = """
import logging, os, sys, subprocess
print("import")
logging.basicConfig(format="not this one")
logging.getLogger().setLevel(logging.INFO)
def handler(event, context):
    print("out", end="")
    sys.stderr.write("err")
    os.write(1, b"raw") if event == "raw" else None
    if event == "log": logging.getLogger("x").info("told")
    if event == "child": subprocess.run(["echo", "child"], check=True)
"""


def test_all_output_is_in_the_log_before_the_answer(start: Start, functions: Functions) -> None:
    worker = start(OUTPUT)
    assert functions.log.read_now() == "import\n"
    worker.result({})
    assert sorted([functions.log.read_now()]) == ["outerr"]
    worker.result("raw")
    assert "raw" in functions.log.read_now()
    worker.result("child")
    assert "child\n" in functions.log.read_now()
    worker.result("log")
    line = next(line for line in functions.log.read_now().splitlines() if "told" in line)
    level, stamp, request_id, message = line.partition("[INFO]")[2].split("\t")
    assert (level, request_id, message) == ("", ID, "told")
    time.strptime(stamp, "%Y-%m-%dT%H:%M:%S." + stamp[-4:])


def test_multiprocessing_and_subprocess_work_in_a_handler(start: Start) -> None:
    worker = start("""
import multiprocessing, os, signal, subprocess
def double(n, queue): print("child"); queue.put(n * 2)
def handler(event, context):
    queue = multiprocessing.get_context("fork").SimpleQueue()
    process = multiprocessing.get_context("fork").Process(target=double, args=(21, queue))
    process.start(); got = queue.get(); process.join()
    return [got, process.exitcode, subprocess.check_output(["echo", "x"]).decode(), os.waitstatus_to_exitcode(os.system("exit 3")),
            signal.getsignal(signal.SIGCHLD) == signal.SIG_DFL]
""")
    assert worker.result({}) == [42, 0, "x\n", 3, True]


FORKS = """
import os, sys
{prefix}def handler(event, context):
    child = os.fork()
    if child == 0:
        if event == "exit": sys.exit(3)
        if event == "raise": raise KeyError("child")
        return "child"
    return ["parent", os.waitpid(child, 0)[1]]
"""


@pytest.mark.parametrize("prefix", ["", "async "])
def test_a_process_that_a_handler_forks_gives_no_answer(start: Start, prefix: str) -> None:
    worker = start(FORKS.format(prefix=prefix))
    for event, status in [("return", 0), ("exit", 3 << 8), ("raise", 0), ("return", 0)]:
        assert worker.result(event) == ["parent", status]


@pytest.mark.parametrize("size", [0, 65_000, 70_000, 3_000_000])
def test_events_and_results_of_any_size_pass(start: Start, size: int) -> None:
    worker = start("def handler(e, c): return e\n")
    for _ in range(2):
        assert worker.result("x" * size) == "x" * size


CONCURRENT = """
import threading
met = threading.Barrier(3)
def handler(event, context):
    met.wait(20)
    return [event, context.aws_request_id, threading.current_thread().name]
"""


def test_threads_serve_at_once_with_concurrency(start: Start) -> None:
    worker = start(CONCURRENT, concurrency=3)
    for _ in range(2):
        asked = {worker.ask(n, id=f"id-{n}"): n for n in range(3)}
        names = set()
        for _ in asked:
            kind, stream, _, body = worker.frame()
            number, request_id, name = json.loads(body)
            assert kind == wire.RESULT and asked[stream] == number and request_id == f"id-{number}"
            names.add(name)
        assert names == {"invocation-1", "invocation-2", "invocation-3"}


GREEN = """
import _thread, select, threading
# As with gevent and eventlet, another thread runs only while this one waits in the way that it knows.
begin, wait, waiting = _thread.start_new_thread, select.select, []
def wait_for_both(*arguments):
    while waiting:
        begin(waiting.pop(), ())
    return wait(*arguments)
class Thread:
    def __init__(self, target, **_): self.start = lambda: waiting.append(target)
_thread.start_new_thread, threading.Thread, select.select = None, Thread, wait_for_both
def handler(event, context):
    return event
"""


def test_a_worker_waits_as_green_threads_need_it_if_its_code_has_such(start: Start) -> None:
    worker = start(GREEN, concurrency=2)
    for number in range(3):
        assert worker.result(number) == number
    asked = {worker.ask(number): number for number in range(20)}
    for _ in range(20):
        kind, stream, _, body = worker.frame()
        assert kind == wire.RESULT and json.loads(body) == asked[stream]


def test_requests_beyond_the_threads_are_served_when_one_is_free(start: Start) -> None:
    worker = start("import time\ndef handler(event, context):\n    time.sleep(0.001)\n    return event\n", concurrency=2)
    asked = {worker.ask(number): number for number in range(50)}
    for _ in range(50):
        kind, stream, _, body = worker.frame()
        assert kind == wire.RESULT and json.loads(body) == asked.pop(stream)
    assert not asked


def test_exit_in_a_thread_ends_the_worker(functions: Functions) -> None:
    template = functions.template("import sys\ndef handler(e, c): sys.exit(5)\n", concurrency=2)
    worker = template.worker()
    worker.ready()
    worker.ask({})
    assert worker.is_closed()
    assert Functions.exit_of(template, 1) == {"code": 5}


@pytest.mark.parametrize("concurrency", [1, 3])
def test_coroutine_handlers_run_on_a_loop(start: Start, concurrency: int) -> None:
    worker = start(
        f"""
import asyncio
here, met = [], None
async def handler(event, context):
    global met
    met = met or asyncio.Event()
    if event == "fail": raise ValueError("late")
    here.append(event)
    if len(here) == {concurrency}: met.set()
    await met.wait()
    return event
""",
        concurrency=concurrency,
    )
    asked = [worker.ask(n) for n in range(concurrency)]
    assert sorted(worker.frame()[1] for _ in asked) == asked
    assert worker.error("fail")["errorMessage"] == "late"


def test_exit_in_a_coroutine_ends_the_worker(functions: Functions) -> None:
    template = functions.template("import sys\nasync def handler(e, c): sys.exit(6)\n")
    worker = template.worker()
    worker.ready()
    worker.ask({})
    assert worker.is_closed()
    assert Functions.exit_of(template, 1) == {"code": 6}


def test_atexit_functions_run_when_the_daemon_closes_the_channel(functions: Functions) -> None:
    template = functions.template("import atexit\natexit.register(print, 'bye')\ndef handler(e, c): pass\n")
    worker = template.worker(log=functions.log.write_fd)
    worker.ready()
    worker.close()
    assert Functions.exit_of(template, 1) == {"code": 0}
    assert functions.log.read_now() == "bye\n"


@pytest.mark.parametrize("data", [b"\xff" * 16, b"\x01"])
def test_a_broken_frame_ends_the_worker(functions: Functions, data: bytes) -> None:
    template = functions.template("def handler(e, c): pass\n")
    worker = template.worker()
    worker.ready()
    worker.socket.sendall(data)
    worker.close()
    assert Functions.exit_of(template, 1) == {"code": 1}
