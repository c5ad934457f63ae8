"""An image is recognised with a model that the storage has (SeBS 411)."""

import storage
from clock import Clock
from model import infer, session_of

client = storage.storage.get_instance()


def handler(event):
    bucket = event["bucket"]
    clock = Clock()
    weights, image = (client.download_stream(bucket, key) for key in event["object"]["keys"])
    download = clock.lap()
    result = infer(image, session_of(bytes(weights)))
    measurement = {"download_time": download, "download_size": len(weights) + len(image), "compute_time": clock.lap()}
    return {"result": result, "measurement": measurement}
