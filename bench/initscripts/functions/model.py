"""The network of imgrec on onnxruntime."""

import io

import numpy
import onnxruntime
from PIL import Image


def session_of(weights):
    """Of a file of ONNX, by its path or its bytes."""
    return onnxruntime.InferenceSession(weights)


def infer(image, session):
    """The class of an image, whose 224 × 224 pixels are the nearest ones."""
    with Image.open(io.BytesIO(image)) as decoded:
        small = decoded.convert("RGB").resize((224, 224), Image.Resampling.NEAREST)
    pixels = numpy.asarray(small, numpy.float32).transpose(2, 0, 1)[None] / 255
    return int(session.run(None, {"x": pixels})[0].argmax())
