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
    from typing import Any, Dict, Optional, Tuple

    from ..inputs import Inputs


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

    __slots__: Tuple[str, ...] = ()

    def __init__(self, values: Dict[str, Any]) -> None:
        for name in self.__slots__:
            setattr(self, name, values.get(name))

    def __repr__(self) -> str:
        return f"{type(self).__name__}([{','.join(f'{name}={getattr(self, name)}' for name in self.__slots__)}])"


class Client(_Record):
    __slots__ = ("installation_id", "app_title", "app_version_name", "app_version_code", "app_package_name")


class ClientContext(_Record):
    __slots__ = ("custom", "env", "client")

    client: Any


class CognitoIdentity(_Record):
    """Always empty: Pilotlight has no Cognito."""

    __slots__ = ("cognito_identity_id", "cognito_identity_pool_id")

    def __init__(self) -> None:
        # One is made for each invocation.
        self.cognito_identity_id = self.cognito_identity_pool_id = None


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
    """The second argument of a handler. `vars()` of it shows what it shows in Lambda."""

    __slots__ = ("__dict__", "__weakref__", "_inputs", "_meta")

    def __init__(self, info: FunctionInfo, meta: Dict[str, Any]) -> None:
        self._meta = meta
        self._inputs: Optional[Inputs] = None
        self.aws_request_id = meta["id"]
        self.log_group_name = info.log_group
        self.log_stream_name = info.log_stream
        self.function_name = info.name
        self.memory_limit_in_mb = info.memory_mb
        self.function_version = meta.get("version") or info.version
        self.invoked_function_arn = meta.get("arn")
        self.tenant_id = None
        self._w3c_fields: Dict[str, str] = {}
        self.client_context: Optional[ClientContext] = None
        if "client_context" in meta:
            self._read_client_context(meta["client_context"])
        self.identity = CognitoIdentity()
        self._epoch_deadline_time_in_ms: int = meta["deadline_ms"]

    def _read_client_context(self, text: Optional[str]) -> None:
        """The caller's context object. Nothing changes if it is not a JSON object."""
        try:
            values = json.loads(text or "null")
        except ValueError:
            return
        if not isinstance(values, dict):
            return
        self.client_context = context = ClientContext(values)
        if isinstance(context.client, dict):
            context.client = Client(context.client)
        fields = values.get("w3c")
        if isinstance(fields, dict):
            self._w3c_fields = {name: fields[name] for name in _W3C_NAMES if isinstance(fields.get(name), str)}

    @property
    def inputs(self) -> Inputs:
        """The inputs of this invocation by name; empty if it has none."""
        if self._inputs is None:
            from ..inputs import Inputs

            self._inputs = Inputs(self._meta.get("inputs", {}), self._meta.get("failed_inputs", ()))
        return self._inputs

    @property
    def traceparent(self) -> Optional[str]:
        """W3C's header for the function's own spans. None if the invocation is not recorded."""
        return traceparent(self._meta.get("trace"))

    @property
    def tracestate(self) -> Optional[str]:
        """W3C's header as the caller sent it."""
        state: Optional[str] = self._meta.get("trace_state")
        return state

    def w3c(self) -> Dict[str, str]:
        """What the caller has put into its client context under `w3c`."""
        return dict(self._w3c_fields)

    def get_remaining_time_in_millis(self) -> int:
        return max(self._epoch_deadline_time_in_ms - int(time.time() * 1000), 0)

    def log(self, message: object) -> None:
        sys.stdout.write(str(message))

    def __repr__(self) -> str:
        return f"{type(self).__name__}([{','.join(f'{name}={getattr(self, name)}' for name in _SHOWN)}])"


# What its text has, in Lambda's order.
_SHOWN = (
    "aws_request_id",
    "log_group_name",
    "log_stream_name",
    "function_name",
    "memory_limit_in_mb",
    "function_version",
    "invoked_function_arn",
    "client_context",
    "identity",
    "tenant_id",
)
_W3C_NAMES = ("traceparent", "tracestate", "baggage")
