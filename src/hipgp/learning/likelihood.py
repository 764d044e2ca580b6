"""The Vecchia likelihood of the data in the kernel's parameters, with its gradient and its Fisher information.

log p(y) ~ the sum over groups of log p(own | nearest predecessors), each term one small dense system: no FFT, no solve,
any functional; a group is one point, or some functionals of several nodes that lie together. With A the covariance of a
group after its neighbours, chol its Cholesky factor, S the last rows of chol^-1 and z = chol^-1 y, all of it follows from

    W_a = chol^-1 (dA / d theta_a) S'.

The term's -2 log p, |z_own|^2 + 2 sum log chol_own, has the slope tr W_a,own - 2 z_own' W_a' z + z_own' W_a,own z_own, and
its information is tr W_a' W_b - tr W_a,own W_b,own / 2: the expected second derivatives, positive semidefinite.
Sums for the trend's columns beside y give the coefficients of generalised least squares, which are at their best at every
evaluation: the slope at fixed coefficients is the whole slope. One pass over the groups, by several threads, keeps nothing.
"""

from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from hipgp.learning.parameters import Evaluation, Layout
from hipgp.linalg.matrices import cholesky, map_matrices, solve_lower, solve_lower_transposed
from hipgp.model.data import Data
from hipgp.model.kernels import Kernel, typical_lengthscale
from hipgp.model.nodes import Nodes
from hipgp.runtime.arrays import on_device
from hipgp.runtime.buckets import round_up_to_power_of_two
from hipgp.runtime.programs import bounded_jit
from hipgp.runtime.threads import map_in_threads
from hipgp.vecchia import conditioning_sets as neighbours
from hipgp.vecchia import factor as vecchia
from hipgp.vecchia import group_covariances as coarse

LOG_2PI = float(np.log(2 * np.pi))
ENTRIES_AT_ONCE = 2**15  # of the small matrices: one for each parameter stays in cache
CHUNKS_AT_ONCE = 16  # in one call of the compiled program
TIE = 1e-7  # of the data's extent: places this close are told apart by chance, not by rounding


class Terms(eqx.Module):
    """The data of one stage: chosen groups of observations with their neighbours."""

    nodes: Nodes
    values: Float[Array, "N 1+p"]  # y and the trend's columns
    noise: Float[Array, " N"]  # variances, zero where unknown
    unknown: Float[Array, " N"]  # 1 where the noise is to be learned
    index: Int[
        np.ndarray, "P C T k"
    ]  # neighbours and, last, a group's own: P parts of C chunks of T groups each
    used: np.ndarray
    own: int = eqx.field(static=True)

    @property
    def count(self) -> int:
        """Observations in the groups."""
        return int(np.sum(self.used[..., -self.own :]))


def prepare(kernel: Kernel, data: Data, trend: Float[np.ndarray, "N p"], count: int, seed: int) -> Terms:
    """About `count` observations at random, in groups, each with its nearest predecessors among all."""
    nodes = coarse.coarse_data_nodes(data, kernel)
    size, k = vecchia.group_sizes(nodes)
    places = neighbours.location_features(nodes, typical_lengthscale(kernel, data.ndim))
    chance = np.random.default_rng((seed, 2)).uniform(size=places.shape)
    places = places + TIE * np.ptp(places, axis=0) * chance
    groups = neighbours.ordered_groups(nodes, places, size, k, seed, most=max(1, round(count / size)))
    known = data.noise_known
    std = np.asarray(data.noise_std(1.0), float)
    return Terms(
        jax.tree.map(on_device, nodes),
        on_device(np.column_stack([_without_trend(np.asarray(data.y, float), trend), trend]), float),
        on_device(np.where(known, std**2, 0.0)),
        on_device(~known, float),
        _in_parts(groups.index),
        _in_parts(groups.used),
        groups.group_size,
    )


def _without_trend(y: Float[np.ndarray, " N"], trend: Float[np.ndarray, "N p"]) -> Float[np.ndarray, " N"]:
    """What an ordinary fit of the trend leaves: the likelihood at the best trend is the same, and no digits are lost."""
    return y - trend @ np.linalg.lstsq(trend, y, rcond=None)[0] if trend.shape[1] else y


def _in_parts(table: Any) -> np.ndarray:
    """Rows in equal parts, each one call of one program, filled up with zeros: groups of which nothing is used.

    The layout depends on no number of cores: sums are the same on every machine with a CPU.
    """
    rows, k = table.shape
    size = max(1, ENTRIES_AT_ONCE * (1 if jax.default_backend() == "cpu" else 1024) // k**2)
    size = min(size, round_up_to_power_of_two(rows))
    chunks = min(CHUNKS_AT_ONCE, round_up_to_power_of_two(-(-rows // size)))
    filled = np.pad(table, ((0, -rows % (chunks * size)), (0, 0)))
    return filled.reshape(-1, chunks, size, k)


def evaluate(vector: Float[np.ndarray, " q"], layout: Layout, terms: Terms) -> Evaluation:
    """The likelihood at `vector`, the trend's coefficients being those of generalised least squares there."""
    sums = [np.sum(np.array(part), axis=0) for part in zip(*_of_parts(vector, layout, terms), strict=True)]
    logs, squares, traces, slopes, information = sums
    beta = (
        np.linalg.lstsq(squares[1:, 1:], squares[0, 1:], rcond=1e-12)[0]
        if np.all(np.isfinite(squares))
        else np.nan
    )
    side = np.append(1.0, -np.broadcast_to(beta, len(squares) - 1))
    value = 0.5 * (float(logs + side @ squares @ side) / terms.count + LOG_2PI)
    return Evaluation(value, 0.5 * (traces - slopes @ side @ side) / terms.count, information / terms.count)


def _of_parts(vector: np.ndarray, layout: Layout, terms: Terms) -> Iterator[Any]:
    """The sums over every part of the groups, by several threads on a CPU, in order."""
    fixed = terms.nodes, terms.values, terms.noise, terms.unknown

    def of_part(index: np.ndarray, used: np.ndarray) -> Any:
        found = _sums(on_device(vector, float), layout, *fixed, on_device(index), on_device(used), terms.own)
        return [np.asarray(a) for a in found]

    parts = zip(terms.index, terms.used, strict=True)
    if len(terms.index) == 1 or jax.default_backend() != "cpu":
        return (of_part(*part) for part in parts)
    return map_in_threads(of_part, parts)


@bounded_jit(most=64)
def _sums(
    vector: Array, layout: Layout, nodes: Nodes, values: Array, noise: Array, unknown: Array,
    index: Array, used: Array, own: int,
) -> tuple[Array, ...]:  # fmt: skip
    """Of one part: the log-determinants, the products of whitened y and trend columns, and the slopes of both."""

    def of_chunk(chunk: tuple[Array, Array]) -> tuple[Array, ...]:
        spread = lambda std: noise + (0.0 if std is None else unknown * std**2)
        matrix = lambda kernel, std: coarse.group_covariances(kernel, nodes, spread(std), *chunk)
        sides = jnp.where(chunk[1][..., None], values[chunk[0]], 0.0)
        return _of_groups(*layout.with_slopes(matrix, vector), sides, own)

    return jax.tree.map(lambda a: a.sum(axis=0), jax.lax.map(of_chunk, (index, used)))


def _of_groups(
    matrix: Float[Array, "T k k"],
    slopes: list[Float[Array, "T k k"]],
    sides: Float[Array, "T k 1+p"],
    own: int,
) -> tuple[Array, ...]:
    """The sums over T groups, `slopes` being the derivatives of their covariances in each parameter."""
    (count, k), q = matrix.shape[:2], len(slopes)
    last = jnp.eye(k)[:, -own:]

    def factored(matrix: Array, sides: Array) -> tuple[Array, Array, Array]:
        factor = cholesky(matrix)
        return factor, solve_lower(factor, sides), solve_lower_transposed(factor, last)

    def times(slope: Array, rows: Array) -> Array:
        if own == 1:  # one fused pass over all parameters, where each product would be a call
            return jnp.sum(slope * rows[:, None, :, 0], axis=2)[..., None]
        return map_matrices(jnp.matmul, slope, rows)

    factor, z, rows = map_matrices(factored, matrix, sides)
    products = jnp.stack([times(slope, rows) for slope in slopes], axis=2).reshape(count, k, q * own)
    w = map_matrices(solve_lower, factor, products).reshape(count, k, q, own)
    z_own, w_own = z[:, -own:], w[:, -own:]
    fit = 2 * jnp.einsum("tbx,tkab,tky->axy", z_own, w, z) - jnp.einsum(
        "tbx,tbac,tcy->axy", z_own, w_own, z_own
    )
    information = jnp.einsum("tkab,tkcb->ac", w, w) - 0.5 * jnp.einsum("tkab,tkcb->ac", w_own, w_own)
    logs = 2 * jnp.sum(jnp.log(jnp.diagonal(factor, axis1=1, axis2=2)[:, -own:]))
    return logs, jnp.einsum("tbx,tby->xy", z_own, z_own), jnp.einsum("tbab->a", w_own), fit, information
