"""__NAME__: a photograph in, a thumbnail out.

    curl --data-binary @photo.jpg 'http://127.0.0.1:8080/fn/__NAME__/?size=128' -o small.jpg
"""

import base64
import io

from PIL import Image, UnidentifiedImageError


def handler(event, context):
    body = event.get("body") or ""
    photograph = base64.b64decode(body) if event.get("isBase64Encoded") else body.encode()
    size = int((event.get("queryStringParameters") or {}).get("size", 128))
    try:
        picture = Image.open(io.BytesIO(photograph))
    except UnidentifiedImageError:
        return {"statusCode": 400, "body": "send a picture as the request's body"}
    picture.thumbnail((size, size))
    out = io.BytesIO()
    picture.convert("RGB").save(out, "JPEG")
    return {
        "statusCode": 200,
        "headers": {"content-type": "image/jpeg"},
        "body": base64.b64encode(out.getvalue()).decode(),
        "isBase64Encoded": True,
    }
