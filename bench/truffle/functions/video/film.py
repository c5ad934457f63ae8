"""Makes a clip with FFmpeg: a bright square that moves over noise. Puts it into the store."""

import io

import av
import numpy
from passing import send

WIDTH, HEIGHT, RATE = 640, 360, 25


def handler(event, context):
    made = io.BytesIO()
    numbers = numpy.random.default_rng(7)
    with av.open(made, "w", format="mp4") as clip:
        stream = clip.add_stream("mpeg4", rate=RATE)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        stream.bit_rate = event["bits_per_s"]
        for number in range(event["seconds"] * RATE):
            picture = numbers.integers(0, 120, (HEIGHT, WIDTH, 3), numpy.uint8)
            at = (number * 7) % (WIDTH - 80)
            picture[140:220, at : at + 80] = 250
            for packet in stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")):
                clip.mux(packet)
        for packet in stream.encode():
            clip.mux(packet)
    send(event["s3"], "PUT", event["path"], made.getvalue(), event["headers"])
    return {"bytes": len(made.getvalue())}
