"""A schema of the module."""

import datetime

from marshmallow import Schema, fields, validate


class Order(Schema):
    number = fields.Int(required=True, validate=validate.Range(min=1))
    at = fields.Date()


ORDER = Order()


def work():
    return [ORDER.dump({"number": 1, "at": datetime.date(2026, 1, 2)}), sorted(ORDER.load({"number": "5"}).items())]


def fail():
    ORDER.load({"number": 0})
