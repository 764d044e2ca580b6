"""The posterior covariance S of field and trend's coefficients as an operator: its product, and draws from it.

Vectors are pairs (field, beta), one row of each for every vector. With c = (c_u, c_b) and s = A^-1 W K c_u,

    beta = C (c_b - X' s),    alpha = s + A^-1 X beta,    field = K (c_u - W' alpha),    C = (X' A^-1 X)^-1.
"""

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from hipgp.batch.simulation import simulate
from hipgp.batch.systems import System, draws_at_once, solve
from hipgp.runtime.programs import bounded_jit

if TYPE_CHECKING:
    from hipgp.batch.posterior import BatchPosterior


class Vectors(NamedTuple):
    """Fields on the grid and coefficients of the trend, and the alpha that belongs to them."""

    field: Float[np.ndarray, "S M"]
    beta: Float[np.ndarray, "S p"]
    alpha: Float[np.ndarray, "S N"]


class Reference:
    """The Gaussian posterior as a reference measure: its mean and covariance, in the order of its data."""

    def __init__(self, post: "BatchPosterior"):
        self.post, self.system = post, post.system
        self.columns = post.trend.of_data(post.data, post.grid)
        self.of_columns = tuple(np.asarray(a, float) for a in post.solved_columns())
        self.noise, self.alpha = np.asarray(post.noise_variance, float), np.asarray(post.alpha, float)
        self.field, self.beta = np.asarray(post.field, float), np.asarray(post.beta, float)
        self.on_grid = post.trend.on_grid(post.grid)

    @property
    def at_once(self) -> int:
        """The number of vectors whose solves fit into memory together."""
        return draws_at_once(self.system)

    def observe(self, field: Float[np.ndarray, "S M"], beta: Float[np.ndarray, "S p"]) -> np.ndarray:
        """The values of the data's functionals, (S, N)."""
        return np.asarray(_observed(self.system, jnp.asarray(field))) + beta @ self.columns.T

    def observe_transpose(self, a: Float[np.ndarray, "S N"]) -> tuple[np.ndarray, np.ndarray]:
        """The transpose of `observe`, as fields and coefficients."""
        return np.asarray(_transposed(self.system, jnp.asarray(a))), a @ self.columns

    def times(self, field: np.ndarray, beta: np.ndarray, tolerance: float) -> Vectors:
        """S times vectors, by a solve to `tolerance` nats."""
        prior, of_data = _prior_times(self.system, jnp.asarray(field))
        solved = solve(self.system, of_data, tolerance, self.post.method.max_iterations)
        alpha = np.asarray(solved.alpha, float)
        beta = (beta - alpha @ self.columns) @ self.post.beta_covariance
        left = np.asarray(prior, float) - np.asarray(solved.field, float) - beta @ self.of_columns[1]
        return Vectors(left, beta, alpha + beta @ self.of_columns[0])

    def draws(
        self, count: int, key: Any, tolerance: float, start: Float[np.ndarray, "S N"] | None = None
    ) -> Vectors:
        """Draws of the deviation from the mean; solves begin at the alpha `start`, as an earlier call gave it."""
        y, parts = jnp.zeros(len(self.noise), self.post.data.dtype), []
        for begin in range(0, count, size := self.at_once):
            rows = slice(begin, min(begin + size, count))
            prior, _, rhs = simulate(self.system, y, jax.random.fold_in(key, begin), rows.stop - rows.start)
            guess = None if start is None else self.system.unknowns_of(jnp.asarray(start[rows], rhs.dtype))
            solved = solve(self.system, rhs, tolerance, self.post.method.max_iterations, start=guess)
            alpha = np.asarray(solved.alpha, float)
            beta = alpha @ self.columns @ self.post.beta_covariance
            field = np.asarray(prior + solved.field, float) - beta @ self.of_columns[1]
            parts.append(Vectors(field, beta, alpha))
        return Vectors(*(np.concatenate(part) for part in zip(*parts, strict=True)))


@bounded_jit()
def _observed(system: System, field: Array) -> Array:
    return system.weights.matmul(field)


@bounded_jit()
def _transposed(system: System, a: Array) -> Array:
    return system.weights.transpose_matmul(a)


@bounded_jit()
def _prior_times(system: System, c: Array) -> tuple[Array, Array]:
    """K c, and what the data see of it."""
    field = system.toeplitz.flat_matmul(c)
    return field, system.weights.matmul(field)
