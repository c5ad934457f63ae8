"""Functions with an initscript: one that knows nothing of it, and some that ask for its messages."""

import base64
import hashlib

import boto3
import pilotlight

s3 = boto3.client("s3")


def objects(event, context):
    """Reads objects as on Lambda."""
    told = []
    for key in event["keys"]:
        response = s3.get_object(Bucket="photos", Key=key)
        body = hashlib.sha256(response["Body"].read()).hexdigest()
        told.append([response["ResponseMetadata"]["HTTPHeaders"].get("x-pilot-input"), body])
    return told


def messages(event, context):
    """All messages, and why one is missing."""
    told = {}
    for id in event["ids"]:
        try:
            view = pilotlight.init.recv_msg(id)
            told[id] = [view.readonly, base64.b64encode(view).decode()]
        except pilotlight.init.NoMessage as error:
            told[id] = str(error)
    return told
