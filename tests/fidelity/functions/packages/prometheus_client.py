"""Metrics of the module."""

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

REGISTRY = CollectorRegistry()
CALLS = Counter("calls", "Calls", ["kind"], registry=REGISTRY)
SECONDS = Histogram("seconds", "Duration", buckets=[1, 2], registry=REGISTRY)
CALLS.labels("import").inc()


def work():
    CALLS.labels("worker").inc()
    SECONDS.observe(1.5)
    return [line for line in generate_latest(REGISTRY).decode().splitlines() if "created" not in line]


def fail():
    CALLS.labels("a", "b")
