"""Traces over OTLP. What the daemon sends is read with OpenTelemetry's own code, and what functions are told with its propagators."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace as api
from opentelemetry.propagators.aws import AwsXRayPropagator
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from otlp_collector import Collector, Span
from pilot_daemon import ROOT, Daemon, free_port

HERE = Path(__file__).resolve().parent
FLAG_IS_REMOTE, FLAG_HAS_IS_REMOTE = 0x200, 0x100


def daemon_with(home: Path, settings: str) -> Daemon:
    notes = home / "notes"
    notes.mkdir()
    (notes / "one").write_text("a note")
    config = home / "pilotd.toml"
    settings = f'[traces]\n{settings}\n[connections.inbox]\nkind = "folder"\npath = "{notes}"\nfunctions = ["fed-by-folder"]\n'
    config.write_text(f'[stores.notes]\nkind = "file"\npath = "{notes}"\nfunctions = ["*"]\n{settings}')
    daemon = Daemon(home, "--config", config)
    done = daemon.up(HERE / "traces")
    if done.returncode != 0:
        daemon.stop()
        pytest.fail(f"deploy failed:\n{done.stdout}{done.stderr}\n{daemon.log.read_text()}", pytrace=False)
    return daemon


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    collector = Collector()
    yield collector
    collector.close()


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    home = Path(tempfile.mkdtemp(prefix="pilot-traces-"))
    yield home
    shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(scope="module")
def traced(collector: Collector, home: Path) -> Iterator[Daemon]:
    """Records everything whose caller does not say otherwise."""
    daemon = daemon_with(home, f'endpoint = "{collector.endpoint}"\nsample = 1.0\nheaders = {{ x-tenant = "us" }}\n')
    yield daemon
    daemon.stop()


class Caller:
    """A caller's span."""

    def __init__(self, sampled: bool = True) -> None:
        self.trace, self.span = secrets.token_hex(16), secrets.token_hex(8)
        self.headers = {"traceparent": f"00-{self.trace}-{self.span}-{int(sampled):02}"}


def invoke(daemon: Daemon, function: str, event: object = None, **headers: str) -> Any:
    response = daemon.request("POST", f"/2015-03-31/functions/{function}/invocations", event or {}, **headers)
    body = response.read()
    assert response.status in (200, 202), body
    return json.loads(body) if body else response.headers["x-amzn-requestid"]


def one(spans: list[Span], name: str) -> Span:
    (found,) = [span for span in spans if span.name == name]
    return found


def children(spans: list[Span], parent: Span) -> list[Span]:
    return sorted((span for span in spans if span.parent == parent.id), key=lambda span: (span.start_ns, span.end_ns))


def metric(daemon: Daemon, outcome: str) -> int:
    text = daemon.request("GET", "/metrics").read().decode()
    name = f'pilot_trace_spans_total{{outcome="{outcome}"}} '
    return sum(int(line.removeprefix(name)) for line in text.splitlines() if line.startswith(name))


def until(is_so: Any, timeout_s: float = 30) -> None:
    deadline = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)


def test_a_cold_invocation_has_a_span_for_each_phase_below_its_callers(traced: Daemon, collector: Collector) -> None:
    caller = Caller()
    traced.retire("told")
    before = time.time_ns()
    answer = invoke(traced, "told", **caller.headers, tracestate="vendor=1")
    after = time.time_ns()
    spans = collector.trace(caller.trace, "told")
    root = one(spans, "told")
    assert (root.parent, root.kind, root.state) == (caller.span, "SERVER", "vendor=1")
    assert root.flags & FLAG_HAS_IS_REMOTE and root.flags & FLAG_IS_REMOTE
    phases = children(spans, root)
    names = [span.name for span in phases]
    assert [name for name in names if name not in ("inputs", "thaw")] == [
        "admit", "lease", "fork", "sandbox", "init", "start", "handler", "answer",
    ]  # fmt: skip
    assert before <= root.start_ns <= root.end_ns <= after
    assert phases[0].start_ns == root.start_ns and phases[-1].end_ns == root.end_ns
    for first, second in zip(phases, phases[1:], strict=False):
        assert first.end_ns == second.start_ns, "phases follow one another"
    assert not [span for span in spans if span.flags & FLAG_IS_REMOTE and span is not root]
    expected = {
        "faas.name": "told", "faas.version": "1", "faas.trigger": "http", "faas.coldstart": True, "pilot.outcome": "ok",
        "http.request.method": "POST", "http.route": "/2015-03-31/functions/{name}/invocations", "http.response.status_code": 200,
        "url.path": "/2015-03-31/functions/told/invocations", "url.scheme": "http", "client.address": "127.0.0.1",
        "network.protocol.version": "1.1", "server.address": "127.0.0.1",
    }  # fmt: skip
    assert {key: root.attributes.get(key) for key in expected} == expected
    assert len(root.attributes["faas.invocation_id"]) == 36
    assert root.resource["service.name"] == "pilotlight" and root.resource["service.instance.id"]
    # The function's own spans belong below the handler's.
    handler = one(spans, "handler")
    assert answer["environment"]["TRACEPARENT"] == f"00-{caller.trace}-{handler.id}-01"
    assert answer["environment"]["TRACESTATE"] == "vendor=1"
    assert answer["context"] == [answer["environment"]["TRACEPARENT"], "vendor=1"]


def test_opentelemetrys_propagators_find_the_handlers_span(traced: Daemon, collector: Collector) -> None:
    for function in ("told", "told-node"):
        environment = invoke(traced, function, **Caller().headers)["environment"]
        w3c = {name.lower(): value for name, value in environment.items()}
        xray = {"X-Amzn-Trace-Id": environment["_X_AMZN_TRACE_ID"]}
        for propagator, carrier in ((TraceContextTextMapPropagator(), w3c), (AwsXRayPropagator(), xray)):
            context = api.get_current_span(propagator.extract(carrier)).get_span_context()
            assert context.is_valid and context.trace_flags.sampled, (function, carrier)
            spans = collector.trace(f"{context.trace_id:032x}", function)
            assert one(spans, "handler").id == f"{context.span_id:016x}"


def test_x_rays_header_is_a_context_too(traced: Daemon, collector: Collector) -> None:
    caller = Caller()
    header = f"Root=1-{caller.trace[:8]}-{caller.trace[8:]};Parent={caller.span};Sampled=1"
    invoke(traced, "told", **{"X-Amzn-Trace-Id": header})
    assert one(collector.trace(caller.trace, "told"), "told").parent == caller.span


def test_what_the_caller_does_not_record_is_not_recorded(traced: Daemon, collector: Collector) -> None:
    caller = Caller(sampled=False)
    answer = invoke(traced, "told", **caller.headers)
    assert answer["environment"]["_X_AMZN_TRACE_ID"].endswith(f";Parent={caller.span};Sampled=0")
    assert "TRACEPARENT" not in answer["environment"]
    # What comes later is there, so this is not.
    later = Caller()
    invoke(traced, "told", **later.headers)
    collector.trace(later.trace, "told")
    assert not [span for span in collector.spans() if span.trace == caller.trace]


def test_a_request_without_a_context_begins_a_trace(traced: Daemon, collector: Collector) -> None:
    for headers in ({}, {"traceparent": "00-nonsense"}, {"traceparent": "00-" + "0" * 32 + "-" + "1" * 16 + "-01"}):
        told = invoke(traced, "told", **headers)["environment"]["TRACEPARENT"]
        root = one(collector.trace(told.split("-")[1], "told"), "told")
        assert root.parent == ""
        # X-Ray's traces begin with the time.
        assert abs(int(root.trace[:8], 16) - time.time()) < 3600


@pytest.mark.parametrize(
    "header", ["Root=1-2-3", "Self=1-67891233-abcdef012345678912345678", "nonsense", "Root=1-2-3;Sampled=0"]
)
def test_an_x_ray_header_that_names_no_trace_is_no_context(traced: Daemon, collector: Collector, header: str) -> None:
    told = invoke(traced, "told", **{"X-Amzn-Trace-Id": header})["environment"]
    trace = told["TRACEPARENT"].split("-")[1]
    root = one(collector.trace(trace, "told"), "told")
    assert root.parent == ""
    assert told["_X_AMZN_TRACE_ID"].startswith(f"Root=1-{trace[:8]}-{trace[8:]};")


@pytest.mark.parametrize(("function", "status"), [("page", 203), ("server", 201)])
def test_functions_that_take_requests_get_headers(traced: Daemon, collector: Collector, function: str, status: int) -> None:
    caller = Caller()
    response = traced.request("GET", f"/fn/{function}/a/b?secret=1", **caller.headers, tracestate="a=1")
    headers = json.loads(response.read())
    spans = collector.trace(caller.trace, function)
    root, handler = one(spans, function), one(spans, "handler")
    assert headers["traceparent"] == f"00-{caller.trace}-{handler.id}-01"
    assert headers["tracestate"] == "a=1"
    assert headers["x-amzn-trace-id"].endswith(f";Parent={handler.id};Sampled=1")
    assert root.attributes["http.response.status_code"] == status
    assert (root.attributes["http.route"], root.attributes["url.path"]) == ("/fn/{name}", f"/fn/{function}/a/b")
    assert "secret" not in str(spans)


def test_an_http_server_that_is_sent_an_event_gets_headers(traced: Daemon, collector: Collector) -> None:
    caller = Caller()
    headers = invoke(traced, "server", **caller.headers)
    handler = one(collector.trace(caller.trace, "server"), "handler")
    assert headers["traceparent"] == f"00-{caller.trace}-{handler.id}-01"


def test_a_function_url_has_the_headers_in_its_event(traced: Daemon, collector: Collector) -> None:
    caller = Caller()
    answer = json.loads(traced.request("GET", "/fn/told/", **caller.headers).read())
    handler = one(collector.trace(caller.trace, "told"), "handler")
    assert answer["headers"]["traceparent"] == f"00-{caller.trace}-{handler.id}-01" == answer["environment"]["TRACEPARENT"]


def test_inputs_have_spans_of_their_own(traced: Daemon, collector: Collector) -> None:
    for name, error in (("one", False), ("none", True)):
        caller = Caller()
        assert invoke(traced, "fed", {"name": name}, **caller.headers) is not error
        spans = collector.trace(caller.trace, "fed")
        root, fetch = one(spans, "fed"), one(spans, "input text")
        assert fetch.parent == root.id
        assert root.start_ns <= fetch.start_ns <= fetch.end_ns <= root.end_ns
        assert fetch.attributes["pilot.input.from"] == f"file://notes/{name}"
        assert (fetch.error is not None) is error


def test_a_function_that_another_one_invokes_is_below_its_handler(traced: Daemon, collector: Collector) -> None:
    caller = Caller()
    own, other = invoke(traced, "caller", **caller.headers)
    spans = collector.trace(caller.trace, "caller", "told")
    called = one(spans, "told")
    assert own["environment"]["TRACEPARENT"].split("-")[2] == called.parent
    first = one(spans, "caller")
    assert called.parent in [span.id for span in children(spans, first) if span.name == "handler"]
    assert first.start_ns <= called.start_ns <= called.end_ns <= first.end_ns
    assert (called.kind, called.attributes["faas.trigger"], called.attributes["pilot.caller"]) == ("SERVER", "other", "caller")
    assert other["environment"]["TRACEPARENT"].split("-")[1] == caller.trace


def test_the_functions_of_a_chain_are_below_its_request(traced: Daemon, collector: Collector) -> None:
    caller = Caller()
    invoke(traced, "told", **caller.headers, **{"X-Pilot-Target": "told-node, told"})
    spans = collector.trace(caller.trace, "chain told", "told", "told", "told-node")
    request = one(spans, "chain told")
    assert (request.parent, request.kind) == (caller.span, "SERVER")
    assert request.attributes["http.response.status_code"] == 200
    links = children(spans, request)
    assert sorted(span.name for span in links) == ["told", "told", "told-node"]
    assert all(request.start_ns <= span.start_ns and span.end_ns <= request.end_ns for span in links)


def test_attempts_of_an_asynchronous_invocation_are_below_its_acceptance(traced: Daemon, collector: Collector) -> None:
    caller = Caller()
    before = time.time_ns()
    request_id = invoke(traced, "fails", **caller.headers, tracestate="a=1", **{"X-Amz-Invocation-Type": "Event"})
    answered = time.time_ns()
    spans = collector.trace(caller.trace, "send fails", "fails", "fails", "told")
    accepted = one(spans, "send fails")
    assert (accepted.parent, accepted.kind) == (caller.span, "PRODUCER")
    assert before <= accepted.start_ns <= accepted.end_ns <= answered
    assert accepted.attributes["http.response.status_code"] == 202
    attempts = [span for span in spans if span.name == "fails"]
    destination = one(spans, "told")
    for span in (*attempts, destination):
        assert (span.parent, span.kind, span.state) == (accepted.id, "CONSUMER", "a=1")
    for span in attempts:
        assert (span.error, span.attributes["error.type"]) == ("function_error", "function_error")
        assert span.attributes["faas.invocation_id"] == request_id
        assert span.attributes["messaging.operation.type"] == "process"
    first, second = sorted(attempts, key=lambda span: span.start_ns)
    assert first.end_ns < second.start_ns < destination.start_ns


def test_spans_go_in_batches_with_gzip_and_the_configured_headers(traced: Daemon, collector: Collector) -> None:
    before, exported = len(collector.exports), metric(traced, "exported")
    callers = [Caller() for _ in range(300)]
    for caller in callers:
        invoke(traced, "told", **caller.headers)
    wanted = {caller.trace for caller in callers}
    collector.wait(lambda spans: wanted <= {span.trace for span in spans if span.name == "told"})
    exports = collector.exports[before:]
    sent = sum(len(export.spans) for export in exports)
    assert sent >= 300 * 5 and len(exports) < 100, (sent, len(exports))
    for export in exports:
        assert export.headers["content-encoding"] == "gzip"
        assert export.headers["content-type"] == "application/x-protobuf"
        assert export.headers["x-tenant"] == "us"
        assert len(export.spans) <= 600
    until(lambda: metric(traced, "exported") >= exported + sent)


def test_a_collector_that_asks_to_wait_gets_the_same_spans_again(traced: Daemon, collector: Collector) -> None:
    failed = metric(traced, "failed")
    collector.refusals[:] = [(503, "1"), (429, "2")]
    caller, before = Caller(), len(collector.exports)
    invoke(traced, "told", **caller.headers)
    spans = collector.trace(caller.trace, "told")
    first, second, third = collector.exports[before : before + 3]
    assert [export.status for export in (first, second, third)] == [503, 429, 200]
    assert first.spans == second.spans == third.spans
    assert second.at_s - first.at_s >= 1 and third.at_s - second.at_s >= 2
    assert len({span.id for span in spans}) == len(spans), "nothing was taken twice"
    assert metric(traced, "failed") == failed


def test_what_the_collector_refuses_is_counted_and_not_sent_again(traced: Daemon, collector: Collector) -> None:
    failed, before = metric(traced, "failed"), len(collector.exports)
    collector.refusals[:] = [(400, None)]
    invoke(traced, "told", **Caller().headers)
    until(lambda: metric(traced, "failed") > failed)
    until(lambda: "the collector refuses spans: they are dropped" in traced.log.read_text())
    caller, rejected = Caller(), metric(traced, "rejected")
    collector.rejects = 2
    invoke(traced, "told", **caller.headers)
    collector.trace(caller.trace, "told")
    until(lambda: metric(traced, "rejected") == rejected + 2)
    assert [export.status for export in collector.exports[before:]] == [400, 200]


# Exports its memory and `run`, which does nothing.
EMPTY_INITSCRIPT = bytes.fromhex(
    "0061736d01000000 010401600000 03020100 0503010001 071002066d656d6f72790200 0372756e0000 0a040102000b"
)
# Triggers and initscripts have metrics of their own.
FED_BY_FOLDER = """
[functions.fed-by-folder]
handler = "app.fed"
initscript = {{ module = "empty.wasm" }}
triggers = [{{ type = "folder", path = "{folder}" }}]
"""


def deploy_fed_by_folder(daemon: Daemon, folder: Path, watched: Path) -> None:
    (folder / "pilot.toml").write_text(FED_BY_FOLDER.format(folder=watched))
    (folder / "empty.wasm").write_bytes(EMPTY_INITSCRIPT)
    (folder / "app.py").write_text("def fed(event, context):\n    return event\n")
    done = daemon.up(folder)
    assert done.returncode == 0, done.stdout + done.stderr


def test_an_invocation_of_a_trigger_begins_a_trace_and_says_its_trigger(
    traced: Daemon, collector: Collector, home: Path, tmp_path: Path
) -> None:
    deploy_fed_by_folder(traced, tmp_path, home / "notes")
    (home / "notes" / secrets.token_hex(4)).write_text("new")
    found = collector.wait(lambda spans: "fed-by-folder" in {span.name for span in spans})
    root = next(span for span in found if span.name == "fed-by-folder")
    assert (root.parent, root.kind, root.attributes["faas.trigger"]) == ("", "CONSUMER", "datasource")
    assert "handler" in {span.name for span in collector.trace(root.trace, "fed-by-folder")}


def test_every_metric_of_the_dashboard_is_in_metrics(traced: Daemon, home: Path, tmp_path: Path) -> None:
    dashboard = json.loads((ROOT / "docs" / "grafana" / "pilotlight.json").read_text())
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    named = set(re.findall(r"\b(?:faas|pilot)_\w+", " ".join(expressions))) - {"faas_name", "faas_trigger"}
    assert len(named) > 30
    deploy_fed_by_folder(traced, tmp_path, home / "notes")
    for function in ("told", "told-node", "fails", "fed-by-folder"):
        invoke(traced, function)
        traced.retire(function)

    def missing() -> set[str]:
        text = traced.request("GET", "/metrics").read().decode()
        series = {re.split(r"[{ ]", line)[0] for line in text.splitlines() if not line.startswith("#")}
        return named - series

    # Without TLS there is no certificate.
    until(lambda: missing() == {"pilot_tls_certificate_expiry_timestamp_seconds"})


def test_without_a_collector_functions_answer_and_the_loss_is_counted(tmp_path: Path) -> None:
    # Nobody listens on port 9.
    daemon = daemon_with(tmp_path, 'endpoint = "http://127.0.0.1:9"\nsample = 1.0\n')
    try:
        for _ in range(1500):
            invoke(daemon, "told")
        until(lambda: metric(daemon, "queue_full") > 0)
        assert metric(daemon, "exported") == 0
        began = time.monotonic()
    finally:
        daemon.stop()
    assert daemon.process.returncode == 0 and time.monotonic() - began < 12
    log = daemon.log.read_text()
    assert log.count("the collector takes no spans") == 1, log
    assert "events-traces" not in log and "did not end" not in log


def test_the_trace_of_an_event_survives_the_daemon(collector: Collector, tmp_path: Path) -> None:
    daemon = daemon_with(tmp_path, f'endpoint = "{collector.endpoint}"\nsample = 0.0\n')
    caller, name = Caller(), "fails-again"
    try:
        invoke(daemon, name, **caller.headers, tracestate="a=1", **{"X-Amz-Invocation-Type": "Event"})
        accepted = one(collector.trace(caller.trace, f"send {name}", name), f"send {name}")
        daemon.process.kill()
        daemon.process.wait()
        daemon = Daemon(tmp_path, "--config", tmp_path / "pilotd.toml")
        spans = collector.trace(caller.trace, name, name)
    finally:
        daemon.stop()
    attempts = [span for span in spans if span.name == name]
    assert len({span.resource["service.instance.id"] for span in attempts}) == 2
    assert {(span.parent, span.state) for span in attempts} == {(accepted.id, "a=1")}


def test_the_ratio_and_the_daemons_own_decision(collector: Collector, tmp_path: Path) -> None:
    daemon = daemon_with(tmp_path, f'endpoint = "{collector.endpoint}"\nsample = 0.0\ncallers = "ignore"\n')
    try:
        caller = Caller()
        told = invoke(daemon, "told", **caller.headers)["environment"]["_X_AMZN_TRACE_ID"]
        assert told.endswith(f"Parent={caller.span};Sampled=0")
        invoke(daemon, "fails", **caller.headers, **{"X-Amz-Invocation-Type": "Event"})
        until(lambda: 'pilot_async_invocations{state="waiting"} 0' in daemon.request("GET", "/metrics").read().decode())
    finally:
        daemon.stop()
    assert not [span for span in collector.spans() if span.trace == caller.trace]


def test_the_last_spans_are_sent_when_the_daemon_stops(collector: Collector, tmp_path: Path) -> None:
    daemon = daemon_with(tmp_path, f'endpoint = "{collector.endpoint}/v1/traces"\nsample = 1.0\ncompression = "none"\n')
    caller = Caller()
    try:
        invoke(daemon, "told", **caller.headers)
    finally:
        daemon.stop()
    assert one([span for span in collector.spans() if span.trace == caller.trace], "told").parent == caller.span


def test_the_opentelemetry_collector_takes_our_spans(tmp_path: Path) -> None:
    program = Path(os.environ.get("PILOT_OTELCOL", ROOT / "target" / "otelcol"))
    if not program.exists():
        pytest.skip(
            "there is no OpenTelemetry collector: `scripts/otelcol` builds one (needs Go, some minutes), or set PILOT_OTELCOL"
        )
    config, log = tmp_path / "collector.yaml", tmp_path / "collector.log"
    address = f"127.0.0.1:{free_port()}"
    config.write_text(
        f"receivers: {{otlp: {{protocols: {{http: {{endpoint: '{address}'}}}}}}}}\n"
        "exporters: {debug: {verbosity: detailed}}\n"
        "service:\n"
        "  telemetry: {metrics: {level: none}}\n"
        "  pipelines: {traces: {receivers: [otlp], exporters: [debug]}}\n"
    )
    with log.open("wb") as output:
        process = subprocess.Popen([program, "--config", config], stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    try:
        until(lambda: "Everything is ready" in log.read_text(errors="replace"))
        daemon = daemon_with(tmp_path, f'endpoint = "http://{address}"\nsample = 1.0\n')
        caller = Caller()
        try:
            invoke(daemon, "told", **caller.headers, tracestate="a=1")
            until(lambda: log.read_text(errors="replace").count(f"Trace ID       : {caller.trace}") >= 8)
            assert metric(daemon, "rejected") == metric(daemon, "failed") == 0
        finally:
            daemon.stop()
    finally:
        process.terminate()
        process.wait(20)
    text = log.read_text(errors="replace")
    for line in (
        f"Parent ID      : {caller.span}",
        "TraceState     : a=1",
        "faas.coldstart: Bool(true)",
        "service.name: Str(pilotlight)",
    ):
        assert line in text, text
