"""Behind the Lambda Runtime API: what a container runs. It passes events to the function that the variable `FUNCTION` names, and what the
initscript has sent to the modules `pilotlight` and `storage` of this folder.
"""

import http.client
import importlib
import json
import os
import traceback

import pilotlight

function = importlib.import_module(os.environ["FUNCTION"])
daemon = http.client.HTTPConnection(os.environ["AWS_LAMBDA_RUNTIME_API"])
RUNTIME = "/2018-06-01/runtime/invocation"


def ask(method, path, body=None):
    daemon.request(method, path, body)
    response = daemon.getresponse()
    return response.headers, response.read()


while True:
    headers, body = ask("GET", f"{RUNTIME}/next")
    request_id = headers["lambda-runtime-aws-request-id"]
    event = json.loads(body)
    pilotlight.init.paths = {
        int(name[11:]): value
        for name, value in headers.items()
        if name.lower().startswith("pilot-init-") and name[11:].isdigit()
    }
    # As the script numbers them.
    wanted = event.get("object", {})
    pilotlight.init.keys = {key: at for at, key in enumerate([wanted.get("key"), *wanted.get("keys", [])])}
    try:
        ask("POST", f"{RUNTIME}/{request_id}/response", json.dumps(function.handler(event)))
    except Exception as error:
        told = {"errorType": type(error).__name__, "errorMessage": f"{error}\n{traceback.format_exc()}"}
        ask("POST", f"{RUNTIME}/{request_id}/error", json.dumps(told))
