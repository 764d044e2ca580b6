"""Covariance matrices of groups of observations by coarse quadrature: exact for points, approximate for lines and areas.

Vecchia factors and conditionals (`vecchia/factor.py`) need very many small covariance matrices of moderate accuracy.
"""

from typing import TYPE_CHECKING, Any

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
    from hipgp.model.kernel_slopes import WithSlopes

MOST_NODES = 12  # nodes per functional in a covariance of two functionals
FEWEST_NODES, RULE_STEP = 3, 6  # rules of lines have as many nodes, or a multiple of the step


def coarse_nodes(functional: Functional, kernel: Kernel, most: int = MOST_NODES) -> Nodes:
    """Return coarse nodes: about two per lengthscale, and at most `most` per functional."""
    return _expanded(_coarse_quadrature(functional, kernel, most))


def _coarse_quadrature(functional: Functional, kernel: Kernel, most: int) -> Nodes | Segments:
    """Return coarse nodes as `coarse_nodes` does, but lines that share a quadrature rule as compact `Segments`."""
    scale = shortest_lengthscale(kernel, functional.ndim)
    if isinstance(functional, LineIntegrals) and functional.ruled:
        nodes: Nodes | Segments = functional.segments(scale)
        if functional.nodes_per_ray is None or nodes.rule_size > most:
            nodes = Segments(
                nodes.start, nodes.delta, nodes.size, *gauss(_rounded_rule(nodes.rule_size, most))
            )
    else:
        longest = np.argmax(np.max(extents(functional.places()) / scale, axis=1), keepdims=True)
        count = functional.nodes_of(
            longest, scale
        ).rule_size  # of the longest functional, since trying all is expensive
        scale = scale * max(1.0, count / most)
        nodes = functional.nodes(scale)
        while nodes.rule_size > most:
            scale = scale * max(nodes.rule_size / most, 1.2)
            fewer = functional.nodes(scale)
            if fewer.rule_size == nodes.rule_size:  # the user gave the nodes, or their number
                nodes = _merged_nodes(fewer, most)
                break
            nodes = fewer
    return jax.tree.map(lambda a: np.asarray(a, float), nodes)


def _rounded_rule(size: int, most: int) -> int:
    """Round up a number of nodes, to at most `most`: lines of somewhat other lengths then find their programs compiled."""
    if size == 1:
        return size
    return min(FEWEST_NODES if size <= FEWEST_NODES else -(-size // RULE_STEP) * RULE_STEP, most)


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


def _gather_groups(nodes: Nodes | Segments, index: Int[Array, "T k"]) -> TransposedNodes:
    """Gather the functionals at `index` for `gram`."""
    group = nodes[index]
    direction = None if group.direction is None else jnp.transpose(group.direction, (2, 1, 0))
    value = None if group.value is None else group.value.T
    x, weights = jnp.transpose(group.x, (3, 2, 1, 0)), jnp.transpose(group.weights, (2, 1, 0))
    return TransposedNodes(x, weights, value, direction)


def group_covariances(
    kernel: Kernel, nodes: Nodes | Segments, noise: Float[Array, " N"], index: Int[Array, "T k"], used: Array
) -> Float[Array, "T k k"]:
    """Return the covariance matrix of each row of functionals, noise included.

    Functionals that are not `used` get variance 1 and no covariance with the others.
    """
    return field_covariances(kernel, nodes, index, used) + diagonals(jnp.where(used, noise[index], 1.0))


def diagonals(values: Float[Array, "T k"]) -> Float[Array, "T k k"]:
    """Return diagonal matrices."""
    return values[:, :, None] * jnp.eye(values.shape[1])


def field_covariances(
    kernel: "Kernel | WithSlopes", nodes: Nodes | Segments, index: Int[Array, "T k"], used: Array
) -> Any:
    """Return the covariances of each row of functionals without noise, (T, k, k), zero where one is not `used`.

    A kernel with its derivatives gives a list of such arrays, the covariances first.
    """
    if isinstance(nodes, Nodes) and nodes.rule_size == 1 and nodes.direction is None:  # no sum over nodes
        at = [x[index] for x in nodes.x[:, 0].T]
        share = jnp.where(used, nodes.weights[index, 0], 0.0)
        between = kernel.evaluate(differences([x[:, :, None] for x in at], [x[:, None, :] for x in at]))
        return jax.tree.map(lambda one: share[:, :, None] * share[:, None, :] * one, between)
    both = used.T[:, None] & used.T[None, :]
    ordered = lambda one: jnp.moveaxis(jnp.where(both, one, 0.0), -1, 0)
    return jax.tree.map(ordered, gram(kernel, _gather_groups(nodes, index)))


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
    if isinstance(nodes, Segments) or nodes.direction is not None or nodes.rule_size > 1:
        return False
    return bool(np.all(nodes.weights == 1))
