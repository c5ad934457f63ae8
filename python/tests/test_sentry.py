"""Functions that use the AwsLambdaIntegration of sentry-sdk: in an abridged form, and the package itself if it is installed."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from conftest import Functions

# sentry_sdk.integrations.aws_lambda 2.75.0, reduced to how it finds and patches `bootstrap`.
ABRIDGED = """
import sys
queue, sent = [], []
def wrapped(handler):
    def call(event, context):
        try:
            return handler(event, context)
        except Exception as error:
            queue.append(repr(error))
            raise
    return call
def drained(post):
    def call(*args, **kwargs):
        sent.extend(queue)
        queue.clear()
        return post(*args, **kwargs)
    return call
def init():
    bootstrap = sys.modules["__main__"].bootstrap
    assert not hasattr(bootstrap, "handle_http_request")
    client = bootstrap.LambdaRuntimeClient
    client.post_init_error = drained(client.post_init_error)
    handle = bootstrap.handle_event_request
    bootstrap.handle_event_request = lambda client, handler, *a, **k: handle(client, wrapped(handler), *a, **k)
    client.post_invocation_result = drained(client.post_invocation_result)
    client.post_invocation_error = drained(client.post_invocation_error)
"""
USES_ABRIDGED = """
from sentry_sdk.integrations import aws_lambda
if AT_IMPORT: aws_lambda.init()
def handler(event, context):
    if event == "init": aws_lambda.init()
    if event == "boom": raise ValueError("boom")
    if event == "queue": aws_lambda.queue.append("own")
    return [list(aws_lambda.sent), list(aws_lambda.queue)]
"""

USES_PACKAGE = """
import sentry_sdk
from sentry_sdk.integrations.aws_lambda import AwsLambdaIntegration
def keep(event, hint):
    value = event["exception"]["values"][0]
    seen.append([value["type"], value["mechanism"], event["extra"]["lambda"]["aws_request_id"] == request])
seen, request = [], ""
sentry_sdk.init("http://key@127.0.0.1:9/1", before_send=keep, integrations=[AwsLambdaIntegration(timeout_warning=True)])
def handler(event, context):
    global request
    request = context.aws_request_id
    if event == {"boom": True}:
        raise ValueError("boom")
    return seen
"""


def write_abridged(functions: Functions) -> None:
    functions.write("", "sentry_sdk/__init__.py")
    functions.write("", "sentry_sdk/integrations/__init__.py")
    functions.write(ABRIDGED, "sentry_sdk/integrations/aws_lambda.py")


@pytest.mark.parametrize("concurrency", [1, 2])
def test_the_exception_of_a_handler_is_sent_before_the_answer(functions: Functions, concurrency: int) -> None:
    write_abridged(functions)
    worker = functions.worker("AT_IMPORT = True" + USES_ABRIDGED, concurrency=concurrency)
    assert worker.result("queue") == [[], ["own"]]
    error = worker.error("boom")
    assert (error["errorType"], error["errorMessage"]) == ("ValueError", "boom")
    assert "raise ValueError" in error["stackTrace"][-1]
    assert worker.result({}) == [["own", "ValueError('boom')"], []]


def test_an_integration_that_the_handler_sets_up_is_used_from_then_on(functions: Functions) -> None:
    write_abridged(functions)
    worker = functions.worker("AT_IMPORT = False" + USES_ABRIDGED)
    worker.error("boom")
    assert worker.result("init") == [[], []]
    worker.error("boom")
    assert worker.result({}) == [["ValueError('boom')"], []]


def test_a_function_without_the_integration_is_called_directly(functions: Functions) -> None:
    source = "import sys\ndef handler(event, context): return sys._getframe(1).f_code.co_filename\n"
    assert str(functions.worker(source).result({})).endswith("events.py")


def test_a_module_of_the_user_named_bootstrap_is_the_users(functions: Functions) -> None:
    functions.write("MINE = True\n", "bootstrap.py")
    assert functions.worker("import bootstrap\ndef handler(event, context): return bootstrap.MINE\n").result({}) is True


@pytest.mark.skipif(importlib.util.find_spec("sentry_sdk") is None, reason="needs sentry-sdk")
def test_the_package_itself_reports_exceptions(functions: Functions) -> None:
    spec: Any = importlib.util.find_spec("sentry_sdk")
    certifi: Any = importlib.util.find_spec("certifi")
    paths = [str(Path(each.origin).parents[1]) for each in (spec, certifi)]
    worker = functions.worker(USES_PACKAGE, sys_path=[str(functions.directory), *paths])
    assert worker.error({"boom": True})["errorMessage"] == "boom"
    assert worker.result({}) == [["ValueError", {"type": "aws_lambda", "handled": False}, True]]
