"""Exact variances of the batch posterior: v + w'K w - c' A^-1 c with c = W K w, plus the variance due to the trend.

A^-1 c comes from one solve per functional or, if that takes fewer products, from a matrix that is formed and factored. The
matrix is A, with one product for each of the N data, or, if the grid has fewer points than there are data, I + G K with
G = W' N^-1 W, with one product for each of the M grid points; the posterior covariance on the grid is then K (I + G K)^-1.
"""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy  # its submodules are imported when they are first used
from jaxtyping import Array, Float, Int

from hipgp.batch.decisions import exact_by_factor, work
from hipgp.batch.systems import System, draws_at_once, in_float64, solve
from hipgp.runtime.lazy import Lazy
from hipgp.runtime.precision import float64_available
from hipgp.runtime.programs import bounded_jit
from hipgp.runtime.progress import Report, silent
from hipgp.weights.operator import Weights

if TYPE_CHECKING:
    from hipgp.batch.posterior import BatchPosterior
    from hipgp.batch.simulation import GridTarget


class _PriorCovariances(NamedTuple):
    """Prior covariances of some functionals, through the grid, in float64."""

    w: Float[Array, "t M"]
    field: Float[Array, "t M"]  # K w
    variance: Float[Array, " t"]  # w'K w
    cross: Float[Array, "t N"]  # c


@float64_available
def exact_variance(
    post: "BatchPosterior",
    target: "GridTarget",
    columns: Float[np.ndarray, "T p"],
    report: Report = silent,
) -> Float[np.ndarray, " T"]:
    """The posterior variances of targets, computed in chunks; `columns` holds their trend columns."""
    (weights, joint), system, count = target, post.system, len(columns)
    factor = (
        post.lazy.factor.get(report)
        if exact_by_factor(work(system, post.diagnostics["iterations"]), count, count)
        else None
    )
    explained = _by_solves if factor is None else functools.partial(factor.explained, factor.matrix)
    out = []
    for begin in range(0, count, size := draws_at_once(system)):
        rows = np.arange(begin, min(begin + size, count))
        prior = _prior_covariances(system, weights, jnp.asarray(rows))
        if joint is not None:
            prior = prior._replace(cross=prior.cross + joint.cross[rows].toarray())
        explained_variance, of_columns = explained(post, prior)
        variance = (
            np.asarray(weights.residual, float)[rows] + np.asarray(prior.variance, float) - explained_variance
        )
        gap = columns[rows] - of_columns
        out.append(np.maximum(variance, 0.0) + post.trend_variance(gap))
        report(int(rows[-1]) + 1, count)
    return np.concatenate(out)


@bounded_jit()
def _prior_covariances(system: Any, weights: Weights, rows: Int[Array, " t"]) -> _PriorCovariances:
    system, weights = in_float64(system), in_float64(weights)
    w = weights.transpose_matmul(jax.nn.one_hot(rows, len(weights.residual), dtype=jnp.float64))
    field = system.toeplitz.flat_matmul(w)
    return _PriorCovariances(w, field, jnp.sum(w * field, axis=-1), system.weights.matmul(field))


def _by_solves(post: "BatchPosterior", prior: _PriorCovariances) -> tuple[np.ndarray, np.ndarray]:
    """c' A^-1 c and X' A^-1 c."""
    # The error of c'A^-1 c is at most r'N^-1 r, twice the bound, so the tolerance is relative to the prior variance.
    target = 1e-6 * np.asarray(prior.variance)
    solved = solve(post.system, prior.cross.astype(post.data.dtype), target, post.method.max_iterations)
    alpha = np.asarray(solved.alpha, float)
    explained_variance = np.asarray(_explained(post.system, prior.cross, jnp.asarray(alpha)))
    return explained_variance, alpha @ post.trend.of_data(post.data, post.grid)


@bounded_jit()
def _explained(system: Any, cross: Array, alpha: Array) -> Array:
    """c' A^-1 c from alpha ~ A^-1 c as 2 c'alpha - alpha'A alpha, whose error is of second order in that of alpha."""
    system = in_float64(system)
    w = system.weights.transpose_matmul(alpha)
    field = system.toeplitz.flat_matmul(w)
    quadratic = jnp.sum(w * field, axis=-1) + jnp.sum(alpha * system.noise_matmul(alpha), axis=-1)
    return 2 * jnp.sum(cross * alpha, axis=-1) - quadratic


def _by_factor(
    factor: np.ndarray, post: "BatchPosterior", prior: _PriorCovariances
) -> tuple[np.ndarray, np.ndarray]:
    """c' A^-1 c and X' A^-1 c from A's Cholesky factor."""
    solve = lambda b: scipy.linalg.solve_triangular(factor, b, lower=True, check_finite=False)
    half = solve(np.asarray(prior.cross).T)
    return np.sum(half**2, axis=0), half.T @ solve(post.trend.of_data(post.data, post.grid))


def _by_grid_factor(
    factor: Any, post: "BatchPosterior", prior: _PriorCovariances
) -> tuple[np.ndarray, np.ndarray]:
    """c' A^-1 c and X' A^-1 c from the LU factors of I + G K; W' A^-1 = (I + G K)^-1 W' N^-1."""
    solve = lambda b: scipy.linalg.lu_solve(factor, np.asarray(b).T, check_finite=False)
    field, x = np.asarray(prior.field), post.trend.of_data(post.data, post.grid)
    left = np.sum(field * solve(prior.w).T, axis=1)  # posterior variance of w'u
    return np.asarray(prior.variance) - left, field @ solve(
        _weighted_transpose(post.system, jnp.asarray(x.T, float))
    )


@bounded_jit()
def _weighted_transpose(system: Any, x: Float[Array, "p N"]) -> Float[Array, "p M"]:
    """Return W' N^-1 x."""
    system = in_float64(system)
    return system.weights.transpose_matmul(x / system.noise)


class Factor(NamedTuple):
    """A factored matrix, and the function that computes c' A^-1 c and X' A^-1 c from it."""

    matrix: Any
    explained: Callable[..., tuple[np.ndarray, np.ndarray]]


@float64_available
def factor_of(lazy_system: Lazy[System], report: Report = silent) -> Factor | None:
    """The factor of I + G K, or of A; None if the noise is so small that rounding makes A indefinite."""
    system = lazy_system.get()
    by_grid = system.grid_is_smaller
    count, rows_of = (system.grid_size, _rows_on_grid) if by_grid else (len(system.noise), _rows_of_a)
    matrix = _formed(rows_of, system, count, report)
    options = {"overwrite_a": True, "check_finite": False}
    try:
        if by_grid:
            return Factor(scipy.linalg.lu_factor(matrix, **options), _by_grid_factor)
        return Factor(scipy.linalg.cholesky(matrix, lower=True, **options), _by_factor)
    except scipy.linalg.LinAlgError:
        return None


@float64_available
def inverse_of_covariance(system: System) -> Float[np.ndarray, "N N"] | None:
    """A^-1, or None if the noise is so small that rounding makes A indefinite."""
    matrix = _formed(_rows_of_a, system, len(system.noise), silent)
    factor, failed = scipy.linalg.lapack.dpotrf(matrix.T, lower=True, overwrite_a=True)
    if failed:
        return None
    inverse, _ = scipy.linalg.lapack.dpotri(factor, lower=True, overwrite_c=True)
    return np.tril(inverse) + np.tril(inverse, -1).T


def _formed(
    rows_of: Callable[..., Array], system: System, count: int, report: Report
) -> Float[np.ndarray, "n n"]:
    """A matrix of `count` rows, some of which `rows_of` gives at a time."""
    matrix, size = np.empty((count, count)), draws_at_once(system)
    for begin in range(0, count, size):
        rows = np.minimum(
            np.arange(begin, begin + size), count - 1
        )  # repeats the last row, so that shapes are equal
        matrix[rows] = rows_of(system, jnp.asarray(rows))
        report(int(rows[-1]) + 1, count)
    return matrix


@bounded_jit()
def _rows_of_a(system: Any, rows: Int[Array, " t"]) -> Array:
    """Some rows of A, in float64."""
    one = jax.nn.one_hot(rows, len(system.noise), dtype=jnp.float64)
    return _prior_covariances(system, system.weights, rows).cross + in_float64(system).noise_matmul(one)


@bounded_jit()
def _rows_on_grid(system: Any, rows: Int[Array, " t"]) -> Array:
    """Some rows of I + G K, in float64."""
    system = in_float64(system)
    one = jax.nn.one_hot(rows, system.grid_size, dtype=jnp.float64)
    pulled = system.weights.transpose_matmul(system.weights.matmul(one) / system.noise)
    return one + system.toeplitz.flat_matmul(pulled)
