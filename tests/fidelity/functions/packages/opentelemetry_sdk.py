"""A provider of the module, as a function has it: a span processor that exports in batches from a thread."""

from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

EXPORTER = InMemorySpanExporter()
PROVIDER = TracerProvider(resource=Resource({"service.name": "own"}))
PROVIDER.add_span_processor(BatchSpanProcessor(EXPORTER))
trace.set_tracer_provider(PROVIDER)
TRACER = trace.get_tracer("own")


def work():
    EXPORTER.clear()
    with TRACER.start_as_current_span("outer") as outer:
        with TRACER.start_as_current_span("inner"):
            outer.set_attribute("a", 1)
    return [PROVIDER.force_flush(5000), sorted(one.name for one in EXPORTER.get_finished_spans())]


def random():
    context = TRACER.start_span("own").get_span_context()
    return [context.trace_id, context.span_id]


def fail():
    with TRACER.start_as_current_span("failing"):
        raise ValueError("within a span")
