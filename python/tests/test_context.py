"""The context of a handler, side by side with awslambdaric's."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from awslambdaric.lambda_context import LambdaContext as Theirs  # type: ignore[import-untyped]
from harness import invoke_meta

from pilot_worker.interfaces.context import FunctionInfo, LambdaContext

VARIABLES = {
    "AWS_LAMBDA_LOG_GROUP_NAME": "/aws/lambda/test",
    "AWS_LAMBDA_LOG_STREAM_NAME": "stream",
    "AWS_LAMBDA_FUNCTION_NAME": "test",
    "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": "128",
    "AWS_LAMBDA_FUNCTION_VERSION": "1",
}


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)


def both(client_context: Any = None) -> tuple[Any, Any]:
    """Ours and theirs, for the same invocation."""
    sent = {} if client_context is None else {"client_context": json.dumps(client_context)}
    meta = {**invoke_meta(), **sent}
    ours = LambdaContext(FunctionInfo({}), meta)
    theirs = Theirs(meta["id"], copy.deepcopy(client_context), None, meta["deadline_ms"], meta["arn"], None)
    return ours, theirs


CONTEXTS = [
    None,
    {},
    {"custom": {"a": 1}},
    {"client": {"app_title": "t", "more": 1}, "env": {"locale": "de"}, "custom": None},
    {"w3c": {"traceparent": "00-1-2-01", "tracestate": 5, "baggage": "a=1", "other": "x"}, "custom": {"b": 2}},
    {"w3c": "text"},
]


@pytest.mark.parametrize("client_context", CONTEXTS)
def test_a_context_shows_what_it_shows_in_lambda(client_context: Any) -> None:
    ours, theirs = both(client_context)
    assert repr(ours) == repr(theirs)
    assert str(ours.client_context) == str(theirs.client_context)
    assert list(vars(ours)) == list(vars(theirs))
    assert {name: repr(value) for name, value in vars(ours).items()} == {
        name: repr(value) for name, value in vars(theirs).items()
    }
    assert ours.w3c() == theirs.w3c()
    own = {"inputs", "traceparent", "tracestate"}
    assert {name for name in dir(ours) if not name.startswith("_")} - own == {
        name for name in dir(theirs) if not name.startswith("_")
    }


@pytest.mark.parametrize("client_context", CONTEXTS)
def test_a_context_can_be_changed_as_in_lambda(client_context: Any) -> None:
    for context in both(client_context):
        assert context.client_context is context.client_context
        context.identity.cognito_identity_id = "id"
        context.own = 1
        context.client_context = None
        assert (context.own, context.client_context, context.identity.cognito_identity_id) == (1, None, "id")
        assert copy.copy(context).aws_request_id == context.aws_request_id
    assert both()[0].identity.cognito_identity_id is None


def test_a_client_context_that_is_not_an_object_is_none() -> None:
    for text in ("", "nonsense", "5", "[]", "null"):
        context = LambdaContext(FunctionInfo({}), {**invoke_meta(), "client_context": text})
        assert context.client_context is None
