"""Covariances of groups of observations, from few nodes each: exact for points, close for lines and areas.

What stands on nearest neighbours (`vecchia/factor.py`) needs many small covariance matrices, not precise ones.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from hipgp.model.data import Data
from hipgp.model.functionals import Functional, LineIntegrals, extents
from hipgp.model.kernels import Kernel, differences
from hipgp.model.nodes import Nodes, Segments, gauss
from hipgp.weights.covariance import TransposedNodes, gram

MOST_NODES = 12  # per functional in a covariance of two functionals


def typical_lengthscale(kernel: Kernel, ndim: int) -> Float[np.ndarray, " D"]:
    """A lengthscale per axis for measuring who is near: the geometric mean over the kernel's parts."""
    logs = [np.log(np.broadcast_to(np.asarray(part.lengthscale, float), (ndim,))) for part in kernel.parts]
    return np.exp(np.mean(logs, axis=0))


def shortest_lengthscale(kernel: Kernel, ndim: int) -> Float[np.ndarray, " D"]:
    """The shortest lengthscale among the kernel's parts, per axis."""
    return np.min([np.broadcast_to(np.asarray(p.lengthscale, float), (ndim,)) for p in kernel.parts], axis=0)


def coarse_nodes(functional: Functional, kernel: Kernel, most: int = MOST_NODES) -> Nodes:
    """Few nodes per functional: about two per lengthscale, and at most so many."""
    return _expanded(_coarse_quadrature(functional, kernel, most))


def _coarse_quadrature(functional: Functional, kernel: Kernel, most: int) -> Nodes | Segments:
    """The same; lines that share a rule are not spelt out."""
    scale = shortest_lengthscale(kernel, functional.ndim)
    if isinstance(functional, LineIntegrals) and functional.ruled:
        nodes: Nodes | Segments = functional.segments(scale)
        if nodes.per > most:
            nodes = Segments(nodes.start, nodes.delta, nodes.size, *gauss(most))
    else:
        longest = np.argmax(np.max(extents(functional.places()) / scale, axis=1), keepdims=True)
        own = functional.nodes_of(longest, scale).per  # that of all is dear to find by trying
        scale = scale * max(1.0, own / most)
        nodes = functional.nodes(scale)
        while nodes.per > most:
            scale = scale * max(nodes.per / most, 1.2)
            fewer = functional.nodes(scale)
            if fewer.per == nodes.per:  # the user's own nodes, or a fixed number
                nodes = _merged_nodes(fewer, most)
                break
            nodes = fewer
    return jax.tree.map(lambda a: np.asarray(a, float), nodes)


def _expanded(nodes: Nodes | Segments) -> Nodes:
    return nodes if isinstance(nodes, Nodes) else nodes.nodes()


def _merged_nodes(nodes: Nodes, count: int) -> Nodes:
    """`count` groups of consecutive nodes, each at its centroid with its weight: a preconditioner's accuracy."""
    x, c = np.asarray(nodes.x, float), np.asarray(nodes.weights, float)
    begin = np.linspace(0, x.shape[1], count, endpoint=False).astype(int)
    share = np.abs(c) + 1e-12 * np.max(np.abs(c), axis=1, keepdims=True)
    places = (
        np.add.reduceat(x * share[..., None], begin, axis=1)
        / np.add.reduceat(share, begin, axis=1)[..., None]
    )
    return Nodes(places, np.add.reduceat(c, begin, axis=1), nodes.value, nodes.direction)


def gather_groups(
    nodes: Nodes | Segments, noise: Float[Array, " N"], index: Int[Array, "T k"]
) -> tuple[TransposedNodes, Float[Array, "k T"]]:
    """The functionals at `index` and their noise, components in front, ready for `gram`."""
    group = nodes[index]
    direction = None if group.direction is None else jnp.transpose(group.direction, (2, 1, 0))
    value = None if group.value is None else group.value.T
    x, weights = jnp.transpose(group.x, (3, 2, 1, 0)), jnp.transpose(group.weights, (2, 1, 0))
    return TransposedNodes(x, weights, value, direction), noise[index].T


def group_covariances(
    kernel: Kernel, nodes: Nodes | Segments, noise: Float[Array, " N"], index: Int[Array, "T k"], used: Array
) -> Float[Array, "T k k"]:
    """Of each row of functionals, noise included; those not used are independent of everything, with variance 1."""
    if isinstance(nodes, Nodes) and nodes.per == 1 and nodes.direction is None:
        return _point_covariances(kernel, nodes, noise, index, used)
    group, spread = gather_groups(nodes, noise, index)
    real = used.T
    matrix = jnp.where(real[:, None] & real[None, :], gram(kernel, group), 0.0)
    return jnp.moveaxis(matrix, -1, 0) + jax.vmap(jnp.diag, in_axes=1)(jnp.where(real, spread, 1.0))


def _point_covariances(
    kernel: Kernel, nodes: Nodes, noise: Float[Array, " N"], index: Int[Array, "T k"], used: Array
) -> Float[Array, "T k k"]:
    """The same of functionals of one node, as they are to be factored: there is no sum over nodes to lay them out for."""
    at = [x[index] for x in nodes.x[:, 0].T]
    share = jnp.where(used, nodes.weights[index, 0], 0.0)
    between = kernel.evaluate(differences([x[:, :, None] for x in at], [x[:, None, :] for x in at]))
    own = jnp.where(used, noise[index], 1.0)[:, :, None] * jnp.eye(index.shape[1])
    return share[:, :, None] * share[:, None, :] * between + own


def coarse_data_nodes(data: Data, kernel: Kernel, most: int = MOST_NODES) -> Nodes:
    """All observations' functionals with few nodes each."""
    return Nodes.concatenate([coarse_nodes(block.functional, kernel, most) for block in data.blocks])


def coarse_data_quadrature(data: Data, kernel: Kernel, most: int) -> Nodes | Segments:
    """The same; where all observations are lines of one rule, these are not spelt out."""
    if len(data.blocks) == 1:
        return _coarse_quadrature(data.blocks[0].functional, kernel, most)
    return coarse_data_nodes(data, kernel, most)


def are_point_values(nodes: Nodes | Segments) -> bool:
    """Whether all are the field's value at one place."""
    if isinstance(nodes, Segments) or nodes.direction is not None or nodes.per > 1:
        return False
    return bool(np.all(nodes.weights == 1))
