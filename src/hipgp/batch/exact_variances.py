"""Exact standard deviations of the batch posterior: v + w'K w - c' A^-1 c, c = W K w, and what the trend adds.

A^-1 c comes from one solve per functional, or, where that takes fewer products, from a matrix that is written down and
factored: A itself, one product with it for each of the N data; or, where the grid has fewer points than there are data, I + G K with
G = W' N^-1 W, one product for each of the M grid points. With that one the posterior's covariance on the grid is K (I + G K)^-1.
"""

import functools
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy  # its submodules are imported when they are first used
from jaxtyping import Array, Float, Int

from hipgp.batch.systems import in_float64, solve
from hipgp.model.functionals import Functional
from hipgp.runtime.precision import float64_available
from hipgp.runtime.programs import bounded_jit
from hipgp.runtime.progress import Report, silent
from hipgp.weights.exact import Weights

if TYPE_CHECKING:
    from hipgp.batch.posterior import BatchPosterior

FACTORED = 10_000  # rows of a matrix that may be written down and factored: 800 MB
CHEAP = 1e8  # points of the torus, times products: some seconds on two cores


class Seen(NamedTuple):
    """Some functionals as the grid sees them, in float64."""

    w: Float[Array, "t M"]
    field: Float[Array, "t M"]  # K w
    prior: Float[Array, " t"]  # w'K w
    cross: Float[Array, "t N"]  # c


@float64_available
def exact_variance(
    post: "BatchPosterior", functional: Functional, columns: Any = None, report: Report = silent
) -> Float[np.ndarray, " T"]:
    factor = _factor(post, report) if factored(post, len(functional), len(functional)) else None
    explained = (
        _by_solves
        if factor is None
        else functools.partial(_by_grid_factor if _on_grid(post) else _by_factor, factor)
    )
    (weights, joint), system = post.target(functional), post.system
    target = post.trend.of(functional, post.grid, columns)
    out = []
    for begin in range(0, len(functional), size := post.draws_at_once()):
        rows = np.arange(begin, min(begin + size, len(functional)))
        seen = _seen(system, weights, jnp.asarray(rows))
        if joint is not None:
            seen = seen._replace(cross=seen.cross + joint.cross[rows].toarray())
        known, of_columns = explained(post, seen)
        variance = np.asarray(weights.residual, float)[rows] + np.asarray(seen.prior, float) - known
        gap = target[rows] - of_columns
        out.append(np.maximum(variance, 0.0) + post.trend_variance(gap))
        report(int(rows[-1]) + 1, len(functional))
    return np.concatenate(out)


@bounded_jit()
def _seen(system: Any, weights: Weights, rows: Int[Array, " t"]) -> Seen:
    system, weights = in_float64(system), in_float64(weights)
    w = weights.transpose_matmul(jax.nn.one_hot(rows, len(weights.residual), dtype=jnp.float64))
    field = system.toeplitz.flat_matmul(w)
    return Seen(w, field, jnp.sum(w * field, axis=-1), system.weights.matmul(field))


def _by_solves(post: "BatchPosterior", seen: Seen) -> tuple[np.ndarray, np.ndarray]:
    """c' A^-1 c and X' A^-1 c."""
    # The error of c'A^-1 c is at most r'N^-1 r = 2 nats: here nats are in units of the variance.
    target = 1e-6 * np.asarray(seen.prior)
    solved = solve(post.system, seen.cross.astype(post.data.dtype), target, post.method.max_iterations)
    alpha = np.asarray(solved.alpha, float)
    known = np.asarray(_explained(post.system, seen.cross, jnp.asarray(alpha)))
    return known, alpha @ post.trend.of_data(post.data, post.grid)


@bounded_jit()
def _explained(system: Any, cross: Array, alpha: Array) -> Array:
    """c' A^-1 c from alpha ~ A^-1 c: 2 c'alpha - alpha'A alpha, which only the square of alpha's error enters."""
    system = in_float64(system)
    w = system.weights.transpose_matmul(alpha)
    field = system.toeplitz.flat_matmul(w)
    own = jnp.sum(w * field, axis=-1) + jnp.sum(alpha * system.spread(alpha), axis=-1)
    return 2 * jnp.sum(cross * alpha, axis=-1) - own


def _by_factor(factor: np.ndarray, post: "BatchPosterior", seen: Seen) -> tuple[np.ndarray, np.ndarray]:
    """The same, from A's Cholesky factor."""
    solve = lambda b: scipy.linalg.solve_triangular(factor, b, lower=True, check_finite=False)
    half = solve(np.asarray(seen.cross).T)
    return np.sum(half**2, axis=0), half.T @ solve(post.trend.of_data(post.data, post.grid))


def _by_grid_factor(factor: Any, post: "BatchPosterior", seen: Seen) -> tuple[np.ndarray, np.ndarray]:
    """The same, from the LU factors of I + G K; W' A^-1 = (I + G K)^-1 W' N^-1."""
    solve = lambda b: scipy.linalg.lu_solve(factor, np.asarray(b).T, check_finite=False)
    field, x = np.asarray(seen.field), post.trend.of_data(post.data, post.grid)
    left = np.sum(field * solve(seen.w).T, axis=1)  # of w'K w
    return np.asarray(seen.prior) - left, field @ solve(_pulled(post.system, jnp.asarray(x.T, float)))


@bounded_jit()
def _pulled(system: Any, x: Float[Array, "p N"]) -> Float[Array, "p M"]:
    """W' N^-1 x."""
    system = in_float64(system)
    return system.weights.transpose_matmul(x / system.noise)


def _factor(post: "BatchPosterior", report: Report) -> Any:
    """The factor, kept with the posterior's system; None where the noise is too small for rounding."""
    if post.deferred.factor is None:
        on_grid, size = _on_grid(post), post.draws_at_once()
        count, some = (post.grid.size, _rows_on_grid) if on_grid else (len(post.data), _rows_of_a)
        matrix = np.empty((count, count))
        for begin in range(0, count, size):
            rows = np.minimum(np.arange(begin, begin + size), count - 1)  # the last again: one compilation
            matrix[rows] = some(post.system, jnp.asarray(rows))
            report(int(rows[-1]) + 1, count)
        factorise = (
            scipy.linalg.lu_factor if on_grid else functools.partial(scipy.linalg.cholesky, lower=True)
        )
        try:
            post.deferred.factor = factorise(matrix, overwrite_a=True, check_finite=False)
        except scipy.linalg.LinAlgError:
            return None
    return post.deferred.factor


@bounded_jit()
def _rows_of_a(system: Any, rows: Int[Array, " t"]) -> Array:
    """Some rows of A, in float64."""
    one = jax.nn.one_hot(rows, len(system.noise), dtype=jnp.float64)
    return _seen(system, system.weights, rows).cross + in_float64(system).spread(one)


@bounded_jit()
def _rows_on_grid(system: Any, rows: Int[Array, " t"]) -> Array:
    """Some rows of I + G K, in float64."""
    system = in_float64(system)
    one = jax.nn.one_hot(rows, int(np.prod(system.toeplitz.shape)), dtype=jnp.float64)
    pulled = system.weights.transpose_matmul(system.weights.matmul(one) / system.noise)
    return one + system.toeplitz.flat_matmul(pulled)


def _on_grid(post: "BatchPosterior") -> bool:
    """Whether the grid has fewer points than there are data; residuals held jointly would have to be inverted there."""
    return post.grid.size < len(post.data) and post.system.residuals is None  # type: ignore[attr-defined]


def factored(post: "BatchPosterior", targets: int, solves: int) -> bool:
    """Whether to factor: where that takes fewer products, for so many targets, than so many solves, or few."""
    rows = post.grid.size if _on_grid(post) else len(post.data)
    products = rows + targets
    shorter = products <= solves * max(1, post.diagnostics["iterations"])
    cheap = products * post.system.toeplitz.torus.size <= CHEAP  # type: ignore[attr-defined]
    return rows <= FACTORED and (shorter or cheap)
