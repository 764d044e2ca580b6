"""Residuals of points held jointly within each grid cell: the partially independent conditional (PIC).

Given the grid's values u, a point has the residual f(x) - w'u. The residuals of two points with the same stencil s have the
covariance V = k(x, x') - w'K_s w'; those of points in different cells count as independent (Snelson and Ghahramani, AISTATS
2007). Adding the residual variances alone to the noise is FITC; VFE leaves them out of the noise and subtracts them from the
bound. PIC matters if the field varies within a cell: the points of a cell then measure the field's residual there, and
predict it at other places of the cell.
"""

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import equinox as eqx
import numpy as np
import scipy.sparse
from jaxtyping import Array, Bool, Float, Int

from hipgp.linalg.csr import CSR, ranges
from hipgp.linalg.sparse import SlicedEllpack, sliced_ellpack
from hipgp.model.differences import kernel_at_differences
from hipgp.model.grid import Grid
from hipgp.model.kernels import Kernel
from hipgp.runtime.buckets import round_up_to_power_of_two
from hipgp.weights.stencil_geometry import stencil_offsets

LARGEST_BLOCK = 32  # points in a block; the points of a cell with more are split in the order of the data
PAIRS_AT_ONCE = 2**20
PAIRS_PER_TARGET = 2**8  # least number of pairs that a target is counted with
JITTER = 1e-10  # relative to the variance: points at the same place have equal residuals


class ResidualCovariance(eqx.Module):
    """The residual covariance V of all data, and a root of it, root root' = V, for random draws."""

    covariance: SlicedEllpack
    root: SlicedEllpack

    def draw(self, white: Float[Array, "s N"]) -> Float[Array, "s N"]:
        """Turn white noise into draws of the residuals."""
        return self.root.matmul(white)


class _SameSizeBlocks(NamedTuple):
    """All blocks of s points: the points of each, and the covariances of their residuals."""

    members: Int[np.ndarray, "n s"]
    covariance: Float[np.ndarray, "n s s"]

    @property
    def regularised(self) -> Float[np.ndarray, "n s s"]:
        """The covariances with a jitter that makes them positive definite to rounding."""
        largest = np.max(np.diagonal(self.covariance, axis1=1, axis2=2), axis=1)
        return self.covariance + JITTER * largest[:, None, None] * np.eye(self.members.shape[1])


class ResidualRegression(NamedTuple):
    """Residuals of T targets given those of the data: covariances, regression coefficients, and the conditional variance."""

    cross: Any  # (T, N), sparse
    coefficients: Any
    variance: Float[np.ndarray, " T"]


class _InterpolatedPoints(NamedTuple):
    """Points with the cell that each lies in, and their weights on the grid."""

    x: Float[np.ndarray, "N D"]
    cell: Int[np.ndarray, " N"]
    w: Float[np.ndarray, "N P"]
    k_w: Float[np.ndarray, "N P"]  # K_s w, the covariances of w'u with the stencil


class CellBlocks(NamedTuple):
    """The data in blocks with jointly Gaussian residuals: the points of one cell, or of a part of a crowded cell."""

    kernel: Kernel
    grid: Grid
    p: int
    data: _InterpolatedPoints
    block: Int[np.ndarray, " N"]  # of each point
    order: Int[np.ndarray, " N"]  # points, block after block
    starts: Int[np.ndarray, " B+1"]

    def blocks(self) -> list[_SameSizeBlocks]:
        """Return all blocks, grouped by size."""
        sizes = np.diff(self.starts)
        return [self._block(np.flatnonzero(sizes == size)) for size in np.unique(sizes)]

    def padded_members(self, most: int) -> Iterator[tuple[Int[np.ndarray, "n s"], Bool[np.ndarray, "n s"]]]:
        """Yield the points of the blocks, some `most` at a time, and which of them are no padding.

        Numbers and sizes of blocks are padded to powers of two, to limit recompilation.
        """
        sizes = np.diff(self.starts)
        widths = np.array([round_up_to_power_of_two(int(size)) for size in sizes])
        for width in np.unique(widths):
            some, step = np.flatnonzero(widths == width), max(1, most // int(width))
            for begin in range(0, len(some), step):
                part = some[begin : begin + step]
                part = np.pad(part, (0, round_up_to_power_of_two(len(part)) - len(part)), mode="edge")
                real = np.arange(len(part)) < len(some) - begin
                place = np.arange(width) + np.zeros((len(part), 1), int)
                used = (place < sizes[part][:, None]) & real[:, None]
                yield self.order[self.starts[part][:, None] + np.where(used, place, 0)], used

    def _block(self, some: Int[np.ndarray, " n"]) -> _SameSizeBlocks:
        """Return the blocks numbered `some`, which have one size."""
        size = int(self.starts[some[0] + 1] - self.starts[some[0]])
        members = self.order[self.starts[some][:, None] + np.arange(size)]
        step = max(1, PAIRS_AT_ONCE // size**2)
        parts = [self._matrices(members[i : i + step]) for i in range(0, len(members), step)]
        return _SameSizeBlocks(members, np.concatenate(parts))

    def _matrices(self, members: Int[np.ndarray, "n s"]) -> Float[np.ndarray, "n s s"]:
        """Return the covariances of the residuals of each row of points."""
        n, size = members.shape
        x, w, g = (a[members] for a in (self.data.x, self.data.w, self.data.k_w))
        gap = (x[:, :, None] - x[:, None]).reshape(n * size**2, -1)
        matrix = kernel_at_differences(self.kernel, gap).reshape(n, size, size) - g @ np.swapaxes(w, 1, 2)
        return (matrix + np.swapaxes(matrix, 1, 2)) / 2

    def covariance(self, dtype: Any) -> ResidualCovariance:
        """Return V and its root as sparse operators of `dtype`."""
        found = self.blocks()
        roots = [_SameSizeBlocks(b.members, np.linalg.cholesky(b.regularised)) for b in found]
        n = len(self.order)
        return ResidualCovariance(
            *(sliced_ellpack(CSR.from_scipy(_block_diagonal(m, n)), dtype) for m in (found, roots))
        )

    def cross(self, x: Float[np.ndarray, "T D"], matrix: Any) -> Any:
        """Return the covariances of targets' residuals with those of the data, (T, N), sparse; `matrix` is the targets' W.

        In a crowded cell a target belongs to the block of the point nearest to it.
        """
        return scipy.sparse.vstack([part for part, _ in self._parts(x, matrix)], format="csr")

    def regression(self, x: Float[np.ndarray, "T D"], matrix: Any) -> ResidualRegression:
        """Regress the residuals of targets on those of the data; `matrix` is the targets' W."""
        parts = [(cross, *self._regression(cross, targets)) for cross, targets in self._parts(x, matrix)]
        cross, coefficients, variance = zip(*parts, strict=True)
        stacked = [scipy.sparse.vstack(a, format="csr") for a in (cross, coefficients)]
        return ResidualRegression(stacked[0], stacked[1], np.concatenate(variance))

    def _parts(self, x: Float[np.ndarray, "T D"], matrix: Any) -> Iterator[tuple[Any, _InterpolatedPoints]]:
        """Yield the rows of `cross` with their targets, in chunks of targets."""
        everything = _interpolated(self.kernel, self.grid, self.p, x, matrix)
        cells = self.data.cell[self.order]  # ascending
        first, last = (np.searchsorted(cells, everything.cell, side=side) for side in ("left", "right"))
        work = np.cumsum(last - first + PAIRS_PER_TARGET) // PAIRS_AT_ONCE
        edges = np.flatnonzero(np.diff(work, prepend=-1, append=-1))
        for begin, end in itertools.pairwise(edges):
            targets = _InterpolatedPoints(*(a[begin:end] for a in everything))
            target, point = self._pairs(targets, first[begin:end], last[begin:end])
            values = _residual_covariances(self.kernel, targets, target, self.data, point)
            starts = np.searchsorted(target, np.arange(end - begin + 1))
            yield scipy.sparse.csr_array((values, point, starts), shape=(end - begin, len(cells))), targets

    def _regression(self, cross: Any, targets: _InterpolatedPoints) -> tuple[Any, Float[np.ndarray, " t"]]:
        """Return the coefficients of targets' residuals on those of the data, and the conditional variance."""
        target = np.arange(len(targets.x))
        prior = _residual_covariances(self.kernel, targets, target, targets, target)
        coefficients, sizes = np.zeros(cross.nnz), np.diff(cross.indptr)
        for size in np.unique(sizes[sizes > 0]):
            at = cross.indptr[:-1][sizes == size][:, None] + np.arange(size)
            which, back = np.unique(self.block[cross.indices[at[:, 0]]], return_inverse=True)
            factors = self._block(which).regularised[back]
            coefficients[at] = np.linalg.solve(factors, cross.data[at][..., None])[..., 0]
        weights = scipy.sparse.csr_array((coefficients, cross.indices, cross.indptr), shape=cross.shape)
        explained = np.bincount(np.repeat(target, sizes), coefficients * cross.data, len(target))
        return weights, np.maximum(prior - explained, 0.0)

    def _pairs(
        self, targets: _InterpolatedPoints, first: Int[np.ndarray, " t"], last: Int[np.ndarray, " t"]
    ) -> tuple[Int[np.ndarray, " k"], Int[np.ndarray, " k"]]:
        """Pair each target with every point of its block; the points of its cell are order[first:last]."""
        target, places = ranges(first, last - first)
        if len(target) == 0:
            return target, places
        gap = (targets.x[target] - self.data.x[self.order[places]]) / np.asarray(self.grid.spacing)
        far = np.sum(gap**2, axis=1)
        begin = np.flatnonzero(np.concatenate([[True], np.diff(target) > 0]))
        least = np.repeat(np.minimum.reduceat(far, begin), np.diff(np.append(begin, len(far))))
        nearest = np.full(len(targets.x), -1)
        nearest[target[far == least]] = self.block[self.order[places[far == least]]]
        candidates = np.flatnonzero(nearest >= 0)
        block = nearest[candidates]
        which, places = ranges(self.starts[block], self.starts[block + 1] - self.starts[block])
        return candidates[which], self.order[places]


def cell_blocks(
    kernel: Kernel, grid: Grid, p: int, x: Float[np.ndarray, "N D"], matrix: Any
) -> CellBlocks | None:
    """Group points by cell, where `matrix` is their W; None if no cell holds two points."""
    data = _interpolated(kernel, grid, p, x, matrix)
    order = np.argsort(data.cell, kind="stable")
    _, first, count = np.unique(data.cell[order], return_index=True, return_counts=True)
    if np.max(count) == 1:
        return None
    number = np.arange(len(order)) - np.repeat(first, count)
    starts = np.flatnonzero(number % LARGEST_BLOCK == 0)
    block = np.empty(len(order), int)
    block[order] = np.searchsorted(starts, np.arange(len(order)), side="right") - 1
    return CellBlocks(kernel, grid, p, data, block, order, np.append(starts, len(order)))


def _interpolated(
    kernel: Kernel, grid: Grid, p: int, x: Float[np.ndarray, "n D"], matrix: Any
) -> _InterpolatedPoints:
    steps = stencil_offsets(grid, p)[0] * np.asarray(grid.spacing)
    between = (steps[:, None] - steps).reshape(-1, grid.ndim)
    k_stencil = kernel_at_differences(kernel, between).reshape(len(steps), -1)
    w = matrix.data.reshape(len(x), -1)
    cell = matrix.indices.reshape(w.shape)[
        :, 0
    ]  # the cell whose stencil the weights belong to, also on grid lines
    return _InterpolatedPoints(x, cell, w, w @ k_stencil)


def _residual_covariances(
    kernel: Kernel,
    a: _InterpolatedPoints,
    i: Int[np.ndarray, " k"],
    b: _InterpolatedPoints,
    j: Int[np.ndarray, " k"],
) -> Float[np.ndarray, " k"]:
    """Return the covariances of the residuals of points a[i] and b[j], which are in one cell."""
    if len(i) == 0:
        return np.zeros(0)
    return kernel_at_differences(kernel, a.x[i] - b.x[j]) - np.einsum("kp,kp->k", a.k_w[i], b.w[j])


def _block_diagonal(blocks: list[_SameSizeBlocks], count: int) -> Any:
    """Assemble the blocks into one sparse matrix of `count` rows."""
    rows = np.concatenate([np.repeat(b.members, b.members.shape[1], axis=1).ravel() for b in blocks])
    columns = np.concatenate([np.tile(b.members, (1, b.members.shape[1])).ravel() for b in blocks])
    values = np.concatenate([b.covariance.ravel() for b in blocks])
    kept = values != 0  # drops the zero upper triangles of Cholesky factors
    return scipy.sparse.csr_array((values[kept], (rows[kept], columns[kept])), shape=(count, count))
