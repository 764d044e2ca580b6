"""The Vecchia likelihood of the data in the kernel's parameters, and its gradient.

log p(y) ~ the sum over groups of log p(own | nearest predecessors), each term one small dense system: no FFT, no solve,
any functional; a group is one point, or some functionals of several nodes that lie together. The trend's coefficients
are at their best (generalised least squares) at every evaluation, so that the gradient at fixed coefficients is the
whole gradient. Terms are evaluated some hundreds at a time, each chunk's gradient right after its value: nothing is
kept, and no two factorisations can wait for one another (batched LAPACK calls that run side by side in one program can
block every thread of a small CPU).
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from hipgp import coarse, neighbours, vecchia
from hipgp.data import Data
from hipgp.inference.parameters import Layout
from hipgp.kernels import Kernel
from hipgp.nodes import Nodes
from hipgp.precision import on_device

LOG_2PI = float(np.log(2 * np.pi))


class Terms(eqx.Module):
    """The data of one stage: chosen groups of observations with their neighbours."""

    nodes: Nodes
    values: Float[Array, "N 1+p"]  # y and the trend's columns
    noise: Float[Array, " N"]  # variances, zero where unknown
    unknown: Array  # 1 where the noise is to be learned
    index: Int[Array, "G k"]  # neighbours and, last, a group's own
    used: Array
    count: Float[Array, ""]  # observations in the groups
    own: int = eqx.field(static=True)

    def some(self, count: int) -> "Terms":
        """About `count` of the observations."""
        groups = max(1, round(len(self.index) * min(1.0, count / float(self.count))))
        return _in_whole_chunks(self, self.index[:groups], self.used[:groups])


def prepare(
    kernel: Kernel, data: Data, trend: Float[np.ndarray, "N p"], count: int, share: float, seed: int
) -> Terms:
    """About `count` observations at random, in groups, each with its nearest predecessors among all.

    `share` of the preconditioner's neighbours: fewer do where the parameters are still far off.
    """
    nodes = coarse.data_nodes(data, kernel)
    group, k = vecchia.group_sizes(nodes)
    places = neighbours.features(nodes, coarse.typical_lengthscale(kernel, data.ndim))
    groups = neighbours.in_groups(nodes, places, group, max(1, round(share * k)), seed)
    chosen = np.random.default_rng((seed, 1)).permutation(len(groups.index))[: max(1, round(count / group))]
    known = data.noise_known
    std = np.asarray(data.noise_std(1.0), float)
    terms = Terms(
        jax.tree.map(on_device, nodes),
        on_device(np.column_stack([_without_trend(np.asarray(data.y, float), trend), trend]), float),
        on_device(np.where(known, std**2, 0.0)),
        on_device(~known, float),
        on_device(groups.index),
        on_device(groups.used),
        jnp.zeros(()),
        groups.own,
    )
    return _in_whole_chunks(terms, groups.index[chosen], groups.used[chosen])


def _without_trend(y: Float[np.ndarray, " N"], trend: Float[np.ndarray, "N p"]) -> Float[np.ndarray, " N"]:
    """What an ordinary fit of the trend leaves: the likelihood at the best trend is the same, and no digits are lost."""
    return y - trend @ np.linalg.lstsq(trend, y, rcond=None)[0] if trend.shape[1] else y


def _in_whole_chunks(terms: Terms, index: Any, used: Any) -> Terms:
    """Groups filled up to whole chunks with some of which nothing is used."""
    size = _chunk_size(*index.shape)
    missing = -len(index) % size
    full = lambda a: on_device(np.pad(np.asarray(a), ((0, missing), (0, 0))))
    count = on_device(float(np.sum(np.asarray(used)[:, -terms.own :])))
    return eqx.tree_at(lambda t: (t.index, t.used, t.count), terms, (full(index), full(used), count))


def _chunk_size(groups: int, k: int) -> int:
    """Groups evaluated together: their matrices stay in cache."""
    return min(groups, max(1, vecchia.ENTRIES_AT_ONCE // k**2))


def _chunks(terms: Terms) -> tuple[Array, Array]:
    size = _chunk_size(*terms.index.shape)
    return tuple(a.reshape(-1, size, a.shape[1]) for a in (terms.index, terms.used))  # type: ignore[return-value]


def _matrices(
    vector: Array, layout: Layout, terms: Terms, chunk: tuple[Array, Array]
) -> Float[Array, "T k k"]:
    kernel, noise = layout.unpack(vector)
    variance = terms.noise + (0.0 if noise is None else terms.unknown * noise**2)
    return coarse.covariances(kernel, terms.nodes, variance, *chunk)


def _best_trend(vector: Array, layout: Layout, terms: Terms) -> Float[Array, " p"]:
    """The trend's coefficients by generalised least squares."""

    def sums(chunk: tuple[Array, Array]) -> Array:
        index, used = chunk
        factor = jnp.linalg.cholesky(_matrices(vector, layout, terms, chunk), symmetrize_input=False)
        values = jnp.where(used[..., None], terms.values[index], 0.0)
        solve = lambda f, v: jax.scipy.linalg.solve_triangular(f, v, lower=True)
        white = jax.vmap(solve)(factor, values)[:, -terms.own :]
        return jnp.einsum("tbp,tbq->pq", white, white)

    squares = jax.lax.map(sums, _chunks(terms)).sum(axis=0)
    cross, gram = squares[0, 1:], squares[1:, 1:]
    return jnp.linalg.solve(gram + 1e-12 * jnp.trace(gram) * jnp.eye(len(gram)), cross)


@eqx.filter_jit
def value_and_gradient(
    vector: Float[Array, " p"], layout: Layout, terms: Terms
) -> tuple[Float[Array, ""], Float[Array, " p"]]:
    """The negative log-likelihood per observation, the trend's coefficients at their best, and its gradient in the
    log-parameters."""
    rest = terms.values[:, 0]
    if terms.values.shape[1] > 1:
        rest = rest - terms.values[:, 1:] @ _best_trend(vector, layout, terms)

    def value(v: Array, chunk: tuple[Array, Array]) -> Array:
        index, used = chunk
        return vecchia.deviance(
            _matrices(v, layout, terms, chunk), jnp.where(used, rest[index], 0.0), terms.own
        )

    def add(total: tuple[Array, Array], chunk: tuple[Array, Array]) -> tuple[tuple[Array, Array], None]:
        return jax.tree.map(jnp.add, total, jax.value_and_grad(value)(vector, chunk)), None

    zero = jnp.zeros(()), jnp.zeros_like(vector)
    total, gradient = jax.lax.scan(add, zero, _chunks(terms))[0]
    return 0.5 * (total / terms.count + LOG_2PI), 0.5 * gradient / terms.count
