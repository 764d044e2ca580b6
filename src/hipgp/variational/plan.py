"""What a fit with the variational engine will take: bytes and expected seconds of each part, from counted work."""

from typing import TYPE_CHECKING

import numpy as np

from hipgp.linalg.rates import Rates, transform_work
from hipgp.model.problem import Problem
from hipgp.planning import Part, compilation
from hipgp.runtime import memory
from hipgp.variational.minibatch_weights import are_stored
from hipgp.variational.whitening import cholesky_bytes
from hipgp.weights.torus import smallest_torus

if TYPE_CHECKING:
    from hipgp.variational.engine import Variational

FULL_ARRAYS = 6  # dense matrices of a full-rank S's size in memory at the peak of a fit
STEPS = 50  # of a solve for the weights of one observation
PROGRAMS = 30  # that a first fit compiles
BLOCK = 100  # whitened points of a block, where the user sets none


def parts(method: "Variational", problem: Problem, rates: Rates) -> list[Part]:
    """The parts of a fit, then that of the map's standard deviations."""
    kernel, grid, data, _, _ = problem
    n, m, dense = float(len(data)), float(grid.size), method.whitening == "cholesky"
    torus = float(np.prod(smallest_torus(kernel, grid), dtype=float))
    size = m if dense else torus
    product = m**2 / rates.multiplied if dense else 2 * transform_work(torus) / rates.transformed
    covariance = cholesky_bytes(grid.size) if dense else memory.torus_bytes(torus)
    solve = product * (STEPS if method.weights == "exact" else 1)
    dtype = method.solve_dtype(data.dtype)
    is_stored = are_stored(len(data), grid.size, dtype)
    passes = (1 if is_stored else method.epochs + 1) + (method.epochs if method.learn else 0)
    block = _block(method, grid.ndim, size)
    of_weights = float(dtype.itemsize) * (n if is_stored else method.batch_size) * m
    of_q = memory.dense_bytes(size, FULL_ARRAYS) if method.family == "full" else 8.0 * 4 * size * block
    stored = "kept" if is_stored else f"made anew in each of {passes} passes"
    return [
        compilation(PROGRAMS, rates),
        Part("covariance", covariance, covariance / 4, torus / rates.kernel + product, f"{size:,.0f} whitened points"),
        Part("weights", of_weights if is_stored else 3 * of_weights, of_weights, passes * n * solve, f"{method.weights} weights of {n:,.0f} observations, {stored}"),
        Part("q", of_q, of_q / 2, method.epochs * (n * size * 4 + size * block**2) / rates.multiplied,
             f'family "{method.family}" in blocks of {block:,.0f} points, {method.epochs} epochs'),
        Part("mean and std on the grid", 8.0 * 3 * size, 16.0 * m, m * product, f"a root of K for each of {m:,.0f} points", True),
    ]  # fmt: skip


def check_full(size: int) -> None:
    """Refuse a full-rank S that does not fit into memory."""
    memory.check(
        "family",
        f'"full" with {size:,} whitened points',
        memory.dense_bytes(size, FULL_ARRAYS),
        'use family="block" or method=Batch()',
    )


def _block(method: "Variational", ndim: int, size: float) -> float:
    """The number of whitened points of a block of S."""
    if method.family != "block":
        return size if method.family == "full" else 1.0
    shape = method.block_shape or (max(1, round(BLOCK ** (1 / ndim))),)
    return float(np.prod(shape if len(shape) == ndim else shape * ndim))
