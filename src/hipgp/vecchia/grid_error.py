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
from hipgp.vecchia.local_problems import TABLE, Problems, nodes_of, parts
from hipgp.weights.covariance import Columns, differentiated
from hipgp.weights.stencils import Stencilled, place, stencil_steps
from hipgp.weights.toeplitz import AT_ONCE, evaluate_all

ROUNDING = 1e-12  # of the prior variance: noise below it cannot be told from rounding


class GridError(NamedTuple):
    """The worst over `places`: the mean's error in posterior standard deviations, and by how much of itself the smaller of
    the two standard deviations, stated and true, falls short of the other."""

    mean: float
    std: float
    places: int


class View(NamedTuple):
    """What a grid sees of the observations of local problems: their rows of W, and the residual variances.

    `counted`: the residuals count as noise. Where they are not given they follow from the covariances.
    """

    columns: Int[np.ndarray, "n e"]
    values: Float[np.ndarray, "n e"]
    counted: bool
    residual: Float[np.ndarray, " n"] | None = None

    @staticmethod
    def of(rows: Stencilled, problems: Problems, counted: bool) -> "View":
        """From the rows of all data."""
        residual = np.asarray(rows.residual, float)[problems.rows]
        columns, values = rows.entries.some(problems.rows)
        return View(columns, values, counted, residual)


class Nodal(NamedTuple):
    """Functionals as sums over nodes: functional i is the sum of weights[i, n] times the field's value at node n, or its
    value and derivative there."""

    x: Float[np.ndarray, "n D"]
    weights: Any = None  # (k, n), sparse
    value: Float[np.ndarray, " n"] | None = None
    direction: Float[np.ndarray, "n D"] | None = None


Entries = Callable[[Nodal, slice, slice], np.ndarray]  # covariances of some nodes with others


def grid_error(kernel: Kernel, grid: Grid, problems: Problems, view: View, vecchia: bool) -> GridError:
    """The error of the posterior on `grid`, at the centres of the problems and at grid points by them.

    `vecchia`: standard deviations come from the kernel itself, given the nearest observations (`batch/variances.py`).
    """
    on_grid = _looked_up(kernel, grid) if grid.size <= TABLE else _evaluated(kernel)
    found = []
    for members, point in zip(problems.members, problems.points, strict=True):
        true = covariance(_exact(grid, problems, members, point), _evaluated(kernel))
        ours = covariance(_on_grid(grid, view, members, point), on_grid)
        found.append(_errors(true, ours, problems, view, members, vecchia))
    mean, std = np.moveaxis(np.array(found), -1, 0)
    return GridError(float(np.max(mean)), float(np.expm1(np.max(np.abs(std)))), mean.size)


def _errors(
    true: Float[np.ndarray, "k+1 k+1"],
    ours: Float[np.ndarray, "k+1 k+1"],
    problems: Problems,
    view: View,
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
    elif view.counted:
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
    grid: Grid, problems: Problems, rows: Int[np.ndarray, " k"], point: Float[np.ndarray, " D"]
) -> Nodal:
    """The functionals themselves, and the value at a point."""
    own = Nodes(point[None, None], np.ones((1, 1)))
    parts = [*nodes_of(grid, problems.data, rows, problems.density), (own, np.array([len(rows)]))]
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
        return Nodal(x, weights)
    value, direction = (
        flat(lambda nodes, n=n: each(getattr(nodes, n), nodes)) for n in ("value", "direction")
    )
    return Nodal(x, weights, value[kept], direction[kept])


def local_view(kernel: Kernel, grid: Grid, problems: Problems, p: int, counted: bool) -> View:
    """What stencils of `p` points an axis see of the observations; for any grid, without compiling for it."""
    steps, flat = stencil_steps(grid, p)
    stencil = steps * np.asarray(grid.spacing)
    between = _evaluated(kernel)(Nodal(stencil), slice(None), slice(None))
    between += 10 * np.finfo(float).eps * np.trace(between) * np.eye(len(between))
    columns, values = [], []
    for block, numbers, _ in parts(problems.data, np.arange(len(problems.rows))):
        nodes = block.functional.nodes_of(numbers, grid.spacing)
        x = np.asarray(nodes.x, float).reshape(-1, grid.ndim)
        begin, offset = place(grid, x, p)
        cross = _with_stencil(kernel, nodes, offset * np.asarray(grid.spacing), stencil)
        w = np.linalg.solve(between, cross.T).T * np.reshape(nodes.weights, (-1, 1))
        columns.append((begin[:, None] + flat).reshape(len(numbers), -1))
        values.append(w.reshape(len(numbers), -1))
    most = max(a.shape[1] for a in columns)
    fill = lambda a: np.pad(a, ((0, 0), (0, most - a.shape[1])))
    stacked = [np.concatenate([fill(a) for a in found]) for found in (columns, values)]
    view = View(stacked[0], stacked[1], counted)
    if all(block.functional.single for block in problems.data.blocks):
        return view  # what their weights leave is the difference of the covariances
    every = [_left_by(kernel, grid, problems.data, view, row) for row in range(len(problems.rows))]
    return view._replace(residual=np.array(every))


def _left_by(kernel: Kernel, grid: Grid, data: Data, view: View, row: int) -> float:
    """The residual variance of one observation: that of the functional less what the grid sees of it."""
    ((block, number, _),) = parts(data, np.array([row]))
    own = block.functional.nodes_of(number, grid.spacing)
    used, where = np.unique(view.columns[row], return_inverse=True)
    seen = np.bincount(where, view.values[row])
    points = np.asarray(grid.origin) + np.stack(np.unravel_index(used, grid.shape), axis=-1) * np.asarray(
        grid.spacing
    )
    x = np.concatenate([np.asarray(own.x[0], float), points])
    weights = scipy.sparse.csr_array(np.concatenate([np.asarray(own.weights[0], float), -seen])[None])
    if own.direction is None or own.value is None:
        nodal = Nodal(x, weights)
    else:
        value = np.concatenate([np.repeat(own.value, own.per), np.ones(len(used))])
        direction = np.concatenate([np.repeat(own.direction, own.per, axis=0), np.zeros_like(points)])
        nodal = Nodal(x, weights, value, direction)
    return max(float(covariance(nodal, _evaluated(kernel))[0, 0]), 0.0)


def unseen_variances(
    kernel: Kernel, grid: Grid, data: Data, p: int
) -> tuple[Float[np.ndarray, " N"], Float[np.ndarray, " N"]]:
    """Of every observation the residual variance, which stencils of `p` points an axis leave, and the prior variance.

    For any grid, without compiling for it; meant for some tens of observations.
    """
    rows = np.arange(len(data))
    one = np.ones(len(data))
    at = np.tile(np.asarray(grid.lower), (len(data), 1))
    problems = Problems(data, rows, one, one, None, rows[:, None], at, 1)
    view = local_view(kernel, grid, problems, p, counted=True)
    unseen = [_left_by(kernel, grid, data, view, row) for row in range(len(data))]
    nodal = _exact(grid, problems, rows, at[0])
    return np.array(unseen), np.diag(covariance(nodal, _evaluated(kernel)))[:-1]


def _with_stencil(
    kernel: Kernel, nodes: Nodes, at: Float[np.ndarray, "n D"], stencil: Float[np.ndarray, "P D"]
) -> Float[np.ndarray, "n P"]:
    """The covariances of nodes with the points of their stencils."""
    x = np.concatenate([at, stencil])
    if nodes.direction is None or nodes.value is None:
        return _evaluated(kernel)(Nodal(x), slice(len(at)), slice(len(at), None))
    value = np.concatenate([np.repeat(nodes.value, nodes.per), np.ones(len(stencil))])
    direction = np.concatenate([np.repeat(nodes.direction, nodes.per, axis=0), np.zeros_like(stencil)])
    return _evaluated(kernel)(Nodal(x, None, value, direction), slice(len(at)), slice(len(at), None))


def _on_grid(grid: Grid, view: View, rows: Int[np.ndarray, " k"], point: Float[np.ndarray, " D"]) -> Nodal:
    """The functionals as the grid sees them, and the value at a grid point."""
    columns, values = view.columns[rows], view.values[rows]
    steps = np.rint((point - np.asarray(grid.origin)) / np.asarray(grid.spacing)).astype(int)
    here = np.ravel_multi_index(tuple(steps), grid.shape)
    owner, slot = np.nonzero(values)
    used, where = np.unique(np.append(columns[owner, slot], here), return_inverse=True)
    entries = np.append(values[owner, slot], 1.0), (np.append(owner, len(rows)), where)
    weights = scipy.sparse.csr_array(entries, shape=(len(rows) + 1, len(used)))
    index = np.stack(np.unravel_index(used, grid.shape), axis=-1)
    return Nodal(np.asarray(grid.origin) + index * np.asarray(grid.spacing), weights)


def covariance(nodal: Nodal, entries: Entries) -> Float[np.ndarray, "k k"]:
    """Of all pairs of functionals; each pair of nodes is evaluated once."""
    weights, count = nodal.weights.tocsc(), len(nodal.x)
    each = max(1, AT_ONCE[1] // count)
    total = np.zeros((weights.shape[0],) * 2)
    for begin in range(0, count, each):
        end = min(begin + each, count)
        k = entries(nodal, slice(begin, end), slice(begin, count))
        here, behind = weights[:, begin:end], weights[:, end:]
        off = here @ (behind @ k[:, end - begin :].T).T
        total += here @ (here @ k[:, : end - begin].T).T + off + off.T
    return total


def _looked_up(kernel: Kernel, grid: Grid) -> Entries:
    """Covariances of grid points, from those of the first one with all: kernels are even along each axis."""
    table = evaluate_all(kernel, grid.coordinates() - np.asarray(grid.origin))
    strides = np.cumprod((1, *grid.shape[:0:-1]))[::-1]

    def entries(nodal: Nodal, a: slice, b: slice) -> Float[np.ndarray, "n m"]:
        index = np.rint((nodal.x - np.asarray(grid.origin)) / np.asarray(grid.spacing)).astype(np.int32)
        axes = zip(index.T, strides, strict=True)
        return table[sum(np.abs(i[a][:, None] - i[b]) * np.int32(stride) for i, stride in axes)]

    return entries


def _evaluated(kernel: Kernel) -> Entries:
    """Covariances of any nodes."""

    def entries(nodal: Nodal, a: slice, b: slice) -> Float[np.ndarray, "n m"]:
        x, value, direction = nodal.x, nodal.value, nodal.direction
        n, m = len(x[a]), len(x[b])
        apart = (x[a][:, None] - x[b]).reshape(n * m, -1)
        if value is None or direction is None:
            return evaluate_all(kernel, apart).reshape(n, m)
        both = np.concatenate([value[:, None], direction], axis=1)
        every = apart, np.repeat(both[a], m, axis=0), np.tile(both[b], (n, 1))
        fill = ((0, -n * m % AT_ONCE[0]), (0, 0))
        chunks = [np.pad(v, fill).reshape(-1, AT_ONCE[0], v.shape[1]) for v in every]
        found = [np.asarray(_with_derivatives(kernel, *chunk)) for chunk in zip(*chunks, strict=True)]
        return np.concatenate(found)[: n * m].reshape(n, m)

    return entries


@eqx.filter_jit
def _with_derivatives(kernel: Kernel, apart: Array, first: Array, second: Array) -> Array:
    """Of pairs of nodes that are `apart`; `first` and `second` hold the value's factor, and the direction."""
    apart, first, second = (jnp.asarray(a).T for a in (apart, first, second))
    a, b = (Columns(apart, n[0], n[0], n[1:]) for n in (first, second))
    return differentiated(kernel, a, b)(apart)
