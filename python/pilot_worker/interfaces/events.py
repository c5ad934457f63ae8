"""Calls `handler(event, context)` for plain functions: one `INVOKE` frame in, one `RESULT` or `ERROR` frame out.

`EventCall` is the hot path of the worker. The two classes do the same in code of their own: a shared helper would add a call.
"""

from __future__ import annotations

import json
import os
import sys
import time

from .. import inputs, output
from ..protocol import wire
from . import errors
from .context import LambdaContext, traceparent
from .results import encode_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Optional

    from ..protocol.aio import AsyncChannel
    from ..protocol.channel import Channel
    from .handler import Function

# Names of our own: a new worker then copies the pages of fewer modules. And a function that replaces the clock has right times.
_now = time.monotonic_ns
_set_request_id = output.request_id.set
_pack_header = wire.HEADER.pack
_INVOKE, _RESULT = wire.INVOKE, wire.RESULT
_decoder = json.JSONDecoder()
_scan = _decoder.scan_once  # type: ignore[attr-defined]  # the C scanner without the regular expressions of json.loads


class Trace:
    """`_X_AMZN_TRACE_ID`, set for invocations that have one. Not with concurrency above 1: there is only one os.environ.

    If the trace is recorded, `TRACEPARENT` and `TRACESTATE` say the same in W3C's form (OpenTelemetry, "Environment variables
    as context propagation carriers").

    Programs that the handler starts see it only if the trace is recorded. Most are not, and setenv(3) keeps each value that it
    was ever given (glibc, stdlib/setenv.c): 125 bytes and 2 us or more per invocation, for ever.
    """

    def __init__(self, concurrency: int) -> None:
        self._is_used = concurrency == 1
        self._is_set = False
        self._is_exported = False
        # What os.environ does when it is set, in 0.4 us instead of 1.3: it has the variables as bytes.
        self._variables: Any = getattr(os.environ, "_data", None)

    def set(self, meta: Dict[str, Any]) -> None:
        trace: Optional[str] = meta.get("trace")
        if trace is not None and self._is_used:
            self._is_set = True
            variables = self._variables
            if variables is None or "\0" in trace:
                os.environ["_X_AMZN_TRACE_ID"] = trace
                self._tell_w3c(trace, meta)
                self._is_exported = True
                return
            variables[b"_X_AMZN_TRACE_ID"] = text = trace.encode("utf-8", "surrogateescape")
            if not trace.endswith("Sampled=0"):
                os.putenv(b"_X_AMZN_TRACE_ID", text)
                self._tell_w3c(trace, meta)
                self._is_exported = True
            elif self._is_exported:
                os.unsetenv(b"_X_AMZN_TRACE_ID")
                self._tell_w3c(None, meta)
                self._is_exported = False
        elif self._is_set:
            os.environ.pop("_X_AMZN_TRACE_ID", None)
            if self._is_exported:
                self._tell_w3c(None, meta)
            self._is_set = self._is_exported = False

    def _tell_w3c(self, trace: Optional[str], meta: Dict[str, Any]) -> None:
        parent = traceparent(trace)
        for name, value in (("TRACEPARENT", parent), ("TRACESTATE", meta.get("trace_state") if parent else None)):
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


class EventCall:
    """Calls a plain function. Each thread serves one frame at a time.

    An ordinary call does itself what `decode_meta`, `done_meta`, `output.flush` and `Channel.write` do: a new worker copies
    about two pages for each function that it calls."""

    __slots__ = ("request_id", "_target", "_info", "_trace", "_write", "_send")

    def __init__(self, function: Function, channel: Channel) -> None:
        self.request_id = ""
        output.one_at_a_time = function.spec.concurrency == 1
        self._target = function.target
        self._info = function.info
        self._trace = Trace(function.spec.concurrency)
        self._write = channel.write
        self._send = channel.send

    def __call__(self, kind: int, stream: int, meta_bytes: bytes, body: bytes) -> None:
        meta: Dict[str, Any] = _scan(meta_bytes.decode(), 0)[0]
        if "inputs" in meta or "failed_inputs" in meta:
            take_inputs(stream, meta)
        self.request_id = request_id = meta["id"]
        _set_request_id(request_id)
        self._trace.set(meta)
        started_ns = _now()
        failed = b""
        try:
            event = decode_event(kind, body)
            context = LambdaContext(self._info, meta)
            started_ns = _now()
            returned = self._target(event, context)
            finished_ns = _now()
            answer = encode_result(returned)
        except SystemExit:
            raise
        except BaseException as error:  # includes KeyboardInterrupt: every error of the handler
            finished_ns = _now()
            failed = errors.body(error, request_id)
        if "inputs" in meta:
            inputs.end(meta)
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        except Exception:  # as in `output.flush`
            pass
        if failed:
            self._write(wire.ERROR, stream, done_meta(started_ns, finished_ns), failed)
            return
        done = b'{"started_ns":%d,"finished_ns":%d}' % (started_ns, finished_ns)
        # `encode_result` has limited the length.
        self._send(_pack_header(len(done), len(answer), stream, _RESULT, 0, 0) + done + answer)


class AsyncEventCall:
    """The same for a coroutine function, as a task per frame."""

    __slots__ = ("request_id", "_target", "_info", "_trace", "_send")

    def __init__(self, function: Function, channel: AsyncChannel) -> None:
        self.request_id = ""
        output.one_at_a_time = function.spec.concurrency == 1
        self._target = function.target
        self._info = function.info
        self._trace = Trace(function.spec.concurrency)
        self._send = channel.send

    async def __call__(self, kind: int, stream: int, meta_bytes: bytes, body: bytes) -> None:
        meta = decode_meta(stream, meta_bytes)
        self.request_id = request_id = meta["id"]
        output.request_id.set(request_id)
        self._trace.set(meta)
        started_ns = time.monotonic_ns()
        try:
            event = decode_event(kind, body)
            context = LambdaContext(self._info, meta)
            started_ns = time.monotonic_ns()
            returned = await self._target(event, context)
            finished_ns = time.monotonic_ns()
            answer_kind, answer = wire.RESULT, encode_result(returned)
        except SystemExit:
            raise
        except BaseException as error:  # includes CancelledError: the caller must get an answer
            finished_ns = time.monotonic_ns()
            answer_kind, answer = wire.ERROR, errors.body(error, request_id)
        if "inputs" in meta:
            inputs.end(meta)
        output.flush()
        rest = self._send(wire.encode(answer_kind, stream, done_meta(started_ns, finished_ns), answer))
        if rest is not None:
            await rest


def decode_meta(stream: int, text: bytes) -> Dict[str, Any]:
    meta: Dict[str, Any] = _scan(text.decode(), 0)[0]
    if "inputs" in meta or "failed_inputs" in meta:
        take_inputs(stream, meta)
    return meta


def take_inputs(stream: int, meta: Dict[str, Any]) -> None:
    """Puts the inputs of an invocation in the place of their descriptions."""
    if "inputs" in meta:
        meta["inputs"] = inputs.take(stream, meta["inputs"], meta["id"])
        if ":calls" in meta["inputs"]:
            from ..sdk import calls

            calls.begin(meta)
    inputs.begin_messages(meta)


def decode_event(kind: int, body: bytes) -> Any:
    if kind != _INVOKE:
        raise errors.Fault("Runtime.BadRequest", f"an event handler cannot answer a frame of kind {kind}")
    try:
        text = body.decode()
        try:
            event, end = _scan(text, 0)
            if end == len(text):
                return event
        except (ValueError, StopIteration):
            pass  # surrounding white space, or an error, for which the full decoder has a better message
        return _decoder.decode(text)
    except (ValueError, RecursionError) as error:
        raise errors.Fault("Runtime.UnmarshalError", f"Unable to unmarshal input: {error}") from error


def encode_result(returned: Any) -> bytes:
    """JSON as awslambdaric writes it. Bytes pass unchanged."""
    if isinstance(returned, bytes):
        encoded = returned
    else:
        try:
            encoded = encode_json(returned)
        except Exception as error:  # an object of the user may raise anything while it is encoded
            raise errors.Fault("Runtime.MarshalError", f"Unable to marshal response: {error}") from error
    if len(encoded) > wire.RESULT_LEN_MAX:
        raise errors.Fault(
            "Function.ResponseSizeTooLarge",
            f"Response payload size exceeded maximum allowed payload size ({wire.RESULT_LEN_MAX} bytes).",
        )
    return encoded


def done_meta(started_ns: int, finished_ns: int) -> bytes:
    return b'{"started_ns":%d,"finished_ns":%d}' % (started_ns, finished_ns)
