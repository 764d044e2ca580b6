"""Local weights: each node is interpolated from its stencil, the p^D grid points around it, by simple kriging.

The grid is regular and the kernel stationary, so the covariance K_s of one stencil serves every node, with no FFT and no
iteration: w = K_s^-1 k(s, x). A functional's row of W is the weighted sum of its nodes' weights, in which weights on the
same grid point are added. Derivatives differentiate k(s, x) at the node.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
from jaxtyping import Array, Float, Int

from hipgp.linalg.csr import CSR, RowChunk, concatenate_on_device, copy_rows_into
from hipgp.linalg.sparse import SparseMatrix
from hipgp.model.differences import differences
from hipgp.model.functionals import Functional, Functionals, LineIntegrals
from hipgp.model.grid import Grid
from hipgp.model.kernels import Kernel
from hipgp.model.nodes import Nodes, Segments, with_zeros
from hipgp.runtime.arrays import AnyArray, on_cpu, on_device
from hipgp.runtime.buckets import round_up_geometrically, round_up_to_power_of_two
from hipgp.runtime.precision import float64_available
from hipgp.runtime.threads import map_in_threads
from hipgp.weights.covariance import TransposedNodes, kernel_between_nodes, residual_variance
from hipgp.weights.operator import Weights
from hipgp.weights.residual_variance import residual_variances
from hipgp.weights.stencil_geometry import STENCIL, locate_stencils, stencil_offsets

NODE_CHUNK = 2**14  # nodes whose weights are computed at once
OUTPUT_PARTS = 8  # arrays into which entries are split, so that unused ones can be freed


class WeightRows(NamedTuple):
    """The matrix W in float64, and the residual variance of each row."""

    csr: CSR
    residual: Float[np.ndarray, " N"]

    @property
    def matrix(self) -> Any:
        """W as a SciPy matrix on the host."""
        return self.csr.to_scipy()


class LocalWeights(Weights):
    """W as a sparse matrix, laid out for products on the device."""

    sparse: SparseMatrix
    residual: Float[Array, " N"]

    @staticmethod
    def from_rows(rows: WeightRows, dtype: Any, store_transpose: bool = True) -> "LocalWeights":
        """Lay out W in `dtype`, and with `store_transpose` also W', which costs memory and makes its products fast."""
        sparse = SparseMatrix.from_csr(rows.csr, dtype, store_transpose)
        return LocalWeights(sparse=sparse, residual=on_device(rows.residual, dtype))

    def matmul(self, u: Float[Array, "... M"]) -> Float[Array, "... N"]:
        return self.sparse.matmul(u)

    def transpose_matmul(self, a: Float[Array, "... N"]) -> Float[Array, "... M"]:
        return self.sparse.transpose_matmul(a)


def check_stencil(p: int) -> None:
    """Raise a ValueError unless p is an even number of points, at least 2."""
    if p < 2 or p % 2:
        raise ValueError(f"stencil: expected an even number of points per axis, at least 2, got {p}")


def stencil_weights(
    kernel: Kernel,
    grid: Grid,
    p: int,
    offset: Float[AnyArray, "n D"],
    value: AnyArray | None,
    direction: AnyArray | None,
) -> tuple[Float[Array, "n P"], Float[Array, " n"]]:
    """Return weights of nodes at `offset` (in cells from their stencil's first point), and their residual variances."""
    spacing = jnp.asarray(grid.spacing)
    points = jnp.asarray(stencil_offsets(grid, p)[0]) * spacing
    k_stencil = kernel.evaluate(differences(points.T[:, :, None], points.T[:, None, :]))
    # Covariances of smooth kernels on a fine grid are singular to rounding; a jitter of this size affects no others.
    jitter = 10 * jnp.finfo(k_stencil.dtype).eps * jnp.trace(k_stencil)
    factor = jnp.linalg.cholesky(k_stencil + jitter * jnp.eye(len(points)))
    inverse = jax.scipy.linalg.solve_triangular(factor, jnp.eye(len(points)), lower=True)

    at = (offset * spacing).T
    node = None if direction is None else TransposedNodes(at[:, None], at, value, direction.T)
    cross = kernel_between_nodes(kernel, None, node)(differences(points.T[:, :, None], at[:, None, :]))
    variance = kernel_between_nodes(kernel, node, node)(jnp.zeros_like(at))
    w = inverse.T @ (inverse @ cross)  # two products with a small matrix take half the time of two solves
    explained, quadratic = jnp.sum(w * cross, axis=0), jnp.sum(w * (k_stencil @ w), axis=0)
    return w.T, residual_variance(variance, explained, quadratic)


@eqx.filter_jit
def _weights_at(
    kernel: Kernel,
    grid: Grid,
    p: int,
    x: Float[AnyArray, "n D"],
    value: AnyArray | None,
    direction: AnyArray | None,
) -> tuple[Int[Array, " n"], Float[Array, "n P"], Float[Array, " n"]]:
    """Return where the stencils of nodes at x begin, the nodes' weights and their residual variances."""
    begin, offset = locate_stencils(grid, x, p, jnp)
    return begin.astype(jnp.int32), *stencil_weights(kernel, grid, p, offset, value, direction)


@float64_available
def local_weight_rows(
    kernel: Kernel, grid: Grid, functionals: Sequence[Functional], p: int = STENCIL
) -> WeightRows:
    """Compute the W of these blocks of functionals from stencils of p points per axis, in float64, with residual variances."""
    check_stencil(p)
    blocks = [_local_block(kernel, grid, functional, p) for functional in functionals]
    if len(blocks) == 1:
        return blocks[0]
    stacked = scipy.sparse.vstack([block.matrix for block in blocks], format="csr")
    return WeightRows(CSR.from_scipy(stacked), np.concatenate([block.residual for block in blocks]))


def _local_block(kernel: Kernel, grid: Grid, functional: Functional, p: int) -> WeightRows:
    """Compute the rows and residual variances of one block of the data, in chunks of some thousand nodes."""
    if getattr(functional, "rule", "gauss") == "monte-carlo":  # nodes are drawn once, for all chunks
        drawn = functional.nodes(grid.spacing)
        functional = Functionals(drawn.x, drawn.weights)
    most = node_chunk_size()
    pieces = list(functional.pieces(grid.spacing, most))
    least = most if len(pieces) > 1 else 64
    if functional.single:
        return _block_of_single_nodes(kernel, grid, functional, p, pieces, least)
    merge_rows, concatenate = _merging_functions()
    independent = np.zeros(len(functional))

    def piece(rows: np.ndarray) -> Any:
        part, independent[rows] = merge_rows(kernel, grid, functional, p, rows, least)
        return part

    first = piece(pieces[0])  # compiles the program for the other chunks
    parts = [first, *map_in_threads(piece, ((rows,) for rows in pieces[1:]))]
    csr = concatenate(parts, len(functional), grid.size)
    return WeightRows(
        csr, residual_variances(kernel, grid, functional, csr.padded_rows, csr.row_lengths, independent)
    )


def _merging_functions() -> tuple[Callable[..., tuple[Any, np.ndarray]], Callable[..., CSR]]:
    """Choose the functions that merge and concatenate rows of several nodes: on the host, or on the GPU."""
    cpu = on_cpu()
    return (
        (_merged_rows_on_host, _concatenate_on_host)
        if cpu
        else (_merged_rows_on_device, concatenate_on_device)
    )


class _FlatNodes(NamedTuple):
    """The nodes of some functionals in one list, `rule_size` nodes each, padded at the end with nodes of weight zero."""

    x: Float[AnyArray, "n D"]
    value: Float[AnyArray, " n"] | None
    direction: Float[AnyArray, "n D"] | None
    weights: Float[AnyArray, " n"]
    rule_size: Int[AnyArray, ""]

    @staticmethod
    def of(nodes: Nodes, least: int) -> "_FlatNodes":
        """Flatten `nodes`, padded to `least` or to the next power of two, to limit recompilation."""
        rows, rule_size, ndim = nodes.x.shape
        missing = _padded_size(rows * rule_size, least) - rows * rule_size
        pad = lambda a: np.pad(a, [(0, missing)] + [(0, 0)] * (a.ndim - 1), mode="edge")
        spread = lambda a: None if a is None else pad(np.repeat(np.asarray(a, float), rule_size, axis=0))
        x = pad(np.asarray(nodes.x, float).reshape(-1, ndim))
        weights = np.pad(np.asarray(nodes.weights, float).ravel(), (0, missing))
        return _FlatNodes(x, spread(nodes.value), spread(nodes.direction), weights, np.asarray(rule_size))


def _padded_size(count: int, least: int) -> int:
    return max(least, round_up_to_power_of_two(count))


def _block_of_single_nodes(
    kernel: Kernel,
    grid: Grid,
    functional: Functional,
    p: int,
    pieces: list[Int[np.ndarray, " n"]],
    least: int,
) -> WeightRows:
    """Compute the rows of functionals of one node each, whose rows have as many entries as a stencil has points."""
    steps, count = stencil_offsets(grid, p)[1].astype(np.int32), len(functional)
    columns, values = np.empty((count, len(steps)), np.int32), np.empty((count, len(steps)))
    residual = np.empty(count)

    def launch(rows: np.ndarray) -> tuple[np.ndarray, AnyArray, Array, Array, Array]:
        x, value, direction, weights, _ = _FlatNodes.of(functional.nodes_of(rows, grid.spacing), least)
        return rows, weights, *_weights_at(kernel, grid, p, x, value, direction)

    def fill(rows: np.ndarray, weights: AnyArray, begin: Array, w: Array, v: Array) -> None:
        block, n = slice(rows[0], rows[-1] + 1), len(rows)
        np.add(np.asarray(begin)[:n, None], steps, out=columns[block])
        np.multiply(np.asarray(w)[:n], weights[:n, None], out=values[block])
        residual[block] = np.asarray(v)[:n] * weights[:n] ** 2

    for _ in map_in_threads(fill, map(launch, pieces)):
        pass
    kind = (
        np.int64 if values.size >= 2**31 else np.int32
    )  # SciPy copies starts whose type differs from the columns'
    starts = np.arange(count + 1, dtype=kind) * len(steps)
    return WeightRows(CSR(columns.ravel(), values.ravel(), starts, grid.size), residual)


def _merged_rows_on_host(
    kernel: Kernel, grid: Grid, functional: Functional, p: int, rows: Int[np.ndarray, " n"], least: int
) -> tuple[tuple[np.ndarray, Any], Float[np.ndarray, " n"]]:
    """Compute some rows of W with SciPy, and residual variances that take those of a functional's nodes as independent.

    Weights of one functional's nodes on the same grid point are added.
    """
    x, value, direction, weights, rule_size = _FlatNodes.of(functional.nodes_of(rows, grid.spacing), least)
    begin, w, v = _weights_at(kernel, grid, p, x, value, direction)
    n, rule_size = len(rows), int(rule_size)
    count = n * rule_size
    columns = np.asarray(begin)[:count, None] + stencil_offsets(grid, p)[1].astype(np.int32)
    values = np.asarray(w)[:count] * np.asarray(weights)[:count, None]
    starts = np.arange(n + 1, dtype=np.int32) * (rule_size * columns.shape[1])
    matrix = scipy.sparse.csr_array((values.ravel(), columns.ravel(), starts), shape=(n, grid.size))
    matrix.sum_duplicates()
    return (rows, matrix), np.sum((np.asarray(v) * weights**2)[:count].reshape(n, -1), axis=1)


def _merged_rows_on_device(
    kernel: Kernel, grid: Grid, functional: Functional, p: int, rows: Int[np.ndarray, " n"], least: int
) -> tuple[RowChunk, Float[np.ndarray, " n"]]:
    """Compute some rows of W on JAX's device and leave them there, with residual variances as `_merged_rows_on_host`.

    Entries are sorted by row and grid point, and those of one grid point are added.
    """
    if isinstance(functional, LineIntegrals) and functional.ruled:
        lines = functional.segments(grid.spacing, rows)
        size = _padded_size(len(rows) * lines.rule_size, least)
        filled = jax.tree.map(
            lambda a: with_zeros(np.asarray(a, float), round_up_geometrically(len(a) + 1, 8)), lines
        )
        found = _merged_lines(kernel, grid, p, filled, np.asarray(lines.rule_size), size)
        weights = lines.size[:, None] * lines.c
    else:
        nodes = functional.nodes_of(rows, grid.spacing)
        found, weights = (
            _merged(kernel, grid, p, _FlatNodes.of(nodes, least)),
            np.asarray(nodes.weights, float),
        )
    columns, values, ends, v = found
    starts = np.concatenate([[0], np.asarray(ends)[: len(rows)]])
    needed = -(-int(starts[-1]) // len(values[0]))  # merging leaves far fewer entries than there were
    independent = np.sum(np.asarray(v)[: weights.size].reshape(weights.shape) * weights**2, axis=1)
    return RowChunk(columns[:needed], values[:needed], rows, starts), independent


@eqx.filter_jit
def _merged_lines(
    kernel: Kernel, grid: Grid, p: int, lines: Segments, rule_size: Int[AnyArray, ""], size: int
) -> tuple[list[Array], list[Array], Array, Array]:
    """Call `_merged` on the nodes of lines that share a quadrature rule of `rule_size` nodes, padded to `size` nodes."""
    lines = jax.tree.map(jnp.asarray, lines)
    row, nth = jnp.divmod(jnp.arange(size), rule_size)
    pick = lambda a: jnp.take(
        a, row, axis=0, mode="clip"
    )  # rows beyond the last read a padding line of length zero
    x = pick(lines.start) + lines.t[nth, None] * pick(lines.delta)
    return _merged(kernel, grid, p, _FlatNodes(x, None, None, lines.c[nth] * pick(lines.size), rule_size))


@eqx.filter_jit
def _merged(
    kernel: Kernel, grid: Grid, p: int, nodes: _FlatNodes
) -> tuple[list[Array], list[Array], Array, Array]:
    """Return the columns and values of rows of W in OUTPUT_PARTS arrays, each row's end, and the nodes' residual variances."""
    rule_size, weights = nodes.rule_size, jnp.asarray(nodes.weights)
    begin, w, v = _weights_at(kernel, grid, p, nodes.x, nodes.value, nodes.direction)
    steps = jnp.asarray(stencil_offsets(grid, p)[1])
    node = jnp.arange(len(weights))
    key = (node // rule_size * grid.size + begin)[:, None] + steps
    key, entries = jax.lax.sort((key.ravel(), (w * weights[:, None]).ravel()), num_keys=1)
    new = jnp.concatenate([jnp.ones(1, bool), key[1:] != key[:-1]])
    first = jnp.nonzero(new, size=len(key), fill_value=len(key))[0]
    columns = (jnp.take(key, first, mode="clip") % grid.size).astype(jnp.int32)
    sums = _sum_equal_keys(key, entries, longest=jnp.max(jnp.diff(first, append=len(key))))
    values = jnp.take(sums, first, mode="clip")
    last = jnp.minimum((node + 1) * rule_size, len(node)) - 1
    ends = jnp.take(jnp.cumsum(new), last * len(steps) + len(steps) - 1)
    return jnp.split(columns, OUTPUT_PARTS), jnp.split(values, OUTPUT_PARTS), ends, v


def _sum_equal_keys(key: Int[Array, " e"], entries: Float[Array, " e"], longest: Array) -> Float[Array, " e"]:
    """Return for each entry the sum over it and the later entries of its key; equal keys are contiguous.

    Sums over 1, 2, 4, ... entries are built from one another, up to the `longest` run of equal keys.
    """

    def doubled(state: tuple[Array, Array]) -> tuple[Array, Array]:
        reach, total = state
        far = jnp.arange(len(key)) + reach
        same = (far < len(key)) & (jnp.take(key, far, mode="clip") == key)
        return 2 * reach, total + jnp.where(same, jnp.take(total, far, mode="clip"), 0.0)

    return jax.lax.while_loop(lambda state: state[0] < longest, doubled, (jnp.asarray(1), entries))[1]


def _concatenate_on_host(pieces: list[tuple[np.ndarray, Any]], count: int, size: int) -> CSR:
    """Concatenate pieces of a matrix, (row numbers, SciPy matrix) each, into one of `count` rows; frees pieces as it goes."""
    counts = np.zeros(count + 1, np.int64)
    for rows, piece in pieces:
        counts[rows + 1] = np.diff(piece.indptr)
    starts = np.cumsum(counts)
    starts = starts if starts[-1] >= 2**31 else starts.astype(np.int32)
    out = scipy.sparse.csr_array((count, size))
    out.indptr, out.indices, out.data = starts, np.empty(starts[-1], starts.dtype), np.empty(starts[-1])
    fill = lambda rows, piece: copy_rows_into(out, piece, starts[rows])
    for _ in map_in_threads(fill, (pieces.pop() for _ in range(len(pieces)))):
        pass
    return CSR.from_scipy(out)


def node_chunk_size() -> int:
    """Return the number of nodes whose weights are computed together: more on a GPU, to use it fully."""
    return NODE_CHUNK if on_cpu() else 16 * NODE_CHUNK
