"""The smallest function: it gets an event and returns a response. It needs only the standard library."""

import os


def handler(event, context):
    name = event.get("name") or (event.get("queryStringParameters") or {}).get("name") or "world"
    print(f"greeting {name}")
    return {
        "message": f"{os.environ.get('GREETING', 'Hello')}, {name}!",
        "request_id": context.aws_request_id,
        "remaining_ms": context.get_remaining_time_in_millis(),
    }
