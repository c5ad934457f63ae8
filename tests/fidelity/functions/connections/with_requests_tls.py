import calls
import requests

session = requests.Session()
session.verify = calls.CERTIFICATE


def ask(token):
    return calls.parsed(session.get(calls.HTTPS + token, timeout=20).content)


handler = calls.handler_of(ask)
