"""The `context` argument of a Lambda handler.

It has the attributes of AWS's own class. Values that do not change between invocations are read once per worker.
"""

from __future__ import annotations

import json
import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Optional

    from .inputs import Inputs

_CLIENT_KEYS = ("installation_id", "app_title", "app_version_name", "app_version_code", "app_package_name")


def traceparent(header: Optional[str]) -> Optional[str]:
    """W3C's form of AWS X-Ray's header. None if nobody records the trace."""
    if not header or "Sampled=1" not in header:
        return None
    fields = dict(field.strip().partition("=")[::2] for field in header.split(";"))
    version, _, digits = fields.get("Root", "").partition("-")
    digits, parent = digits.replace("-", "", 1), fields.get("Parent", "")
    if version != "1" or len(digits) != 32 or len(parent) != 16:
        return None
    return f"00-{digits}-{parent}-01"


class _Record:
    """Attributes from a dictionary. A missing attribute is None."""

    def __init__(self, values: Dict[str, Any], names: tuple[str, ...]) -> None:
        for name in names:
            setattr(self, name, values.get(name))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.__dict__!r})"


class Client(_Record):
    pass


class ClientContext(_Record):
    client: Any


class CognitoIdentity:
    """Always empty: Pilotlight has no Cognito."""

    __slots__ = ()
    cognito_identity_id: Optional[str] = None
    cognito_identity_pool_id: Optional[str] = None


class FunctionInfo:
    """The part of a context that all invocations of a worker share."""

    __slots__ = ("name", "version", "memory_mb", "log_group", "log_stream")

    def __init__(self, function: Dict[str, Any]) -> None:
        environment = os.environ
        self.name = environment.get("AWS_LAMBDA_FUNCTION_NAME") or function.get("name")
        self.version = environment.get("AWS_LAMBDA_FUNCTION_VERSION") or str(function.get("version", "$LATEST"))
        # in Lambda this is a string too
        self.memory_mb = environment.get("AWS_LAMBDA_FUNCTION_MEMORY_SIZE") or str(function.get("memory_mb", ""))
        self.log_group = environment.get("AWS_LAMBDA_LOG_GROUP_NAME")
        self.log_stream = environment.get("AWS_LAMBDA_LOG_STREAM_NAME")


class LambdaContext:
    """The second argument of a handler."""

    def __init__(self, info: FunctionInfo, meta: Dict[str, Any]) -> None:
        self.aws_request_id = meta["id"]
        self.invoked_function_arn = meta.get("arn")
        self.function_version = meta.get("version") or info.version
        self._deadline_ms: int = meta["deadline_ms"]
        self._client_context = meta.get("client_context")
        self._meta = meta
        self._inputs: Optional[Inputs] = None
        self.function_name = info.name
        self.memory_limit_in_mb = info.memory_mb
        self.log_group_name = info.log_group
        self.log_stream_name = info.log_stream
        self.tenant_id = None

    identity = CognitoIdentity()

    @property
    def inputs(self) -> Inputs:
        """The inputs of this invocation by name; empty if it has none."""
        if self._inputs is None:
            from .inputs import Inputs

            self._inputs = Inputs(self._meta.get("inputs", {}), self._meta.get("failed_inputs", ()))
        return self._inputs

    @property
    def client_context(self) -> Optional[ClientContext]:
        """The caller's context object. None if the caller sent none, or something that is not a JSON object."""
        text = self._client_context
        if not text:
            return None
        try:
            values = json.loads(text)
        except ValueError:
            return None
        if not isinstance(values, dict):
            return None
        context = ClientContext(values, ("custom", "env", "client"))
        if isinstance(context.client, dict):
            context.client = Client(context.client, _CLIENT_KEYS)
        return context

    @property
    def traceparent(self) -> Optional[str]:
        """W3C's header for the function's own spans. None if the invocation is not recorded."""
        return traceparent(self._meta.get("trace"))

    @property
    def tracestate(self) -> Optional[str]:
        """W3C's header as the caller sent it."""
        state: Optional[str] = self._meta.get("trace_state")
        return state

    def get_remaining_time_in_millis(self) -> int:
        return max(self._deadline_ms - int(time.time() * 1000), 0)

    def log(self, message: object) -> None:
        sys.stdout.write(str(message))

    def __repr__(self) -> str:
        return f"LambdaContext([aws_request_id={self.aws_request_id},function_name={self.function_name}])"
