"""What the `AwsLambdaIntegration` of the Sentry SDK patches: the parts of awslambdaric's `bootstrap` that it uses.

The integration looks for the module as `bootstrap` in `__main__`, if no module of that name is loaded. It replaces
`handle_event_request`, to report exceptions of the handler, and methods of the client, to send its queue before an answer. Only
functions that have imported the integration are called through this module (`handler.load`). An error of module-level code is
not reported: the template may have no network.
"""

from __future__ import annotations

import functools
import sys
import types

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

INTEGRATION = "sentry_sdk.integrations.aws_lambda"


class LambdaRuntimeClient:
    """Sends nothing: the worker does this. The methods are what the integration patches."""

    def post_invocation_result(self) -> None:
        pass

    def post_invocation_error(self) -> None:
        pass

    def post_init_error(self) -> None:
        pass


def handle_event_request(
    client: LambdaRuntimeClient, request_handler: Callable[[Any, Any], Any], event: Any, context: Any
) -> Any:
    return request_handler(event, context)


_bootstrap = types.SimpleNamespace(handle_event_request=handle_event_request, LambdaRuntimeClient=LambdaRuntimeClient)


def offer() -> None:
    """Makes `bootstrap` an attribute of `__main__`. Idempotent."""
    vars(sys.modules["__main__"])["bootstrap"] = _bootstrap


def through_integration(target: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """`target`, called as the integration expects. What it has patched is looked up in each call: it may be set up later."""
    client = LambdaRuntimeClient()

    @functools.wraps(target)
    def call(event: Any, context: Any) -> Any:
        try:
            result = _bootstrap.handle_event_request(client, target, event, context)
        except Exception:
            client.post_invocation_error()
            raise
        client.post_invocation_result()
        return result

    return call
