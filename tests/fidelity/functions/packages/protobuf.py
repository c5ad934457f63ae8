"""Messages and their JSON."""

from google.protobuf import json_format, struct_pb2, timestamp_pb2
from google.protobuf.internal import api_implementation

STRUCT = struct_pb2.Struct()
STRUCT.update({"a": [1, "ü", None], "b": {"c": True}})


def work():
    again = struct_pb2.Struct.FromString(STRUCT.SerializeToString(deterministic=True))
    at = timestamp_pb2.Timestamp(seconds=1_700_000_000)
    return [json_format.MessageToDict(again), at.ToJsonString(), api_implementation.Type()]


def fail():
    json_format.Parse('{"a": ', struct_pb2.Struct())
