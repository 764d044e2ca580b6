"""Draws from the prior and data simulated from them, for Matheron's rule and for sampled standard deviations."""

from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from hipgp.runtime.callers import warn_caller
from hipgp.runtime.programs import bounded_jit
from hipgp.weights.joint_residuals import ResidualRegression
from hipgp.weights.operator import Weights

if TYPE_CHECKING:
    from hipgp.batch.systems import System


def warn_if_far(kl_bound: float, tolerance: float, steps: int) -> None:
    """Warn if a solve stopped before it reached the tolerance."""
    if kl_bound > tolerance:
        warn_caller(
            f"the solve stopped after {steps} steps at most {kl_bound:.3g} nats from the exact posterior on the grid "
            f"(tolerance {tolerance:g}); try more max_iterations, more neighbours, or float64 data",
        )


class GridTarget(NamedTuple):
    """Functionals to be predicted: their W, and the regression of their residuals on the data's if these are joint."""

    weights: Weights
    joint: ResidualRegression | None

    def mean(self, field: Float[Array, "s M"], alpha: Float[Array, "s N"]) -> Float[np.ndarray, "s T"]:
        """The mean of the functionals, from the field K W' alpha and from alpha = A^-1 y."""
        values = np.asarray(self.weights.matmul(field))
        return values if self.joint is None else values + (self.joint.cross @ np.asarray(alpha, float).T).T

    def draw(
        self, field: Float[Array, "s M"], residual: Float[Array, "s N"] | None, key: Array
    ) -> Float[np.ndarray, "s T"]:
        """Draw the functionals from the prior, given draws of the field on the grid and of the data's residuals."""
        white = jax.random.normal(key, (len(field), len(self.weights.residual)), field.dtype)
        values = np.asarray(self.weights.matmul(field), float)
        if self.joint is None or residual is None:
            return values + np.sqrt(np.asarray(self.weights.residual, float)) * np.asarray(white)
        explained = (self.joint.coefficients @ np.asarray(residual, float).T).T
        return values + explained + np.sqrt(self.joint.variance) * np.asarray(white)


@bounded_jit()
def simulate(system: "System", y: Array, key: Array, count: int) -> tuple[Array, Array | None, Array]:
    """Prior draws on the grid, draws of joint residuals (or None), and y minus data simulated from both."""
    toeplitz, weights, noise = system.toeplitz, system.weights, system.noise
    field_key, noise_key = jax.random.split(key)
    prior = toeplitz.flat_draw(field_key, count)
    draw = lambda k: jax.random.normal(k, (count, len(noise)), noise.dtype)
    rest = y - weights.matmul(prior) - jnp.sqrt(noise) * draw(noise_key)
    if system.residuals is None:
        return prior, None, rest
    residual = system.residuals.draw(draw(jax.random.fold_in(noise_key, 1)))
    return prior, residual, rest - residual
