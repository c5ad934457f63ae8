"""Results and errors, side by side with awslambdaric: the package from the registry, of which only the network is replaced.

`LISTED` is what differs. Each entry has its reason, which docs/runtimes.md also gives. An entry that no longer differs fails.
"""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace, TracebackType
from typing import Any, Callable, cast

import pytest
from awslambdaric import bootstrap, lambda_runtime_client, lambda_runtime_marshaller  # type: ignore[import-untyped]
from error_table import HANDLERS
from harness import invoke_meta
from result_table import NAMES, VALUES

from pilot_worker import spec
from pilot_worker.interfaces import context, errors, events, handler, results
from pilot_worker.protocol import wire

ID = invoke_meta()["id"]

# Lambda escapes characters that are not ASCII up to Python 3.11, and not since 3.12.
ESCAPING, NOT_ESCAPING = "AWS_Lambda_python3.11", "AWS_Lambda_python3.12"
OWN = f"AWS_Lambda_python3.{min(sys.version_info.minor, 15)}"

# UNENCODABLE: for a lone surrogate, awslambdaric ends its process since Python 3.12, because the text has no UTF-8 form. Ours
# escapes the text, as awslambdaric does up to Python 3.11.
NOT_CAUGHT = "awslambdaric ends its process: it catches only Exception. Ours answers, and keeps the worker."
NO_FRAME = (
    "The error is raised by the call itself, so no frame is the user's. awslambdaric shows its own frame, ours shows none."
)
LISTED: dict[str, str] = {
    "broken_text": "awslambdaric ends its process: str() of the error raises. Ours answers, and keeps the worker.",
    "text_is_no_text": "awslambdaric ends its process: str() of the error raises. Ours answers, and keeps the worker.",
    "keyboard_interrupt": NOT_CAUGHT,
    "base_exception": NOT_CAUGHT,
    "generator_exit": NOT_CAUGHT,
    "wrong_arguments": NO_FRAME,
    "too_few_arguments": NO_FRAME,
    "not_callable": NO_FRAME,
    "no_function": NO_FRAME,
    "very_long_text": "Ours cuts the message after 200,000 characters. Lambda cuts the whole error at 6 MB.",
}


Posted = tuple[str, bytes]


class Network:
    """In place of `runtime_client`, awslambdaric's native module: keeps what is posted."""

    def __init__(self) -> None:
        self.posted: list[Posted] = []

    def post_invocation_result(self, invoke_id: str, result: bytes, content_type: str, invocation_id: str | None) -> None:
        assert invoke_id == ID
        self.posted.append(("result", result))

    def post_error(self, invoke_id: str, error: str, xray_fault: str, invocation_id: str | None) -> None:
        assert invoke_id == ID
        self.posted.append(("error", error.encode()))  # as PyArg_ParseTuple("s"): UTF-8, and an error if there is none


class LogSink:
    def log_error(self, lines: list[str]) -> None:
        pass


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_EXECUTION_ENV", OWN)


@pytest.fixture
def broken_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A module that can be found and not loaded."""
    (tmp_path / "broken_module.py").write_text("def f():\n    raise ValueError('at import')\nf()\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    yield
    sys.modules.pop("broken_module", None)


def of_awslambdaric(target: Any, event: bytes, monkeypatch: pytest.MonkeyPatch) -> Posted | str:
    """What it posts, or the name of the exception that ends its process."""
    network = Network()
    monkeypatch.setattr(lambda_runtime_client, "runtime_client", network)
    client = lambda_runtime_client.LambdaRuntimeClient("nowhere:1")
    monkeypatch.setattr(client, "marshaller", lambda_runtime_marshaller.LambdaMarshaller())
    arguments = (client, target, ID, event, "application/json", None, None, "arn", 10**15, None, LogSink())
    try:
        bootstrap.handle_event_request(*arguments)
    except BaseException as error:
        return type(error).__name__
    (posted,) = network.posted
    return posted


class OneFrame:
    """In place of a channel."""

    def __init__(self) -> None:
        self.frames: list[Posted] = []

    def write(self, kind: int, stream: int, meta: bytes, body: bytes) -> None:
        self.send(wire.encode(kind, stream, meta, body))

    def send(self, frame: bytes) -> None:
        whole = wire.only_frame(memoryview(frame))
        assert whole is not None
        kind, _, _, body = whole
        self.frames.append(({wire.RESULT: "result", wire.ERROR: "error"}[kind], body))


def of_ours(target: Any, event: bytes) -> Posted | str:
    channel = OneFrame()
    function = SimpleNamespace(target=target, info=context.FunctionInfo({}), spec=SimpleNamespace(concurrency=1))
    call = events.EventCall(cast(handler.Function, function), cast(Any, channel))
    try:
        call(wire.INVOKE, 1, json.dumps(invoke_meta()).encode(), event)
    except BaseException as error:
        return type(error).__name__
    (posted,) = channel.frames
    return posted


def encoded(encode: Callable[[Any], bytes], value: str) -> str:
    """The text, or the message of a `Runtime.MarshalError`."""
    try:
        return encode(eval(value, dict(NAMES))).decode()
    except Exception as error:
        return f"{type(error).__name__}: {error}"


@pytest.mark.parametrize("accelerator", ["with json's C accelerator", "without it"])
@pytest.mark.parametrize("of_lambda", [ESCAPING, NOT_ESCAPING])
def test_values_are_marshalled_as_awslambdaric_marshals_them(
    of_lambda: str, accelerator: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if accelerator == "without it":
        monkeypatch.setattr(json.encoder, "c_make_encoder", None)

    def marshal_as(of_lambda: str) -> Callable[[Any], bytes]:
        monkeypatch.setenv("AWS_EXECUTION_ENV", of_lambda)
        encoder = lambda_runtime_marshaller.LambdaMarshaller().jsonEncoder
        return lambda value: encoder.encode(value).encode()

    marshal, marshal_escaping = marshal_as(of_lambda), marshal_as(ESCAPING)
    encode = results.make_encoder(is_ascii=of_lambda == ESCAPING)
    compared, unencodable = 0, 0
    different = []
    for value in VALUES:
        theirs = encoded(marshal, value)
        ours = encoded(encode, value)
        compared += 1
        if theirs.startswith("UnicodeEncodeError"):  # UNENCODABLE
            unencodable += 1
            theirs = encoded(marshal_escaping, value)
        if theirs != ours:
            different.append(f"{value[:100]}: {theirs[:200]} | {ours[:200]}")
    assert different == []
    assert compared > 1000
    assert (unencodable > 0) == (of_lambda == NOT_ESCAPING)


def test_lambdas_python_decides_what_is_escaped() -> None:
    own = lambda_runtime_marshaller.LambdaMarshaller()
    assert results.encode_json(["ü"]) == own.jsonEncoder.encode(["ü"]).encode()


@pytest.mark.usefixtures("broken_module")
@pytest.mark.parametrize("name", HANDLERS)
def test_errors_have_awslambdarics_shape(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if name.endswith("group") and sys.version_info < (3, 11):
        pytest.skip("exception groups are new in Python 3.11")
    target = HANDLERS[name]
    theirs = of_awslambdaric(target, b'{"a": 1}', monkeypatch)
    ours = of_ours(target, b'{"a": 1}')
    if name in LISTED:
        assert theirs != ours, "no longer different"
        assert ours[0] == "error", "ours answers"
        return
    if name == "surrogate" and OWN != ESCAPING and sys.version_info >= (3, 12):  # UNENCODABLE
        assert theirs == "UnicodeEncodeError" and ours[0] == "error"
        return
    assert without_depth(ours) == without_depth(theirs)


def without_depth(posted: Posted | str) -> object:
    """How often a line of an endless recursion is repeated depends on the depth at which the handler is called."""
    return posted if isinstance(posted, str) else (posted[0], re.sub(rb"repeated \d+ more", b"repeated more", posted[1]))


def test_frames_are_the_users_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = json.loads(of_ours(HANDLERS["own_class"], b"{}")[1])["stackTrace"]
    assert len(trace) == 1 and "error_table.py" in trace[0] and "in own_class" in trace[0]


def test_a_recursion_is_shortened_as_by_awslambdaric(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = json.loads(of_ours(HANDLERS["recursion"], b"{}")[1])["stackTrace"]
    assert "Previous line repeated" in trace[-1]


@pytest.mark.parametrize(
    "event",
    [
        b"{}",
        b"null",
        b"1",
        b"1.5",
        b'"\\ud800"',
        b' {"a": [1, {"b": null}]} \n',
        '"grüße"'.encode(),
        b'{"a": 1, "a": 2}',
        b"-0",
    ],
)
def test_events_are_read_as_awslambdaric_reads_them(event: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Any] = []
    of_awslambdaric(lambda event, context: read.append(event), event, monkeypatch)
    of_ours(lambda event, context: read.append(event), event)
    assert len(read) == 2 and repr(read[0]) == repr(read[1])


@pytest.mark.parametrize("event", [b"NaN", b'{"a": [-Infinity]}'])
def test_an_event_may_contain_what_a_result_may_contain(event: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Listed: awslambdaric refuses these, although it writes them. Ours reads them, so that a result can be an event."""
    assert cast(Posted, of_awslambdaric(len, event, monkeypatch))[0] == "error"
    assert of_ours(lambda event, context: event, event) == ("result", event)


@pytest.mark.parametrize("event", [b"", b"{", b"[1,]", b"{'a': 1}", b"nothing", b'"a', b"1 2", b"\xff", b'{"a" 1}', b"01"])
def test_an_event_that_is_not_json_is_awslambdarics_error(event: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Listed: the words after `Unable to unmarshal input: `. They are those of the decoder, which is simplejson there."""
    answers = [of_awslambdaric(len, event, monkeypatch), of_ours(len, event)]
    made = [json.loads(body) for kind, body in cast("list[Posted]", answers) if kind == "error"]
    for error in made:
        before, colon, _ = error.pop("errorMessage").partition(": ")
        assert before + colon == "Unable to unmarshal input: "
    assert made == 2 * [{"errorType": "Runtime.UnmarshalError", "requestId": ID, "stackTrace": []}]


# Modules and handlers that cannot be loaded: the source of `app.py`, the handler, and what is different in the error.
IMPORTLIB = "awslambdaric shows frames of importlib before the first of the user. They are never the cause."
IMPORTER = "awslambdaric gives no frames. Ours shows which line imports what cannot be imported."
UNLOADABLE: dict[str, tuple[str, str, str | None]] = {
    "missing module": ("", "nowhere.handler", None),
    "missing module in a folder": ("", "no/where.handler", None),
    "missing package": ("import nothing_of_this_name\n", "app.handler", IMPORTER),
    "missing name": ("from json import nothing_of_this_name\n", "app.handler", IMPORTER),
    "import error of the module's own": ("raise ImportError('mine')\n", "app.handler", IMPORTER),
    "missing attribute": ("", "app.handler", None),
    "nested attribute": ("class A:\n    handler = 1\n", "app.A.handler", None),
    "no dot": ("", "handler", None),
    "built-in module": ("", "sys.exit", None),
    "syntax error": ("def\n", "app.handler", None),
    "syntax error in the middle": ("x = 1\ndef f(:\n    pass\n", "app.handler", None),
    "indentation": ("def f():\nreturn 1\n", "app.handler", None),
    "tabs": ("if 1:\n\tx = 1\n        y = 2\n", "app.handler", None),
    "null byte": ("x = '\0'\n", "app.handler", None),
    "not ASCII": ("grüße = (\n", "app.handler", None),
    "error of the module": ("def f():\n    1 / 0\nf()\n", "app.handler", IMPORTLIB),
    "name error": ("nothing\n", "app.handler", IMPORTLIB),
    "error without text": ("raise ValueError\n", "app.handler", IMPORTLIB),
    "own class": ("class Broken(Exception):\n    pass\nraise Broken('grüße')\n", "app.handler", IMPORTLIB),
    "error of an imported module": ("import other\n", "app.handler", IMPORTLIB),
    "import by the module": ("import importlib\nimportlib.import_module('other')\n", "app.handler", IMPORTLIB),
    "chained": (
        "try:\n    1 / 0\nexcept ZeroDivisionError as error:\n    raise KeyError(1) from error\n",
        "app.handler",
        IMPORTLIB,
    ),
}


@pytest.mark.parametrize("name", UNLOADABLE)
def test_a_module_that_cannot_be_loaded_gives_awslambdarics_error(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, handler_name, listed = UNLOADABLE[name]
    (tmp_path / "app.py").write_text(source)
    (tmp_path / "other.py").write_text("raise LookupError('other')\n")
    monkeypatch.syspath_prepend(tmp_path)
    errors_of = []
    for load in (init_error_of_awslambdaric, init_error_of_ours):
        for module in ("app", "other"):
            sys.modules.pop(module, None)
        importlib.invalidate_caches()
        errors_of.append(json.loads(load(handler_name)))
    sys.modules.pop("app", None)
    theirs, ours = errors_of
    if listed == IMPORTER:
        assert theirs.pop("stackTrace") == []
        (frame,) = ours.pop("stackTrace")
        assert "app.py" in frame
    elif listed == IMPORTLIB:
        first = next(at for at, frame in enumerate(theirs["stackTrace"]) if "importlib" not in frame.split('"')[1])
        assert first > 0, "no longer different"
        del theirs["stackTrace"][:first]
    assert ours == theirs


def init_error_of_awslambdaric(name: str) -> str:
    """As `bootstrap.run`, which ends the process, makes it."""
    try:
        bootstrap._get_handler(name)
    except lambda_runtime_client.FaultException as error:
        made = bootstrap.make_error(error.msg, error.exception_type, error.trace)
    except Exception as error:
        made = bootstrap.build_fault_result((type(error), error, without_this_file(error)), None)
    return str(bootstrap.to_json(made))


def init_error_of_ours(name: str) -> bytes:
    with pytest.raises(BaseException) as raised:
        handler.load(spec.TemplateSpec({"handler": name}))
    return errors.body(raised.value.with_traceback(without_this_file(raised.value)))


def without_this_file(error: BaseException) -> TracebackType | None:
    """The traceback as it is if the runtime makes the call."""
    return error.__traceback__.tb_next if error.__traceback__ else None
