"""The Vecchia likelihood of the data in the kernel's parameters, and its gradient.

log p(y) ~ the sum over groups of log p(own | nearest predecessors), each term one small dense system: no FFT, no solve,
any functional; a group is one point, or some functionals of several nodes that lie together. The trend's coefficients
are at their best (generalised least squares) at every evaluation, so that the gradient at fixed coefficients is the
whole gradient. Groups are evaluated some hundreds at a time, each chunk's gradient right after its value, so that
nothing is kept. Several threads work on parts of the chunks.
"""

from collections.abc import Callable, Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from hipgp.learning.parameters import Layout
from hipgp.linalg.matrices import cholesky, map_matrices, solve_lower
from hipgp.model.data import Data
from hipgp.model.kernels import Kernel
from hipgp.model.nodes import Nodes
from hipgp.runtime.precision import AnyArray, on_device
from hipgp.runtime.programs import bounded_jit
from hipgp.runtime.threads import map_in_threads
from hipgp.vecchia import conditioning_sets as neighbours
from hipgp.vecchia import factor as vecchia
from hipgp.vecchia import group_covariances as coarse

LOG_2PI = float(np.log(2 * np.pi))
MOST_PARTS = 16  # of the groups, each a thread's work


class Terms(eqx.Module):
    """The data of one stage: chosen groups of observations with their neighbours."""

    nodes: Nodes
    values: Float[Array, "N 1+p"]  # y and the trend's columns
    noise: Float[Array, " N"]  # variances, zero where unknown
    unknown: Array  # 1 where the noise is to be learned
    index: Int[Array, "P C T k"]  # neighbours and, last, a group's own: P parts of C chunks of T groups each
    used: Array
    count: Float[Array, ""]  # observations in the groups
    own: int = eqx.field(static=True)

    def some(self, count: int) -> "Terms":
        """About `count` of the observations."""
        index, used = (np.asarray(a).reshape(-1, a.shape[-1]) for a in (self.index, self.used))
        groups = max(1, round(len(index) * min(1.0, count / float(self.count))))
        return _in_parts(self, index[:groups], used[:groups])


def prepare(
    kernel: Kernel, data: Data, trend: Float[np.ndarray, "N p"], count: int, share: float, seed: int
) -> Terms:
    """About `count` observations at random, in groups, each with its nearest predecessors among all.

    `share` of the preconditioner's neighbours: fewer do where the parameters are still far off.
    """
    nodes = coarse.coarse_data_nodes(data, kernel)
    group, k = vecchia.group_sizes(nodes)
    places = neighbours.location_features(nodes, coarse.typical_lengthscale(kernel, data.ndim))
    groups = neighbours.ordered_groups(nodes, places, group, max(1, round(share * k)), seed)
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
        groups.group_size,
    )
    return _in_parts(terms, groups.index[chosen], groups.used[chosen])


def _without_trend(y: Float[np.ndarray, " N"], trend: Float[np.ndarray, "N p"]) -> Float[np.ndarray, " N"]:
    """What an ordinary fit of the trend leaves: the likelihood at the best trend is the same, and no digits are lost."""
    return y - trend @ np.linalg.lstsq(trend, y, rcond=None)[0] if trend.shape[1] else y


def _in_parts(terms: Terms, index: Any, used: Any) -> Terms:
    """Lay groups out in equal parts, one for a thread at a time, filled up with groups of which nothing is used.

    The layout does not depend on the number of cores, so that sums are the same on every machine.
    """
    groups, k = index.shape
    size = min(groups, max(1, vecchia.ENTRIES_AT_ONCE // k**2))  # their matrices stay in cache
    chunks = -(-groups // size)
    parts = min(MOST_PARTS, chunks)
    each = -(-chunks // parts)
    missing = parts * each * size - groups
    full = lambda a: on_device(np.pad(a, ((0, missing), (0, 0))).reshape(parts, each, size, k))
    count = on_device(float(np.sum(used[:, -terms.own :])))
    return eqx.tree_at(lambda t: (t.index, t.used, t.count), terms, (full(index), full(used), count))


def _matrices(
    vector: AnyArray, layout: Layout, terms: Terms, chunk: tuple[Array, Array]
) -> Float[Array, "T k k"]:
    kernel, noise = layout.unpack(vector)
    variance = terms.noise + (0.0 if noise is None else terms.unknown * noise**2)
    return coarse.group_covariances(kernel, terms.nodes, variance, *chunk)


@bounded_jit(most=64)
def _squares(vector: AnyArray, layout: Layout, terms: Terms, part: AnyArray) -> Float[Array, "1+p 1+p"]:
    """The products of whitened y and trend columns with one another, summed over one part of the groups."""

    def of_chunk(chunk: tuple[Array, Array]) -> Array:
        index, used = chunk
        values = jnp.where(used[..., None], terms.values[index], 0.0)
        whitened = lambda matrix, v: solve_lower(cholesky(matrix), v)[-terms.own :]
        white = map_matrices(whitened, _matrices(vector, layout, terms, chunk), values)
        return jnp.einsum("tbp,tbq->pq", white, white)

    return jax.lax.map(of_chunk, (terms.index[part], terms.used[part])).sum(axis=0)


@bounded_jit(most=64)
def _deviance(
    vector: AnyArray, layout: Layout, terms: Terms, beta: AnyArray, part: AnyArray
) -> tuple[Float[Array, ""], Float[Array, " p"]]:
    """-2 log-likelihood of one part of the groups, but for constants, and its gradient; beta: the trend's coefficients."""
    rest = terms.values[:, 0] - terms.values[:, 1:] @ beta

    def value(v: Array, chunk: tuple[Array, Array]) -> Array:
        index, used = chunk
        return vecchia.deviance(
            _matrices(v, layout, terms, chunk), jnp.where(used, rest[index], 0.0), terms.own
        )

    def add(total: tuple[Array, Array], chunk: tuple[Array, Array]) -> tuple[tuple[Array, Array], None]:
        return jax.tree.map(jnp.add, total, jax.value_and_grad(value)(vector, chunk)), None

    zero = jnp.zeros(()), jnp.zeros_like(vector)
    return jax.lax.scan(add, zero, (terms.index[part], terms.used[part]))[0]


def value_and_gradient(
    vector: Float[np.ndarray, " p"], layout: Layout, terms: Terms
) -> tuple[float, Float[np.ndarray, " p"]]:
    """The negative log-likelihood per observation, and its gradient in the log-parameters.

    The trend's coefficients are those of generalised least squares at `vector`.
    """
    columns = terms.values.shape[1] - 1
    beta = np.zeros(columns)
    if columns:
        parts = list(_of_parts(terms, lambda part: _squares(vector, layout, terms, part)))
        squares = np.sum([np.asarray(part) for part in parts], axis=0)
        cross, gram = squares[0, 1:], squares[1:, 1:]
        ridge = 1e-12 * np.trace(gram) * np.eye(columns)
        beta = np.linalg.solve(gram + ridge, cross) if np.all(np.isfinite(gram)) else np.full(columns, np.nan)
    found = list(_of_parts(terms, lambda part: _deviance(vector, layout, terms, beta, part)))
    total, gradient = (sum(np.asarray(one[i], float) for one in found) for i in range(2))
    count = float(terms.count)
    return float(0.5 * (total / count + LOG_2PI)), np.asarray(0.5 * gradient / count)


def _of_parts(terms: Terms, function: Callable[[np.ndarray], Any]) -> Iterator[Any]:
    """`function` of every part's number, by several threads on a CPU, in order."""
    parts = [np.asarray(part) for part in range(len(terms.index))]
    if len(parts) == 1 or jax.default_backend() != "cpu":
        return map(function, parts)
    return map_in_threads(lambda part: jax.block_until_ready(function(part)), ((part,) for part in parts))
