"""Nearest-neighbour (Vecchia) conditionals for the preconditioner, the likelihood and local kriging.

Order the observations; given a few nearest predecessors each observation is Gaussian with mean b'y_neighbours and
variance d, both from one small dense system that includes the noise. Then

- A^-1 ~ S'S with S = D^(-1/2) (I - B), sparse: the preconditioner of the batch engine, two products and no triangular
  solve. Functionals of several nodes go in groups: the last rows of the inverse factor of a group's and its
  neighbours' covariance, which are computed once for all of the group;
- sum_n log N(y_n | b_n'y, d_n) approximates the log-likelihood without a large solve;
- the conditional of an unobserved functional has a variance that is deterministic and, for points, nearly exact.

Covariances between functionals are double sums over coarse nodes (`vecchia/group_covariances.py`), exact for points.
"""

import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
from jaxtyping import Array, Float, Int

from hipgp.linalg.matrices import cholesky, map_matrices, solve_lower, solve_lower_transposed
from hipgp.linalg.preconditioner import Preconditioner
from hipgp.linalg.sparse import BlockRows, SparseMatrix
from hipgp.model.differences import kernel_at_differences
from hipgp.model.kernel_scales import typical_lengthscale
from hipgp.model.kernels import Kernel
from hipgp.model.nodes import Nodes, Segments
from hipgp.runtime.arrays import AnyArray, on_cpu, on_device
from hipgp.runtime.buckets import round_up, round_up_to_power_of_two
from hipgp.runtime.precision import float64_available
from hipgp.runtime.programs import bounded_jit
from hipgp.runtime.threads import map_in_threads, one_blas_thread
from hipgp.vecchia.aggregation import AggregatedFactor, cluster_points, clusters_as_points
from hipgp.vecchia.conditioning_sets import Groups, groups_of_last, location_features, ordered_groups
from hipgp.vecchia.group_covariances import (
    MOST_NODES,
    are_point_values,
    coarse_data_quadrature,
    group_covariances,
)

if TYPE_CHECKING:
    from hipgp.model.data import Data

NEIGHBOURS = 20  # neighbours of a point
GROUP_SIZE, GROUP_NEIGHBOURS = 32, 96  # functionals of several nodes share their neighbours
# On a GPU, where covariances are cheap, larger groups with more neighbours halve the steps, and more nodes save a quarter
# of them.
GPU_GROUP, GPU_GROUP_NEIGHBOURS, GPU_MOST_NODES = 64, 192, 32
ENTRIES_AT_ONCE = 2**18  # entries of the small matrices in one chunk, which stay in the cache


class Conditionals(NamedTuple):
    """Kriging of targets from their neighbours, by group: target ~ N(coefficients . y_neighbours, variance)."""

    coefficients: Float[np.ndarray, "G b k"]
    variance: Float[np.ndarray, " T"]
    near: Int[np.ndarray, "G k"]
    places: Int[np.ndarray, " T"]  # where in (G b) each target is

    def mean(self, y: Float[np.ndarray, "s N"]) -> Float[np.ndarray, "s T"]:
        """Return the conditional mean of each target, given the data y."""
        g, b, k = self.coefficients.shape
        columns = np.broadcast_to(self.near[:, None, :], (g, b, k)).ravel()
        entries = self.coefficients.ravel(), columns, np.arange(0, g * b * k + 1, k)
        rows = scipy.sparse.csr_array(entries, shape=(g * b, y.shape[-1]))[self.places]
        return (rows @ y.T).T


class Vecchia(Preconditioner):
    """The Vecchia factor S with A^-1 ~ S'S, its rows in any order, and the approximation of log|A|."""

    factor: SparseMatrix | BlockRows | AggregatedFactor
    log_determinant: Float[Array, ""]
    neighbours: str = eqx.field(static=True)  # how many, and of what
    # a count that differs from data set to data set is no static field, or each would compile its solve anew
    clusters: Int[Array, ""] | None = None

    @property
    def description(self) -> str:
        """Return the size of the factor in words."""
        return self.neighbours + ("" if self.clusters is None else f" of {int(self.clusters)} clusters")

    def whiten(self, r: Float[Array, "... N"]) -> Float[Array, "... k"]:
        return self.factor.matmul(r)

    def whiten_transpose(self, v: Float[Array, "... k"]) -> Float[Array, "... N"]:
        return self.factor.transpose_matmul(v)

    @property
    def rows_used(self) -> Float[Array, " k"] | None:
        if not isinstance(self.factor, BlockRows):
            return None
        return jnp.any(self.factor.values != 0, axis=2).ravel().astype(self.factor.values.dtype)


@bounded_jit(most=64)
def _conditional_chunk(
    kernel: Kernel, nodes: Nodes, noise: Array, index: Array, used: Array, group_size: int
) -> tuple[Float[Array, "T b k"], Float[Array, "T b"]]:
    # Targets have no noise and may be repeated, so only the covariance of the neighbours is factored.
    matrix = group_covariances(kernel, nodes, noise, index, used)

    def one(matrix: Array) -> tuple[Array, Array]:
        factor = cholesky(matrix[:-group_size, :-group_size])
        half = solve_lower(factor, matrix[:-group_size, -group_size:])
        return solve_lower_transposed(factor, half), half

    coefficients, half = map_matrices(one, matrix)
    prior = jnp.diagonal(matrix[:, -group_size:, -group_size:], axis1=1, axis2=2)
    variance = jnp.maximum(prior - jnp.sum(half**2, axis=1), jnp.finfo(matrix.dtype).eps * prior)
    return jnp.swapaxes(coefficients, 1, 2), variance


@bounded_jit(most=64)
def _factor_chunk(
    kernel: Kernel,
    nodes: Nodes | Segments,
    noise: Array,
    index: Array,
    used: Array,
    group_size: int,
    dtype: Any,
) -> tuple[Float[Array, "T b k"], Float[Array, "T b"]]:
    """The last `group_size` rows of each matrix's inverse Cholesky factor, and their diagonal, which is 1 for padding."""
    last = jnp.eye(index.shape[1])[:, -group_size:]
    last_columns = lambda matrix: solve_lower_transposed(cholesky(matrix), last)
    columns = map_matrices(last_columns, group_covariances(kernel, nodes, noise, index, used))
    rows = jnp.swapaxes(columns, 1, 2) * used[:, None, :] * used[:, -group_size:, None]
    diagonal = jnp.diagonal(rows[:, :, -group_size:], axis1=1, axis2=2)
    return rows.astype(dtype), jnp.where(used[:, -group_size:], diagonal, 1.0)


def _in_chunks(
    function: Any, kernel: Kernel, nodes: Nodes | Segments, noise: Any, index: Any, used: Any
) -> Iterator[tuple[Any, int]]:
    """Yield the results of `function` for chunks of rows of `index`, and the number of rows in each.

    The last chunk is padded by repeating its last row. On a CPU several threads compute the chunks.
    """
    (count, k), cpu = index.shape, on_cpu()
    most = max(1, ENTRIES_AT_ONCE * (1 if cpu else 128) // k**2)
    each = -(-count // -(-count // most))  # chunks of equal size
    size = min(round_up_to_power_of_two(each), round_up(each, 8)) if count < 16 * most else most
    room = round_up(len(nodes), 8)
    filled = nodes.filled_up(room), np.pad(noise, (0, room - len(nodes)))
    nodes, noise = jax.tree.map(on_device, filled)

    def chunk(begin: int) -> tuple[Any, int]:
        at = np.minimum(np.arange(begin, begin + size), count - 1)
        found = function(kernel, nodes, noise, on_device(index[at]), on_device(used[at]))
        return jax.block_until_ready(found) if cpu else found, min(size, count - begin)

    begins = range(0, count, size)
    yield from map_in_threads(chunk, ((begin,) for begin in begins)) if cpu else map(chunk, begins)


@one_blas_thread
@float64_available
def conditionals(
    kernel: Kernel,
    nodes: Nodes,
    noise: Float[np.ndarray, " N"],
    targets: Nodes,
    groups: Groups,
) -> Conditionals:
    """Condition every target on its neighbours in float64; `noise` holds the noise variances of the observations."""
    both, group_size = Nodes.concatenate([nodes, targets]), groups.group_size
    variances = np.concatenate([noise, np.zeros(len(targets))])
    chunk = functools.partial(_conditional_chunk, group_size=group_size)
    parts = _in_chunks(chunk, kernel, both, variances, groups.index, groups.used)
    pieces = (tuple(np.asarray(a)[:n] for a in part) for part, n in parts)
    coefficients, variance = (np.concatenate(a) for a in zip(*pieces, strict=True))
    real = np.flatnonzero(groups.used[:, -group_size:])
    places = real[np.argsort(groups.index[:, -group_size:].ravel()[real])]
    kept = np.where(groups.used[:, None, :-group_size], coefficients, 0.0)
    return Conditionals(kept, variance.ravel()[places], groups.index[:, :-group_size], places)


def group_sizes(nodes: Nodes | Segments) -> tuple[int, int]:
    """Return the default group size and number of neighbours; points are in groups of one."""
    return (1, NEIGHBOURS) if nodes.rule_size == 1 else (GROUP_SIZE, GROUP_NEIGHBOURS)


class ConditioningSets(NamedTuple):
    """The conditioning sets of the data as far as they do not depend on the noise.

    `groups` is None for points, whose clusters, and so their conditioning sets, depend on the noise.
    """

    nodes: Nodes | Segments
    groups: Groups | None
    k: int
    scale: Float[np.ndarray, " D"]


@float64_available
def choose_conditioning_sets(
    kernel: Kernel, data: "Data", k: int | None = None, group: int | None = None
) -> ConditioningSets:
    """Choose groups of the data and their `k` neighbours.

    By default points, or clusters of noisy points (`vecchia/aggregation.py`), are in groups of one and have 20 neighbours.
    Functionals of several nodes are in groups of 32 with 96 neighbours, or on a GPU of 64 with 192.
    """
    cpu = on_cpu()
    nodes = coarse_data_quadrature(data, kernel, MOST_NODES if cpu else GPU_MOST_NODES)
    single = nodes.rule_size == 1
    sizes = group_sizes(nodes) if cpu or single else (GPU_GROUP, GPU_GROUP_NEIGHBOURS)
    group, k = sizes[0] if group is None else group, sizes[1] if k is None else k
    scale = typical_lengthscale(kernel, data.ndim)
    aggregates = group == 1 and are_point_values(nodes)
    groups = None if aggregates else ordered_groups(nodes, location_features(nodes, kernel), group, k)
    return ConditioningSets(nodes, groups, k, scale)


@one_blas_thread
@float64_available
def vecchia_factor(
    kernel: Kernel, sets: ConditioningSets, noise: Float[np.ndarray, " N"], dtype: Any = np.float64
) -> Vecchia:
    """Compute the Vecchia factor of the data's covariance plus the variances `noise`, with the given conditioning sets."""
    noise = np.asarray(noise, float)
    if sets.groups is not None:
        return _factor_of_groups(kernel, sets.nodes, sets.groups, noise, dtype)
    x = np.asarray(sets.nodes.ends()[0])
    ungrouped = lambda nodes: ordered_groups(nodes, location_features(nodes, kernel), 1, sets.k)
    clusters = cluster_points(kernel, x, noise, sets.scale)
    if clusters is None:
        return _factor_of_groups(kernel, sets.nodes, ungrouped(sets.nodes), noise, dtype)
    means, noise_of_means = clusters_as_points(x, clusters, noise)
    inner = _factor_rows(kernel, means, ungrouped(means), noise_of_means, np.float64)
    logs = np.sum(np.log(noise)) - np.sum(np.log(noise_of_means)) + inner.log_determinant
    factor = AggregatedFactor.of(inner.matrix(), clusters, noise, dtype)
    return Vecchia(
        factor=factor,
        log_determinant=jnp.asarray(logs, dtype),
        neighbours=inner.neighbours,
        clusters=jnp.asarray(len(means)),
    )


@one_blas_thread
def last_rows(
    kernel: Kernel,
    nodes: Nodes,
    places: Float[np.ndarray, "N F"],
    noise: Float[np.ndarray, " N"],
    last: Int[np.ndarray, " n"],
    k: int,
) -> "scipy.sparse.csr_array":
    """Compute the rows S of the observations `last`, which come after all others and each given its k nearest."""
    groups = groups_of_last(places, last, k)
    found = _factor_rows(kernel, nodes, groups, noise, np.float64)
    starts = np.arange(len(last) + 1) * groups.index.shape[1]
    entries = np.asarray(found.blocks).ravel(), groups.index.ravel(), starts
    return scipy.sparse.csr_array(entries, shape=(len(last), len(nodes)))


def _factor_of_groups(
    kernel: Kernel, nodes: Nodes | Segments, groups: Groups, noise: np.ndarray, dtype: Any
) -> Vecchia:
    found = _factor_rows(kernel, nodes, groups, noise, dtype)
    factor = (
        BlockRows.from_blocks(found.blocks, groups.index, groups.used, len(nodes))
        if groups.group_size > 1
        else SparseMatrix.from_scipy(found.matrix(), dtype)
    )
    logs = jnp.asarray(found.log_determinant, dtype)
    return Vecchia(factor=factor, log_determinant=logs, neighbours=found.neighbours)


class _FactorRows(NamedTuple):
    """The rows of S by group, and the approximation of log|A|."""

    blocks: Float[AnyArray, "G b k"]
    log_determinant: float
    groups: Groups

    def matrix(self) -> Any:
        """Return S as a SciPy matrix for groups of one, with rows in the order of the data."""
        order = np.argsort(self.groups.index[:, -1])
        blocks = np.asarray(self.blocks)
        entries = blocks[order].ravel(), self.groups.index[order].ravel()
        starts = np.arange(len(order) + 1) * blocks.shape[2]
        return scipy.sparse.csr_array((*entries, starts), shape=(len(order), len(order)))

    @property
    def neighbours(self) -> str:
        group_size = self.groups.group_size
        return f"{self.groups.index.shape[1] - group_size} neighbours" + f" of groups of {group_size}" * (
            group_size > 1
        )


def _factor_rows(
    kernel: Kernel, nodes: Nodes | Segments, groups: Groups, noise: np.ndarray, dtype: Any
) -> _FactorRows:
    chunk = functools.partial(_factor_chunk, group_size=groups.group_size, dtype=dtype)
    if _in_float32(kernel, nodes, noise):
        kernel, nodes = jax.tree.map(lambda a: np.asarray(a, np.float32), (kernel, nodes))
    parts = list(_in_chunks(chunk, kernel, nodes, noise, groups.index, groups.used))
    logs = sum(float(np.sum(np.log(np.asarray(diagonal)[:n]))) for (_, diagonal), n in parts)
    # rows of points go to the host; dense blocks stay on the device
    rows = [(np.asarray(blocks) if groups.group_size == 1 else blocks)[:n] for (blocks, _), n in parts]
    xp = np if groups.group_size == 1 else jnp
    return _FactorRows(rows[0] if len(rows) == 1 else xp.concatenate(rows), -2 * logs, groups)


def _in_float32(kernel: Kernel, nodes: Nodes | Segments, noise: np.ndarray) -> bool:
    """Tell whether covariances of several nodes may be summed in float32, in 40% of the time: if noise exceeds rounding.

    The sums are factored in float64 in any case and stay positive: a group's rounding errors are below 1e-4 of the
    largest variance.
    """
    if isinstance(nodes, Nodes) and (nodes.rule_size == 1 or nodes.direction is not None):
        return False
    longest = nodes.heaviest()
    x, c = np.asarray(longest.x[0], float), np.asarray(longest.weights[0], float)
    between = kernel_at_differences(kernel, (x[:, None] - x).reshape(-1, x.shape[1])).reshape(len(c), -1)
    return bool(np.min(noise) > 2e-4 * (c @ between @ c))
