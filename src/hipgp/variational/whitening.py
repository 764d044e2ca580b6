"""From grid values to white noise and back: u = R e with R R' = K, and k_n = R' w_n (paper, section 3.2).

Two roots: the Toeplitz one (R = crop . C^1/2, e on the torus, FFTs only), which is the paper's, and the Cholesky
factor of K (e on the grid), which is the standard SVGP and the baseline. All in float64: this is set-up.
"""

import abc
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_solve
from jaxtyping import Array, Float

from hipgp.linalg.krylov import Solution
from hipgp.linalg.matrices import cholesky
from hipgp.model.grid import Grid
from hipgp.model.kernels import Kernel
from hipgp.model.nodes import Nodes
from hipgp.runtime import memory
from hipgp.weights.covariance import residual_variance
from hipgp.weights.exact import grid_covariances, solve_grid
from hipgp.weights.toeplitz import TorusToeplitz, embed, toeplitz_on_torus

CHOLESKY_ARRAYS = 3  # dense matrices of K's size at the peak: K, K with its jitter, the factor


class Whitening(eqx.Module):
    """A root R of the grid covariance K. Vectors are flat, batched in front."""

    @property
    @abc.abstractmethod
    def shape(self) -> tuple[int, ...]:
        """The shape of the array of white noise."""

    @abc.abstractmethod
    def root(self, e: Float[Array, "... T"]) -> Float[Array, "... M"]:
        """Return R e."""

    @abc.abstractmethod
    def root_transpose(self, w: Float[Array, "... M"]) -> Float[Array, "... T"]:
        """Return R' w."""

    @abc.abstractmethod
    def conditional(
        self,
        cross: Float[Array, "n M"],
        variance: Float[Array, " n"],
        tolerance: Any,
        max_iterations: Any,
        first: Float[Array, "n M"] | None = None,
    ) -> tuple[Array, Array, Solution]:
        """The weights w = K^-1 k*, the residual variances v = k** - w'k*, and how the solve for them ended.

        An iterative solve begins at `first`, or at zero.
        """

    def residual_variance(
        self, w: Float[Array, "n M"], cross: Float[Array, "n M"], variance: Float[Array, " n"]
    ) -> Float[Array, " n"]:
        """v = k** - 2 w'k* + w'K w for any weights w, with w'K w = |R'w|^2.

        The three terms cancel: they are summed in the dtype of k**, whatever that of w.
        """
        exact = lambda a: a.astype(variance.dtype)
        quadratic = jnp.sum(exact(self.root_transpose(w)) ** 2, axis=-1)
        return residual_variance(variance, jnp.sum(exact(w) * exact(cross), axis=-1), quadratic)

    @abc.abstractmethod
    def rebuilt(self, kernel: Kernel) -> "Whitening":
        """This root for another kernel, differentiable in its parameters."""

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))


class ToeplitzWhitening(Whitening):
    """The paper's root, R = crop . C^1/2, by FFTs on the torus. What comes in float32 is computed in float32."""

    toeplitz: TorusToeplitz

    @property
    def shape(self) -> tuple[int, ...]:
        return self.toeplitz.torus.shape

    def root(self, e: Float[Array, "... T"]) -> Float[Array, "... M"]:
        return self.toeplitz.root(e.reshape(*e.shape[:-1], *self.shape)).reshape(*e.shape[:-1], -1)

    def root_transpose(self, w: Float[Array, "... M"]) -> Float[Array, "... T"]:
        on_grid = w.reshape(*w.shape[:-1], *self.toeplitz.shape)
        return self.toeplitz.astype(w.dtype).root_transpose(on_grid).reshape(*w.shape[:-1], -1)

    def conditional(
        self,
        cross: Float[Array, "n M"],
        variance: Float[Array, " n"],
        tolerance: Any,
        max_iterations: Any,
        first: Float[Array, "n M"] | None = None,
    ) -> tuple[Array, Array, Solution]:
        toeplitz = self.toeplitz.astype(cross.dtype)
        if first is None:
            found = solve_grid(toeplitz, cross, tolerance, max_iterations)
        else:
            found = _solved_from(toeplitz, cross, tolerance, max_iterations, jax.lax.stop_gradient(first))
        return found.value, self.residual_variance(found.value, cross, variance), found

    def rebuilt(self, kernel: Kernel) -> "ToeplitzWhitening":
        return ToeplitzWhitening(toeplitz_on_torus(kernel, self.toeplitz.torus))


def _solved_from(
    toeplitz: TorusToeplitz,
    cross: Float[Array, "n M"],
    tolerance: Any,
    max_iterations: Any,
    first: Float[Array, "n M"],
) -> Solution:
    """K^-1 k* as `first` and K^-1 times what that leaves of k*; the tolerance and the error are relative to k*."""
    left = cross - toeplitz.flat_matmul(first)
    size, rest = (jax.lax.stop_gradient(jnp.linalg.norm(a, axis=-1)) for a in (cross, left))
    found = solve_grid(toeplitz, left, tolerance * size / jnp.where(rest > 0, rest, 1.0), max_iterations)
    error = found.error * rest / jnp.where(size > 0, size, 1.0)
    return Solution(first + found.value, found.iterations, error, found.converged)


class _CholeskyWhitening(Whitening):
    """The Cholesky factor of K, dense: the root of the standard SVGP."""

    grid: Grid
    factor: Float[Array, "M M"]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.grid.shape

    def root(self, e: Float[Array, "... T"]) -> Float[Array, "... M"]:
        return e @ self.factor.T

    def root_transpose(self, w: Float[Array, "... M"]) -> Float[Array, "... T"]:
        return w @ self.factor

    def conditional(
        self,
        cross: Float[Array, "n M"],
        variance: Float[Array, " n"],
        tolerance: Any,
        max_iterations: Any,
        first: Float[Array, "n M"] | None = None,
    ) -> tuple[Array, Array, Solution]:
        w = cho_solve((self.factor, True), cross.T).T
        none = jnp.zeros(len(cross))
        solved = Solution(w, none.astype(jnp.int32), none, none == 0)
        return w, self.residual_variance(w, cross, variance), solved

    def rebuilt(self, kernel: Kernel) -> "_CholeskyWhitening":
        return _CholeskyWhitening(self.grid, _factor(kernel, self.grid))


def _factor(kernel: Kernel, grid: Grid) -> Float[Array, "M M"]:
    points = jnp.asarray(grid.coordinates())
    gram = grid_covariances(kernel, Nodes(points[:, None, :], jnp.ones((len(points), 1))), grid)[0]
    # A smooth kernel on a fine grid is singular to rounding; a jitter this small changes nothing else.
    jitter = 10 * jnp.finfo(gram.dtype).eps * jnp.trace(gram)
    return cholesky(gram + jitter * jnp.eye(len(points)))


def cholesky_bytes(points: int) -> float:
    """The peak of bytes while the Cholesky factor for `points` grid points is computed."""
    return memory.dense_bytes(points, CHOLESKY_ARRAYS)


def check_cholesky(grid: Grid) -> None:
    """Refuse a grid whose covariance, as a dense matrix, does not fit into memory."""
    memory.check(
        "whitening",
        f'"cholesky" for {grid.size:,} grid points',
        cholesky_bytes(grid.size),
        'use whitening="toeplitz", which needs no dense matrix, or a coarser grid',
    )


def whiten(kernel: Kernel, grid: Grid, kind: str) -> Whitening:
    """The root of the kernel's covariance on the grid: `kind` is "toeplitz" or "cholesky"."""
    if kind == "toeplitz":
        return ToeplitzWhitening(embed(kernel, grid).whole())
    check_cholesky(grid)
    return _CholeskyWhitening(grid, eqx.filter_jit(_factor)(kernel, grid))
