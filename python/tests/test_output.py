"""The log as JSON and its level, side by side with awslambdaric's formatter. `test_events.py` has the tests of text."""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from typing import Any

import pytest
from awslambdaric import lambda_runtime_log_utils  # type: ignore[import-untyped]
from conftest import Functions
from harness import invoke_meta

from pilot_worker import output

ID = invoke_meta()["id"]
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")

LOGS = """
import logging, time
log = logging.getLogger("own")
log.warning("loading")
def handler(event, context):
    log.debug("debug %s", 1)
    log.info("info %s", 2, extra={"order": 7})
    try:
        1 / 0
    except ZeroDivisionError:
        log.exception("oh")
    print("plain")
    if event == "raise":
        raise KeyError("k")
    return [logging.getLevelName(logging.getLogger().level), logging.Formatter.converter is time.gmtime]
"""


def started(functions: Functions, source: str = LOGS, **variables: str) -> Any:
    spec = functions.spec()
    return functions.worker(source, environment={**spec["environment"], **variables})


def lines(functions: Functions) -> list[Any]:
    """What is in the log: the objects, without their time, and the other lines."""
    found = []
    for line in functions.log.read_now().splitlines():
        if line.startswith("{"):
            fields = json.loads(line)
            assert TIME.fullmatch(fields.pop("timestamp"))
            found.append(fields)
        else:
            found.append(line)
    return found


def test_with_json_each_record_is_an_object_on_a_line(functions: Functions) -> None:
    worker = started(functions, AWS_LAMBDA_LOG_FORMAT="JSON", AWS_LAMBDA_LOG_LEVEL="DEBUG")
    assert lines(functions) == [{"level": "WARNING", "message": "loading", "logger": "own", "requestId": ""}]
    assert worker.result({}) == ["DEBUG", True]
    debug, info, error, plain = lines(functions)
    assert debug == {"level": "DEBUG", "message": "debug 1", "logger": "own", "requestId": ID}
    assert info == {"level": "INFO", "message": "info 2", "logger": "own", "requestId": ID, "order": 7}
    (frame,) = error.pop("stackTrace")
    assert "1 / 0" in frame
    assert re.fullmatch(r"/.*app\.py:handler:11", error.pop("location"))
    expected = {"level": "ERROR", "message": "oh", "logger": "own", "requestId": ID}
    assert error == {**expected, "errorType": "ZeroDivisionError", "errorMessage": "division by zero"}
    assert plain == "plain"


def test_with_json_the_error_of_a_handler_is_an_object(functions: Functions) -> None:
    worker = started(functions, AWS_LAMBDA_LOG_FORMAT="json", AWS_LAMBDA_LOG_LEVEL="FATAL")
    lines(functions)
    error = worker.error("raise")
    assert lines(functions) == ["plain", {"level": "ERROR", **error}]
    assert (error["errorType"], error["requestId"]) == ("KeyError", ID)


@pytest.mark.parametrize(
    ("variables", "level"),
    [
        ({}, "WARNING"),
        ({"AWS_LAMBDA_LOG_LEVEL": "info"}, "INFO"),
        ({"AWS_LAMBDA_LOG_LEVEL": "TRACE"}, "DEBUG"),
        ({"AWS_LAMBDA_LOG_LEVEL": "WARN"}, "WARNING"),
        ({"AWS_LAMBDA_LOG_LEVEL": "FATAL"}, "CRITICAL"),
        ({"AWS_LAMBDA_LOG_LEVEL": "LOUD"}, "WARNING"),
        ({"AWS_LAMBDA_LOG_FORMAT": "JSON"}, "INFO"),
        ({"AWS_LAMBDA_LOG_FORMAT": "JSON", "AWS_LAMBDA_LOG_LEVEL": "LOUD"}, "INFO"),
        ({"AWS_LAMBDA_LOG_FORMAT": "XML"}, "WARNING"),
    ],
)
def test_the_level_of_the_root_logger(functions: Functions, variables: dict[str, str], level: str) -> None:
    assert started(functions, **variables).result({}) == [level, True]


def test_text_stays_text_with_a_level(functions: Functions) -> None:
    started(functions, AWS_LAMBDA_LOG_LEVEL="INFO").result({})
    assert any(re.fullmatch(rf"\[INFO\]\t\S+Z\t{ID}\tinfo 2", line) for line in lines(functions))


THREADS = """
import logging, threading
def log(): logging.warning("from a thread")
def ask():
    thread = threading.Thread(target=log)
    thread.start()
    thread.join()
"""

HANDLERS = {
    "plain": ("event", "def handler(event, context): ask()\n"),
    "coroutine": ("event", "async def handler(event, context): ask()\n"),
    "wsgi": ("wsgi", "def handler(environ, start_response):\n    ask()\n    start_response('204 No', [])\n    return []\n"),
    "asgi": (
        "asgi",
        """
async def handler(scope, receive, send):
    assert scope["type"] == "http"
    ask()
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body"})
""",
    ),
}


@pytest.mark.parametrize("kind", HANDLERS)
@pytest.mark.parametrize("concurrency", [1, 2])
def test_records_of_threads_have_the_id_of_the_only_invocation(functions: Functions, kind: str, concurrency: int) -> None:
    interface, handler = HANDLERS[kind]
    worker = functions.worker(
        THREADS + handler,
        interface=interface,
        concurrency=concurrency,
        environment={**functions.spec()["environment"], "AWS_LAMBDA_LOG_FORMAT": "JSON"},
    )
    for request_id in ("a", "b"):
        if interface == "event":
            worker.result({}, id=request_id)
        else:
            worker.http(id=request_id)
        (record,) = lines(functions)
        assert record["requestId"] == (request_id if concurrency == 1 else "")


def test_records_of_threads_have_the_id_as_text(functions: Functions) -> None:
    worker = functions.worker(THREADS + HANDLERS["plain"][1])
    worker.result({})
    assert re.fullmatch(rf"\[WARNING\]\t\S+Z\t{ID}\tfrom a thread\n", functions.log.read_now())


class Odd:
    def __str__(self) -> str:
        return "odd"


def record(message: Any, *arguments: Any, level: int = logging.INFO, **extra: Any) -> logging.LogRecord:
    error = None
    if extra.pop("has_error", False):
        try:
            raise ValueError("ü")
        except ValueError:
            error = sys.exc_info()
    made = logging.getLogger("own").makeRecord("own", level, "/a.py", 3, message, arguments, error, "f", extra)
    made.aws_request_id = ID
    if sys.version_info >= (3, 12):
        made.taskName = None
    return made


@pytest.mark.parametrize(
    "arguments",
    [
        {"message": "text ü \ud800"},
        {"message": {"a": [1, Odd()]}},
        {"message": 7},
        {"message": None},
        {"message": "x", "level": 25},
        {"message": "x", "level": 0},
        {"message": "x", "level": 99},
        {"message": "x", "has_error": True},
        {"message": "x", "order": {"of": Odd()}, "nothing": None, "level_": 1},
        {"message": "x", "logger": "mine", "requestId": "mine", "location": "mine", "errorType": "mine"},
        {"message": "x", "has_error": True, "stackTrace": "mine"},
    ],
)
def test_objects_are_those_of_awslambdaric(arguments: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.Formatter, "converter", time.gmtime)
    one = record(**arguments)
    ours = output._JSON.format(one)
    assert ours + "\n" == lambda_runtime_log_utils.JsonFormatter().format(one)


def test_a_record_without_the_error_that_it_announces_is_written() -> None:
    one = record("x")
    one.exc_info = (None, None, None)
    assert json.loads(output._JSON.format(one))["message"] == "x"


REPLACED = """
import os, sys
path = {folder!r} + "/own"
file = os.open(path, os.O_CREAT | os.O_RDWR)
os.dup2(file, 1)
os.write(1, b"import")
sys.stderr.write("still the log\\n")
def handler(event, context):
    print(event)
    os.write(2, b"error")
    sys.stdout.flush()
    return [os.path.samefile("/proc/self/fd/1", path), os.get_inheritable(1), len(os.listdir("/proc/self/fd"))]
"""


def test_a_file_that_the_import_puts_in_the_place_of_the_log_stays_there(functions: Functions) -> None:
    """As in an interpreter of its own. The other stream is the log."""
    template = functions.template(REPLACED.format(folder=str(functions.directory)))
    assert template.report["findings"] == []
    counts = set()
    for _ in range(2):
        worker = template.worker(log=functions.log.write_fd)
        worker.ready()
        functions.log.read_now()
        is_file, is_inheritable, count = worker.result("x" * 3)
        assert (is_file, is_inheritable) == (True, True)
        counts.add(count)
        worker.close()
        assert functions.log.read_now() == "error"
    assert len(counts) == 1
    # Each worker has its own position, that of the end of the imports.
    assert (functions.directory / "own").read_text() == "importxxx\n"


def test_a_device_in_the_place_of_the_log_stays_there(functions: Functions) -> None:
    worker = functions.worker(
        "import os\nos.dup2(os.open('/dev/null', os.O_WRONLY), 1)\ndef handler(event, context): return os.readlink('/proc/self/fd/1')\n"
    )
    assert worker.result({}) == "/dev/null"


def test_a_pipe_in_the_place_of_the_log_is_reported(functions: Functions) -> None:
    source = "import os\nreading, writing = os.pipe()\nos.dup2(writing, 1)\nos.close(writing)\n"
    template = functions.template(source + "def handler(event, context): print('to the log')\n")
    row = ("replaced descriptor 1 by a pipe at import", "each worker has the log there")
    assert row in [(found["what"], found["instead"]) for found in template.report["findings"]]
    worker = template.worker(log=functions.log.write_fd)
    worker.ready()
    worker.result({})
    assert functions.log.read_now() == "to the log\n"


def test_what_the_import_puts_back_is_the_log(functions: Functions) -> None:
    worker = functions.worker(
        "import os\nkept = os.dup(1)\nos.dup2(os.open('/dev/null', os.O_WRONLY), 1)\nos.dup2(kept, 1)\nos.close(kept)\n"
        "def handler(event, context): print('to the log')\n"
    )
    worker.result({})
    assert functions.log.read_now() == "to the log\n"
