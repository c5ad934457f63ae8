"""Recognises an image (the paper's imgrec): the task comes from a queue and names the image. The network is made up, and runs on numpy.

With an initscript, the task is the script's message 0. Image and weights come from the client of S3 in both cases.
"""

import io
import json
import os

import boto3
import numpy
import pilotlight
import storage
from clock import Clock
from PIL import Image

client = storage.storage.get_instance()
queue = boto3.client("sqs", endpoint_url=os.environ["QUEUES"])


def claim():
    try:
        return json.loads(bytes(pilotlight.init.recv_msg(0))), "script"
    except pilotlight.init.NoMessage:
        return queue.receive_message(QueueUrl=os.environ["QUEUE"], MaxNumberOfMessages=1), "function"


def infer(image, weights):
    """224 × 224 pixels, in patches of 16 × 16, through three dense layers (13.3 MB) to 1,000 classes."""
    with Image.open(io.BytesIO(image)) as decoded:
        pixels = numpy.asarray(decoded.convert("RGB").resize((224, 224)), numpy.float32) / 255
    patches = pixels.reshape(14, 16, 14, 16, 3).swapaxes(1, 2).reshape(196, 768)
    numbers = numpy.frombuffer(weights, numpy.float32)
    at = 0
    layer = patches
    for rows, columns in ((768, 1024), (1024, 1254), (1254, 1000)):
        matrix = numbers[at : at + rows * columns].reshape(rows, columns)
        layer, at = numpy.maximum(layer @ matrix, 0), at + rows * columns
    return int(layer.mean(axis=0).argmax())


def handler(event):
    clock = Clock()
    answer, by = claim()
    task = answer["Messages"][0]
    wanted = json.loads(task["Body"])
    weights = client.download_stream("photos", wanted["weights"])
    image = client.download_stream("photos", wanted["key"])
    download = clock.lap()
    result = infer(image, weights)
    compute = clock.lap()
    queue.delete_message(QueueUrl=os.environ["QUEUE"], ReceiptHandle=task["ReceiptHandle"])
    upload = clock.lap()
    measurement = {"download_time": download, "download_size": len(image) + len(weights), "upload_time": upload}
    return {"result": result, "claimed_by": by, "measurement": {**measurement, "compute_time": compute}}
