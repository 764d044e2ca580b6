"""The weights of a minibatch's observations, stored from the start or computed on demand.

They are stored where the hyperparameters are fixed and the memory allows. Computed when asked for, they can be
differentiated in the kernel, and N x M memory is never needed.
"""

import abc
import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from hipgp.model.data import Data
from hipgp.model.functionals import Functional, LineIntegrals
from hipgp.model.grid import Grid
from hipgp.model.kernels import Kernel
from hipgp.model.nodes import Nodes, Segments
from hipgp.runtime.arrays import AnyArray, on_cpu, on_device
from hipgp.runtime.memory import gpu_bytes
from hipgp.weights.exact import (
    ExactWeights,
    closed_form_or_nodes,
    grid_covariances,
    has_closed_form,
)
from hipgp.weights.operator import Weights
from hipgp.weights.stencil_geometry import locate_stencils, stencil_offsets
from hipgp.weights.stencils import LocalWeights, local_weight_rows, stencil_weights

if TYPE_CHECKING:
    from hipgp.variational.whitening import Whitening

STORED = 2**30  # bytes of stored weights without a GPU
SHARE_STORED = 0.9  # of the memory that JAX may use on a GPU
FLOAT64 = (
    2**24
)  # whitened numbers of a minibatch up to which float32 would save no time: stored weights are converted
TOGETHER = 32  # minibatches of one program at most

State = TypeVar("State")


class Selection(NamedTuple):
    """Some observations: their numbers within each block of the data; `mask` is False for padding."""

    index: tuple[Any, ...]
    mask: Any

    def flat(self, starts: tuple[int, ...]) -> Array:
        """The selected observations' numbers among all, given the number of each block's first observation."""
        return jnp.concatenate([s + i for s, i in zip(starts, self.index, strict=True)])


class Selections(NamedTuple):
    """Some minibatches as one array each, filled up with the last one, and how many they are."""

    stacked: Selection
    count: Any

    @staticmethod
    def of(some: list[Selection], most: int) -> "Selections":
        """Of at most `most` selections, filled up to that number so that programs are compiled once."""
        filled = [*some, *[some[-1]] * (most - len(some))]
        return Selections(jax.tree.map(lambda *a: np.stack(a), *filled), np.asarray(len(some)))

    def fold(self, step: Callable[[State, Selection, Array], State], first: State) -> State:
        """The state after a step for each minibatch, given it and its number here, in one loop of the compiled program."""
        body = lambda i, state: step(state, jax.tree.map(lambda a: jnp.asarray(a)[i], self.stacked), i)
        return jax.lax.fori_loop(0, self.count, body, first)


class SolveSummary(NamedTuple):
    """Iterations, the largest relative error and the failures of a number of solves for weights."""

    most_iterations: Any
    mean_iterations: Any
    error: Any
    unconverged: Any

    def merged(self, other: "SolveSummary", share: Any) -> "SolveSummary":
        """Merge two summaries, where `other` has this share of the solves."""
        return SolveSummary(
            jnp.maximum(self.most_iterations, other.most_iterations),
            (1 - share) * self.mean_iterations + share * other.mean_iterations,
            jnp.maximum(self.error, other.error),
            self.unconverged + other.unconverged,
        )

    @staticmethod
    def of(rows: "WeightRows", mask: Any) -> "SolveSummary":
        """The summary of the solves for these rows, without the padding."""
        most = jnp.max(jnp.where(mask, rows.iterations, 0))
        mean = jnp.sum(mask * rows.iterations) / jnp.sum(mask)
        error = jnp.max(jnp.where(mask, rows.error, 0.0))
        return jax.lax.stop_gradient(SolveSummary(most, mean, error, jnp.sum(mask & ~rows.converged)))


NO_SOLVES = SolveSummary(0, 0.0, 0.0, 0)


def starts_of(counts: tuple[int, ...]) -> tuple[int, ...]:
    """The number of each block's first observation."""
    return tuple(int(s) for s in np.cumsum((0, *counts[:-1])))


def minibatches(
    counts: tuple[int, ...], batches: int, rng: np.random.Generator | None = None
) -> Iterator[Selection]:
    """Split all observations into `batches` equal selections, shuffled if a generator is given."""
    index, mask = [], []
    for count in counts:
        width = -(-count // batches)
        order = np.arange(count) if rng is None else rng.permutation(count)
        edges = np.arange(batches + 1) * count // batches
        slots = edges[:-1, None] + np.arange(width)
        inside = slots < edges[1:, None]
        index.append(np.where(inside, order[np.minimum(slots, count - 1)], 0))
        mask.append(inside)
    for b in range(batches):
        yield Selection(tuple(i[b] for i in index), np.concatenate([m[b] for m in mask]))


class WeightRows(NamedTuple):
    """Weights w_n and residual variances v_n of some observations, and how the solves for them ended."""

    w: Float[Array, "n M"]
    v: Float[Array, " n"]
    iterations: Int[Array, " n"]
    error: Float[Array, " n"]
    converged: Bool[Array, " n"]


def _unsolved(w: Array, v: Array) -> WeightRows:
    none = jnp.zeros(len(v))
    return WeightRows(w, v, none.astype(jnp.int32), none, none == 0)


class WeightSource(eqx.Module):
    """Gives the weights of any observations, which are numbered within the blocks of the data."""

    @abc.abstractmethod
    def weights(self, kernel: Kernel, whitening: "Whitening", index: tuple[Array, ...]) -> WeightRows:
        """The weights of the observations at `index`, ordered by block."""


class _ExactOnDemand(WeightSource):
    """Weights by a solve for each observation, when asked for: O(n M) memory for n at a time.

    Covariances and solves are in `dtype`; residual variances are right for the weights found, and in float64.
    """

    grid: Grid
    blocks: tuple[LineIntegrals | Nodes | Segments, ...]
    tolerance: AnyArray  # arrays, so that training and prediction are compiled once
    max_iterations: AnyArray
    dtype: Any = eqx.field(static=True)
    p: int | None = eqx.field(
        static=True
    )  # solves begin at local weights of so many points an axis, or at zero

    def weights(self, kernel: Kernel, whitening: "Whitening", index: tuple[Array, ...]) -> WeightRows:
        chosen = [
            b[i] if isinstance(b, Segments) else _picked(b, i)
            for b, i in zip(self.blocks, index, strict=True)
        ]
        found = [grid_covariances(kernel, b, self.grid, self.dtype) for b in chosen]
        cross, variance = (jnp.concatenate([f[a] for f in found]) for a in (0, 1))
        first = None if self.p is None else jnp.concatenate([self._first(kernel, b) for b in chosen])
        w, v, solution = whitening.conditional(cross, variance, self.tolerance, self.max_iterations, first)
        return WeightRows(w, v, solution.iterations, solution.error, solution.converged)

    def _first(self, kernel: Kernel, block: LineIntegrals | Nodes) -> Float[Array, "n M"]:
        """Local weights; zero where the covariances have a closed form, and there are no nodes."""
        if isinstance(block, LineIntegrals):
            return jnp.zeros((len(block), self.grid.size), self.dtype)
        assert self.p is not None
        places = locate_stencils(self.grid, block.x.reshape(-1, self.grid.ndim), self.p, jnp)
        start, offset = (a.reshape(*block.x.shape[:2], *a.shape[1:]) for a in places)
        return _local_rows(kernel, self.grid, self.p, _Placed(block, start, offset), self.dtype)[0]


def _picked(block: Any, index: Array) -> Any:
    """The selected rows of every array in `block`."""
    return jax.tree.map(lambda a: jnp.asarray(a)[index], block)


class _Placed(eqx.Module):
    """The nodes of one block on the grid: where each node's stencil starts, and its offset from there."""

    nodes: Nodes
    start: Int[AnyArray, "N Q"]
    offset: Float[AnyArray, "N Q D"]


class _LocalOnDemand(WeightSource):
    """Weights from the p^D grid points around each node, computed on demand."""

    grid: Grid
    blocks: tuple[_Placed, ...]
    p: int = eqx.field(static=True)

    def weights(self, kernel: Kernel, whitening: "Whitening", index: tuple[Array, ...]) -> WeightRows:
        found = [self._of(kernel, whitening, _picked(b, i)) for b, i in zip(self.blocks, index, strict=True)]
        return _unsolved(*(jnp.concatenate([f[a] for f in found]) for a in (0, 1)))

    def _of(self, kernel: Kernel, whitening: "Whitening", block: _Placed) -> tuple[Array, Array]:
        nodes = block.nodes
        w, v = _local_rows(kernel, self.grid, self.p, block)
        if nodes.rule_size == 1:
            return w, v * nodes.weights[:, 0] ** 2
        return w, whitening.residual_variance(w, *grid_covariances(kernel, nodes, self.grid))


def _local_rows(
    kernel: Kernel, grid: Grid, p: int, block: _Placed, dtype: Any = float
) -> tuple[Float[Array, "n M"], Float[Array, " m"]]:
    """Local weights as dense rows, in `dtype`, and the residual variance of every node."""
    n, count = block.start.shape
    each = lambda a: None if a is None else jnp.repeat(a, count, axis=0)  # for every node of a functional
    offset, nodes = block.offset.reshape(n * count, -1), block.nodes
    small, v = stencil_weights(kernel, grid, p, offset, each(nodes.value), each(nodes.direction))
    values = (small.reshape(n, count, -1) * nodes.weights[..., None]).astype(dtype)
    columns = block.start[..., None] + jnp.asarray(stencil_offsets(grid, p)[1])
    return jnp.zeros((n, grid.size), dtype).at[jnp.arange(n)[:, None, None], columns].add(values), v


class StoredWeights(WeightSource):
    """The weights of all observations, computed once: for fixed hyperparameters."""

    stored: Weights
    entries: (
        tuple[Int[Array, "N w"], Float[Array, "N w"]] | None
    )  # of local weights: columns and values of each row
    starts: tuple[int, ...] = eqx.field(static=True)

    def weights(self, kernel: Kernel, whitening: "Whitening", index: tuple[Array, ...]) -> WeightRows:
        entries = Selection(index, None).flat(self.starts)
        v = self.stored.residual[entries].astype(float)
        if isinstance(self.stored, ExactWeights):
            rows = self.stored.rows[entries]
            small = len(entries) * whitening.size <= FLOAT64
            return _unsolved(rows.astype(float) if small else rows, v)
        assert isinstance(self.stored, LocalWeights) and self.entries is not None
        columns, values = (a[entries] for a in self.entries)
        row = jnp.arange(len(entries))[:, None]
        size = self.stored.sparse.column_count
        return _unsolved(jnp.zeros((len(entries), size)).at[row, columns].add(values.astype(float)), v)


def exact_source(
    kernel: Kernel,
    grid: Grid,
    functionals: list[Functional],
    tolerance: float,
    max_iterations: int,
    dtype: Any = np.float64,
    p: int | None = None,
) -> WeightSource:
    """Weights by a solve for each observation, in `dtype`, computed on demand.

    Solves begin at local weights of p points an axis, or at zero.
    """
    limits = np.asarray(tolerance), np.asarray(max_iterations)
    return _ExactOnDemand(grid, tuple(_on_device(kernel, f, grid) for f in functionals), *limits, dtype, p)


def _on_device(kernel: Kernel, functional: Functional, grid: Grid) -> LineIntegrals | Nodes | Segments:
    """A block of functionals where JAX computes, so that no minibatch moves it there again.

    The nodes of straight lines are made for a minibatch at a time: those of all would take a hundred times the memory.
    """
    double = lambda tree: jax.tree.map(lambda a: np.asarray(a, float), tree)
    if isinstance(functional, LineIntegrals) and functional.ruled and not has_closed_form(kernel, functional):
        source = double(functional).segments(grid.spacing)
    else:
        source = double(closed_form_or_nodes(kernel, functional, grid))
    return jax.tree.map(on_device, source)


def local_source(grid: Grid, functionals: list[Functional], p: int) -> WeightSource:
    """Weights from the p^D grid points around each node, computed on demand."""
    blocks = []
    for functional in functionals:
        nodes = jax.tree.map(lambda a: np.asarray(a, float), functional.nodes(grid.spacing))
        n, count, d = nodes.x.shape
        start, offset = locate_stencils(grid, nodes.x.reshape(-1, d), p)
        blocks.append(_Placed(nodes, start.reshape(n, count), offset.reshape(n, count, d)))
    return _LocalOnDemand(grid, tuple(blocks), p)


def are_stored(count: int, points: int, dtype: Any) -> bool:
    """Tell whether the exact weights of so many observations on so many grid points are stored."""
    limit = STORED if on_cpu() else SHARE_STORED * (gpu_bytes() or STORED)
    return float(count) * points * np.dtype(dtype).itemsize <= limit


def stored_exact(
    source: WeightSource, kernel: Kernel, whitening: "Whitening", counts: tuple[int, ...], batches: int
) -> tuple[StoredWeights, SolveSummary]:
    """Compute the weights of all observations from `source`, once, and keep them in the dtype of the solves."""
    count, v, solves, w = sum(counts), np.zeros(sum(counts)), NO_SOLVES, None
    for number, selection in enumerate(minibatches(counts, batches)):
        rows = compiled_weights(source, kernel, whitening, selection.index)
        where = np.where(selection.mask, selection.flat(starts_of(counts)), count)
        w = jnp.zeros((count, rows.w.shape[1]), rows.w.dtype) if w is None else w
        w = _filled(w, jnp.asarray(where), rows.w)
        v[where[selection.mask]] = np.asarray(rows.v)[selection.mask]
        solves = solves.merged(SolveSummary.of(rows, selection.mask), 1 / (number + 1))
    assert w is not None
    return StoredWeights(ExactWeights(w, jnp.asarray(v)), None, starts_of(counts)), solves


@functools.partial(jax.jit, donate_argnums=0)
def _filled(weights: Array, where: Array, rows: Array) -> Array:
    """Write rows into their places, in the memory of `weights`; padding has a place behind the last."""
    return weights.at[where].set(rows, mode="drop")


@eqx.filter_jit
def compiled_weights(
    source: WeightSource, kernel: Kernel, whitening: "Whitening", index: tuple[Any, ...]
) -> WeightRows:
    """`source.weights`, compiled."""
    return source.weights(kernel, whitening, index)


def stored_local(kernel: Kernel, grid: Grid, data: Data, p: int, dtype: Any) -> StoredWeights:
    """Local weights of all observations, their rows padded to the longest so that any of them can be looked up."""
    rows = local_weight_rows(kernel, grid, data.functionals, p)
    counts, matrix = rows.csr.row_lengths, rows.matrix
    inside = np.arange(counts.max()) < counts[:, None]
    columns, values = np.zeros(inside.shape, np.int32), np.zeros(inside.shape, dtype)
    columns[inside], values[inside] = matrix.indices, matrix.data
    starts = starts_of(tuple(len(b.y) for b in data.blocks))
    return StoredWeights(
        LocalWeights.from_rows(rows, dtype), (jnp.asarray(columns), jnp.asarray(values)), starts
    )
