"""A runtime whose answer is the text in the event, which need not be JSON."""

import http.client
import json
import os

api = http.client.HTTPConnection(os.environ["AWS_LAMBDA_RUNTIME_API"])
while True:
    api.request("GET", "/2018-06-01/runtime/invocation/next")
    event = api.getresponse()
    says = json.loads(event.read())["says"]
    api.request("POST", f"/2018-06-01/runtime/invocation/{event.getheader('Lambda-Runtime-Aws-Request-Id')}/response", says)
    api.getresponse().read()
