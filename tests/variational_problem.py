"""Small problems in 1-D, 2-D and 3-D for the variational engine's tests: every functional, here and in the dense reference."""

import numpy as np
import pytest

import dense
from hipgp.model.data import observe
from hipgp.model.functionals import BoxAverages, Derivatives, Functionals, LineIntegrals, Points
from hipgp.model.grid import Grid
from hipgp.model.kernels import Matern32
from hipgp.model.problem import Problem
from hipgp.model.trend import Trend

COUNT = 9
VARIANCE, LENGTHSCALE = 1.3, {1: (0.12,), 2: (0.2, 0.3), 3: (0.3, 0.4, 0.35)}
GRIDS = {
    1: Grid.cover(0.0, 1.0, shape=12),
    2: Grid.cover((0.0, 0.0), (1.0, 1.2), shape=(6, 5)),
    3: Grid.cover((0.0, 0.0, 0.0), (1.0, 1.2, 0.9), shape=(4, 4, 3)),
}
every_dimension = pytest.mark.parametrize("dimension", [1, 2, 3])
slow = pytest.mark.slow
CASES = [(1, "bound"), (2, "noise"), *(pytest.param(d, "bound", marks=slow) for d in (2, 3))]


def inside(rng, dimension, share=(0.0, 1.0), count=COUNT):
    return rng.uniform(*share, (count, dimension)) * np.asarray(GRIDS[dimension].upper)


MAKERS = {
    "points": lambda rng, d: Points(inside(rng, d)),
    "derivatives": lambda rng, d: Derivatives(inside(rng, d), direction=rng.normal(size=(COUNT, d))),
    "lines": lambda rng, d: LineIntegrals(inside(rng, d, (0.0, 0.3)), inside(rng, d, (0.5, 1.0))),
    "boxes": lambda rng, d: BoxAverages(inside(rng, d, (0.0, 0.4)), inside(rng, d, (0.5, 1.0))),
    "functionals": lambda rng, d: Functionals(
        inside(rng, d, count=COUNT * 4).reshape(COUNT, 4, d), rng.normal(size=(COUNT, 4))
    ),
}
every_functional = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())


def gp_problem(kernel, grid, data, noise=None):
    """The problem without a trend, as the engine takes it."""
    return Problem(kernel, grid, data, noise, Trend(None))


def kernels(dimension):
    args = VARIANCE, LENGTHSCALE[dimension]
    return Matern32(*args), dense.Matern32(*args)


def as_dense(functional, grid):
    """The same nodes and weights, so that the engine is compared, not the quadrature."""
    nodes = functional.nodes(grid.spacing)
    return dense.functionals(nodes.x, nodes.weights, nodes.direction)


def observed(dimension, seed=0, noise=0.2):
    """A mixture of every functional of one draw of the field; `noise` is relative to each one's prior std."""
    rng = np.random.default_rng(seed)
    made = [make(rng, dimension) for make in MAKERS.values()]
    f = dense.concatenate(*[as_dense(functional, GRIDS[dimension]) for functional in made])
    cov = dense.covariance(kernels(dimension)[1], f, f)
    std = noise * np.sqrt(np.diag(cov)) * rng.uniform(0.5, 1.5, len(cov))
    y = np.linalg.cholesky(cov + np.diag(std**2)) @ rng.normal(size=len(cov))
    parts = zip(made, y.reshape(-1, COUNT), std.reshape(-1, COUNT), strict=True)
    data = [observe(functional, values, noise=spread) for functional, values, spread in parts]
    return sum(data[1:], start=data[0]), f


def close(found, expected, rtol=1e-6):
    np.testing.assert_allclose(found, expected, rtol=rtol, atol=rtol * np.max(np.abs(expected)))
