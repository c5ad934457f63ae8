"""__NAME__: gets an event and returns a response.

Module-level code runs once, in the template. Every worker is forked from the template.
"""

import os

GREETING = os.environ.get("GREETING", "Hello")


def handler(event, context):
    name = event.get("name", "world")
    print(f"greeting {name}")  # goes to `pilot logs __NAME__`
    return {"message": f"{GREETING}, {name}!", "request_id": context.aws_request_id}
