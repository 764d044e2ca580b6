"""Functionals as weighted sums over nodes, and their covariances, in NumPy, without compiling for a grid."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from hipgp.model.differences import CHUNK_SIZES, kernel_at_differences
from hipgp.model.grid import Grid
from hipgp.model.kernels import Kernel
from hipgp.weights.covariance import TransposedNodes, kernel_between_nodes


class NodeSums(NamedTuple):
    """Functionals as sums over nodes: functional i is the sum over n of weights[i, n] times the field at node n.

    With `value` and `direction` the summand is value[n] times the field plus its derivative along direction[n].
    """

    x: Float[np.ndarray, "n D"]
    weights: Any = None  # (k, n), sparse
    value: Float[np.ndarray, " n"] | None = None
    direction: Float[np.ndarray, "n D"] | None = None


NodeCovariance = Callable[
    [NodeSums, slice, slice], np.ndarray
]  # gives the covariances of one slice of the nodes with another


def covariance_of_sums(sums: NodeSums, entries: NodeCovariance) -> Float[np.ndarray, "k k"]:
    """Return the covariance matrix of the functionals; each pair of nodes is evaluated once."""
    weights, count = sums.weights.tocsc(), len(sums.x)
    each = max(1, CHUNK_SIZES[1] // count)
    total = np.zeros((weights.shape[0],) * 2)
    for begin in range(0, count, each):
        end = min(begin + each, count)
        k = entries(sums, slice(begin, end), slice(begin, count))
        before, behind = weights[:, begin:end], weights[:, end:]
        off = before @ (behind @ k[:, end - begin :].T).T
        total += before @ (before @ k[:, : end - begin].T).T + off + off.T
    return total


def tabulated_covariance(kernel: Kernel, grid: Grid) -> NodeCovariance:
    """Look up covariances of grid points in those of the first grid point with all, as kernels are even in each axis."""
    table = kernel_at_differences(kernel, grid.coordinates() - np.asarray(grid.origin))
    strides = np.cumprod((1, *grid.shape[:0:-1]))[::-1]

    def entries(sums: NodeSums, a: slice, b: slice) -> Float[np.ndarray, "n m"]:
        index = np.rint((sums.x - np.asarray(grid.origin)) / np.asarray(grid.spacing)).astype(np.int32)
        axes = zip(index.T, strides, strict=True)
        return table[sum(np.abs(i[a][:, None] - i[b]) * np.int32(stride) for i, stride in axes)]

    return entries


def kernel_covariance(kernel: Kernel) -> NodeCovariance:
    """Evaluate covariances of any nodes by the kernel."""

    def entries(sums: NodeSums, a: slice, b: slice) -> Float[np.ndarray, "n m"]:
        x, value, direction = sums.x, sums.value, sums.direction
        n, m = len(x[a]), len(x[b])
        differences = (x[a][:, None] - x[b]).reshape(n * m, -1)
        if value is None or direction is None:
            return kernel_at_differences(kernel, differences).reshape(n, m)
        both = np.concatenate([value[:, None], direction], axis=1)
        pairs = differences, np.repeat(both[a], m, axis=0), np.tile(both[b], (n, 1))
        fill = ((0, -n * m % CHUNK_SIZES[0]), (0, 0))
        chunks = [np.pad(v, fill).reshape(-1, CHUNK_SIZES[0], v.shape[1]) for v in pairs]
        found = [np.asarray(_with_derivatives(kernel, *chunk)) for chunk in zip(*chunks, strict=True)]
        return np.concatenate(found)[: n * m].reshape(n, m)

    return entries


@eqx.filter_jit
def _with_derivatives(kernel: Kernel, difference: Array, first: Array, second: Array) -> Array:
    """Evaluate covariances of nodes at a `difference`; `first` and `second` hold value and direction of each."""
    difference, first, second = (jnp.asarray(a).T for a in (difference, first, second))
    a, b = (TransposedNodes(difference, n[0], n[0], n[1:]) for n in (first, second))
    return kernel_between_nodes(kernel, a, b)(difference)
