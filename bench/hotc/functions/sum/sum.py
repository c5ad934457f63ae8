"""The program of HotC's Fig. 4b: sums 0 to 10 million. It is a function (`handler`), a client of the Lambda Runtime API if the
environment names one, and otherwise a program that gets its event on standard input."""

import http.client
import json
import os
import sys


def handler(event, context):
    total = 0
    for number in range(event["to"] + 1):
        total += number
    return total


def poll(address):
    api = http.client.HTTPConnection(address)
    invocation = "/2018-06-01/runtime/invocation"
    while True:
        api.request("GET", f"{invocation}/next")
        event = api.getresponse()
        answer = handler(json.loads(event.read()), None)
        api.request("POST", f"{invocation}/{event.headers['lambda-runtime-aws-request-id']}/response", json.dumps(answer))
        api.getresponse().read()


if __name__ == "__main__":
    if "AWS_LAMBDA_RUNTIME_API" in os.environ:
        poll(os.environ["AWS_LAMBDA_RUNTIME_API"])
    else:
        print(handler(json.load(sys.stdin), None))
