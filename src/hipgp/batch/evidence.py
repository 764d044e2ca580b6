"""The log evidence of the batch engine: how probable the data are under the model, from the posterior's own system.

    log p(y) = -(y' A^-1 y + log|A| + N log 2 pi) / 2, less sum v_n / (2 s_n^2) where the residual is only in the bound.

log|A| = log|P| + tr log(S A S') with P^-1 = S'S the preconditioner, whose own determinant is known; the rest is small,
and estimated by stochastic Lanczos quadrature with its Monte Carlo error.
"""

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from hipgp.batch.grid_space import GridSystem
from hipgp.batch.systems import DataSystem, System
from hipgp.engines import Estimate
from hipgp.linalg.krylov import LanczosSolution, lanczos_quadrature, lanczos_solve
from hipgp.linalg.sparse import BlockRows
from hipgp.model.arguments import check_whole
from hipgp.runtime.precision import float64_available
from hipgp.runtime.programs import bounded_jit

if TYPE_CHECKING:
    from hipgp.batch.posterior import BatchPosterior

STEPS = 100  # of Lanczos, at most
TOLERANCE = 1e-3  # of the probes' solves
LOG_2PI = float(np.log(2 * np.pi))


@float64_available
def log_evidence(post: "BatchPosterior", probes: int, key: Array) -> Estimate:
    """The log-probability of the data, the trend's coefficients at their best."""
    check_whole("probes", probes, 2)  # one tells no error
    return evidence_of(post, logarithms(post.system, random_signs(post.system, probes, key))[0])


def evidence_of(post: "BatchPosterior", logs: Float[np.ndarray, " B"]) -> Estimate:
    system, count = post.system, len(post.data)
    rest = np.asarray(post.data.y, float) - post.trend.of_data(post.data, post.grid) @ post.beta
    fit = float(rest @ np.asarray(post.alpha, float))
    value = -0.5 * (fit + _known(system) + logs.mean() + count * LOG_2PI)
    if post.method.residual == "bound":
        value -= 0.5 * float(jnp.sum(system.weights.residual / system.noise))  # type: ignore[attr-defined]
    return Estimate(value, 0.5 * float(logs.std(ddof=1)) / np.sqrt(len(logs)))


def _known(system: System) -> float:
    """The part of log|A| that is known."""
    if isinstance(system, DataSystem) and system.vecchia is not None:
        return float(system.vecchia.log_determinant)
    return float(jnp.sum(jnp.log(system.noise)))  # type: ignore[attr-defined]


def random_signs(system: System, probes: int, key: Array) -> Float[Array, "B n"]:
    """Random signs for every row of S that is real; in grid space, for every point of the torus, as its unknowns."""
    if isinstance(system, GridSystem):
        torus = system.toeplitz.torus
        signs = jax.random.rademacher(key, (probes, torus.size), system.noise.dtype)
        return system.unknowns(system.modes(signs, torus.shape))
    assert isinstance(system, DataSystem)
    rows = jnp.ones_like(system.noise)
    if system.vecchia is not None and isinstance(system.vecchia.factor, BlockRows):
        rows = jnp.any(system.vecchia.factor.values != 0, axis=2).ravel().astype(rows.dtype)
    return jax.random.rademacher(key, (probes, len(rows)), rows.dtype) * rows


def logarithms(
    system: System, signs: Float[Array, "B n"], tolerance: float = TOLERANCE
) -> tuple[Float[np.ndarray, " B"], LanczosSolution]:
    """Each probe's estimate of the part of log|A| that is not known."""
    logs, probed = _quadrature(system, signs, jnp.asarray(tolerance))
    return np.asarray(logs, float), probed


@bounded_jit()
def _quadrature(
    system: System, signs: Float[Array, "B n"], tolerance: Array
) -> tuple[Float[Array, " B"], LanczosSolution]:
    probed = lanczos_solve(lambda v: _whitened(system, v), signs, STEPS, tolerance)
    return lanczos_quadrature(probed.coefficients, signs, jnp.log), probed


def _whitened(system: System, v: Float[Array, "B n"]) -> Float[Array, "B n"]:
    """S A S' v; in grid space L v, whose determinant is that of N^-1 A."""
    if isinstance(system, GridSystem):
        return system.matmul(v)
    assert isinstance(system, DataSystem)
    return _root(system, system.matmul(root_transpose(system, v)))


def _root(system: DataSystem, v: Float[Array, "B N"]) -> Float[Array, "B n"]:
    return v / jnp.sqrt(system.noise) if system.vecchia is None else system.vecchia.factor.matmul(v)


def root_transpose(system: DataSystem, v: Float[Array, "B n"]) -> Float[Array, "B N"]:
    return v / jnp.sqrt(system.noise) if system.vecchia is None else system.vecchia.factor.transpose_matmul(v)
