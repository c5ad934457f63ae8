"""A router, metrics and a logger of the module."""

import io
import json

from aws_lambda_powertools import Logger, Metrics
from aws_lambda_powertools.event_handler import APIGatewayHttpResolver
from aws_lambda_powertools.metrics import MetricUnit

STREAM = io.StringIO()
LOGGER = Logger(service="own", stream=STREAM)
METRICS = Metrics(namespace="own", service="own")
ROUTES = APIGatewayHttpResolver()


@ROUTES.get("/orders/<number>")
def order(number):
    return {"number": number}


def work():
    http = {"method": "GET", "path": "/orders/7"}
    event = {"version": "2.0", "rawPath": "/orders/7", "requestContext": {"http": http, "stage": "$default"}, "headers": {}}
    METRICS.add_metric("made", MetricUnit.Count, 1)
    metrics = METRICS.serialize_metric_set()
    LOGGER.info("made")
    line = json.loads(STREAM.getvalue())
    return [ROUTES.resolve(event, None)["body"], metrics["made"], [line["level"], line["message"], line["service"]]]


def fail():
    METRICS.clear_metrics()
    METRICS.serialize_metric_set()
