"""The posterior mean at points beyond the grid, from the covariance with the data instead of the grid."""

from typing import TYPE_CHECKING

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from hipgp.model.functionals import Points
from hipgp.model.kernels import Kernel
from hipgp.model.nodes import Nodes
from hipgp.runtime.arrays import AnyArray
from hipgp.runtime.precision import float64_available
from hipgp.runtime.programs import bounded_jit
from hipgp.weights.covariance import covariance_with_points

if TYPE_CHECKING:
    from hipgp.batch.posterior import BatchPosterior

NODES_AT_ONCE = 2**16  # quadrature nodes of the data in one chunk
PAIRS_AT_ONCE = 2**22  # covariances computed together


@float64_available
def mean_from_data(post: "BatchPosterior", X: Float[np.ndarray, "T D"]) -> Float[np.ndarray, " T"]:
    """k(x, data) A^-1 (y - trend) + trend: the posterior mean without the grid, for points beyond it."""
    mean = post.trend.of(Points(X), post.grid) @ post.beta
    alpha, spacing, first = np.asarray(post.alpha, float), post.grid.spacing, 0
    for block in post.data.blocks:
        for rows in block.functional.pieces(spacing, NODES_AT_ONCE):
            nodes = block.functional.nodes_of(rows, spacing)
            size = max(1, PAIRS_AT_ONCE // len(rows))
            for begin in range(0, len(X), size):
                some = slice(begin, begin + size)
                mean[some] += np.asarray(_covariance_sum(post.kernel, X[some], nodes, alpha[first + rows]))
        first += len(block.y)
    return mean


@bounded_jit()
def _covariance_sum(kernel: Kernel, x: AnyArray, nodes: Nodes, alpha: AnyArray) -> Float[Array, " T"]:
    """Sum the covariances of functionals with the field at `x`, weighted by `alpha`."""
    return jnp.asarray(alpha) @ covariance_with_points(kernel, jnp.asarray(x), nodes)
