"""An application of the module, called as a server calls it."""

import asyncio

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel

APPLICATION = FastAPI()


class Order(BaseModel):
    number: int


@APPLICATION.post("/orders/{shop}")
async def order(shop: str, order: Order):
    return {"shop": shop, "number": order.number}


async def answers(body):
    sent = []
    scope = {"type": "http", "method": "POST", "path": "/orders/a", "headers": [(b"content-type", b"application/json")]}
    scope |= {"query_string": b"", "http_version": "1.1", "scheme": "http", "asgi": {"version": "3.0"}}

    async def receive():
        return {"type": "http.request", "body": body}

    async def send(message):
        sent.append(message)

    await APPLICATION(scope, receive, send)
    return [sent[0]["status"], sent[1]["body"].decode()]


def work():
    return [
        asyncio.run(answers(b'{"number": 1}')),
        asyncio.run(answers(b'{"number": "x"}')),
        sorted(APPLICATION.openapi()["paths"]),
    ]


def fail():
    raise RequestValidationError([{"loc": ["body"], "msg": "missing"}])
