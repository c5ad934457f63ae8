import asyncio

import asyncpg
import calls

loop = asyncio.new_event_loop()
connection = loop.run_until_complete(asyncpg.connect(**calls.POSTGRES, database="postgres"))


def ask(token):
    return tuple(loop.run_until_complete(connection.fetchrow(calls.QUERY.format(token))))


handler = calls.handler_of(ask)
