"""Covariance matrices of groups of observations by coarse quadrature: exact for points, approximate for lines and areas.

Vecchia factors and conditionals (`vecchia/factor.py`) need very many small covariance matrices of moderate accuracy.
"""

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from hipgp.model.differences import differences
from hipgp.model.functional import Functional, extents
from hipgp.model.functionals import LineIntegrals
from hipgp.model.kernel_scales import shortest_lengthscale
from hipgp.model.kernels import Kernel
from hipgp.model.nodes import Nodes, Segments, gauss
from hipgp.weights.covariance import TransposedNodes, gram

if TYPE_CHECKING:
    from hipgp.model.data import Data

MOST_NODES = 12  # nodes per functional in a covariance of two functionals


def coarse_nodes(functional: Functional, kernel: Kernel, most: int = MOST_NODES) -> Nodes:
    """Return coarse nodes: about two per lengthscale, and at most `most` per functional."""
    return _expanded(_coarse_quadrature(functional, kernel, most))


def _coarse_quadrature(functional: Functional, kernel: Kernel, most: int) -> Nodes | Segments:
    """Return coarse nodes as `coarse_nodes` does, but lines that share a quadrature rule as compact `Segments`."""
    scale = shortest_lengthscale(kernel, functional.ndim)
    if isinstance(functional, LineIntegrals) and functional.ruled:
        nodes: Nodes | Segments = functional.segments(scale)
        if nodes.per > most:
            nodes = Segments(nodes.start, nodes.delta, nodes.size, *gauss(most))
    else:
        longest = np.argmax(np.max(extents(functional.places()) / scale, axis=1), keepdims=True)
        count = functional.nodes_of(
            longest, scale
        ).per  # of the longest functional, since trying all is expensive
        scale = scale * max(1.0, count / most)
        nodes = functional.nodes(scale)
        while nodes.per > most:
            scale = scale * max(nodes.per / most, 1.2)
            fewer = functional.nodes(scale)
            if fewer.per == nodes.per:  # the user gave the nodes, or their number
                nodes = _merged_nodes(fewer, most)
                break
            nodes = fewer
    return jax.tree.map(lambda a: np.asarray(a, float), nodes)


def _expanded(nodes: Nodes | Segments) -> Nodes:
    return nodes if isinstance(nodes, Nodes) else nodes.nodes()


def _merged_nodes(nodes: Nodes, count: int) -> Nodes:
    """Merge consecutive nodes into `count` ones, each at the centroid with the sum of the weights."""
    x, c = np.asarray(nodes.x, float), np.asarray(nodes.weights, float)
    begin = np.linspace(0, x.shape[1], count, endpoint=False).astype(int)
    share = np.abs(c) + 1e-12 * np.max(np.abs(c), axis=1, keepdims=True)
    places = (
        np.add.reduceat(x * share[..., None], begin, axis=1)
        / np.add.reduceat(share, begin, axis=1)[..., None]
    )
    return Nodes(places, np.add.reduceat(c, begin, axis=1), nodes.value, nodes.direction)


def _gather_groups(
    nodes: Nodes | Segments, noise: Float[Array, " N"], index: Int[Array, "T k"]
) -> tuple[TransposedNodes, Float[Array, "k T"]]:
    """Gather the functionals at `index` for `gram`, with their noise variances."""
    group = nodes[index]
    direction = None if group.direction is None else jnp.transpose(group.direction, (2, 1, 0))
    value = None if group.value is None else group.value.T
    x, weights = jnp.transpose(group.x, (3, 2, 1, 0)), jnp.transpose(group.weights, (2, 1, 0))
    return TransposedNodes(x, weights, value, direction), noise[index].T


def group_covariances(
    kernel: Kernel, nodes: Nodes | Segments, noise: Float[Array, " N"], index: Int[Array, "T k"], used: Array
) -> Float[Array, "T k k"]:
    """Return the covariance matrix of each row of functionals, noise included.

    Functionals that are not `used` get variance 1 and no covariance with the others.
    """
    if isinstance(nodes, Nodes) and nodes.per == 1 and nodes.direction is None:
        return _point_covariances(kernel, nodes, noise, index, used)
    group, variances = _gather_groups(nodes, noise, index)
    used = used.T
    matrix = jnp.where(used[:, None] & used[None, :], gram(kernel, group), 0.0)
    return jnp.moveaxis(matrix, -1, 0) + jax.vmap(jnp.diag, in_axes=1)(jnp.where(used, variances, 1.0))


def _point_covariances(
    kernel: Kernel, nodes: Nodes, noise: Float[Array, " N"], index: Int[Array, "T k"], used: Array
) -> Float[Array, "T k k"]:
    """Return `group_covariances` of functionals of one node each, without a sum over nodes."""
    at = [x[index] for x in nodes.x[:, 0].T]
    share = jnp.where(used, nodes.weights[index, 0], 0.0)
    between = kernel.evaluate(differences([x[:, :, None] for x in at], [x[:, None, :] for x in at]))
    diagonal = jnp.where(used, noise[index], 1.0)[:, :, None] * jnp.eye(index.shape[1])
    return share[:, :, None] * share[:, None, :] * between + diagonal


def coarse_data_nodes(data: "Data", kernel: Kernel, most: int = MOST_NODES) -> Nodes:
    """Return coarse nodes of all observations."""
    return Nodes.concatenate([coarse_nodes(functional, kernel, most) for functional in data.functionals])


def coarse_data_quadrature(data: "Data", kernel: Kernel, most: int) -> Nodes | Segments:
    """Return coarse nodes of all observations, or `Segments` if all are lines that share a quadrature rule."""
    if len(data.blocks) == 1:
        return _coarse_quadrature(data.blocks[0].functional, kernel, most)
    return coarse_data_nodes(data, kernel, most)


def are_point_values(nodes: Nodes | Segments) -> bool:
    """Tell whether all functionals are values of the field at one place each."""
    if isinstance(nodes, Segments) or nodes.direction is not None or nodes.per > 1:
        return False
    return bool(np.all(nodes.weights == 1))
