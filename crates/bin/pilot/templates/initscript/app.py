"""__NAME__: a function whose first requests are sent by its initscript, while its worker starts.

The script is initscript/src/lib.rs. It runs for an invocation that waits for a start. In a warm invocation, the
handler does the work itself.
"""

import pilotlight


def handler(event, context):
    try:
        name, source = bytes(pilotlight.init.recv_msg(0)).decode(), "initscript"
    except pilotlight.init.NoMessage as error:
        print(error)  # goes to `pilot logs __NAME__`
        name, source = event.get("name", "world"), "handler"
    return {"message": f"Hello, {name}!", "from": source}
