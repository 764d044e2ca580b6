"""Local conditional weights: each node is read off the p^D grid points around it.

The grid is regular and the kernel stationary, so one small matrix serves every node, with no FFT and no solve:
w = K_s^-1 k(s, x), and the residual variance as for any weights (`weights.py`). Sums and derivatives of nodes follow.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
from jaxtyping import Array, Float, Int

from hipgp.covariance import Columns, differentiated
from hipgp.covariance import columns as columns_of
from hipgp.data import Data
from hipgp.functionals import Functional
from hipgp.grid import Grid
from hipgp.kernels import Kernel, differences
from hipgp.nodes import AnyArray, Nodes
from hipgp.precision import float64_available, on_device
from hipgp.sparse import Sparse
from hipgp.threads import in_threads
from hipgp.weights import Weights

STENCIL = 4  # default p: grid points per axis that each node sees
CHUNK = 2**14  # nodes whose weights are computed at once
ROWS_AT_ONCE = 64  # line and box functionals whose residual variances are computed side by side
PAIR_BUDGET = 1e7  # kernel evaluations spent on the residual variances of line and box functionals


class Stencilled(NamedTuple):
    """W as a CSR matrix on the host, in float64, and residual variances."""

    matrix: Any
    residual: Float[np.ndarray, " N"]


class LocalWeights(Weights):
    """W as a sparse matrix."""

    sparse: Sparse
    residual: Float[Array, " N"]

    @staticmethod
    def of(rows: Stencilled, dtype: Any, often: bool = True) -> "LocalWeights":
        """`often`: whether products with W' are as many as with W."""
        sparse = Sparse.from_scipy(rows.matrix, dtype, often)
        return LocalWeights(sparse=sparse, residual=on_device(rows.residual, dtype))

    def matmul(self, u: Float[Array, "... M"]) -> Float[Array, "... N"]:
        return self.sparse.matmul(u)

    def transpose_matmul(self, a: Float[Array, "... N"]) -> Float[Array, "... M"]:
        return self.sparse.transpose_matmul(a)


def stencil_shape(grid: Grid, p: int) -> tuple[int, ...]:
    return tuple(min(p, n) for n in grid.shape)


def stencil_steps(grid: Grid, p: int) -> tuple[np.ndarray, np.ndarray]:
    """From a stencil's first point to each of its points: in cells per axis, and in the grid's flat order."""
    axes = [np.arange(w) for w in stencil_shape(grid, p)]
    steps = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, grid.ndim)
    return steps, np.asarray(np.ravel_multi_index(tuple(steps.T), grid.shape))


def place(grid: Grid, x: Float[AnyArray, "n D"], p: int, xp: Any = np) -> tuple[Any, Any]:
    """For each node: where its stencil begins in the grid's flat order, and its offset from there in cells.

    `xp` is NumPy or JAX's. Both find the same for a place on a grid line: XLA would make a product of a quotient.
    """
    position = (x - xp.asarray(grid.origin)) * xp.asarray(1 / np.asarray(grid.spacing))
    width = np.asarray(stencil_shape(grid, p))
    first = xp.clip(xp.floor(position) - (width // 2 - 1), 0, np.asarray(grid.shape) - width)
    strides = np.cumprod((1, *grid.shape[:0:-1]))[::-1]
    begin = sum(first[:, axis].astype(int) * int(stride) for axis, stride in enumerate(strides))
    return begin, position - first


def stencil_weights(
    kernel: Kernel,
    grid: Grid,
    p: int,
    offset: Float[AnyArray, "n D"],
    value: AnyArray | None,
    direction: AnyArray | None,
) -> tuple[Float[Array, "n P"], Float[Array, " n"]]:
    """Weights of nodes at `offset` (in cells from their stencil's first point) and their residual variances."""
    spacing = jnp.asarray(grid.spacing)
    points = jnp.asarray(stencil_steps(grid, p)[0]) * spacing
    k_stencil = kernel.evaluate(differences(points.T[:, :, None], points.T[:, None, :]))
    # Smooth kernels on a fine grid are singular to rounding; this much moves nothing else.
    jitter = 10 * jnp.finfo(k_stencil.dtype).eps * jnp.trace(k_stencil)
    factor = jnp.linalg.cholesky(k_stencil + jitter * jnp.eye(len(points)))
    inverse = jax.scipy.linalg.solve_triangular(factor, jnp.eye(len(points)), lower=True)

    at = (offset * spacing).T
    node = None if direction is None else Columns(at[:, None], at, value, direction.T)
    cross = differentiated(kernel, None, node)(differences(points.T[:, :, None], at[:, None, :]))
    variance = differentiated(kernel, node, node)(jnp.zeros_like(at))
    w = inverse.T @ (inverse @ cross)  # two products with a small matrix: half the time of two solves
    residual = variance - 2 * jnp.sum(w * cross, axis=0) + jnp.sum(w * (k_stencil @ w), axis=0)
    return w.T, jnp.maximum(residual, 0.0)


@eqx.filter_jit
def _placed_weights(
    kernel: Kernel,
    grid: Grid,
    p: int,
    x: Float[AnyArray, "n D"],
    value: AnyArray | None,
    direction: AnyArray | None,
) -> tuple[Int[Array, " n"], Float[Array, "n P"], Float[Array, " n"]]:
    """Where the stencils of nodes at x begin, their weights and residual variances."""
    begin, offset = place(grid, x, p, jnp)
    return begin.astype(jnp.int32), *stencil_weights(kernel, grid, p, offset, value, direction)


@float64_available
def local_weights(
    kernel: Kernel, grid: Grid, data: Data, p: int = STENCIL, dtype: Any = np.float64
) -> LocalWeights:
    """W from p^D-point stencils, computed in float64 and kept in `dtype`."""
    return LocalWeights.of(stencilled(kernel, grid, data, p), dtype)


@float64_available
def stencilled(kernel: Kernel, grid: Grid, data: Data, p: int = STENCIL) -> Stencilled:
    """W from p^D-point stencils."""
    if p < 2 or p % 2:
        raise ValueError(f"stencil: expected an even number of points per axis, at least 2, got {p}")
    blocks = [_local_block(kernel, grid, block.functional, p) for block in data.blocks]
    matrix = blocks[0][0] if len(blocks) == 1 else scipy.sparse.vstack([m for m, _ in blocks], format="csr")
    return Stencilled(matrix, np.concatenate([v for _, v in blocks]))


def _local_block(kernel: Kernel, grid: Grid, functional: Functional, p: int) -> tuple[Any, np.ndarray]:
    """One block's rows and residual variances, a few thousand nodes at a time."""
    launched = _weights_of_pieces(kernel, grid, functional, p)
    if functional.single:
        return _block_of_single(grid, p, len(functional), launched)
    pieces, alone = [], np.zeros(len(functional))
    for rows, piece, own in in_threads(functools.partial(_piece, grid, p), launched):
        pieces.append((rows, piece))
        alone[rows] = own
    matrix = _assembled(pieces, len(functional), grid.size)
    counts = np.diff(matrix.indptr)
    return matrix, residual_of_sums(kernel, grid, functional, lambda rows: matrix[rows], counts, alone)


def _block_of_single(
    grid: Grid, p: int, count: int, launched: Iterator[tuple[np.ndarray, Nodes, Array, Array, Array]]
) -> tuple[Any, np.ndarray]:
    """Rows of functionals of one node each, which all have as many entries, and come in order."""
    steps = stencil_steps(grid, p)[1].astype(np.int32)
    columns, values = np.empty((count, len(steps)), np.int32), np.empty((count, len(steps)))
    residual = np.empty(count)

    def fill(rows: np.ndarray, part: Nodes, begin: Array, w: Array, v: Array) -> None:
        here, own = slice(rows[0], rows[-1] + 1), np.asarray(part.weights, float)
        np.add(np.asarray(begin)[: len(rows), None], steps, out=columns[here])
        np.multiply(np.asarray(w)[: len(rows)], own, out=values[here])
        residual[here] = np.asarray(v)[: len(rows)] * own[:, 0] ** 2

    for _ in in_threads(fill, launched):
        pass
    kind = np.int64 if values.size >= 2**31 else np.int32  # of another kind than columns, starts are copied
    starts = np.arange(count + 1, dtype=kind) * len(steps)
    matrix = scipy.sparse.csr_array((values.ravel(), columns.ravel(), starts), shape=(count, grid.size))
    return matrix, residual


def _piece(
    grid: Grid, p: int, rows: np.ndarray, part: Nodes, begin: Array, w: Array, v: Array
) -> tuple[np.ndarray, Any, np.ndarray]:
    """Some rows of W, and their residual variances as if nodes had independent ones."""
    n, per = part.x.shape[:2]
    weight = np.asarray(part.weights, float)
    columns = np.asarray(begin)[: n * per, None] + stencil_steps(grid, p)[1].astype(np.int32)
    values = np.asarray(w)[: len(columns)] * weight.reshape(-1, 1)
    starts = np.arange(n + 1, dtype=np.int32) * (per * columns.shape[1])
    piece = scipy.sparse.csr_array((values.ravel(), columns.ravel(), starts), shape=(n, grid.size))
    piece.sum_duplicates()  # nodes that see the same grid point
    return rows, piece, np.sum(np.asarray(v)[: len(columns)].reshape(n, per) * weight**2, axis=1)


def _assembled(pieces: list[tuple[np.ndarray, Any]], count: int, size: int) -> Any:
    """One matrix of `count` rows out of pieces of it, which are let go one by one."""
    counts = np.zeros(count + 1, np.int64)
    for rows, piece in pieces:
        counts[rows + 1] = np.diff(piece.indptr)
    starts = np.cumsum(counts)
    starts = starts if starts[-1] >= 2**31 else starts.astype(np.int32)
    columns, values = np.empty(starts[-1], np.int32), np.empty(starts[-1])
    while pieces:
        rows, piece = pieces.pop()
        at = np.repeat(starts[rows] - piece.indptr[:-1], np.diff(piece.indptr)) + np.arange(piece.nnz)
        columns[at], values[at] = piece.indices, piece.data
    return scipy.sparse.csr_array((values, columns, starts), shape=(count, size))


def nodes_at_once() -> int:
    """How many nodes' weights are computed together: more where there is a GPU to fill."""
    return CHUNK if jax.default_backend() == "cpu" else 4 * CHUNK


def _weights_of_pieces(
    kernel: Kernel, grid: Grid, functional: Functional, p: int
) -> Iterator[tuple[np.ndarray, Nodes, Array, Array, Array]]:
    """Rows, their nodes, and of these the weights, padded so that few shapes are compiled: all to one power of two."""
    size, most = 64, nodes_at_once()
    for rows, part in functional.pieces(grid.spacing, most):
        n, per, ndim = part.x.shape
        size = max(min(size, most), 1 << (n * per - 1).bit_length())  # one functional may have more by itself
        missing = size - n * per
        pad = lambda a, k=missing: np.pad(a, [(0, k)] + [(0, 0)] * (a.ndim - 1), mode="edge")
        spread = lambda a, per=per, pad=pad: (
            None if a is None else pad(np.repeat(np.asarray(a, float), per, axis=0))
        )
        x = pad(np.asarray(part.x, float).reshape(-1, ndim))
        yield rows, part, *_placed_weights(kernel, grid, p, x, spread(part.value), spread(part.direction))


def residual_of_sums(
    kernel: Kernel,
    grid: Grid,
    functional: Functional,
    matrix: Callable[[np.ndarray], Any],
    counts: np.ndarray,
    alone: np.ndarray,
) -> np.ndarray:
    """v_n = k** - 2 w'k* + w'K w for functionals of several nodes; `matrix` gives some rows of W, about `counts` long.

    Costs (row length)^2 kernel evaluations each. Past PAIR_BUDGET in all, it is computed for as many functionals as
    fit, spread evenly over the row lengths, and its ratio to `alone` (v if the nodes' residuals were independent) is
    interpolated in the row length for the rest: v is then right in the mean, and for one ray to 5 to 10%.
    """
    n = len(counts)
    order = np.argsort(counts, kind="stable")
    cost = np.sum(2.0 * counts.astype(float) ** 2)
    stride = max(1, int(np.ceil(cost / PAIR_BUDGET)))
    chosen = order[::stride] if stride > 1 else order
    parts = []
    for begin in range(0, len(chosen), ROWS_AT_ONCE):
        some = chosen[begin : begin + ROWS_AT_ONCE]
        columns, values = _padded(matrix(some))
        grid_nodes = (
            np.asarray(grid.origin) + np.stack(np.unravel_index(columns, grid.shape), -1) * grid.spacing
        )
        part = jax.tree.map(lambda a: np.asarray(a, float), functional.nodes_of(some, grid.spacing))
        missing = min(ROWS_AT_ONCE, max(16, 1 << (len(some) - 1).bit_length())) - len(some)
        pad = lambda a, k=missing: np.pad(a, [(0, k)] + [(0, 0)] * (a.ndim - 1), mode="edge")
        v = _residuals(kernel, jax.tree.map(pad, _filled_up(part)), pad(grid_nodes), pad(values))
        parts.append((v, len(some)))  # not waited for: the next is prepared meanwhile
    found = np.concatenate([np.asarray(v)[:count] for v, count in parts])
    if stride == 1:
        out = np.zeros(n)
        out[chosen] = found
        return out
    ratio = np.divide(found, alone[chosen], out=np.zeros(len(chosen)), where=alone[chosen] > 0)
    smooth = np.convolve(np.pad(ratio, 2, mode="edge"), np.ones(5) / 5, mode="valid")
    out = alone * np.interp(np.argsort(order), np.arange(0, n, stride), smooth)
    out[chosen] = found
    return out


def _few_sizes(size: int) -> int:
    """The next of 16, 64, 256, ...: each new size is a compilation."""
    return int(max(16, 4 ** np.ceil(np.log2(max(size, 1)) / 2)))


def _filled_up(nodes: Nodes) -> Nodes:
    """With further nodes that have no weight, up to one of a few sizes."""
    missing = _few_sizes(nodes.x.shape[1]) - nodes.x.shape[1]
    x = np.pad(nodes.x, ((0, 0), (0, missing), (0, 0)), mode="edge")
    return Nodes(x, np.pad(nodes.weights, ((0, 0), (0, missing))), nodes.value, nodes.direction)


def _padded(matrix: Any) -> tuple[np.ndarray, np.ndarray]:
    """Columns and values of each row, filled up with zeros to one of a few sizes."""
    begin, count = matrix.indptr[:-1], np.diff(matrix.indptr)
    slot = np.arange(_few_sizes(count.max()))
    at = np.minimum(begin[:, None] + slot, matrix.nnz - 1)
    used = slot < count[:, None]
    return np.where(used, matrix.indices[at], 0), np.where(used, matrix.data[at], 0.0)


@eqx.filter_jit
def _residuals(kernel: Kernel, nodes: Nodes, points: AnyArray, w: AnyArray) -> Array:
    """Many rows side by side; one fused pass per grid point and per node."""
    own = columns_of(nodes)
    on_grid = Columns(jnp.transpose(points, (2, 1, 0)), jnp.asarray(w).T, None, None)
    with_both = _summed(kernel, on_grid, on_grid) - 2 * _summed(kernel, on_grid, own)
    found = jnp.sum(own.weights * _summed(kernel, own, own), axis=0)
    return jnp.maximum(found + jnp.sum(on_grid.weights * with_both, axis=0), 0.0)


def _summed(kernel: Kernel, a: Columns, b: Columns) -> Float[Array, "Q N"]:
    """The covariance of each node of `a` with the whole of `b`, functional by functional."""
    k, at, across = differentiated(kernel, a, b), list(a.x), list(b.x)
    add = lambda q, total: total + b.weights[q] * k(differences(at, [x[q] for x in across]))
    return jax.lax.fori_loop(0, b.weights.shape[0], add, jnp.zeros_like(a.weights))
