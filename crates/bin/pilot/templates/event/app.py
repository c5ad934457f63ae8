"""__NAME__: an event in, an answer out.

What stands outside the handler runs once, when the template is built; every worker begins as a copy of it.
"""

import os

GREETING = os.environ.get("GREETING", "Hello")


def handler(event, context):
    name = event.get("name", "world")
    print(f"greeting {name}")  # goes to `pilot logs __NAME__`
    return {"message": f"{GREETING}, {name}!", "request_id": context.aws_request_id}
