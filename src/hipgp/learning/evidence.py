"""The gradient of the collapsed bound, the batch engine's log evidence (`batch/evidence.py`), in the parameters.

The steps of the probes e give (S A S')^-1 e, and with h = S'e, g = S' (S A S')^-1 e the gradient's trace,
tr(A^-1 dA) = E g' dA h; its fit is -alpha' dA alpha. So all of the gradient is that of a few forms a' A b
(`learning/bilinear_forms.py`).
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from hipgp.batch.engine import Batch
from hipgp.batch.evidence import TOLERANCE, evidence_of, logarithms, random_signs, root_transpose
from hipgp.batch.posterior import BatchPosterior
from hipgp.batch.systems import DataSystem
from hipgp.engines import Estimate
from hipgp.learning.bilinear_forms import Forms, kernel_gradient
from hipgp.learning.parameters import Layout
from hipgp.model.data import Data
from hipgp.model.grid import Grid
from hipgp.model.trend import Trend
from hipgp.runtime.precision import float64_available
from hipgp.runtime.programs import bounded_jit


class Slope(NamedTuple):
    """log p(y), and its gradient in a layout's vector."""

    evidence: Estimate
    gradient: Float[np.ndarray, " p"]


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
    signs = random_signs(post.system, probes, key)
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
    logs, probed = logarithms(system, signs, tolerance)
    forms = _forms(system, post.alpha, signs, probed.value)
    p = post.method.points_per_axis(post.data)
    of_kernel = kernel_gradient(post.kernel, post.grid, post.data, p, system, forms)
    unknown = float(jnp.sum(jnp.where(post.data.noise_known, 0.0, forms.diagonal())))

    def total(v: Array) -> Array:
        kernel, noise = layout.unpack(v)
        pull = jax.tree.map(lambda g, leaf: jnp.sum(g * leaf), of_kernel, kernel)
        from_noise = jnp.zeros(()) if noise is None else unknown * noise**2
        return sum(jax.tree.leaves(pull), start=from_noise)

    return Slope(evidence_of(post, logs), -0.5 * np.asarray(jax.grad(total)(jnp.asarray(vector))))


@bounded_jit()
def _forms(
    system: DataSystem, alpha: Float[Array, " N"], signs: Float[Array, "B n"], solved: Float[Array, "B n"]
) -> Forms:
    """Whose gradient is twice that of -log p."""
    g, h = root_transpose(system, solved), root_transpose(system, signs)
    weight = jnp.concatenate([-jnp.ones(1), jnp.full(len(signs), 1 / len(signs))]).astype(alpha.dtype)
    return Forms(jnp.concatenate([alpha[None], g]), jnp.concatenate([alpha[None], h]), weight)
