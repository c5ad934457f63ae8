"""A server and a client in one event loop, over the loopback interface."""

import asyncio

from websockets.asyncio.client import connect
from websockets.asyncio.server import serve
from websockets.frames import Frame, Opcode


async def echo(connection):
    async for message in connection:
        await connection.send(message.upper())


async def exchange():
    async with serve(echo, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with connect(f"ws://127.0.0.1:{port}") as connection:
            await connection.send("hello")
            return await connection.recv()


def work():
    return asyncio.run(exchange())


def random():
    return Frame(Opcode.TEXT, b"a" * 16).serialize(mask=True).hex()


def fail():
    asyncio.run(connect("http://127.0.0.1:9").__aenter__())
