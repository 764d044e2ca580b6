"""How far the posterior is from that of the same model without a grid: local kriging, twice, at some of the data's places.

What the grid cannot see of an observation, its residual, counts as noise that is independent of all other noise. That
is an approximation: observations that lie close together, in units of the grid's cells, share one residual. Here its
price is estimated. Around some observations the nearest others are taken, and the posterior at the centre is computed
with the kernel's own covariances (A, c) and with those that the grid gives (B, b). With d = A^-1 c - B^-1 b and data
drawn from the model, the two means differ by sqrt(d' A d) in the root mean square, which is compared with the posterior
standard deviation sqrt(k - c' A^-1 c). The measured values are not needed. Nothing is compiled anew for a grid.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import scipy.sparse
from jaxtyping import Array, Float, Int

from hipgp.model.data import Data
from hipgp.model.grid import Grid
from hipgp.model.kernels import Kernel
from hipgp.model.nodes import Nodes
from hipgp.vecchia.local_problems import TABLE, LocalProblems, blocks_with_rows, quadrature_nodes
from hipgp.weights.covariance import TransposedNodes, kernel_between_nodes
from hipgp.weights.stencils import WeightRows, locate_stencils, stencil_offsets
from hipgp.weights.toeplitz import CHUNK_SIZES, kernel_at_differences

ROUNDING = 1e-12  # of the prior variance: noise below it cannot be told from rounding


class GridError(NamedTuple):
    """The worst over `places`: the mean's error in posterior standard deviations, and by how much of itself the smaller of
    the two standard deviations, stated and true, falls short of the other."""

    mean: float
    std: float
    places: int


class GridApproximation(NamedTuple):
    """What a grid sees of the observations of local problems: their rows of W, and the residual variances.

    `counted`: the residuals count as noise. Where they are not given they follow from the covariances.
    """

    columns: Int[np.ndarray, "n e"]
    values: Float[np.ndarray, "n e"]
    residual_as_noise: bool
    residual: Float[np.ndarray, " n"] | None = None

    @staticmethod
    def from_rows(rows: WeightRows, problems: LocalProblems, counted: bool) -> "GridApproximation":
        """From the rows of all data."""
        residual = np.asarray(rows.residual, float)[problems.rows]
        columns, values = rows.csr.padded_rows(problems.rows)
        return GridApproximation(columns, values, counted, residual)


class NodeSums(NamedTuple):
    """Functionals as sums over nodes: functional i is the sum of weights[i, n] times the field's value at node n, or its
    value and derivative there."""

    x: Float[np.ndarray, "n D"]
    weights: Any = None  # (k, n), sparse
    value: Float[np.ndarray, " n"] | None = None
    direction: Float[np.ndarray, "n D"] | None = None


NodeCovariance = Callable[[NodeSums, slice, slice], np.ndarray]  # covariances of some nodes with others


def grid_error(
    kernel: Kernel, grid: Grid, problems: LocalProblems, view: GridApproximation, vecchia: bool
) -> GridError:
    """The error of the posterior on `grid`, at the centres of the problems and at grid points by them.

    `vecchia`: standard deviations come from the kernel itself, given the nearest observations (`batch/variances.py`).
    """
    on_grid = _tabulated_covariance(kernel, grid) if grid.size <= TABLE else _kernel_covariance(kernel)
    found = []
    for members, point in zip(problems.members, problems.points, strict=True):
        true = covariance_of_sums(_exact(grid, problems, members, point), _kernel_covariance(kernel))
        ours = covariance_of_sums(_on_grid(grid, view, members, point), on_grid)
        found.append(_errors(true, ours, problems, view, members, vecchia))
    mean, std = np.moveaxis(np.array(found), -1, 0)
    return GridError(float(np.max(mean)), float(np.expm1(np.max(np.abs(std)))), mean.size)


def _errors(
    true: Float[np.ndarray, "k+1 k+1"],
    ours: Float[np.ndarray, "k+1 k+1"],
    problems: LocalProblems,
    view: GridApproximation,
    members: Int[np.ndarray, " k"],
    vecchia: bool,
) -> Float[np.ndarray, "2 2"]:
    """Errors of the mean and of the logarithm of the std, of the functional at the centre and of the field at a grid point by it.

    Given are covariances of the members and, last, of that grid point: the kernel's own, and those that the grid gives.
    """
    k, at = len(members), [0, -1]
    left_out = np.maximum(np.diag(true) - np.diag(ours), 0.0)[:k]
    residual = left_out if view.residual is None else view.residual[members]
    prior = np.diag(ours)[at] + [residual[0], 0.0]
    own = 1 / problems.precision[members] + ROUNDING * np.max(np.diag(true))
    noise = own
    if problems.shares is not None:
        shares = problems.shares[members].toarray()
        ours[:k, :k] += (shares @ shares.T) * (true - ours)[:k, :k]
    elif view.residual_as_noise:
        noise = own + residual / problems.count[members]
    a, c = true[:k, :k] + np.diag(own), true[:k][:, at]
    b, seen = ours[:k, :k] + np.diag(noise), ours[:k][:, at]
    weights, approximate = _solve(a, c), _solve(b, seen)
    left = lambda prior, c, w: np.maximum(prior - np.sum(c * w, axis=0), ROUNDING * np.diag(true)[at])
    variance = left(np.diag(true)[at], c, weights)
    if vecchia:
        stated = left(np.diag(true)[at], c, _solve(true[:k, :k] + np.diag(noise), c))
    else:
        stated = left(prior, seen, approximate)
    gap = weights - approximate
    mean = np.sqrt(np.sum(gap * (a @ gap), axis=0) / variance)
    return np.stack([mean, np.log(stated / variance) / 2], axis=1)


def _solve(matrix: Float[np.ndarray, "k k"], rhs: Float[np.ndarray, "k 2"]) -> Float[np.ndarray, "k 2"]:
    """By Cholesky, or where rounding has made it indefinite, by least squares."""
    try:
        return scipy.linalg.cho_solve(scipy.linalg.cho_factor(matrix, lower=True), rhs)
    except np.linalg.LinAlgError:
        return np.linalg.lstsq(matrix, rhs)[0]


# --- functionals as sums over nodes -----------------------------------------------------------------------------------


def _exact(
    grid: Grid, problems: LocalProblems, rows: Int[np.ndarray, " k"], point: Float[np.ndarray, " D"]
) -> NodeSums:
    """The functionals themselves, and the value at a point."""
    own = Nodes(point[None, None], np.ones((1, 1)))
    parts = [*quadrature_nodes(grid, problems.data, rows, problems.density), (own, np.array([len(rows)]))]
    derivative = any(nodes.direction is not None for nodes, _ in parts)
    if derivative:
        parts = [(nodes.with_derivative_fields(), at) for nodes, at in parts]
    flat = lambda pick: np.concatenate([np.asarray(pick(nodes), float) for nodes, _ in parts])
    each = lambda a, nodes: np.repeat(a, nodes.per, axis=0)
    owner = np.concatenate([each(at, nodes) for nodes, at in parts])
    c = flat(lambda nodes: np.ravel(nodes.weights))
    kept = np.flatnonzero(c)
    weights = scipy.sparse.csr_array(
        (c[kept], (owner[kept], np.arange(len(kept)))), shape=(len(rows) + 1, len(kept))
    )
    x = flat(lambda nodes: np.reshape(nodes.x, (-1, grid.ndim)))[kept]
    if not derivative:
        return NodeSums(x, weights)
    value, direction = (
        flat(lambda nodes, n=n: each(getattr(nodes, n), nodes)) for n in ("value", "direction")
    )
    return NodeSums(x, weights, value[kept], direction[kept])


def stencil_approximation(
    kernel: Kernel, grid: Grid, problems: LocalProblems, p: int, counted: bool
) -> GridApproximation:
    """What stencils of `p` points an axis see of the observations; for any grid, without compiling for it."""
    steps, flat = stencil_offsets(grid, p)
    stencil = steps * np.asarray(grid.spacing)
    between = _kernel_covariance(kernel)(NodeSums(stencil), slice(None), slice(None))
    between += 10 * np.finfo(float).eps * np.trace(between) * np.eye(len(between))
    columns, values = [], []
    for block, numbers, _ in blocks_with_rows(problems.data, np.arange(len(problems.rows))):
        nodes = block.functional.nodes_of(numbers, grid.spacing)
        x = np.asarray(nodes.x, float).reshape(-1, grid.ndim)
        begin, offset = locate_stencils(grid, x, p)
        cross = _stencil_covariance(kernel, nodes, offset * np.asarray(grid.spacing), stencil)
        w = np.linalg.solve(between, cross.T).T * np.reshape(nodes.weights, (-1, 1))
        columns.append((begin[:, None] + flat).reshape(len(numbers), -1))
        values.append(w.reshape(len(numbers), -1))
    most = max(a.shape[1] for a in columns)
    fill = lambda a: np.pad(a, ((0, 0), (0, most - a.shape[1])))
    stacked = [np.concatenate([fill(a) for a in found]) for found in (columns, values)]
    view = GridApproximation(stacked[0], stacked[1], counted)
    if all(block.functional.single for block in problems.data.blocks):
        return view  # what their weights leave is the difference of the covariances
    every = [_residual_variance(kernel, grid, problems.data, view, row) for row in range(len(problems.rows))]
    return view._replace(residual=np.array(every))


def _residual_variance(kernel: Kernel, grid: Grid, data: Data, view: GridApproximation, row: int) -> float:
    """The residual variance of one observation: that of the functional less what the grid sees of it."""
    ((block, number, _),) = blocks_with_rows(data, np.array([row]))
    own = block.functional.nodes_of(number, grid.spacing)
    used, where = np.unique(view.columns[row], return_inverse=True)
    seen = np.bincount(where, view.values[row])
    points = np.asarray(grid.origin) + np.stack(np.unravel_index(used, grid.shape), axis=-1) * np.asarray(
        grid.spacing
    )
    x = np.concatenate([np.asarray(own.x[0], float), points])
    weights = scipy.sparse.csr_array(np.concatenate([np.asarray(own.weights[0], float), -seen])[None])
    if own.direction is None or own.value is None:
        nodal = NodeSums(x, weights)
    else:
        value = np.concatenate([np.repeat(own.value, own.per), np.ones(len(used))])
        direction = np.concatenate([np.repeat(own.direction, own.per, axis=0), np.zeros_like(points)])
        nodal = NodeSums(x, weights, value, direction)
    return max(float(covariance_of_sums(nodal, _kernel_covariance(kernel))[0, 0]), 0.0)


def _stencil_covariance(
    kernel: Kernel, nodes: Nodes, at: Float[np.ndarray, "n D"], stencil: Float[np.ndarray, "P D"]
) -> Float[np.ndarray, "n P"]:
    """The covariances of nodes with the points of their stencils."""
    x = np.concatenate([at, stencil])
    if nodes.direction is None or nodes.value is None:
        return _kernel_covariance(kernel)(NodeSums(x), slice(len(at)), slice(len(at), None))
    value = np.concatenate([np.repeat(nodes.value, nodes.per), np.ones(len(stencil))])
    direction = np.concatenate([np.repeat(nodes.direction, nodes.per, axis=0), np.zeros_like(stencil)])
    return _kernel_covariance(kernel)(
        NodeSums(x, None, value, direction), slice(len(at)), slice(len(at), None)
    )


def _on_grid(
    grid: Grid, view: GridApproximation, rows: Int[np.ndarray, " k"], point: Float[np.ndarray, " D"]
) -> NodeSums:
    """The functionals as the grid sees them, and the value at a grid point."""
    columns, values = view.columns[rows], view.values[rows]
    steps = np.rint((point - np.asarray(grid.origin)) / np.asarray(grid.spacing)).astype(int)
    here = np.ravel_multi_index(tuple(steps), grid.shape)
    owner, slot = np.nonzero(values)
    used, where = np.unique(np.append(columns[owner, slot], here), return_inverse=True)
    entries = np.append(values[owner, slot], 1.0), (np.append(owner, len(rows)), where)
    weights = scipy.sparse.csr_array(entries, shape=(len(rows) + 1, len(used)))
    index = np.stack(np.unravel_index(used, grid.shape), axis=-1)
    return NodeSums(np.asarray(grid.origin) + index * np.asarray(grid.spacing), weights)


def covariance_of_sums(nodal: NodeSums, entries: NodeCovariance) -> Float[np.ndarray, "k k"]:
    """Of all pairs of functionals; each pair of nodes is evaluated once."""
    weights, count = nodal.weights.tocsc(), len(nodal.x)
    each = max(1, CHUNK_SIZES[1] // count)
    total = np.zeros((weights.shape[0],) * 2)
    for begin in range(0, count, each):
        end = min(begin + each, count)
        k = entries(nodal, slice(begin, end), slice(begin, count))
        here, behind = weights[:, begin:end], weights[:, end:]
        off = here @ (behind @ k[:, end - begin :].T).T
        total += here @ (here @ k[:, : end - begin].T).T + off + off.T
    return total


def _tabulated_covariance(kernel: Kernel, grid: Grid) -> NodeCovariance:
    """Covariances of grid points, from those of the first one with all: kernels are even along each axis."""
    table = kernel_at_differences(kernel, grid.coordinates() - np.asarray(grid.origin))
    strides = np.cumprod((1, *grid.shape[:0:-1]))[::-1]

    def entries(nodal: NodeSums, a: slice, b: slice) -> Float[np.ndarray, "n m"]:
        index = np.rint((nodal.x - np.asarray(grid.origin)) / np.asarray(grid.spacing)).astype(np.int32)
        axes = zip(index.T, strides, strict=True)
        return table[sum(np.abs(i[a][:, None] - i[b]) * np.int32(stride) for i, stride in axes)]

    return entries


def _kernel_covariance(kernel: Kernel) -> NodeCovariance:
    """Covariances of any nodes."""

    def entries(nodal: NodeSums, a: slice, b: slice) -> Float[np.ndarray, "n m"]:
        x, value, direction = nodal.x, nodal.value, nodal.direction
        n, m = len(x[a]), len(x[b])
        apart = (x[a][:, None] - x[b]).reshape(n * m, -1)
        if value is None or direction is None:
            return kernel_at_differences(kernel, apart).reshape(n, m)
        both = np.concatenate([value[:, None], direction], axis=1)
        every = apart, np.repeat(both[a], m, axis=0), np.tile(both[b], (n, 1))
        fill = ((0, -n * m % CHUNK_SIZES[0]), (0, 0))
        chunks = [np.pad(v, fill).reshape(-1, CHUNK_SIZES[0], v.shape[1]) for v in every]
        found = [np.asarray(_with_derivatives(kernel, *chunk)) for chunk in zip(*chunks, strict=True)]
        return np.concatenate(found)[: n * m].reshape(n, m)

    return entries


@eqx.filter_jit
def _with_derivatives(kernel: Kernel, apart: Array, first: Array, second: Array) -> Array:
    """Of pairs of nodes that are `apart`; `first` and `second` hold the value's factor, and the direction."""
    apart, first, second = (jnp.asarray(a).T for a in (apart, first, second))
    a, b = (TransposedNodes(apart, n[0], n[0], n[1:]) for n in (first, second))
    return kernel_between_nodes(kernel, a, b)(apart)
