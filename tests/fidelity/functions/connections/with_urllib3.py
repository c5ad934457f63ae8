import calls
import urllib3

pool = urllib3.PoolManager(timeout=20, retries=False)


def ask(token):
    return calls.parsed(pool.request("GET", calls.HTTP + token).data)


handler = calls.handler_of(ask)
