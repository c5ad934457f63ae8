"""A client of the module, and the encoding of commands. There is no server."""

import redis

CLIENT = redis.Redis(host="127.0.0.1", port=9, socket_timeout=1, retry=None)


def work():
    commands = CLIENT.connection_pool.get_encoder()
    return [commands.encode("ü").decode(), commands.encode(1.5).decode(), sorted(CLIENT.connection_pool.connection_kwargs)]


def fail():
    CLIENT.get("key")
