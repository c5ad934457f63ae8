"""Recognises an image (the paper's imgrec-py): the task comes from a queue and names the image and the weights.

With an initscript, the task is its message 0, the weights are 1 and the image is 2.
"""

import json
import os

import boto3
import pilotlight
import storage
from clock import Clock
from model import infer, session_of

client = storage.storage.get_instance()
queue = boto3.client("sqs", endpoint_url=os.environ["QUEUES"])


def claim():
    """The queue's answer, the weights, the image, and who fetched them."""
    try:
        answer = json.loads(bytes(pilotlight.init.recv_msg(0)))
        return answer, pilotlight.init.recv_msg(1), pilotlight.init.recv_msg(2), "script"
    except pilotlight.init.NoMessage:
        answer = queue.receive_message(QueueUrl=os.environ["QUEUE"], MaxNumberOfMessages=1)
        wanted = json.loads(answer["Messages"][0]["Body"])
        weights, image = (client.download_stream("photos", wanted[name]) for name in ("weights", "key"))
        return answer, weights, image, "function"


def handler(event):
    clock = Clock()
    answer, weights, image, by = claim()
    download = clock.lap()
    result = infer(image, session_of(bytes(weights)))
    compute = clock.lap()
    task = answer["Messages"][0]
    queue.delete_message(QueueUrl=os.environ["QUEUE"], ReceiptHandle=task["ReceiptHandle"])
    upload = clock.lap()
    measurement = {"download_time": download, "download_size": len(image) + len(weights), "upload_time": upload}
    return {"result": result, "claimed_by": by, "measurement": {**measurement, "compute_time": compute}}
