"""The function of the Edge FaaS paper (section 4.3): it inverts the colours of a picture with Pillow, and waits half a second.

`START_MS` is the delay of a new worker after its fork, which simulates runtimes with a slow start. A trace sets the duration of an
invocation in `service_ms`, instead of the half second.
"""

import io
import os
import time

from PIL import Image, ImageOps
from snapshot_restore_py import register_after_restore

SERVICE_MS = 500
PICTURE = Image.linear_gradient("L").resize((64, 64)).convert("RGB")


def inverted():
    """The picture's negative, as PNG."""
    output = io.BytesIO()
    ImageOps.invert(PICTURE).save(output, "PNG")
    return output.getvalue()


def handler(event, context):
    picture = inverted()
    time.sleep(float(event.get("service_ms", SERVICE_MS)) / 1e3)
    return {"bytes": len(picture)}


inverted()  # in the template: Pillow imports its formats when they are first used
start_ms = float(os.environ.get("START_MS", "0"))
if start_ms:
    register_after_restore(time.sleep, start_ms / 1e3)
