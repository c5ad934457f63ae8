import ssl

import calls
import httpx

client = httpx.Client(timeout=20, verify=ssl.create_default_context(cafile=calls.CERTIFICATE))


def ask(token):
    return calls.parsed(client.get(calls.HTTPS + token).content)


handler = calls.handler_of(ask)
