import calls
import httpx

client = httpx.Client(timeout=20)


def ask(token):
    return calls.parsed(client.get(calls.HTTP + token).content)


handler = calls.handler_of(ask)
