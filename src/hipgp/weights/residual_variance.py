"""Residual variances of functionals of several nodes, from their rows of W.

The residual variance v = k** - 2 w'k* + w'K w is the variance of a functional given the field at the grid points. It
takes (row length)^2 kernel evaluations. If that is too much for all functionals, it is computed for some of them and
interpolated for the rest.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from hipgp.model.differences import differences
from hipgp.model.nodes import Nodes
from hipgp.runtime.arrays import AnyArray, on_cpu
from hipgp.runtime.buckets import round_up_geometrically, round_up_to_power_of_two
from hipgp.weights.covariance import (
    TransposedNodes,
    kernel_between_nodes,
    residual_variance,
    transposed_nodes,
)

if TYPE_CHECKING:
    from hipgp.model.functional import Functional
    from hipgp.model.grid import Grid
    from hipgp.model.kernels import Kernel

ROWS_AT_ONCE = 64, 1024  # functionals side by side: on a CPU, on a GPU
PAIR_BUDGET = 1e7  # kernel evaluations in all
# Fewer rows are filled up to so many, which spares compilations, unless that takes more kernel evaluations than this.
LEAST_ROWS, LEAST_BUDGET = 16, 1e6


def residual_variances(
    kernel: "Kernel",
    grid: "Grid",
    functional: "Functional",
    rows: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]],
    row_lengths: np.ndarray,
    independent: np.ndarray,
) -> np.ndarray:
    """Return v of each functional; `rows` gives columns and values of some rows of W, padded with zeros.

    Beyond PAIR_BUDGET kernel evaluations, v is computed for as many functionals as fit, spread evenly over the row
    lengths. `independent` is v under the assumption that the residuals of a functional's nodes are independent; the ratio
    of the two is interpolated in the row length for the rest. That is correct in the mean, and to 5 to 10% for one ray.
    """
    n = len(row_lengths)
    order = np.argsort(row_lengths, kind="stable")
    cost = np.sum(2.0 * row_lengths.astype(float) ** 2)
    stride = max(1, int(np.ceil(cost / PAIR_BUDGET)))
    chosen = order[::stride] if stride > 1 else order
    parts, most = [], ROWS_AT_ONCE[not on_cpu()]
    for begin in range(0, len(chosen), most):
        some = chosen[begin : begin + most]
        columns, values = rows(some)
        points = np.asarray(grid.origin) + np.stack(np.unravel_index(columns, grid.shape), -1) * grid.spacing
        part = jax.tree.map(lambda a: np.asarray(a, float), functional.nodes_of(some, grid.spacing))
        least = LEAST_ROWS if LEAST_ROWS * float(np.max(row_lengths[some])) ** 2 <= LEAST_BUDGET else 1
        missing = min(most, max(least, round_up_to_power_of_two(len(some)))) - len(some)
        pad = lambda a, k=missing: np.pad(a, [(0, k)] + [(0, 0)] * (a.ndim - 1), mode="edge")
        v = _residual_variances(kernel, jax.tree.map(pad, _zero_padded(part)), pad(points), pad(values))
        parts.append((v, len(some)))  # asynchronous: the next chunk is prepared while this one is computed
    found = np.concatenate([np.asarray(v)[:count] for v, count in parts])
    if stride == 1:
        out = np.zeros(n)
        out[chosen] = found
        return out
    ratio = np.divide(found, independent[chosen], out=np.zeros(len(chosen)), where=independent[chosen] > 0)
    smooth = np.convolve(np.pad(ratio, 2, mode="edge"), np.ones(5) / 5, mode="valid")
    out = independent * np.interp(np.argsort(order), np.arange(0, n, stride), smooth)
    out[chosen] = found
    return out


def _zero_padded(nodes: Nodes) -> Nodes:
    """Add nodes of weight zero up to one of a few sizes, to limit recompilation."""
    missing = round_up_geometrically(nodes.x.shape[1]) - nodes.x.shape[1]
    x = np.pad(nodes.x, ((0, 0), (0, missing), (0, 0)), mode="edge")
    return Nodes(x, np.pad(nodes.weights, ((0, 0), (0, missing))), nodes.value, nodes.direction)


@eqx.filter_jit
def _residual_variances(kernel: "Kernel", nodes: Nodes, points: AnyArray, w: AnyArray) -> Array:
    """Compute v of many rows side by side, in one fused pass per grid point and per node."""
    functional = transposed_nodes(nodes)
    on_grid = TransposedNodes(jnp.transpose(points, (2, 1, 0)), jnp.asarray(w).T, None, None)
    product = lambda a, b: jnp.sum(a.weights * _covariance_with_sum(kernel, a, b), axis=0)
    return residual_variance(
        product(functional, functional), product(on_grid, functional), product(on_grid, on_grid)
    )


def _covariance_with_sum(kernel: "Kernel", a: TransposedNodes, b: TransposedNodes) -> Float[Array, "Q N"]:
    """Return the covariance of each node of `a` with the weighted sum over the nodes of `b`, for each functional."""
    k, at, across = kernel_between_nodes(kernel, a, b), list(a.x), list(b.x)
    add = lambda q, total: total + b.weights[q] * k(differences(at, [x[q] for x in across]))
    return jax.lax.fori_loop(0, b.weights.shape[0], add, jnp.zeros_like(a.weights))
