"""An external extension as in AWS's documentation: it registers, asks for events, and writes each event to a file."""

import json
import os
import urllib.request

API = f"http://{os.environ['AWS_LAMBDA_RUNTIME_API']}/2020-01-01/extension"


def ask(path, headers, body=None):
    request = urllib.request.Request(API + path, data=body, headers=headers)
    with urllib.request.urlopen(request) as answer:
        return answer.headers, json.load(answer)


events = json.dumps({"events": ["INVOKE", "SHUTDOWN"]}).encode()
headers, function = ask("/register", {"Lambda-Extension-Name": "extension.py"}, events)
# The function waits for this file, as Lambda waits for extensions before it initialises a function.
open("/tmp/extension", "w").close()
identifier = {"Lambda-Extension-Identifier": headers["Lambda-Extension-Identifier"]}
while True:
    _, event = ask("/event/next", identifier)
    with open("/tmp/extension", "a") as heard:
        print(json.dumps({**event, "function": function["functionName"]}), file=heard)
    if event["eventType"] == "SHUTDOWN":
        break
