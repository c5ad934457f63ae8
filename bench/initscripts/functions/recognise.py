"""Recognises an image of S3 with a model that was loaded at import, as from a snapshot (the paper's Fig. 15)."""

import os

import storage
from clock import Clock
from model import infer, session_of

client = storage.storage.get_instance()
session = session_of(os.path.join(os.path.dirname(__file__), "weights.onnx"))


def handler(event):
    clock = Clock()
    image = client.download_stream("photos", event["object"]["key"])
    download = clock.lap()
    result = infer(image, session)
    measurement = {"download_time": download, "download_size": len(image), "compute_time": clock.lap()}
    return {"result": result, "weights_by": "import", "measurement": measurement}
