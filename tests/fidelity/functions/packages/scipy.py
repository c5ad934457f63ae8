"""Optimisation, statistics, a decomposition, and engines of quasi-random numbers."""

import numpy
from scipy import linalg, optimize, stats
from scipy.stats import qmc

MATRIX = numpy.arange(16.0).reshape(4, 4) + 4 * numpy.eye(4)
NORMAL = qmc.MultivariateNormalQMC([0.0, 0.0])
UNSEEDED = [qmc.Sobol(2), qmc.Halton(3), qmc.LatinHypercube(2), qmc.Sobol(2, rng=numpy.random.default_rng())]
SEEDED = [qmc.Sobol(2, rng=7), qmc.Halton(3, rng=7), qmc.Sobol(2, scramble=False), qmc.Halton(2, scramble=False)]
USED = qmc.Sobol(1)
USED.random(8)
SEEDED[0].random(4)


def work():
    found = optimize.minimize(lambda x: ((x - 3) ** 2).sum(), numpy.zeros(2))
    points = [engine.random(2).round(9).tolist() for engine in SEEDED]
    # The first sixteen points of a Sobol sequence have one number in each sixteenth: the import has drawn eight of them.
    sixteenths = sorted(set((USED.random(8) * 16).astype(int).ravel().tolist()))
    numbers = [round(float(linalg.det(MATRIX)), 4), round(float(stats.norm.cdf(1)), 6), len(sixteenths)]
    return [found.x.round(3).tolist(), *numbers, points]


def random():
    drawn = [float(engine.random(1)[0][0]) for engine in UNSEEDED]
    return [float(stats.norm.rvs()), *drawn, float(NORMAL.random(1)[0][0]), float(USED.random(1)[0][0])]


def fail():
    linalg.cholesky(numpy.zeros((2, 2)))
