"""Objects of many types."""

import dataclasses
import datetime
import uuid

import orjson


@dataclasses.dataclass
class Order:
    number: int
    at: datetime.date


def work():
    value = [Order(1, datetime.date(2026, 1, 2)), uuid.UUID(int=1), "ü", 1.5]
    return [orjson.dumps(value).decode(), orjson.loads(b'{"a": [1, null]}')]


def fail():
    orjson.loads(b'{"a": ')
