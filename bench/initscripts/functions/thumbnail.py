"""An image becomes a small one (SeBS 210)."""

import io

import storage
from clock import Clock
from PIL import Image

client = storage.storage.get_instance()


def resize_image(image_bytes, width, height):
    with Image.open(io.BytesIO(image_bytes)) as image:
        image.thumbnail((width, height))
        out = io.BytesIO()
        image.save(out, format="jpeg")
        out.seek(0)
        return out


def handler(event):
    bucket, key = event["bucket"], event["object"]["key"]
    clock = Clock()
    image = client.download_stream(bucket, key)
    download = clock.lap()
    small = resize_image(image, 200, 200)
    compute = clock.lap()
    name = client.upload_stream(bucket, "output/thumbnail.jpg", small)
    upload = clock.lap()
    measurement = {"download_time": download, "download_size": len(image), "upload_time": upload, "compute_time": compute}
    return {"result": {"bucket": bucket, "key": name}, "measurement": measurement}
