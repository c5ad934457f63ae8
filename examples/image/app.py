"""Inverts a photograph's colours and makes a thumbnail of it, with Pillow and numpy.

One handler, two ways to call it:

- with its function URL: the photograph is the request's body, and the thumbnail is the response's body:
      curl --data-binary @astronaut.jpg -H 'content-type: image/jpeg' \
           'http://127.0.0.1:8080/fn/image/?size=128' -o thumbnail.png
- with the Invoke API: both are base64 in JSON:
      {"image": "<base64>", "size": 128, "format": "jpeg"}  ->
      {"image": "<base64>", "format": "jpeg", "width": 128, "height": 128}
"""

import base64
import binascii
import io
import json

import numpy
from PIL import Image, UnidentifiedImageError

FORMATS = {"png": "image/png", "jpeg": "image/jpeg"}
SIZE_MAX = 2048
PIXELS_MAX = 50_000_000


class BadRequest(ValueError):
    """Invalid input. The message says why."""


def handler(event, context):
    if "requestContext" not in event:
        return for_invoke(event)
    try:
        return for_url(event)
    except BadRequest as error:
        return {
            "statusCode": 400,
            "headers": {"content-type": "application/json"},
            "body": json.dumps({"error": str(error)}),
        }


def for_invoke(event):
    picture, name = convert(decode(event.get("image")), event.get("size", 128), event.get("format", "png"))
    return {"image": encode(picture, name), "format": name, "width": picture.width, "height": picture.height}


def for_url(event):
    body = event.get("body") or ""
    photograph = decode(body) if event.get("isBase64Encoded") else body.encode()
    query = event.get("queryStringParameters") or {}
    picture, name = convert(photograph, query.get("size", 128), query.get("format", "png"))
    return {
        "statusCode": 200,
        "headers": {"content-type": FORMATS[name], "x-size": f"{picture.width}x{picture.height}"},
        "body": encode(picture, name),
        "isBase64Encoded": True,
    }


def convert(photograph, size, name):
    """The inverted thumbnail, no side longer than `size` pixels, and the format's name."""
    if name not in FORMATS:
        raise BadRequest(f"format is {name!r}, must be one of {', '.join(FORMATS)}")
    try:
        size = int(size)
    except (TypeError, ValueError):
        raise BadRequest(f"size is {size!r}, must be a number of pixels") from None
    if not 1 <= size <= SIZE_MAX:
        raise BadRequest(f"size is {size}, must be from 1 to {SIZE_MAX}")
    try:
        picture = Image.open(io.BytesIO(photograph))
    except UnidentifiedImageError:
        raise BadRequest("the body is not a picture that Pillow can read") from None
    if picture.width * picture.height > PIXELS_MAX:
        raise BadRequest(f"the picture has more than {PIXELS_MAX} pixels")
    picture.draft("RGB", (size, size))  # decode a JPEG at a fraction of its size
    picture = picture.convert("RGB")
    picture.thumbnail((size, size))
    return Image.fromarray(255 - numpy.asarray(picture)), name


def decode(text):
    if not isinstance(text, str) or not text:
        raise BadRequest("there is no image: send one as the body, or as base64 in the key 'image'")
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise BadRequest(f"the image is not base64: {error}") from None


def encode(picture, name):
    output = io.BytesIO()
    picture.save(output, name.upper())
    return base64.b64encode(output.getvalue()).decode("ascii")
