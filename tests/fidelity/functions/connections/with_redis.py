import os

import calls
import redis

client = redis.Redis(port=int(os.environ["REDIS_PORT"]), socket_timeout=20)


def ask(token):
    pipeline = client.pipeline(transaction=False)
    pipeline.echo(token)
    pipeline.client_id()
    word, connection = pipeline.execute()
    return word.decode(), connection


handler = calls.handler_of(ask)
