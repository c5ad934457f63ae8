"""Recognises an image of the event, or of S3, with weights that do not depend on the request: a message of a shared initscript, or an object."""

import base64

import pilotlight
import storage
from clock import Clock
from model import infer, session_of

client = storage.storage.get_instance()
WEIGHTS = 100


def weights():
    try:
        return pilotlight.init.recv_msg(WEIGHTS), "script"
    except pilotlight.init.NoMessage:
        return client.download_stream("photos", "in/weights.onnx"), "function"


def handler(event):
    clock = Clock()
    numbers, by = weights()
    if "image" in event:
        image = base64.b64decode(event["image"])
    else:
        image = client.download_stream("photos", event["object"]["key"])
    download = clock.lap()
    result = infer(image, session_of(bytes(numbers)))
    measurement = {"download_time": download, "download_size": len(image) + len(numbers), "compute_time": clock.lap()}
    return {"result": result, "weights_by": by, "measurement": measurement}
