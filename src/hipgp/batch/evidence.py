"""The log evidence of the batch engine, and its gradient, from the posterior's linear system.

    log p(y) = -(y' A^-1 y + log|A| + N log 2 pi) / 2, less sum v_n / (2 s_n^2) with residual="bound".

log|A| = log|P| + tr log(S A S') with P^-1 = S'S the preconditioner, whose determinant is known. The trace is small, and is
estimated by stochastic Lanczos quadrature with its Monte Carlo error. A probe e also gives (S A S')^-1 e; with h = S'e and
g = S' (S A S')^-1 e the trace in the gradient is tr(A^-1 dA) = E g' dA h. The quadratic term has the gradient
-alpha' dA alpha. So the gradient is that of a few bilinear forms a' A b (`batch/bilinear_forms.py`).
"""

import dataclasses
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from hipgp.batch.bilinear_forms import Forms, kernel_gradient
from hipgp.batch.systems import DataSystem, System
from hipgp.engines import Estimate, Gradient, Slope
from hipgp.learning.parameters import Layout
from hipgp.linalg.krylov import LanczosSolution, lanczos_quadrature, lanczos_solve
from hipgp.model.arguments import check_whole
from hipgp.runtime.precision import float64_available
from hipgp.runtime.programs import bounded_jit

if TYPE_CHECKING:
    from hipgp.batch.engine import Batch
    from hipgp.batch.posterior import BatchPosterior

STEPS = 100  # Lanczos steps at most
TOLERANCE = 1e-3  # relative residual of the probes' solves
LOG_2PI = float(np.log(2 * np.pi))


@float64_available
def log_evidence(post: "BatchPosterior", probes: int, key: Array) -> Estimate:
    """The log-probability of the data with the trend's coefficients at their best."""
    check_whole("probes", probes, 2)  # the error estimate needs two
    return _evidence_of(post, logarithms(post.system, post.system.random_signs(probes, key))[0])


def differentiable(method: "Batch") -> "Batch":
    """The settings for learning: those given, changed where the evidence has no gradient here.

    - The solve is in data space, where the probes' solves also give the gradient. Both spaces have the same model.
    - Residuals count as independent noise instead of jointly Gaussian (`residual="joint"`), because the derivatives of the
      covariances within each cell are not implemented.
    - Local weights replace exact ones, which come from iterations.
    """
    return dataclasses.replace(
        method,
        space="data",
        residual="noise" if method.residual == "joint" else method.residual,
        weights="local" if method.weights == "exact" else method.weights,
    )


@float64_available
def slope(post: "BatchPosterior", signs: Float[Array, "B n"], tolerance: float = TOLERANCE) -> Slope:
    """The log evidence of a fit with `differentiable` settings, and its gradient in the logarithms of the parameters."""
    system, data, bound = post.system, post.data, post.method.residual == "bound"
    assert isinstance(system, DataSystem)
    logs, probed = logarithms(system, signs, tolerance)
    forms = _forms(system, post.alpha, signs, probed.value)
    of_noise = of_residual = forms.diagonal()
    if bound:
        residual = system.weights.residual
        of_residual, of_noise = 1 / system.noise, of_noise - residual / system.noise**2
    p = post.method.points_per_axis(data)
    of_kernel = kernel_gradient(
        post.kernel, post.grid, data, p, system.toeplitz, system.weights, forms, of_residual
    )
    unknown = float(jnp.sum(jnp.where(data.noise_known, 0.0, of_noise)))
    layout = Layout.of(post.kernel, not np.all(data.noise_known))

    def total(vector: Array) -> Array:
        kernel, noise = layout.unpack(vector)
        pull = jax.tree.map(lambda g, leaf: jnp.sum(g * leaf), of_kernel, kernel)
        from_noise = jnp.zeros(()) if noise is None else unknown * noise**2
        return sum(jax.tree.leaves(pull), start=from_noise)

    values = -0.5 * np.asarray(jax.grad(total)(jnp.asarray(layout.pack(post.kernel, post.noise))))
    return Slope(_evidence_of(post, logs), Gradient(tuple(layout.names()), values))


@bounded_jit()
def _forms(
    system: DataSystem, alpha: Float[Array, " N"], signs: Float[Array, "B n"], solved: Float[Array, "B n"]
) -> Forms:
    """Forms whose gradient is twice that of -log p, except for residual variances with residual="bound"."""
    g, h = system.root_transpose(solved), system.root_transpose(signs)
    weight = jnp.concatenate([-jnp.ones(1), jnp.full(len(signs), 1 / len(signs))]).astype(alpha.dtype)
    return Forms(jnp.concatenate([alpha[None], g]), jnp.concatenate([alpha[None], h]), weight)


def _evidence_of(post: "BatchPosterior", logs: Float[np.ndarray, " B"]) -> Estimate:
    system, count = post.system, len(post.data)
    rest = np.asarray(post.data.y, float) - post.trend.of_data(post.data, post.grid) @ post.beta
    fit = float(rest @ np.asarray(post.alpha, float))
    value = -0.5 * (fit + float(system.whitener_log_determinant) + logs.mean() + count * LOG_2PI)
    if post.method.residual == "bound":
        value -= 0.5 * float(jnp.sum(system.weights.residual / system.noise))
    return Estimate(value, 0.5 * float(logs.std(ddof=1)) / np.sqrt(len(logs)))


def logarithms(
    system: System, signs: Float[Array, "B n"], tolerance: float = TOLERANCE
) -> tuple[Float[np.ndarray, " B"], LanczosSolution]:
    """Each probe's estimate of tr log(S A S'), and its solve."""
    logs, probed = _quadrature(system, signs, jnp.asarray(tolerance))
    return np.asarray(logs, float), probed


@bounded_jit()
def _quadrature(
    system: System, signs: Float[Array, "B n"], tolerance: Array
) -> tuple[Float[Array, " B"], LanczosSolution]:
    probed = lanczos_solve(system.whitened_matmul, signs, STEPS, tolerance)
    return lanczos_quadrature(probed.coefficients, signs, jnp.log), probed
