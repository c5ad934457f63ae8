"""__NAME__: a program that polls the Lambda Runtime API. It also runs on AWS.

Lambda's clients for Go, Rust, C++ and other languages do what `main` does here. With one of them, you write only `handle`.
"""

import http.client
import json
import os
import traceback

GREETING = os.environ.get("GREETING", "Hello")
RUNTIME = "/2018-06-01/runtime"


def handle(event):
    name = event.get("name", "world")
    print(f"greeting {name}", flush=True)  # goes to `pilot logs __NAME__`
    return {"message": f"{GREETING}, {name}!"}


def main():
    daemon = http.client.HTTPConnection(os.environ["AWS_LAMBDA_RUNTIME_API"])

    def exchange(method, path, body=None):
        daemon.request(method, RUNTIME + path, body)
        answer = daemon.getresponse()
        return answer.headers, answer.read()

    while True:
        # Answered once there is work.
        headers, event = exchange("GET", "/invocation/next")
        invocation = "/invocation/" + headers["Lambda-Runtime-Aws-Request-Id"]
        try:
            answer = json.dumps(handle(json.loads(event)))
        except Exception as error:
            raised = {
                "errorType": type(error).__name__,
                "errorMessage": str(error),
                "stackTrace": traceback.format_tb(error.__traceback__),
            }
            exchange("POST", invocation + "/error", json.dumps(raised))
        else:
            exchange("POST", invocation + "/response", answer)


if __name__ == "__main__":
    main()
