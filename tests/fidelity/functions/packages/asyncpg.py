"""Types and errors. There is no server."""

import asyncio

import asyncpg
from asyncpg.pgproto import pgproto

POINT = asyncpg.Point(1, 2)


def work():
    return [list(POINT), str(pgproto.UUID("00000000-0000-4000-8000-000000000001")), asyncpg.UniqueViolationError.sqlstate]


def fail():
    asyncio.run(asyncpg.connect(host="127.0.0.1", port=9, user="a", timeout=2, ssl=False))
