"""The third step: a small network with made weights, whose answer for a frame is a number of a class."""

import numpy
from passing import input_of

SIDE, PATCH = 224, 16
numbers = numpy.random.default_rng(3)
first = numbers.standard_normal((3 * PATCH * PATCH, 256), numpy.float32)
second = numbers.standard_normal((256, 1000), numpy.float32)


def class_of(frame):
    places = frame.reshape(SIDE // PATCH, PATCH, SIDE // PATCH, PATCH, 3).swapaxes(1, 2)
    layer = numpy.maximum(places.reshape(-1, 3 * PATCH * PATCH).astype(numpy.float32) / 255 @ first, 0)
    return int((layer @ second).mean(axis=0).argmax())


def handler(event, context):
    view = input_of(context)
    if event and "start" in event:
        view = view[event["start"] : event["end"]]
    frames = numpy.frombuffer(view, numpy.uint8).reshape(-1, SIDE, SIDE, 3)
    return [class_of(frame) for frame in frames]
