"""__NAME__: a FastAPI application. It does not depend on Pilotlight: `uvicorn app:app` serves it, too."""

from fastapi import FastAPI

app = FastAPI(title="__NAME__")


@app.get("/")
async def index():
    return {"message": "Hello from __NAME__"}


@app.get("/hello/{name}")
async def hello(name: str):
    return {"message": f"Hello, {name}!"}
