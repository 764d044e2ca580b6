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

from hipgp.batch.bilinear_forms import Forms, joint_residual_gradient, kernel_gradient
from hipgp.batch.systems import DataSystem, System
from hipgp.engines import Estimate, Gradient, Slope
from hipgp.learning.parameters import Layout
from hipgp.linalg.krylov import LanczosSolution, lanczos_quadrature, lanczos_solve
from hipgp.model.arguments import check_whole
from hipgp.model.grid import Grid
from hipgp.model.kernels import Kernel
from hipgp.runtime.precision import float64_available
from hipgp.runtime.programs import bounded_jit
from hipgp.weights.stencil_geometry import wide_stencil

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


def differentiable(method: "Batch", grid: Grid) -> "Batch":
    """The settings whose fit has the evidence and its gradient, of the model that `method` conditions with.

    The solve is in data space, where the probes' solves also give the gradient. Residuals count as independent noise with
    the settings that never hold them jointly. Exact weights, which come from iterations and have no gradient here, become
    local ones that are nearly equal to them.
    """
    never_joint = method.residual == "joint" and (method.space == "grid" or method.weights != "local")
    return dataclasses.replace(
        method,
        space="data",
        residual="noise" if never_joint else method.residual,
        weights="local" if method.weights == "exact" else method.weights,
        stencil=wide_stencil(grid) if method.weights == "exact" else method.stencil,
        mesh=None,  # derivatives in the kernel go through the whole torus
    )


@float64_available
def slope(post: "BatchPosterior", signs: Float[Array, "B n"], tolerance: float = TOLERANCE) -> Slope:
    """The log evidence of a fit with `differentiable` settings, and its gradient in the logarithms of the parameters."""
    system, data = post.system, post.data
    assert isinstance(system, DataSystem)
    logs, probed = logarithms(system, signs, tolerance)
    forms = _forms(system, post.alpha, signs, probed.value)
    of_kernel, of_noise = _of_parts(post, system, forms)
    unknown = float(jnp.sum(jnp.where(data.noise_known, 0.0, of_noise)))
    layout = Layout.of(post.kernel, not np.all(data.noise_known))

    def total(vector: Array) -> Array:
        kernel, noise = layout.unpack(vector)
        pull = jax.tree.map(lambda g, leaf: jnp.sum(g * leaf), of_kernel, kernel)
        from_noise = jnp.zeros(()) if noise is None else unknown * noise**2
        return sum(jax.tree.leaves(pull), start=from_noise)

    values = -0.5 * np.asarray(jax.grad(total)(jnp.asarray(layout.pack(post.kernel, post.noise))))
    return Slope(_evidence_of(post, logs), Gradient(tuple(layout.names()), values))


def _of_parts(post: "BatchPosterior", system: DataSystem, forms: Forms) -> tuple[Kernel, Float[Array, " N"]]:
    """The gradient of the forms in the kernel's parameters, and in each noise variance."""
    of_noise = of_residual = forms.diagonal()
    if post.method.residual == "bound":
        of_residual, of_noise = 1 / system.noise, of_noise - system.weights.residual / system.noise**2
    elif system.residuals is not None:
        of_residual = jnp.zeros_like(of_noise)  # V has all of them
    of_kernel = kernel_gradient(
        post.problem, post.method.points_per_axis(post.data), system, forms, of_residual
    )
    cells = None if system.residuals is None else post.lazy.cells.get()
    if cells is not None:
        of_kernel = jax.tree.map(jnp.add, of_kernel, joint_residual_gradient(cells, forms))
    return of_kernel, of_noise


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
    """The estimate of tr log(S A S') from each probe, and its solve."""
    logs, probed = _quadrature(system, signs, jnp.asarray(tolerance))
    return np.asarray(logs, float), probed


@bounded_jit()
def _quadrature(
    system: System, signs: Float[Array, "B n"], tolerance: Array
) -> tuple[Float[Array, " B"], LanczosSolution]:
    probed = lanczos_solve(system.whitened_matmul, signs, STEPS, tolerance)
    return lanczos_quadrature(probed.coefficients, signs, jnp.log), probed
