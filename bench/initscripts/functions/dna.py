"""A sequence of bases becomes the points of its picture (as SeBS 504, whose method is that of the package squiggle)."""

import io
import json

import storage
from clock import Clock

client = storage.storage.get_instance()
# Each base is two halves of a step; up or down, as the papers of squiggle draw them.
HALVES = {"A": (0.5, -0.5), "C": (-0.5, -0.5), "G": (0.5, 0.5), "T": (-0.5, 0.5)}


def transform(sequence):
    xs, ys, y = [0.0], [0.0], 0.0
    for at, base in enumerate(sequence):
        for half, change in enumerate(HALVES.get(base, (0.0, 0.0)), start=1):
            y += change
            xs.append(at + half / 2)
            ys.append(y)
    return xs, ys


def handler(event):
    bucket, key = event["bucket"], event["object"]["key"]
    clock = Clock()
    data = client.download_stream(bucket, key)
    download = clock.lap()
    lines = bytes(data).decode().splitlines()
    points = transform("".join(line for line in lines if not line.startswith(">")))
    out = io.BytesIO(json.dumps(points).encode())
    compute = clock.lap()
    name = client.upload_stream(bucket, "output/dna.json", out)
    upload = clock.lap()
    measurement = {"download_time": download, "download_size": len(data), "upload_time": upload, "compute_time": compute}
    return {"result": {"bucket": bucket, "key": name}, "measurement": measurement}
