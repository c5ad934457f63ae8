"""Optimisation, statistics and a decomposition."""

import numpy
from scipy import linalg, optimize, stats

MATRIX = numpy.arange(16.0).reshape(4, 4) + 4 * numpy.eye(4)


def work():
    found = optimize.minimize(lambda x: ((x - 3) ** 2).sum(), numpy.zeros(2))
    return [found.x.round(3).tolist(), round(float(linalg.det(MATRIX)), 4), round(float(stats.norm.cdf(1)), 6)]


def random():
    return float(stats.norm.rvs())


def fail():
    linalg.cholesky(numpy.zeros((2, 2)))
