"""The function of the cold rows: it imports Pillow and numpy, and its handler is short."""

import sys
import time

import numpy
from PIL import Image


def handler(event, context):
    if isinstance(event, dict) and "sleep_ms" in event:
        time.sleep(event["sleep_ms"] / 1000)
    return [Image.__name__, int(numpy.int64(7))]


if __name__ == "__main__":
    sys.stdout.write(f"{handler({}, None)}\n")
