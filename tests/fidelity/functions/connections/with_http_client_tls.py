import http.client
import ssl
import urllib.parse

import calls

context = ssl.create_default_context(cafile=calls.CERTIFICATE)
connection = http.client.HTTPSConnection(urllib.parse.urlsplit(calls.HTTPS).netloc, timeout=20, context=context)


def ask(token):
    connection.request("GET", "/" + token)
    return calls.parsed(connection.getresponse().read())


handler = calls.handler_of(ask)
