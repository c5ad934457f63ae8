"""Reads an album from S3, then the photograph that the album names as its cover, and makes a thumbnail of it: a function as on AWS Lambda.

It knows nothing of Pilotlight. Its initscript asks for both objects while the function starts, so `get_object` is answered from memory.

    {"album": "albums/apollo.txt", "size": 128}  ->  {"title": "An astronaut", "width": 128, "height": 128, "bytes": 4711}
"""

import io

import boto3
from PIL import Image

BUCKET = "photos"
s3 = boto3.client("s3")


def read(key):
    return s3.get_object(Bucket=BUCKET, Key=key)["Body"].read()


def handler(event, context):
    cover, title = read(event["album"]).decode().splitlines()[:2]
    size = int(event.get("size", 128))
    picture = Image.open(io.BytesIO(read(cover)))
    picture.draft("RGB", (size, size))  # decode a JPEG at a fraction of its size
    picture.thumbnail((size, size))
    output = io.BytesIO()
    picture.convert("RGB").save(output, "JPEG")
    return {"title": title, "width": picture.width, "height": picture.height, "bytes": len(output.getvalue())}
