"""A server and a client in one event loop, over the loopback interface."""

import asyncio

import aiohttp
from aiohttp import web
from yarl import URL


async def hello(request):
    return web.json_response({"path": request.path, "name": request.query["name"]})


async def exchange():
    application = web.Application()
    application.router.add_get("/{path}", hello)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    async with aiohttp.ClientSession() as session:
        async with session.get(f"http://127.0.0.1:{port}/a", params={"name": "ü"}) as response:
            found = [response.status, await response.json()]
    await runner.cleanup()
    return found


def work():
    return [*asyncio.run(exchange()), str(URL("http://a/b") / "c")]


def fail():
    raise aiohttp.ClientPayloadError(f"cut off: {aiohttp.ClientTimeout(1).total}")


def random():
    return aiohttp.MultipartWriter().boundary
