"""A runtime that streams its answer."""

import http.client
import os

MODE = "Lambda-Runtime-Function-Response-Mode"
api = http.client.HTTPConnection(os.environ["AWS_LAMBDA_RUNTIME_API"])
while True:
    api.request("GET", "/2018-06-01/runtime/invocation/next")
    event = api.getresponse()
    event.read()
    path = f"/2018-06-01/runtime/invocation/{event.getheader('Lambda-Runtime-Aws-Request-Id')}/response"
    api.request("POST", path, iter((b'{"by": ["chain-', b'streams"]}')), {MODE: "streaming"}, encode_chunked=True)
    api.getresponse().read()
