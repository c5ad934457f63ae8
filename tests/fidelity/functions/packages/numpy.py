"""Linear algebra, which uses OpenBLAS, and the generators."""

import numpy

GENERATOR = numpy.random.default_rng()
SEEDED = numpy.random.default_rng(7)
MATRIX = numpy.arange(9.0).reshape(3, 3) + numpy.eye(3)


def work():
    return [numpy.linalg.inv(MATRIX).round(6).tolist(), int(SEEDED.integers(1000)), float((MATRIX @ MATRIX).sum())]


def random():
    return [float(numpy.random.rand()), float(GENERATOR.random())]


def fail():
    numpy.linalg.inv(numpy.zeros((2, 2)))
