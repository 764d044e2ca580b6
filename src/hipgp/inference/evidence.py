"""The collapsed bound: how probable the data are under the model, from the same system as the posterior.

    log p(y) = -(y' A^-1 y + log|A| + N log 2 pi) / 2, less sum v_n / (2 s_n^2) where the residual is only in the bound.

log|A| = log|P| + tr log(S A S') with P^-1 = S'S the preconditioner, whose own determinant is known; the rest is small,
and estimated by stochastic Lanczos quadrature with its Monte Carlo error.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from hipgp.inference.batch import BatchPosterior
from hipgp.inference.systems import DataSystem, GridSystem, System
from hipgp.precision import float64_available
from hipgp.solvers import lanczos, quadratic_form
from hipgp.sparse import Blocks

STEPS = 40  # of Lanczos: the preconditioned spectrum is narrow


class Estimate(NamedTuple):
    """A value and its Monte Carlo standard error."""

    value: float
    error: float


@float64_available
def log_evidence(post: BatchPosterior, probes: int, key: Array) -> Estimate:
    """The log-probability of the data, the trend's coefficients at their best."""
    if probes < 2:
        raise ValueError(f"probes: expected at least 2 to tell an error from, got {probes}")
    system, count = post.system, len(post.data)
    rest = np.asarray(post.data.y, float) - post.trend.of_data(post.data, post.grid) @ post.beta
    log_determinant = _log_determinant(system, probes, key)
    fit = float(rest @ np.asarray(post.alpha, float))
    value = -0.5 * (fit + log_determinant.value + count * np.log(2 * np.pi))
    if post.method.residual == "bound":
        value -= 0.5 * float(jnp.sum(system.weights.residual / system.noise))  # type: ignore[attr-defined]
    return Estimate(value, 0.5 * log_determinant.error)


def _log_determinant(system: System, probes: int, key: Array) -> Estimate:
    if isinstance(system, GridSystem):
        rows, known = jnp.ones(system.toeplitz.torus.size), jnp.sum(jnp.log(system.noise))
    else:
        assert isinstance(system, DataSystem)
        rows, known = _rows(system)
    signs = jax.random.rademacher(key, (probes, len(rows)), rows.dtype) * rows
    logs = np.asarray(_quadrature(system, signs, min(STEPS, int(np.count_nonzero(rows)))), float)
    return Estimate(float(known) + logs.mean(), float(logs.std(ddof=1)) / np.sqrt(probes))


def _rows(system: DataSystem) -> tuple[Float[Array, " n"], Array]:
    """Which rows of S are real, and log|P|."""
    if system.vecchia is None:
        return jnp.ones_like(system.noise), jnp.sum(jnp.log(system.noise))
    factor = system.vecchia.factor
    if isinstance(factor, Blocks):
        real = jnp.any(factor.values != 0, axis=2).ravel().astype(system.noise.dtype)
    else:
        real = jnp.ones_like(system.noise)
    return real, system.vecchia.log_determinant


@eqx.filter_jit
def _quadrature(system: System, probes: Float[Array, "B n"], steps: int) -> Float[Array, " B"]:
    return quadratic_form(lanczos(lambda v: _whitened(system, v), probes, steps), probes, jnp.log)


def _whitened(system: System, v: Float[Array, "B n"]) -> Float[Array, "B n"]:
    """S A S' v; in grid space L v, whose determinant is that of N^-1 A."""
    if isinstance(system, GridSystem):
        return system.matmul(v)
    assert isinstance(system, DataSystem)
    if system.vecchia is None:
        root = jnp.sqrt(system.noise)
        return system.matmul(v / root) / root
    factor = system.vecchia.factor
    return factor.matmul(system.matmul(factor.transpose_matmul(v)))
