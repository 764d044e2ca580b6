"""The posterior mean at points beyond the grid, from the covariance with the data instead of the grid."""

from typing import TYPE_CHECKING

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from hipgp.model.data import Data
from hipgp.model.functionals import Points
from hipgp.model.kernels import Kernel, differences
from hipgp.runtime.precision import float64_available

if TYPE_CHECKING:
    from hipgp.batch.posterior import BatchPosterior

PAIRS_AT_ONCE = 2**22  # covariances held at once


@float64_available
def mean_from_data(post: "BatchPosterior", X: Float[np.ndarray, "T D"]) -> Float[np.ndarray, " T"]:
    """k(x, data) A^-1 (y - trend) + trend: the posterior mean without the grid, for points beyond it."""
    seen = jnp.asarray(_places(post.data))
    size = max(1, PAIRS_AT_ONCE // len(seen))
    parts = [
        _covariance_sum(post.kernel, jnp.asarray(X[i : i + size]), seen, post.alpha)
        for i in range(0, len(X), size)
    ]
    trend = post.trend.of(Points(X), post.grid) @ post.beta
    return np.concatenate([np.asarray(p) for p in parts]) + trend


@eqx.filter_jit
def _covariance_sum(kernel: Kernel, x: Array, seen: Array, alpha: Array) -> Array:
    return kernel.evaluate(differences(x.T[:, :, None], seen.T[:, None, :])) @ alpha


def _places(data: Data) -> Float[np.ndarray, "N D"]:
    return np.concatenate([block.functional.places()[:, 0] for block in data.blocks])
