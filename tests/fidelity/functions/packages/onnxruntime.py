"""A session of the module for a model of one node, which adds the input to itself."""

import base64

import numpy
import onnxruntime

MODEL = "CAg6NQoOCgF4CgF4EgF5IgNBZGQSAWdaDwoBeBIKCggIARIECgIIAmIPCgF5EgoKCAgBEgQKAggCQgIQDQ=="
SESSION = onnxruntime.InferenceSession(base64.b64decode(MODEL), providers=["CPUExecutionProvider"])


def work():
    (doubled,) = SESSION.run(None, {"x": numpy.array([1.5, 2.0], "float32")})
    return [doubled.tolist(), onnxruntime.get_available_providers()[-1], SESSION.get_inputs()[0].name]


def fail():
    SESSION.run(None, {"x": numpy.array([1.5], "float64")})
