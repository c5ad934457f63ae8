"""A collector of traces for tests: OTLP over HTTP, read with OpenTelemetry's own Protobuf code."""

from __future__ import annotations

import gzip
import http.server
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest, ExportTraceServiceResponse
from opentelemetry.proto.trace.v1.trace_pb2 import Span as SpanMessage


@dataclass(frozen=True)
class Span:
    """A span as it was received."""

    name: str
    kind: str
    trace: str
    id: str
    parent: str
    state: str
    start_ns: int
    end_ns: int
    flags: int
    error: str | None
    attributes: dict[str, Any]
    resource: dict[str, Any]


@dataclass(frozen=True)
class Export:
    """One request of the daemon."""

    headers: dict[str, str]
    at_s: float
    spans: list[Span]
    status: int


def values(attributes: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in attributes}


def spans_of(message: ExportTraceServiceRequest) -> list[Span]:
    found = []
    for of_resource in message.resource_spans:
        resource = values(of_resource.resource.attributes)
        for scope in of_resource.scope_spans:
            assert scope.scope.name == "pilotlight"
            for span in scope.spans:
                found.append(
                    Span(
                        name=span.name,
                        kind=SpanMessage.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_"),
                        trace=span.trace_id.hex(),
                        id=span.span_id.hex(),
                        parent=span.parent_span_id.hex(),
                        state=span.trace_state,
                        start_ns=span.start_time_unix_nano,
                        end_ns=span.end_time_unix_nano,
                        flags=span.flags,
                        error=span.status.message if span.status.code == 2 else None,
                        attributes=values(span.attributes),
                        resource=resource,
                    )
                )
    return found


class Collector:
    """Listens on a free port of 127.0.0.1."""

    def __init__(self) -> None:
        self.exports: list[Export] = []
        """Statuses of the next answers, with what `Retry-After` says. Then 200."""
        self.refusals: list[tuple[int, str | None]] = []
        self.rejects = 0
        self._changed = threading.Condition()
        collector = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                status, answer, after = collector.take(self.path, {k.lower(): v for k, v in self.headers.items()}, body)
                self.send_response(status)
                self.send_header("content-type", "application/x-protobuf")
                self.send_header("content-length", str(len(answer)))
                if after is not None:
                    self.send_header("retry-after", after)
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def take(self, path: str, headers: dict[str, str], body: bytes) -> tuple[int, bytes, str | None]:
        assert path == "/v1/traces", path
        if headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        message = ExportTraceServiceRequest.FromString(body)
        answer = ExportTraceServiceResponse()
        with self._changed:
            status, after = self.refusals.pop(0) if self.refusals else (200, None)
            if status == 200 and self.rejects:
                answer.partial_success.rejected_spans, self.rejects = self.rejects, 0
                answer.partial_success.error_message = "too old"
            self.exports.append(Export(headers, time.monotonic(), spans_of(message), status))
            self._changed.notify_all()
        return status, answer.SerializeToString(), after

    def spans(self) -> list[Span]:
        """The spans that were taken."""
        return [span for export in self.exports if export.status == 200 for span in export.spans]

    def wait(self, is_there: Callable[[list[Span]], Any], timeout_s: float = 30) -> list[Span]:
        """Waits until the spans are there, and returns all."""
        with self._changed:
            if not self._changed.wait_for(lambda: is_there(self.spans()), timeout_s):
                raise AssertionError(f"spans are missing; there are {[(span.name, span.trace) for span in self.spans()]}")
            return self.spans()

    def trace(self, trace: str, *ends: str) -> list[Span]:
        """The spans of a trace, when there is at least one of each of these names. A name may be repeated."""

        def is_there(spans: list[Span]) -> bool:
            names = [span.name for span in spans if span.trace == trace]
            return all(names.count(name) >= ends.count(name) for name in ends)

        return [span for span in self.wait(is_there) if span.trace == trace]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
