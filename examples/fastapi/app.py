"""An ordinary FastAPI application. It contains nothing specific to Pilotlight; `uvicorn app:app` serves it too.

With Pilotlight, its path is `/fn/fastapi/`.
"""

import asyncio
import contextlib
import time

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field


@contextlib.asynccontextmanager
async def lifespan(app):
    app.state.started = time.time()
    app.state.prices = {"apple": 0.30, "pear": 0.45, "plum": 0.20}
    yield
    app.state.prices.clear()


app = FastAPI(title="Orders", lifespan=lifespan)


class Line(BaseModel):
    article: str
    pieces: int = Field(gt=0, le=1000)


class Order(BaseModel):
    customer: str = Field(min_length=1)
    lines: list[Line] = Field(min_length=1)


class Receipt(BaseModel):
    customer: str
    pieces: int
    total: float


@app.get("/")
async def index(request: Request):
    return {"application": app.title, "root_path": request.scope.get("root_path", ""), "up": app.state.started > 0}


@app.post("/orders", status_code=201)
async def order(order: Order) -> Receipt:
    prices = app.state.prices
    for line in order.lines:
        if line.article not in prices:
            raise HTTPException(404, f"there is no article {line.article!r}")
    return Receipt(
        customer=order.customer,
        pieces=sum(line.pieces for line in order.lines),
        total=round(sum(prices[line.article] * line.pieces for line in order.lines), 2),
    )


@app.get("/articles/{name}")
def article(name: str):
    """Not async: FastAPI runs it in a thread."""
    if name not in app.state.prices:
        raise HTTPException(404, f"there is no article {name!r}")
    return {"article": name, "price": app.state.prices[name]}


@app.get("/count")
async def count(to: int = 5, pause_ms: int = 20):
    """Sends one line at a time, each as soon as it is ready."""

    async def lines():
        for number in range(1, min(to, 1000) + 1):
            yield f"{number}\n"
            await asyncio.sleep(min(pause_ms, 1000) / 1000)

    return StreamingResponse(lines(), media_type="text/plain")
