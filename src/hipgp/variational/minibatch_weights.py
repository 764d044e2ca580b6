"""The weights of a minibatch's observations, from a table or computed when asked for.

A table serves where the hyperparameters are fixed and the memory allows. Computed afresh, weights can be differentiated
in the kernel, and N x M memory is never needed.
"""

import abc
from collections.abc import Iterator
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from hipgp.model.data import Data
from hipgp.model.functionals import Functional, LineIntegrals
from hipgp.model.grid import Grid
from hipgp.model.kernels import Kernel
from hipgp.model.nodes import Nodes
from hipgp.runtime.precision import AnyArray
from hipgp.variational.whitening import Whitening
from hipgp.weights.exact import ExactWeights, Weights, closed_form_or_nodes, grid_covariances
from hipgp.weights.stencils import (
    LocalWeights,
    local_weight_rows,
    locate_stencils,
    stencil_shape,
    stencil_weights,
)

TABLE = 2**30  # bytes of weights held at once, without a GPU; with one, a third of its memory


class Selection(NamedTuple):
    """Some observations: their numbers within each block; `mask` is False for padding."""

    index: tuple[Any, ...]
    mask: Any

    def flat(self, starts: tuple[int, ...]) -> Array:
        return jnp.concatenate([s + i for s, i in zip(starts, self.index, strict=True)])


class Solves(NamedTuple):
    """What the solves for the weights did."""

    most: Any
    mean: Any
    error: Any
    failed: Any

    def merged(self, other: "Solves", share: float) -> "Solves":
        mean = (1 - share) * float(self.mean) + share * float(other.mean)
        worst = max(float(self.error), float(other.error))
        return Solves(max(int(self.most), int(other.most)), mean, worst, int(self.failed) + int(other.failed))

    @staticmethod
    def of(rows: "Rows", mask: Any) -> "Solves":
        mean = jnp.sum(mask * rows.iterations) / jnp.sum(mask)
        error = jnp.max(jnp.where(mask, rows.error, 0.0))
        most = jnp.max(jnp.where(mask, rows.iterations, 0))
        return jax.lax.stop_gradient(Solves(most, mean, error, jnp.sum(mask & ~rows.converged)))


NO_SOLVES = Solves(0, 0.0, 0.0, 0)


def starts_of(counts: tuple[int, ...]) -> tuple[int, ...]:
    """The number of each block's first observation."""
    return tuple(int(s) for s in np.cumsum((0, *counts[:-1])))


def parts(
    counts: tuple[int, ...], batches: int, rng: np.random.Generator | None = None
) -> Iterator[Selection]:
    """All observations in `batches` equal selections; shuffled where a generator is given."""
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


class Rows(NamedTuple):
    """Weights w_n and residual variances v_n of some observations, with what their solves did."""

    w: Float[Array, "n M"]
    v: Float[Array, " n"]
    iterations: Int[Array, " n"]
    error: Float[Array, " n"]
    converged: Bool[Array, " n"]


def _unsolved(w: Array, v: Array) -> Rows:
    none = jnp.zeros(len(v))
    return Rows(w, v, none.astype(jnp.int32), none, none == 0)


class Source(eqx.Module):
    """Where minibatches come from; `index` holds, for each block of the data, numbers of its observations."""

    @abc.abstractmethod
    def rows(self, kernel: Kernel, whitening: Whitening, index: tuple[Array, ...]) -> Rows:
        """The weights of the observations at `index`, block after block."""


class Exact(Source):
    """Weights by a solve for each observation, when asked for: O(n M) memory for n at a time."""

    grid: Grid
    parts: tuple[LineIntegrals | Nodes, ...]
    tolerance: AnyArray  # arrays, so that training and prediction are compiled once
    max_iterations: AnyArray

    def rows(self, kernel: Kernel, whitening: Whitening, index: tuple[Array, ...]) -> Rows:
        pick = lambda part, i: jax.tree.map(lambda a: jnp.asarray(a)[i], part)
        found = [
            grid_covariances(kernel, pick(p, i), self.grid) for p, i in zip(self.parts, index, strict=True)
        ]
        cross, variance = (jnp.concatenate([f[a] for f in found]) for a in (0, 1))
        w, v, solution = whitening.conditional(cross, variance, self.tolerance, self.max_iterations)
        return Rows(w, v, solution.iterations, solution.error, solution.converged)


class Stencils(eqx.Module):
    """The nodes of one block on the grid: where each one's stencil starts, and its offset from there."""

    nodes: Nodes
    start: Int[AnyArray, "N Q"]
    offset: Float[AnyArray, "N Q D"]


class Local(Source):
    """Weights from the p^D grid points around each node, when asked for."""

    grid: Grid
    parts: tuple[Stencils, ...]
    p: int = eqx.field(static=True)

    def rows(self, kernel: Kernel, whitening: Whitening, index: tuple[Array, ...]) -> Rows:
        found = [
            self._part(kernel, whitening, jax.tree.map(lambda a, i=i: jnp.asarray(a)[i], part))
            for part, i in zip(self.parts, index, strict=True)
        ]
        return _unsolved(*(jnp.concatenate([f[a] for f in found]) for a in (0, 1)))

    def _part(self, kernel: Kernel, whitening: Whitening, part: Stencils) -> tuple[Array, Array]:
        n, per = part.start.shape
        spread = lambda a: None if a is None else jnp.repeat(a, per, axis=0)
        offset = part.offset.reshape(n * per, -1)
        small, v = stencil_weights(
            kernel, self.grid, self.p, offset, spread(part.nodes.value), spread(part.nodes.direction)
        )
        values = small.reshape(n, per, -1) * part.nodes.weights[..., None]
        columns = part.start[..., None] + jnp.asarray(_steps(self.grid, self.p))
        w = jnp.zeros((n, self.grid.size)).at[jnp.arange(n)[:, None, None], columns].add(values)
        if per == 1:
            return w, v * part.nodes.weights[:, 0] ** 2
        cross, variance = grid_covariances(kernel, part.nodes, self.grid)
        k = whitening.root_transpose(w)
        v = variance - 2 * jnp.sum(w * cross, axis=-1) + jnp.sum(k**2, axis=-1)
        return w, jnp.maximum(v, 0.0)


class Table(Source):
    """Weights computed once and held: for fixed hyperparameters."""

    weights: Weights
    entries: (
        tuple[Int[Array, "N w"], Float[Array, "N w"]] | None
    )  # of local weights: columns and values of each row
    starts: tuple[int, ...] = eqx.field(static=True)

    def rows(self, kernel: Kernel, whitening: Whitening, index: tuple[Array, ...]) -> Rows:
        every = jnp.concatenate([start + i for start, i in zip(self.starts, index, strict=True)])
        v = self.weights.residual[every].astype(float)
        if isinstance(self.weights, ExactWeights):
            return _unsolved(self.weights.rows[every].astype(float), v)
        assert isinstance(self.weights, LocalWeights) and self.entries is not None
        columns, values = (a[every] for a in self.entries)
        row = jnp.arange(len(every))[:, None]
        size = self.weights.sparse.column_count
        return _unsolved(jnp.zeros((len(every), size)).at[row, columns].add(values.astype(float)), v)


def _steps(grid: Grid, p: int) -> np.ndarray:
    """From a stencil's first point to all its points, in flat numbers."""
    index = np.meshgrid(*[np.arange(w) for w in stencil_shape(grid, p)], indexing="ij")
    return np.asarray(np.ravel_multi_index([i.ravel() for i in index], grid.shape))


def exact_source(
    kernel: Kernel, grid: Grid, functionals: list[Functional], tolerance: float, max_iterations: int
) -> Exact:
    limits = np.asarray(tolerance), np.asarray(max_iterations)
    return Exact(grid, tuple(closed_form_or_nodes(kernel, f, grid) for f in functionals), *limits)


def local_source(grid: Grid, functionals: list[Functional], p: int) -> Local:
    parts = []
    for functional in functionals:
        nodes = jax.tree.map(lambda a: np.asarray(a, float), functional.nodes(grid.spacing))
        n, per, d = nodes.x.shape
        start, offset = locate_stencils(grid, nodes.x.reshape(-1, d), p)
        parts.append(Stencils(nodes, start.reshape(n, per), offset.reshape(n, per, d)))
    return Local(grid, tuple(parts), p)


def table_limit() -> int:
    """How many weights are held at once."""
    device = jax.devices()[0]
    if device.platform == "cpu":
        return TABLE // 8
    return (device.memory_stats() or {}).get("bytes_limit", 3 * TABLE) // 3 // 8


def tabulated(
    source: Source, kernel: Kernel, whitening: Whitening, counts: tuple[int, ...], batches: int
) -> tuple[Table, Solves]:
    """All of a source's rows, in float64: what R' makes of them cancels too many digits for less."""
    w: list[Array] = []
    v, solves = np.zeros(sum(counts)), NO_SOLVES
    order = []
    for number, selection in enumerate(parts(counts, batches)):
        rows = compiled_rows(source, kernel, whitening, selection.index)
        used = np.flatnonzero(selection.mask)
        where = np.asarray(selection.flat(starts_of(counts)))[used]
        w.append(rows.w[used])
        order.append(where)
        v[where] = np.asarray(rows.v)[used]
        solves = solves.merged(Solves.of(rows, selection.mask), 1 / (number + 1))
    back, together = np.argsort(np.concatenate(order)), jnp.concatenate(w)
    if len(counts) > 1:  # of one block, they are in order
        together = together[back]
    return Table(ExactWeights(together, jnp.asarray(v)), None, starts_of(counts)), solves


@eqx.filter_jit
def compiled_rows(source: Source, kernel: Kernel, whitening: Whitening, index: tuple[Any, ...]) -> Rows:
    return source.rows(kernel, whitening, index)


def local_table(kernel: Kernel, grid: Grid, data: Data, p: int, dtype: Any) -> Table:
    """Local weights, rows padded to the longest so that any of them can be looked up."""
    rows = local_weight_rows(kernel, grid, data, p)
    counts, matrix = rows.csr.row_lengths, rows.matrix
    inside = np.arange(counts.max()) < counts[:, None]
    columns, values = np.zeros(inside.shape, np.int32), np.zeros(inside.shape, dtype)
    columns[inside], values[inside] = matrix.indices, matrix.data
    starts = starts_of(tuple(len(b.y) for b in data.blocks))
    return Table(LocalWeights.from_rows(rows, dtype), (jnp.asarray(columns), jnp.asarray(values)), starts)
