"""Matrix-free weights of line integrals: W is recomputed in each product and never stored.

A line of n cells has n nodes of equal weight (the midpoint rule). Each node is interpolated multilinearly from the 2^D
corners of its cell, times a gain, because between grid points the interpolated field varies less than the field itself.
With t the multilinear shares of the corners, k their covariances with the node and K_s their covariance matrix, the
least-squares gain is t'k / t'K_s t. A polynomial of the place within the cell is fitted to it once.

A line takes ten numbers, while a stored row takes a thousand and more: this is for millions of lines through tens of
millions of cells. Each product costs 2^D gathers a node, and its transpose as many scatter-adds, which a GPU does well. If
W fits into memory, local weights (`weights/stencils.py`) are as accurate and faster. Residual variances compare these
weights with the exact line integrals; they are computed for some lines and interpolated in the length of the others.
"""

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
from jaxtyping import Array, Float, Int

from hipgp.linalg.csr import CSR, ranges
from hipgp.model.differences import kernel_at_differences
from hipgp.model.functionals import Functional, LineIntegrals
from hipgp.model.grid import Grid
from hipgp.model.kernels import Kernel
from hipgp.runtime.precision import float64_available
from hipgp.weights.operator import Weights
from hipgp.weights.residual_variance import residual_variances

LINE_BATCHES = 24  # batches of lines of similar length
SMALLEST_BATCH = 64  # lines
NODES_PER_ITERATION = 4  # of the loop along a line, unrolled


class Walk(NamedTuple):
    """The nodes of lines: each line's first node in cells, its step from node to node, the weight of a node, their number."""

    first: Float[np.ndarray, "N D"]
    step: Float[np.ndarray, "N D"]
    weight: Float[np.ndarray, " N"]
    counts: Int[np.ndarray, " N"]


class MatrixFreeWeights(Weights):
    """W of straight lines in R batches of n lines, longest first; the last batch is padded with empty lines."""

    first: Float[Array, "R D n"]  # the first node, in cells from the grid's origin
    step: Float[Array, "R D n"]  # from one node to the next
    weight: Float[Array, "R n"]  # of each node
    counts: Int[Array, "R n"]  # nodes
    gain: Float[Array, " b"]
    order: Int[Array, " Rn"]  # of the observations in the arrays above
    inverse_order: Int[Array, " N"]
    residual: Float[Array, " N"]
    shape: tuple[int, ...] = eqx.field(static=True)

    @staticmethod
    def of(
        walk: Walk,
        gain: Float[np.ndarray, " b"],
        residual: Float[np.ndarray, " N"],
        shape: tuple[int, ...],
        dtype: Any,
    ) -> "MatrixFreeWeights":
        """Lay out the nodes of lines through a grid of this shape."""
        first, step, weight, counts = walk
        order = np.lexsort((*np.round(8 * step.T).astype(np.int8), -counts))  # like directions together
        batches = min(LINE_BATCHES, -(-len(order) // SMALLEST_BATCH))
        missing = -len(order) % batches
        pad = lambda a: np.pad(a[order], [(0, missing)] + [(0, 0)] * (a.ndim - 1)).reshape(
            batches, -1, *a.shape[1:]
        )
        return MatrixFreeWeights(
            first=jnp.asarray(np.swapaxes(pad(first), 1, 2), dtype),
            step=jnp.asarray(np.swapaxes(pad(step), 1, 2), dtype),
            weight=jnp.asarray(pad(weight), dtype),
            counts=jnp.asarray(pad(counts), jnp.int32),
            gain=jnp.asarray(gain, dtype),
            order=jnp.asarray(np.pad(order, (0, missing)), jnp.int32),
            inverse_order=jnp.asarray(np.argsort(order), jnp.int32),
            residual=jnp.asarray(residual, dtype),
            shape=shape,
        )

    @property
    def walk(self) -> Walk:
        """The nodes of the lines, on the host and in the order of the observations."""
        place = np.asarray(self.inverse_order)
        along = lambda a: np.swapaxes(np.asarray(a, float), 1, 2).reshape(-1, len(self.shape))[place]
        flat = lambda a: np.asarray(a).ravel()[place]
        return Walk(along(self.first), along(self.step), flat(self.weight), flat(self.counts))

    def matmul(self, u: Float[Array, "... M"]) -> Float[Array, "... N"]:
        sides = u.reshape(-1, u.shape[-1]).T  # one gather reads the values of all vectors at a point

        def one_batch(_: None, batch: tuple[Array, ...]) -> tuple[None, Array]:
            def add(at: Array, share: Array, total: Array) -> Array:
                return total + share[:, None] * jnp.take(sides, at, axis=0, mode="clip")

            *lines, weight = batch
            zero = jnp.zeros((len(weight), sides.shape[1]), u.dtype)
            return None, weight[:, None] * self._along(lines, add, zero)

        batches = (self.first, self.step, self.counts, self.weight)
        lines = jax.lax.scan(one_batch, None, batches)[1].reshape(-1, sides.shape[1])
        return lines[self.inverse_order].T.reshape(*u.shape[:-1], -1)

    def transpose_matmul(self, a: Float[Array, "... N"]) -> Float[Array, "... M"]:
        lines = a.reshape(-1, a.shape[-1]).T[self.order] * self.weight.reshape(-1, 1)

        def one_batch(total: Array, batch: tuple[Array, ...]) -> tuple[Array, None]:
            *lines, values = batch

            def add(at: Array, share: Array, total: Array) -> Array:
                return total.at[at].add(share[:, None] * values, mode="promise_in_bounds")

            return self._along(lines, add, total), None

        zero = jnp.zeros((int(np.prod(self.shape)), lines.shape[1]), a.dtype)
        batches = (self.first, self.step, self.counts, lines.reshape(*self.weight.shape, -1))
        return jax.lax.scan(one_batch, zero, batches)[0].T.reshape(*a.shape[:-1], -1)

    def _along(self, lines: list[Array], add: Any, total: Array) -> Array:
        """Fold `add` over the corners and shares of every node: all lines in parallel, node by node."""
        first, step, counts = lines

        def visit(turn: Array, total: Array) -> Array:
            for i in range(NODES_PER_ITERATION):
                q = turn * NODES_PER_ITERATION + i
                place = first + q.astype(first.dtype) * step
                corner = [
                    jnp.clip(jnp.floor(p).astype(jnp.int32), 0, n - 2)
                    for p, n in zip(place, self.shape, strict=True)
                ]
                within = [p - c for p, c in zip(place, corner, strict=True)]
                gain = sum(c * b for c, b in zip(self.gain, _basis(within), strict=True))
                for at, share in _corners(corner, within, self.shape, jnp.where(q < counts, gain, 0.0)):
                    total = add(at, share, total)
            return total

        return jax.lax.fori_loop(0, -(-jnp.max(counts) // NODES_PER_ITERATION), visit, total)


def _corners(
    corner: list[Any], within: list[Any], shape: tuple[int, ...], gain: Any
) -> list[tuple[Any, Any]]:
    """Return the 2^D corners of a cell in the grid's flat order, with their multilinear shares times the gain."""
    strides = [int(np.prod(shape[axis + 1 :])) for axis in range(len(shape))]
    flat = sum(c * s for c, s in zip(corner, strides, strict=True))
    out = []
    for upper in itertools.product((0, 1), repeat=len(shape)):
        share = gain
        for w, up in zip(within, upper, strict=True):
            share = share * (w if up else 1 - w)
        out.append((flat + sum(up * s for up, s in zip(upper, strides, strict=True)), share))
    return out


def _basis(within: list[Any]) -> list[Any]:
    """Return the polynomials in s = t (1 - t), t the place in a cell per axis: they are symmetric under reflections."""
    s = [t * (1 - t) for t in within]
    pairs = [a * b for a, b in itertools.combinations_with_replacement(s, 2)]
    return [0 * s[0] + 1, *s, *pairs, *(a * b * c for a, b, c in itertools.combinations(s, 3))]


def _interpolation_gain(kernel: Kernel, grid: Grid) -> Float[np.ndarray, " b"]:
    """Return the coefficients of the gain t'k / t'K_s t in `_basis`, fitted at Gauss-Legendre places in a cell."""
    axis = (np.polynomial.legendre.leggauss(8)[0] + 1) / 2
    within = np.stack(np.meshgrid(*[axis] * grid.ndim, indexing="ij"), axis=-1).reshape(-1, grid.ndim)
    upper = np.array(list(itertools.product((0, 1), repeat=grid.ndim)))
    shares = np.prod(np.where(upper, within[:, None], 1 - within[:, None]), axis=2)
    between = lambda d: kernel_at_differences(kernel, (d * np.asarray(grid.spacing)).reshape(-1, grid.ndim))
    cross = between(upper[None] - within[:, None]).reshape(shares.shape)
    corners = between(upper[:, None] - upper[None]).reshape(len(upper), -1)
    gain = np.sum(shares * cross, axis=1) / np.sum(shares * (shares @ corners), axis=1)
    return np.asarray(np.linalg.lstsq(np.stack(_basis(list(within.T)), axis=1), gain, rcond=None)[0])


@float64_available
def matrix_free_weights(
    kernel: Kernel, grid: Grid, functionals: Sequence[Functional], dtype: Any = np.float64
) -> MatrixFreeWeights:
    """Compute the matrix-free W of blocks that are all line integrals; a ValueError otherwise."""
    lines, gain = _lines(functionals), _interpolation_gain(kernel, grid)
    first, step, weight, counts = _midpoint_nodes(grid, lines)
    stored = lambda some: _sparse_rows(grid, gain, first[some], step[some], weight[some], counts[some])
    rows = lambda some: CSR.from_scipy(stored(some)).padded_rows(np.arange(len(some)))
    residual = residual_variances(
        kernel, grid, lines, rows, 2 ** (grid.ndim - 1) * counts, counts * weight**2
    )
    return MatrixFreeWeights.of(Walk(first, step, weight, counts), gain, residual, grid.shape, dtype)


def stored_bytes(grid: Grid, functionals: Sequence[Functional], p: int, dtype: Any) -> float:
    """Estimate how many bytes stored local weights of p points per axis take if all are lines; 0 otherwise."""
    if not all(isinstance(f, LineIntegrals) for f in functionals):
        return 0.0
    cells = sum(np.sum(_midpoint_nodes(grid, f)[3]) for f in functionals)  # type: ignore[arg-type]
    return 1.3 * p ** (grid.ndim - 1) * cells * 2 * (np.dtype(dtype).itemsize + 4)  # by rows and by columns


def _lines(functionals: Sequence[Functional]) -> LineIntegrals:
    """Return all blocks as one `LineIntegrals`."""
    for f in functionals:
        if not isinstance(f, LineIntegrals) or f.rule != "gauss" or f.nodes_per_ray is not None:
            raise ValueError(
                'weights: "matrix-free" expected LineIntegrals alone, with the default quadrature, got '
                f'{type(f).__name__}; use weights="local"'
            )
    if len(functionals) == 1:
        return functionals[0]  # type: ignore[return-value]
    if len({f.average for f in functionals}) > 1:  # type: ignore[attr-defined]
        raise ValueError(
            'weights: "matrix-free" takes integrals or averages along lines, not both; use weights="local"'
        )
    start, end = (np.concatenate([getattr(f, name) for f in functionals]) for name in ("start", "end"))
    return LineIntegrals(start, end, functionals[0].average)  # type: ignore[attr-defined]


def _midpoint_nodes(
    grid: Grid, lines: LineIntegrals
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return each line's first node in cells, its step from node to node, the weight of a node, and the number of nodes."""
    start = (np.asarray(lines.start, float) - np.asarray(grid.origin)) / np.asarray(grid.spacing)
    whole = (np.asarray(lines.end, float) - np.asarray(lines.start, float)) / np.asarray(grid.spacing)
    counts = np.maximum(1, np.ceil(np.linalg.norm(whole, axis=1))).astype(int)
    step = whole / counts[:, None]
    size = np.ones(len(counts)) if lines.average else np.asarray(lines.length, float)
    return start + 0.5 * step, step, size / counts, counts


def _sparse_rows(
    grid: Grid, gain: np.ndarray, first: np.ndarray, step: np.ndarray, weight: np.ndarray, counts: np.ndarray
) -> Any:
    """Return the rows of W of these lines as a SciPy matrix."""
    line, nth = ranges(np.zeros_like(counts), counts)
    place = first[line] + nth[:, None] * step[line]
    corner = np.clip(np.floor(place).astype(int), 0, np.asarray(grid.shape) - 2)
    within = list((place - corner).T)
    gains = np.stack(_basis(within), axis=1) @ gain
    corners = _corners(list(corner.T), within, grid.shape, gains)
    at, share = (np.concatenate(c) for c in zip(*corners, strict=True))
    lines = np.tile(line, len(corners))
    matrix = scipy.sparse.coo_array(
        (share * weight[lines], (lines, at)), shape=(len(counts), grid.size)
    ).tocsr()
    matrix.sum_duplicates()
    return matrix
