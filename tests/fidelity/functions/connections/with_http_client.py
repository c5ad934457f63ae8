import http.client
import urllib.parse

import calls

connection = http.client.HTTPConnection(urllib.parse.urlsplit(calls.HTTP).netloc, timeout=20)


def ask(token):
    connection.request("GET", "/" + token)
    return calls.parsed(connection.getresponse().read())


handler = calls.handler_of(ask)
