"""Reads a photograph from S3, makes a thumbnail of it and writes it to S3: a function as on AWS Lambda.

It knows nothing of Pilotlight. Because pilot.toml declares the photograph as an input, `get_object` is answered from memory, which
is filled while the function starts. `put_object` goes to the store.

    {"key": "astronaut.jpg", "size": 128}  ->  {"key": "thumbnails/astronaut.jpg", "width": 128, "height": 128, "bytes": 4711}
"""

import io

import boto3
from PIL import Image

BUCKET = "photos"
s3 = boto3.client("s3")


def handler(event, context):
    size = int(event.get("size", 128))
    photograph = s3.get_object(Bucket=BUCKET, Key=event["key"])["Body"].read()
    picture = Image.open(io.BytesIO(photograph))
    picture.draft("RGB", (size, size))  # decode a JPEG at a fraction of its size
    picture.thumbnail((size, size))
    output = io.BytesIO()
    picture.convert("RGB").save(output, "JPEG")
    key = f"thumbnails/{event['key']}"
    s3.put_object(Bucket=BUCKET, Key=key, Body=output.getvalue(), ContentType="image/jpeg")
    return {"key": key, "width": picture.width, "height": picture.height, "bytes": len(output.getvalue())}
