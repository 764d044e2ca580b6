"""How far the posterior is from that of the same model without a grid: local kriging, twice, at some of the data's places.

What the grid cannot see of an observation, its residual, counts as noise that is independent of all other noise. That
is an approximation: observations that lie close together, in units of the grid's cells, share one residual. Here its
price is estimated. Around some observations the nearest others are taken, and the posterior at the centre is computed
with the kernel's own covariances (A, c) and with those that the grid gives (B, b). With d = A^-1 c - B^-1 b and data
drawn from the model, the two means differ by sqrt(d' A d) in the root mean square, which is compared with the posterior
standard deviation sqrt(k - c' A^-1 c). The measured values are not needed.

Observations that are repeated, or crowd within a quarter of a cell, are merged first and their precisions added up. Both
posteriors are of the merged data, so that all observations that share a residual are counted, however many there are.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import scipy.linalg
import scipy.sparse
from jaxtyping import Array, Float, Int
from scipy.spatial import KDTree

from hipgp.coarse import typical_lengthscale
from hipgp.covariance import Columns, differentiated
from hipgp.data import Data, Observations
from hipgp.functionals import BoxAverages, Derivatives, Functional, Functionals, LineIntegrals, Points
from hipgp.grid import Grid
from hipgp.kernels import Kernel
from hipgp.nodes import Nodes
from hipgp.stencils import Stencilled
from hipgp.toeplitz import AT_ONCE, evaluate_all

# local problems and observations in each, the first that PAIRS kernel evaluations allow
SIZES = (32, 48), (32, 32), (32, 24), (24, 20), (16, 16), (12, 16), (8, 16), (8, 12), (6, 10), (4, 8)
PAIRS = 1e7
CROWDED = 8  # observations of one cell from which those of a quarter of it are merged
ROUNDING = 1e-12  # of the prior variance: noise below it cannot be told from rounding
MERGEABLE = (Points, Derivatives, LineIntegrals, BoxAverages, Functionals)


class GridError(NamedTuple):
    """The worst over `places` of the mean's error, in posterior standard deviations, and of the std's, relative to it."""

    mean: float
    std: float
    places: int


class Problems(NamedTuple):
    """Local problems: `members` are numbers of observations in `data`, the first at the centre.

    Each observation stands for `count` ones, of the `precision` that they have together. `shares` says how these are
    spread over blocks within which residuals are held jointly. `points` are grid points by the centres.
    """

    data: Data
    rows: Int[np.ndarray, " n"]  # of all observations
    precision: Float[np.ndarray, " n"]
    count: Float[np.ndarray, " n"]
    shares: Any  # (n, blocks), sparse, or None
    members: Int[np.ndarray, "c k"]
    points: Float[np.ndarray, "c D"]


class View(NamedTuple):
    """What a grid sees of the observations of local problems: their rows of W, and the residual variances.

    `counted`: the residuals count as noise.
    """

    columns: Int[np.ndarray, "n e"]
    values: Float[np.ndarray, "n e"]
    residual: Float[np.ndarray, " n"]
    counted: bool

    @staticmethod
    def of(rows: Stencilled, chosen: Int[np.ndarray, " n"], counted: bool) -> "View":
        return View(*rows.entries.some(chosen), np.asarray(rows.residual, float)[chosen], counted)


class Nodal(NamedTuple):
    """Functionals as sums over nodes: functional i is the sum of weights[i, n] times the field's value at node n, or its
    value and derivative there."""

    x: Float[np.ndarray, "n D"]
    weights: Float[np.ndarray, "k n"]
    value: Float[np.ndarray, " n"] | None = None
    direction: Float[np.ndarray, "n D"] | None = None


def grid_error(kernel: Kernel, grid: Grid, problems: Problems, view: View) -> GridError:
    """The error of the posterior on `grid`, at the centres of the problems and at grid points by them."""
    vecchia = all(isinstance(block.functional, Points) for block in problems.data.blocks)
    found = np.array([
        _errors(kernel, grid, problems, view, members, point, vecchia)
        for members, point in zip(problems.members, problems.points, strict=True)
    ])  # fmt: skip
    mean, std = found[..., 0], found[..., 1]
    return GridError(float(np.max(mean)), float(np.max(np.abs(std))), mean.size)


def _errors(
    kernel: Kernel,
    grid: Grid,
    problems: Problems,
    view: View,
    members: Int[np.ndarray, " k"],
    point: Float[np.ndarray, " D"],
    vecchia: bool,
) -> Float[np.ndarray, "2 2"]:
    """Of the functional at the centre and of the field at a grid point by it: errors of mean and standard deviation."""
    true = covariance(kernel, _exact(grid, problems.data, members, point))
    ours = covariance(kernel, _on_grid(grid, view, members, point))
    k, at = len(members), [0, -1]
    residual, count = view.residual[members], problems.count[members]
    prior = np.diag(ours)[at] + [residual[0], 0.0]
    own = 1 / problems.precision[members] + ROUNDING * np.max(np.diag(true))
    noise = own
    if problems.shares is not None:
        shares = problems.shares[members].toarray()
        ours[:k, :k] += (shares @ shares.T) * (true - ours)[:k, :k]
    elif view.counted:
        noise = own + residual / count
    a, c = true[:k, :k] + np.diag(own), true[:k][:, at]
    b, seen = ours[:k, :k] + np.diag(noise), ours[:k][:, at]
    weights, approximate = _solve(a, c), _solve(b, seen)
    left = lambda prior, c, w: np.maximum(prior - np.sum(c * w, axis=0), ROUNDING * np.diag(true)[at])
    variance = left(np.diag(true)[at], c, weights)
    # of points, standard deviations come from the kernel itself and the noise that the engine takes (`variances.py`)
    if vecchia and problems.shares is None:
        stated = left(np.diag(true)[at], c, _solve(true[:k, :k] + np.diag(noise), c))
    else:
        stated = left(prior, seen, approximate)
    gap = weights - approximate
    mean = np.sqrt(np.sum(gap * (a @ gap), axis=0) / variance)
    return np.stack([mean, np.sqrt(stated / variance) - 1], axis=1)


def _solve(matrix: Float[np.ndarray, "k k"], rhs: Float[np.ndarray, "k 2"]) -> Float[np.ndarray, "k 2"]:
    """By Cholesky, or where rounding has made it indefinite, by least squares."""
    try:
        return scipy.linalg.cho_solve(scipy.linalg.cho_factor(matrix, lower=True), rhs)
    except np.linalg.LinAlgError:
        return np.linalg.lstsq(matrix, rhs)[0]


# --- local problems ---------------------------------------------------------------------------------------------------


def local_problems(
    kernel: Kernel,
    grid: Grid,
    data: Data,
    noise: Float[np.ndarray, " N"],
    residual: Float[np.ndarray, " N"],
    entries: int,
    block: Int[np.ndarray, " N"] | None = None,
) -> Problems:
    """Some observations, each with the nearest others.

    `noise` and `residual` are variances, `entries` the usual length of a row of W; observations with the same `block`
    have their residuals held jointly.
    """
    group = _together(data, grid)
    first = np.unique(group, return_index=True)[1]
    precision = np.bincount(group, 1 / noise)
    count, most = _affordable(grid, data, first, entries)
    centres = _centres(residual[first] * precision, count)
    places = _features(data, typical_lengthscale(kernel, grid.ndim))[first]
    near = KDTree(places).query(places[centres], min(most, len(places)))[1].reshape(len(centres), -1)
    # the centre comes first, also where others are as near
    near = np.array([[i, *row[row != i][: len(row) - 1]] for i, row in zip(centres, near, strict=True)])
    used, members = np.unique(near, return_inverse=True)
    rows = first[used]
    shares = None
    if block is not None:
        part = (1 / noise) / precision[group], (group, block)
        shares = scipy.sparse.csr_array(part, shape=(len(first), int(np.max(block)) + 1))[used]
    chosen = _taken(data, rows)
    members = members.reshape(near.shape)
    middle = np.array([nodes.x[0, nodes.per // 2] for i in members[:, :1] for nodes, _ in _nodes_of(grid, chosen, i)])
    index = np.rint((middle - np.asarray(grid.origin)) / np.asarray(grid.spacing))
    points = np.asarray(grid.origin) + np.clip(index, 0, np.asarray(grid.shape) - 1) * np.asarray(grid.spacing)
    return Problems(chosen, rows, precision[used], np.bincount(group)[used].astype(float), shares, members, points)


def _centres(shared: Float[np.ndarray, " G"], count: int) -> Int[np.ndarray, " c"]:
    """Those with the most residual variance for their noise, and as many others at random."""
    worst = np.argsort(-shared, kind="stable")[: count // 2]
    some = np.random.default_rng(0).permutation(len(shared))[: count // 2]
    return np.unique(np.concatenate([worst, some]))


def _affordable(grid: Grid, data: Data, rows: Int[np.ndarray, " n"], entries: int) -> tuple[int, int]:
    """How many problems of how many observations."""
    some = rows[np.unique(np.linspace(0, len(rows) - 1, 16).astype(int))]
    nodes = max(part.per for part, _ in _nodes_of(grid, data, some))
    cost = lambda count, k: min(count, len(rows)) * ((k * nodes) ** 2 + min(k * entries, grid.size) ** 2) / 2
    return next((size for size in SIZES if cost(*size) < PAIRS), SIZES[-1])


def _features(data: Data, scale: Float[np.ndarray, " D"]) -> Float[np.ndarray, "N 2D"]:
    """Where functionals begin and end, in lengthscales, in a fixed order."""
    out = []
    for block in data.blocks:
        places = np.asarray(block.functional.places(), float) / scale
        first, last = places[:, 0], places[:, -1]
        swap = (first[:, 0] > last[:, 0])[:, None]
        out.append(np.concatenate([np.where(swap, last, first), np.where(swap, first, last)], axis=1))
    return np.concatenate(out)


def _together(data: Data, grid: Grid) -> Int[np.ndarray, " N"]:
    """A number for each observation, the same for those that are repeated, or crowd within a quarter of a cell."""
    numbers, begin = [], 0
    for block in data.blocks:
        numbers.append(_alike(block.functional, grid) + begin)
        begin = int(np.max(numbers[-1])) + 1
    return np.concatenate(numbers)


def _alike(functional: Functional, grid: Grid) -> Int[np.ndarray, " N"]:
    if type(functional) not in MERGEABLE:  # a user's own kind may differ in what it does not show
        return np.arange(len(functional))
    places = np.asarray(functional.places(), float)
    cells = (places - np.asarray(grid.origin)) / np.asarray(grid.spacing)
    others = [getattr(functional, name, None) for name in ("weights", "direction")]
    rest = [a.reshape(len(places), -1) for a in others if a is not None]
    number = lambda a: _numbers(np.concatenate([a.reshape(len(places), -1), *rest], axis=1))
    same, cell = number(cells), number(np.floor(cells))
    first = np.unique(same, return_index=True)[1]
    crowded = np.bincount(cell[first])[cell] > CROWDED
    if not np.any(crowded):
        return same
    quarter = np.max(same) + 1 + number(np.floor(4 * cells))
    return np.unique(np.where(crowded, quarter, same), return_inverse=True)[1]


def _numbers(rows: Float[np.ndarray, "N c"]) -> Int[np.ndarray, " N"]:
    """A number for each row, the same for equal rows; sums with random factors are faster to sort than rows."""
    total = np.zeros(len(rows))
    for column, factor in zip(rows.T, np.random.default_rng(0).uniform(1, 2, rows.shape[1]), strict=True):
        total += factor * column
    return np.unique(total, return_inverse=True)[1]


# --- functionals as sums over nodes -----------------------------------------------------------------------------------


def _parts(data: Data, rows: Int[np.ndarray, " n"]) -> Iterator[tuple[Observations, np.ndarray, np.ndarray]]:
    """Each block that has some of the observations `rows`, their numbers in it, and their places in `rows`."""
    begin = 0
    for block in data.blocks:
        at = np.flatnonzero((rows >= begin) & (rows < begin + len(block.y)))
        if len(at):
            yield block, rows[at] - begin, at
        begin += len(block.y)


def _taken(data: Data, rows: Int[np.ndarray, " n"]) -> Data:
    """Some of the observations, without their noise; `rows` ascend."""
    parts = ((block.functional.take(numbers), block.y[numbers]) for block, numbers, _ in _parts(data, rows))
    return Data(tuple(Observations(functional, y, None) for functional, y in parts))


def _nodes_of(grid: Grid, data: Data, rows: Int[np.ndarray, " n"]) -> Iterator[tuple[Nodes, np.ndarray]]:
    """The nodes of some observations, twice as dense as on the grid where the grid decides on them."""
    for block, numbers, at in _parts(data, rows):
        random = getattr(block.functional, "rule", "gauss") == "monte-carlo"
        yield block.functional.nodes_of(numbers, np.asarray(grid.spacing) / (1 if random else 2)), at


def _exact(grid: Grid, data: Data, rows: Int[np.ndarray, " k"], point: Float[np.ndarray, " D"]) -> Nodal:
    """The functionals themselves, and the value at a point."""
    own = Nodes(point[None, None], np.ones((1, 1)))
    parts = [*_nodes_of(grid, data, rows), (own, np.array([len(rows)]))]
    derivative = any(nodes.direction is not None for nodes, _ in parts)
    if derivative:
        parts = [(nodes.with_derivative_fields(), at) for nodes, at in parts]
    flat = lambda pick: np.concatenate([np.asarray(pick(nodes), float) for nodes, _ in parts])
    each = lambda a, nodes: np.repeat(a, nodes.per, axis=0)
    owner = np.concatenate([each(at, nodes) for nodes, at in parts])
    c = flat(lambda nodes: np.ravel(nodes.weights))
    kept = np.flatnonzero(c)
    weights = np.zeros((len(rows) + 1, len(kept)))
    weights[owner[kept], np.arange(len(kept))] = c[kept]
    x = flat(lambda nodes: np.reshape(nodes.x, (-1, grid.ndim)))[kept]
    if not derivative:
        return Nodal(x, weights)
    value, direction = (flat(lambda nodes, n=n: each(getattr(nodes, n), nodes)) for n in ("value", "direction"))
    return Nodal(x, weights, value[kept], direction[kept])


def _on_grid(grid: Grid, view: View, rows: Int[np.ndarray, " k"], point: Float[np.ndarray, " D"]) -> Nodal:
    """The functionals as the grid sees them, and the value at a grid point."""
    columns, values = view.columns[rows], view.values[rows]
    steps = np.rint((point - np.asarray(grid.origin)) / np.asarray(grid.spacing)).astype(int)
    here = np.ravel_multi_index(tuple(steps), grid.shape)
    owner, slot = np.nonzero(values)
    used, where = np.unique(np.append(columns[owner, slot], here), return_inverse=True)
    weights = np.zeros((len(rows) + 1, len(used)))
    np.add.at(weights, (owner, where[:-1]), values[owner, slot])
    weights[-1, where[-1]] = 1.0
    index = np.stack(np.unravel_index(used, grid.shape), axis=-1)
    return Nodal(np.asarray(grid.origin) + index * np.asarray(grid.spacing), weights)


def covariance(kernel: Kernel, nodal: Nodal) -> Float[np.ndarray, "k k"]:
    """Of all pairs of functionals; each pair of nodes is evaluated once."""
    weights, count = nodal.weights, len(nodal.x)
    each = max(1, AT_ONCE[1] // count)
    total = np.zeros((len(weights), len(weights)))
    for begin in range(0, count, each):
        own = min(begin + each, count) - begin
        k = _evaluated(kernel, nodal, slice(begin, begin + own), slice(begin, count))
        here, behind = weights[:, begin : begin + own], weights[:, begin + own :]
        off = here @ (k[:, own:] @ behind.T)
        total += here @ k[:, :own] @ here.T + off + off.T
    return total


def _evaluated(kernel: Kernel, nodal: Nodal, a: slice, b: slice) -> Float[np.ndarray, "n m"]:
    """The covariances of some nodes with others."""
    apart = nodal.x[a][:, None] - nodal.x[b]
    if nodal.value is None or nodal.direction is None:
        return evaluate_all(kernel, apart.reshape(-1, apart.shape[-1])).reshape(apart.shape[:2])
    first, second = (np.concatenate([nodal.value[s][:, None], nodal.direction[s]], axis=1) for s in (a, b))
    shape = (*apart.shape[:2], first.shape[1])
    every = apart, np.broadcast_to(first[:, None], shape), np.broadcast_to(second, shape)
    flat, chunk = [a.reshape(-1, a.shape[-1]) for a in every], AT_ONCE[0]
    missing = -len(flat[0]) % chunk
    parts = [np.pad(a, ((0, missing), (0, 0))).reshape(-1, chunk, a.shape[-1]) for a in flat]
    found = [np.asarray(_with_derivatives(kernel, *part)) for part in zip(*parts, strict=True)]
    return np.concatenate(found)[: len(flat[0])].reshape(apart.shape[:2])


@eqx.filter_jit
def _with_derivatives(kernel: Kernel, apart: Array, first: Array, second: Array) -> Array:
    """Of pairs of nodes that are `apart`; `first` and `second` hold the value's factor, and the direction."""
    apart, first, second = (jnp.asarray(a).T for a in (apart, first, second))
    a, b = (Columns(apart, n[0], n[0], n[1:]) for n in (first, second))
    return differentiated(kernel, a, b)(apart)
