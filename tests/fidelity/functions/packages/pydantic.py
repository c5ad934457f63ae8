"""A model of the module, whose validator is compiled at import."""

from decimal import Decimal

from pydantic import BaseModel, Field


class Order(BaseModel):
    number: int = Field(gt=0)
    price: Decimal
    tags: list[str] = []


def work():
    order = Order.model_validate_json('{"number": "7", "price": "1.50", "tags": ["a"]}')
    return [order.model_dump(mode="json"), sorted(Order.model_json_schema()["properties"])]


def fail():
    Order(number=0, price="x")
