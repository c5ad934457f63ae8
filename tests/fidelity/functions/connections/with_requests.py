import calls
import requests

session = requests.Session()


def ask(token):
    return calls.parsed(session.get(calls.HTTP + token, timeout=20).content)


handler = calls.handler_of(ask)
