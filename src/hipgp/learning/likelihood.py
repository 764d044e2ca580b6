"""The Vecchia likelihood of the data in the kernel's parameters, with its gradient and its Fisher information.

log p(y) ~ the sum over groups of log p(group | nearest predecessors), in which each term is a small dense system without
FFTs or large solves, for any functional. A group is one point, or several neighbouring functionals of several nodes. Let A
be the covariance of a group's neighbours followed by its members (index `m`), chol its Cholesky factor, S the last rows
of chol^-1 and z = chol^-1 y. Value, gradient and information follow from

    W_a = chol^-1 (dA / d theta_a) S'.

A term's -2 log p, |z_m|^2 + 2 sum log chol_m, has the derivative tr W_a,m - 2 z_m' W_a' z + z_m' W_a,m z_m.
Its information, the expected second derivatives, is tr W_a' W_b - tr W_a,m W_b,m / 2 and positive semidefinite. The
same sums for the trend's columns give the generalised least-squares coefficients. They minimise at every evaluation, so
the derivative at fixed coefficients is the total one. One pass over the groups by several threads stores nothing.
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
from hipgp.model.functionals import Functionals
from hipgp.model.kernel_slopes import WithSlopes
from hipgp.model.kernels import Kernel
from hipgp.model.nodes import Nodes
from hipgp.runtime.arrays import on_cpu, on_device
from hipgp.runtime.buckets import round_up, round_up_to_power_of_two
from hipgp.runtime.programs import bounded_jit
from hipgp.runtime.threads import map_in_threads
from hipgp.vecchia.conditioning_sets import location_features, ordered_groups
from hipgp.vecchia.factor import group_sizes
from hipgp.vecchia.group_covariances import MOST_NODES, coarse_nodes, diagonals, field_covariances

LOG_2PI = float(np.log(2 * np.pi))
# Entries of small matrices in a chunk; one matrix for each parameter stays in the cache.
ENTRIES_AT_ONCE = 2**15
BUCKETS = 4  # numbers of observations from one power of two to the next
CHUNKS_AT_ONCE = 16  # chunks in one call of the compiled program
# Nodes that the user or a link gave are merged, whose weights may differ from node to node: 12 make the variance of a line of seven
# lengthscales 2% too large, more than its noise, and so the learned lengthscale a seventh too long.
MOST_GIVEN_NODES = 24
# Relative to the data's extent: places this close are ordered at random, and not by rounding errors.
TIE = 1e-7


class Terms(eqx.Module):
    """The terms of the Vecchia likelihood in one stage: chosen groups of observations with their neighbours."""

    nodes: Nodes
    values: Float[Array, "N 1+p"]  # y and the trend's columns
    noise: Float[Array, " N"]  # variances, zero where unknown
    unknown: Float[Array, " N"]  # 1 where the noise is to be learned
    index: Int[
        np.ndarray, "P C T k"
    ]  # neighbours and, last, the `members` of a group, in P parts of C chunks of T groups each
    used: np.ndarray
    members: int = eqx.field(static=True)

    @property
    def count(self) -> int:
        """The number of observations in the groups."""
        return int(np.sum(self.used[..., -self.members :]))


def prepare(kernel: Kernel, data: Data, trend: Float[np.ndarray, "N p"], count: int, seed: int) -> Terms:
    """Choose about `count` observations at random, in groups, with the nearest predecessors of each among all."""
    nodes = _nodes(data, kernel)
    size, k = group_sizes(nodes)
    places = location_features(nodes, kernel)
    chance = np.random.default_rng((seed, 2)).uniform(size=places.shape)
    places = places + TIE * np.ptp(places, axis=0) * chance
    groups = ordered_groups(nodes, places, size, k, seed, most=max(1, round(count / size)))
    known = data.noise_known
    std = np.asarray(data.noise_std(1.0), float)
    padded = lambda a: np.pad(a, ((0, round_up(len(a), BUCKETS) - len(a)), *[(0, 0)] * (np.ndim(a) - 1)))
    return Terms(  # padded with observations that are in no group: a program serves for similar numbers
        jax.tree.map(lambda a: on_device(padded(np.asarray(a))), nodes),
        on_device(padded(np.column_stack([_without_trend(np.asarray(data.y, float), trend), trend])), float),
        on_device(padded(np.where(known, std**2, 0.0))),
        on_device(padded(~known), float),
        _in_parts(groups.index),
        _in_parts(groups.used),
        groups.group_size,
    )


def _nodes(data: Data, kernel: Kernel) -> Nodes:
    """Coarse nodes of all observations."""
    most = lambda functional: MOST_GIVEN_NODES if isinstance(functional, Functionals) else MOST_NODES
    return Nodes.concatenate([coarse_nodes(f, kernel, most(f)) for f in data.functionals])


def _without_trend(y: Float[np.ndarray, " N"], trend: Float[np.ndarray, "N p"]) -> Float[np.ndarray, " N"]:
    """Subtract an ordinary fit of the trend, which avoids cancellation and does not change the likelihood."""
    return y - trend @ np.linalg.lstsq(trend, y, rcond=None)[0] if trend.shape[1] else y


def _in_parts(table: Any) -> np.ndarray:
    """Split rows into equal parts, each for one call of a program, padded with groups that have no members.

    The layout does not depend on the number of cores, so sums are the same on every machine with a CPU.
    """
    rows, k = table.shape
    size = max(1, ENTRIES_AT_ONCE * (1 if on_cpu() else 1024) // k**2)
    size = min(size, round_up_to_power_of_two(rows))
    chunks = min(CHUNKS_AT_ONCE, round_up_to_power_of_two(-(-rows // size)))
    filled = np.pad(table, ((0, -rows % (chunks * size)), (0, 0)))
    return filled.reshape(-1, chunks, size, k)


def evaluate(vector: Float[np.ndarray, " q"], layout: Layout, terms: Terms) -> Evaluation:
    """The likelihood at `vector`, with generalised least-squares coefficients of the trend."""
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
    """The sums over each part of the groups, in order, computed by several threads on a CPU."""
    fixed = terms.nodes, terms.values, terms.noise, terms.unknown

    def of_part(index: np.ndarray, used: np.ndarray) -> Any:
        found = _sums(
            on_device(vector, float), layout, *fixed, on_device(index), on_device(used), terms.members
        )
        return [np.asarray(a) for a in found]

    parts = zip(terms.index, terms.used, strict=True)
    if len(terms.index) == 1 or not on_cpu():
        return (of_part(*part) for part in parts)
    return map_in_threads(of_part, parts)


@bounded_jit(most=64)
def _sums(
    vector: Array, layout: Layout, nodes: Nodes, values: Array, noise: Array, unknown: Array,
    index: Array, used: Array, members: int,
) -> tuple[Array, ...]:  # fmt: skip
    """The sums of one part: log-determinants, products of whitened y and trend columns, and the derivatives of both."""

    def of_chunk(chunk: tuple[Array, Array]) -> tuple[Array, ...]:
        kernel, std = layout.unpack(vector)
        learned = jnp.zeros_like(noise) if std is None else unknown * std**2
        at, there = chunk
        field, *every = field_covariances(WithSlopes(kernel), nodes, at, there)
        slopes = [slope for slope, free in zip(every, layout.mask(), strict=True) if free]
        if std is not None:
            slopes.append(diagonals(jnp.where(there, 2 * learned[at], 0.0)))
        matrix = field + diagonals(jnp.where(there, (noise + learned)[at], 1.0))
        return _of_groups(matrix, slopes, jnp.where(there[..., None], values[at], 0.0), members)

    return jax.tree.map(lambda a: a.sum(axis=0), jax.lax.map(of_chunk, (index, used)))


def _of_groups(
    matrix: Float[Array, "T k k"],
    slopes: list[Float[Array, "T k k"]],
    sides: Float[Array, "T k 1+p"],
    members: int,
) -> tuple[Array, ...]:
    """The sums over T groups; `slopes` holds the derivatives of their covariances in each parameter."""
    (count, k), q = matrix.shape[:2], len(slopes)
    last = jnp.eye(k)[:, -members:]

    def factored(matrix: Array, sides: Array) -> tuple[Array, Array, Array]:
        factor = cholesky(matrix)
        return factor, solve_lower(factor, sides), solve_lower_transposed(factor, last)

    def times(slope: Array, rows: Array) -> Array:
        if members == 1:  # one fused pass over all parameters instead of a call for each product
            return jnp.sum(slope * rows[:, None, :, 0], axis=2)[..., None]
        return map_matrices(jnp.matmul, slope, rows)

    factor, z, rows = map_matrices(factored, matrix, sides)
    products = jnp.stack([times(slope, rows) for slope in slopes], axis=2).reshape(count, k, q * members)
    w = map_matrices(solve_lower, factor, products).reshape(count, k, q, members)
    z_m, w_m = z[:, -members:], w[:, -members:]
    fit = 2 * jnp.einsum("tbx,tkab,tky->axy", z_m, w, z) - jnp.einsum("tbx,tbac,tcy->axy", z_m, w_m, z_m)
    information = jnp.einsum("tkab,tkcb->ac", w, w) - 0.5 * jnp.einsum("tkab,tkcb->ac", w_m, w_m)
    logs = 2 * jnp.sum(jnp.log(jnp.diagonal(factor, axis1=1, axis2=2)[:, -members:]))
    return (
        logs,
        jnp.einsum("tbx,tby->xy", z_m, z_m),
        jnp.einsum("tbab->a", w_m),
        fit,
        information,
    )
