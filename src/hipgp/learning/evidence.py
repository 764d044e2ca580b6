"""The collapsed bound: how probable the data are under the model, from the same system as the posterior; its gradient.

    log p(y) = -(y' A^-1 y + log|A| + N log 2 pi) / 2, less sum v_n / (2 s_n^2) where the residual is only in the bound.

log|A| = log|P| + tr log(S A S') with P^-1 = S'S the preconditioner, whose own determinant is known; the rest is small,
and estimated by stochastic Lanczos quadrature with its Monte Carlo error. The same steps give (S A S')^-1 e for each
probe e, and with h = S'e, g = S' (S A S')^-1 e the gradient's trace, tr(A^-1 dA) = E g' dA h; its fit is
-alpha' dA alpha. So all of the gradient is that of a few forms a' A b (`learning/bilinear_forms.py`).
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from hipgp.batch.engine import Batch
from hipgp.batch.grid_space import GridSystem
from hipgp.batch.posterior import BatchPosterior
from hipgp.batch.systems import DataSystem, System
from hipgp.learning.bilinear_forms import Forms, kernel_gradient
from hipgp.learning.parameters import Layout
from hipgp.linalg.krylov import Probed, probe, quadratic_form
from hipgp.linalg.sparse import Blocks
from hipgp.model.data import Data
from hipgp.model.grid import Grid
from hipgp.model.trend import Trend
from hipgp.runtime.precision import float64_available
from hipgp.runtime.programs import bounded_jit

STEPS = 100  # of Lanczos, at most
TOLERANCE = 1e-3  # of the probes' solves
LOG_2PI = float(np.log(2 * np.pi))


class Estimate(NamedTuple):
    """A value and its Monte Carlo standard error."""

    value: float
    error: float


class Slope(NamedTuple):
    """log p(y), and its gradient in a layout's vector."""

    evidence: Estimate
    gradient: Float[np.ndarray, " p"]


@float64_available
def log_evidence(post: BatchPosterior, probes: int, key: Array) -> Estimate:
    """The log-probability of the data, the trend's coefficients at their best."""
    if probes < 2:
        raise ValueError(f"probes: expected at least 2 to tell an error from, got {probes}")
    return _evidence(post, _logarithms(post.system, _signs(post.system, probes, key))[0])


@float64_available
def log_evidence_slope(
    vector: Float[np.ndarray, " p"],
    layout: Layout,
    grid: Grid,
    data: Data,
    trend: Trend,
    noise: float | None,
    probes: int,
    key: Array,
) -> Slope:
    """The collapsed bound at a layout's vector, with its gradient; `noise` where the layout has none of its own."""
    kernel, found = layout.unpack(jnp.asarray(vector))
    kernel = jax.tree.map(np.asarray, kernel)
    post = Batch(space="data", residual="noise").fit(
        kernel, grid, data, noise if found is None else float(found), trend, progress=False
    )
    signs = _signs(post.system, probes, key)
    return _slope(vector, layout, post, signs)


@float64_available
def _slope(
    vector: Any,
    layout: Layout,
    post: BatchPosterior,
    signs: Float[Array, "B n"],
    tolerance: float = TOLERANCE,
) -> Slope:
    system = post.system
    assert isinstance(system, DataSystem)
    logs, probed = _logarithms(system, signs, tolerance)
    forms = _forms(system, post.alpha, signs, probed.value)
    p = post.method.points_per_axis(post.data)
    of_kernel = kernel_gradient(post.kernel, post.grid, post.data, p, system, forms)
    unknown = float(jnp.sum(jnp.where(post.data.noise_known, 0.0, forms.diagonal())))

    def total(v: Array) -> Array:
        kernel, noise = layout.unpack(v)
        pull = jax.tree.map(lambda g, leaf: jnp.sum(g * leaf), of_kernel, kernel)
        from_noise = jnp.zeros(()) if noise is None else unknown * noise**2
        return sum(jax.tree.leaves(pull), start=from_noise)

    return Slope(_evidence(post, logs), -0.5 * np.asarray(jax.grad(total)(jnp.asarray(vector))))


def _evidence(post: BatchPosterior, logs: Float[np.ndarray, " B"]) -> Estimate:
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


def _signs(system: System, probes: int, key: Array) -> Float[Array, "B n"]:
    """Random signs for every row of S that is real; in grid space, for every point of the torus, as its unknowns."""
    if isinstance(system, GridSystem):
        torus = system.toeplitz.torus
        signs = jax.random.rademacher(key, (probes, torus.size), system.noise.dtype)
        return system.unknowns(system.modes(signs, torus.shape))
    assert isinstance(system, DataSystem)
    rows = jnp.ones_like(system.noise)
    if system.vecchia is not None and isinstance(system.vecchia.factor, Blocks):
        rows = jnp.any(system.vecchia.factor.values != 0, axis=2).ravel().astype(rows.dtype)
    return jax.random.rademacher(key, (probes, len(rows)), rows.dtype) * rows


def _logarithms(
    system: System, signs: Float[Array, "B n"], tolerance: float = TOLERANCE
) -> tuple[Float[np.ndarray, " B"], Probed]:
    """Each probe's estimate of the part of log|A| that is not known."""
    logs, probed = _quadrature(system, signs, jnp.asarray(tolerance))
    return np.asarray(logs, float), probed


@bounded_jit()
def _quadrature(
    system: System, signs: Float[Array, "B n"], tolerance: Array
) -> tuple[Float[Array, " B"], Probed]:
    probed = probe(lambda v: _whitened(system, v), signs, STEPS, tolerance)
    return quadratic_form(probed.coefficients, signs, jnp.log), probed


def _whitened(system: System, v: Float[Array, "B n"]) -> Float[Array, "B n"]:
    """S A S' v; in grid space L v, whose determinant is that of N^-1 A."""
    if isinstance(system, GridSystem):
        return system.matmul(v)
    assert isinstance(system, DataSystem)
    return _root(system, system.matmul(_root_transpose(system, v)))


def _root(system: DataSystem, v: Float[Array, "B N"]) -> Float[Array, "B n"]:
    return v / jnp.sqrt(system.noise) if system.vecchia is None else system.vecchia.factor.matmul(v)


def _root_transpose(system: DataSystem, v: Float[Array, "B n"]) -> Float[Array, "B N"]:
    return v / jnp.sqrt(system.noise) if system.vecchia is None else system.vecchia.factor.transpose_matmul(v)


@bounded_jit()
def _forms(
    system: DataSystem, alpha: Float[Array, " N"], signs: Float[Array, "B n"], solved: Float[Array, "B n"]
) -> Forms:
    """Whose gradient is twice that of -log p."""
    g, h = _root_transpose(system, solved), _root_transpose(system, signs)
    weight = jnp.concatenate([-jnp.ones(1), jnp.full(len(signs), 1 / len(signs))]).astype(alpha.dtype)
    return Forms(jnp.concatenate([alpha[None], g]), jnp.concatenate([alpha[None], h]), weight)
