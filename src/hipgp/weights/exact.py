"""Exact weights: those of the conditional mean of each functional given the field's grid values u.

They are w_n = K^-1 k*_n, and each covers the whole grid. They are found by conjugate gradients with the circulant inverse as
preconditioner (paper, section 3.2), and are differentiable by the implicit rule (paper, appendix B.2; here in D
dimensions, by differentiating the Toeplitz product itself). Local weights are in `weights/stencils.py`.
"""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from hipgp.linalg.krylov import Solution, conjugate_gradients
from hipgp.model.functionals import Functional, LineIntegrals
from hipgp.model.grid import Grid
from hipgp.model.kernels import Kernel, SquaredExponential
from hipgp.model.nodes import Nodes
from hipgp.runtime.precision import float64_available
from hipgp.weights.covariance import (
    covariance_with_points,
    line_covariance_with_points,
    line_variances,
    prior_variances,
    residual_variance,
)
from hipgp.weights.operator import Weights

if TYPE_CHECKING:
    from hipgp.weights.toeplitz import Toeplitz


class ExactWeights(Weights):
    """W as a dense array: the paper's weights, for problems small enough to hold them."""

    rows: Float[Array, "N M"]
    residual: Float[Array, " N"]
    # number of solves that did not converge: their `residual` is that of the weights found, which are not optimal
    unconverged: int = eqx.field(static=True, default=0)

    def matmul(self, u: Float[Array, "... M"]) -> Float[Array, "... N"]:
        if u.dtype == self.rows.dtype:
            return u @ self.rows.T
        return jnp.sum(
            self.rows * u[..., None, :], axis=-1
        )  # rows of lower precision are converted as they are read

    def transpose_matmul(self, a: Float[Array, "... N"]) -> Float[Array, "... M"]:
        if a.dtype == self.rows.dtype:
            return a @ self.rows
        return jnp.sum(self.rows * a[..., :, None], axis=-2)


def solve_grid(
    toeplitz: "Toeplitz", rhs: Float[Array, "B M"], tolerance: float = 1e-10, max_iterations: int = 1000
) -> Solution:
    """Solve K x = rhs by preconditioned conjugate gradients; differentiable in K and rhs by the implicit rule."""
    fixed = jax.lax.stop_gradient(toeplitz)
    precondition = lambda v: fixed.circulant_inverse(v.reshape(-1, *toeplitz.shape)).reshape(v.shape)

    def solve(matvec: Any, b: Array) -> tuple[Array, tuple[Array, Array, Array]]:
        found = conjugate_gradients(
            matvec,
            b,
            precondition=precondition,
            tolerance=tolerance,
            max_iterations=max_iterations,
        )
        return found.value, (found.iterations.astype(b.dtype), found.error, found.converged.astype(b.dtype))

    value, (iterations, error, converged) = jax.lax.custom_linear_solve(
        toeplitz.flat_matmul, rhs, solve, symmetric=True, has_aux=True
    )
    return Solution(value, iterations.astype(jnp.int32), error, converged > 0)


def has_closed_form(kernel: Kernel, functional: Functional) -> bool:
    """Tell whether the covariances of `functional` under `kernel` have a closed form, so that no quadrature is needed."""
    gauss = (
        isinstance(functional, LineIntegrals)
        and functional.rule == "gauss"
        and functional.nodes_per_ray is None
    )
    return gauss and type(kernel) is SquaredExponential


def closed_form_or_nodes(kernel: Kernel, functional: Functional, grid: Grid) -> LineIntegrals | Nodes:
    """Return the functional itself if its covariances have a closed form, and its nodes otherwise."""
    if has_closed_form(kernel, functional):
        assert isinstance(functional, LineIntegrals)
        return functional
    return jax.tree.map(lambda a: np.asarray(a, float), functional.nodes(grid.spacing))


def grid_covariances(
    kernel: Kernel, source: LineIntegrals | Nodes, grid: Grid, dtype: Any = np.float64
) -> tuple[Array, Array]:
    """Return k*, the covariances with every grid point, (N, M), in `dtype`, and k**, (N,), in float64.

    They are in closed form if there is one. Places are relative to the grid's centre, so that no digit is lost to its
    distance from zero.
    """
    centre = 0.5 * (np.asarray(grid.lower) + np.asarray(grid.upper))
    points = jnp.asarray(grid.coordinates() - centre, dtype)
    if isinstance(source, LineIntegrals):
        assert isinstance(kernel, SquaredExponential)
        start, end = (jnp.asarray(a, float) - centre for a in (source.start, source.end))
        begin, far = start.astype(dtype), end.astype(dtype)
        cross = line_covariance_with_points(kernel, points, begin, far, source.average)
        return cross, line_variances(kernel, start, end, source.average)
    moved = dataclasses.replace(source, x=source.x - centre)
    low = jax.tree.map(lambda a: jnp.asarray(a, dtype), moved)
    return covariance_with_points(kernel, points, low), prior_variances(kernel, moved)


def _conditional_weights(
    toeplitz: "Toeplitz", cross: Array, variance: Array, tolerance: float = 1e-10, max_iterations: int = 1000
) -> tuple[Array, Array, Solution]:
    """Return exact weights w and residual variances v from k* and k**, with the report of the solve.

    v = k** - 2 w'k* + w'K w holds for any w, converged or not, and is least for the exact one.
    """
    found = solve_grid(toeplitz, cross, tolerance, max_iterations)
    w = found.value
    product = toeplitz.flat_matmul(w)
    v = residual_variance(variance, jnp.sum(w * cross, axis=-1), jnp.sum(w * product, axis=-1))
    return w, v, found


def exact_weights(
    kernel: Kernel,
    toeplitz: "Toeplitz",
    functionals: Sequence[Functional],
    tolerance: float = 1e-10,
    max_iterations: int = 1000,
) -> ExactWeights:
    """Compute the W of these blocks of functionals by one solve per row, in float64."""
    count = sum(map(len, functionals))
    size = count * toeplitz.torus.grid.size
    if size > 2**30:
        raise ValueError(
            f'weights: "exact" would need {size * 8 / 2**30:,.0f} GiB for {count} x {toeplitz.torus.grid.size} '
            'weights; expected at most 8 GiB: use weights="local"'
        )
    rows, residual, unconverged = [], [], 0
    for functional in functionals:
        source = closed_form_or_nodes(kernel, functional, toeplitz.torus.grid)
        w, v, solution = _conditional_block(kernel, toeplitz, source, tolerance, max_iterations)
        rows.append(w)
        residual.append(v)
        unconverged += int(jnp.sum(~solution.converged))
    dtype = toeplitz.eigenvalues.dtype
    return ExactWeights(
        jnp.concatenate(rows).astype(dtype), jnp.concatenate(residual).astype(dtype), unconverged
    )


@float64_available
@eqx.filter_jit
def _conditional_block(
    kernel: Kernel, toeplitz: "Toeplitz", source: LineIntegrals | Nodes, tolerance: float, max_iterations: int
) -> tuple[Array, Array, Solution]:
    cross, variance = grid_covariances(kernel, source, toeplitz.torus.grid)
    return _conditional_weights(toeplitz.astype(jnp.float64), cross, variance, tolerance, max_iterations)
