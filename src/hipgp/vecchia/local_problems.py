"""Local problems: some observations, each with its nearest others, small enough for dense solves.

Observations that are repeated, or crowd within a quarter of a cell, have nearly equal residuals. They are merged and their
precisions added, so that a few observations represent many.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
from jaxtyping import Float, Int

from hipgp.model.data import Data, Observations
from hipgp.model.differences import kernel_at_differences
from hipgp.model.functionals import BoxAverages, Derivatives, Functional, Functionals, LineIntegrals, Points
from hipgp.model.grid import Grid
from hipgp.model.kernel_scales import shortest_lengthscale, typical_lengthscale
from hipgp.model.kernels import Kernel
from hipgp.model.nodes import Nodes
from hipgp.model.problem import Problem
from hipgp.vecchia.conditioning_sets import ordered_ends

# (number of local problems, observations in each): the first pair within PAIRS kernel evaluations is taken
SIZES = (
    *((32, 256), (32, 128), (32, 64), (32, 48), (32, 32), (32, 24)),
    *((24, 20), (16, 16), (12, 16), (8, 16), (8, 12), (6, 10), (4, 8), (4, 6)),
)
PAIRS = 4e6
TOLERATED = 1e-4  # of the noise variance: what quadrature may miss of an observation
MOST_NODES = 2**10  # nodes of one functional, where the noise asks for more
THINNED = 1.5  # ratio of the spacings that are compared
FINEST = 64  # refinement that shows whether the number of nodes depends on the resolution at all
LEAST_VARIANCE = 1e-290  # of noise, whose inverses then have a sum
TABLE = 2**20  # grid points up to which covariances between them are tabulated
LOOKUP_COST = 0.25  # the cost of looking up a covariance, relative to computing it
DENSE = 11  # number of leading SIZES with nodes twice as dense as on the grid
MERGED_FROM = 8  # observations in a cell above which those within a quarter of it are merged
MERGEABLE = (Points, Derivatives, LineIntegrals, BoxAverages, Functionals)


Resolution = tuple[
    Float[np.ndarray, " D"], ...
]  # of each block of data, the spacing of nodes that its noise asks for


class LocalProblems(NamedTuple):
    """Local problems; `members` holds the numbers in `data` of each problem's observations, the central one first.

    Each observation represents `count` observations with the total `precision`. `shares` holds their shares in the blocks
    within which residuals are jointly Gaussian. `points` are the grid points nearest to the centres, and `between` a place
    in a cell beside each of them. `density` and `resolution` set the quadrature nodes: see `quadrature_nodes`.
    """

    data: Data
    rows: Int[np.ndarray, " n"]  # the observations' numbers among all
    precision: Float[np.ndarray, " n"]
    count: Float[np.ndarray, " n"]
    shares: Any  # (n, blocks), sparse, or None
    members: Int[np.ndarray, "c k"]
    points: Float[np.ndarray, "c D"]
    between: Float[np.ndarray, "c D"]
    density: int
    resolution: Resolution

    def nodes(
        self, grid: Grid, rows: Int[np.ndarray, " n"], density: int
    ) -> Iterator[tuple[Nodes, np.ndarray]]:
        """Yield the quadrature nodes of the observations `rows`, `density` times as dense as on `grid` at most."""
        return quadrature_nodes(grid, self.data, rows, density, self.resolution)

    def pairs(self, grid: Grid) -> float:
        """Count the pairs of nodes of all problems, on a grid."""
        most = max(nodes.rule_size for nodes, _ in self.nodes(grid, np.arange(len(self.rows)), self.density))
        return self.members.size * self.members.shape[1] * most**2 / 2


def local_problems(
    problem: Problem,
    residual: Float[np.ndarray, " N"] | None,
    stencil: int,
    entries: int | None = None,
    block: Int[np.ndarray, " N"] | None = None,
) -> LocalProblems:
    """Choose some observations, half of them with the largest residuals, each with its nearest others.

    `residual` holds their residual variances, if known, `entries` is the mean length of a row of W, if known, and `stencil`
    the stencil's points per axis. Observations with the same `block` have jointly Gaussian residuals.
    """
    kernel, grid, data, _, _ = problem
    noise = np.maximum(problem.noise_std**2, LEAST_VARIANCE)
    group = _merge_labels(data, grid)
    first = np.unique(group, return_index=True)[1]
    precision = np.bincount(group, 1 / noise)
    resolution = needed_resolution(problem, noise)
    (count, most), density = _affordable(grid, data, first, stencil, entries, resolution)
    centres = _centres(precision if residual is None else residual[first] * precision, count)
    places = _end_points(data, typical_lengthscale(kernel, grid.ndim))[first]
    nearest = (
        scipy.spatial.KDTree(places)
        .query(places[centres], min(most, len(places)))[1]
        .reshape(len(centres), -1)
    )
    # the centre comes first, also if others are at the same place
    nearest = np.array([[i, *row[row != i][: len(row) - 1]] for i, row in zip(centres, nearest, strict=True)])
    used, members = np.unique(nearest, return_inverse=True)
    shares = None
    if block is not None:
        part = (1 / noise) / precision[group], (group, block)
        shares = scipy.sparse.csr_array(part, shape=(len(first), int(np.max(block)) + 1))[used]
    chosen, members = _subset(grid, data, first[used]), members.reshape(nearest.shape)
    standing_for = np.bincount(group)[used].astype(float)
    kept = tuple(resolution[number] for number in _block_numbers(data, first[used]))
    points = _grid_points(grid, chosen, members[:, 0], kept)
    return LocalProblems(
        chosen, first[used], precision[used], standing_for, shares, members, points,
        _beside(grid, points), density, kept,
    )  # fmt: skip


def _grid_points(
    grid: Grid, data: Data, rows: Int[np.ndarray, " c"], resolution: Resolution
) -> Float[np.ndarray, "c D"]:
    """Return the grid point nearest to the middle node of each of some observations."""
    nodes = [part for row in rows for part, _ in quadrature_nodes(grid, data, np.array([row]), 1, resolution)]
    origin, spacing = np.asarray(grid.origin), np.asarray(grid.spacing)
    index = np.rint((np.array([n.x[0, n.rule_size // 2] for n in nodes]) - origin) / spacing)
    return origin + np.clip(index, 0, np.asarray(grid.shape) - 1) * spacing


def _beside(grid: Grid, points: Float[np.ndarray, "c D"]) -> Float[np.ndarray, "c D"]:
    """Return a random place in a cell beside each of these grid points."""
    within = np.random.default_rng(1).uniform(-1.0, 1.0, points.shape)
    return np.clip(points + within * np.asarray(grid.spacing), grid.lower, grid.upper)


def _centres(shared: Float[np.ndarray, " G"], count: int) -> Int[np.ndarray, " c"]:
    """Choose the groups with the largest residual variance relative to their noise, and as many at random."""
    worst = np.argsort(-shared, kind="stable")[: count // 2]
    some = np.random.default_rng(0).permutation(len(shared))[: count // 2]
    return np.unique(np.concatenate([worst, some]))


def _affordable(
    grid: Grid,
    data: Data,
    rows: Int[np.ndarray, " n"],
    stencil: int,
    entries: int | None,
    resolution: Resolution,
) -> tuple[tuple[int, int], int]:
    """Return the affordable number of problems and of observations in each, and the density of nodes."""
    some = rows[np.unique(np.linspace(0, len(rows) - 1, 16).astype(int))]
    for density, sizes in ((2, SIZES[:DENSE]), (1, SIZES)):
        nodes = max(part.rule_size for part, _ in quadrature_nodes(grid, data, some, density, resolution))
        each = nodes * stencil**grid.ndim if entries is None else entries
        for count, k in sizes:
            on_grid = min(k * each, grid.size) ** 2 * (LOOKUP_COST if grid.size <= TABLE else 1)
            if min(count, len(rows)) * ((k * nodes) ** 2 + on_grid) / 2 < PAIRS:
                return (count, k), density
    return SIZES[-1], 1


def _end_points(data: Data, scale: Float[np.ndarray, " D"]) -> Float[np.ndarray, "N 2D"]:
    """Return both ends of the functionals, in units of `scale`."""
    places = (np.asarray(functional.places(), float) / scale for functional in data.functionals)
    return np.concatenate([ordered_ends(x[:, 0], x[:, -1]) for x in places])


def _merge_labels(data: Data, grid: Grid) -> Int[np.ndarray, " N"]:
    """Label the observations so that repeated ones, and those that crowd within a quarter of a cell, share a label."""
    numbers, begin = [], 0
    for block in data.blocks:
        numbers.append(_block_merge_labels(block.functional, grid) + begin)
        begin = int(np.max(numbers[-1])) + 1
    return np.concatenate(numbers)


def _block_merge_labels(functional: Functional, grid: Grid) -> Int[np.ndarray, " N"]:
    if type(functional) not in MERGEABLE:  # a user-defined kind may have further fields that differ
        return np.arange(len(functional))
    places = np.asarray(functional.places(), float)
    cells = (places - np.asarray(grid.origin)) / np.asarray(grid.spacing)
    others = [getattr(functional, name, None) for name in ("weights", "direction")]
    rest = [a.reshape(len(places), -1) for a in others if a is not None]
    number = lambda a: _row_labels(np.concatenate([a.reshape(len(places), -1), *rest], axis=1))
    same, cell = number(cells), number(np.floor(cells))
    first = np.unique(same, return_index=True)[1]
    crowded = np.bincount(cell[first])[cell] > MERGED_FROM
    if not np.any(crowded):
        return same
    quarter = np.max(same) + 1 + number(np.floor(4 * cells))
    return np.unique(np.where(crowded, quarter, same), return_inverse=True)[1]


def _row_labels(rows: Float[np.ndarray, "N c"]) -> Int[np.ndarray, " N"]:
    """Label rows so that equal rows share a label; sums with random factors are faster to sort than rows."""
    total = np.zeros(len(rows))
    for column, factor in zip(rows.T, np.random.default_rng(0).uniform(1, 2, rows.shape[1]), strict=True):
        total += factor * column
    return np.unique(total, return_inverse=True)[1]


def needed_resolution(problem: Problem, noise: Float[np.ndarray, " N"]) -> Resolution:
    """Return for each block of data the node spacing at which its quadrature error is small beside its noise variances.

    The error is the variance of what two quadratures differ by, of its longest functional and two more. Nodes that are
    given, or drawn at random, define a functional; their spacing is zero here, so that they are never thinned out.
    """
    kernel, data, out, begin = problem.kernel, problem.data, [], 0
    length = shortest_lengthscale(kernel, data.ndim)
    for block in data.blocks:
        typical = float(np.median(noise[begin : begin + len(block.y)]))
        out.append(_resolution(kernel, block.functional, TOLERATED * typical, length))
        begin += len(block.y)
    return tuple(out)


def _resolution(
    kernel: Kernel, functional: Functional, enough: float, length: Float[np.ndarray, " D"]
) -> Float[np.ndarray, " D"]:
    everything = np.asarray(functional.places(), float)
    size = np.linalg.norm(np.ptp(everything, axis=1) / length, axis=1)
    some = np.unique([int(np.argmax(size)), 0, len(functional) - 1])
    spacing = np.where(np.isfinite(length), length * np.max(size), np.ptp(everything))
    of_longest = lambda by: functional.nodes_each(some[np.argsort(-size[some], kind="stable")], by)
    is_fixed = functional.single or functional.derivative or _has_random_nodes(functional)
    if is_fixed or of_longest(spacing) == of_longest(spacing / FINEST):
        return np.zeros(functional.ndim)
    coarse = functional.nodes_of(some, spacing)
    while True:
        fine = functional.nodes_of(some, spacing / THINNED)
        if fine.rule_size > MOST_NODES:
            return spacing
        if fine.rule_size > coarse.rule_size and _variance_of_difference(kernel, coarse, fine) <= enough:
            return spacing
        coarse, spacing = fine, spacing / THINNED


def _variance_of_difference(kernel: Kernel, a: Nodes, b: Nodes) -> float:
    """Return the largest variance of the difference of functionals by two quadratures."""
    x = np.concatenate([np.asarray(a.x, float), np.asarray(b.x, float)], axis=1)
    weights = np.concatenate([np.asarray(a.weights, float), -np.asarray(b.weights, float)], axis=1)
    found = []
    for places, c in zip(x, weights, strict=True):
        apart = (places[:, None] - places).reshape(-1, x.shape[-1])
        found.append(c @ kernel_at_differences(kernel, apart).reshape(len(c), len(c)) @ c)
    return float(np.max(found))


def blocks_with_rows(
    data: Data, rows: Int[np.ndarray, " n"]
) -> Iterator[tuple[Observations, np.ndarray, np.ndarray]]:
    """Yield each block that holds some of the observations `rows`, their numbers in it, and their places in `rows`."""
    begin = 0
    for block in data.blocks:
        at = np.flatnonzero((rows >= begin) & (rows < begin + len(block.y)))
        if len(at):
            yield block, rows[at] - begin, at
        begin += len(block.y)


def _subset(grid: Grid, data: Data, rows: Int[np.ndarray, " n"]) -> Data:
    """Take some of the observations, in ascending order, without their noise; random nodes stay as drawn."""
    out = []
    for block, numbers, _ in blocks_with_rows(data, rows):
        if _has_random_nodes(block.functional):
            nodes = block.functional.nodes_of(numbers, grid.spacing)
            chosen: Functional = Functionals(nodes.x, nodes.weights)
        else:
            chosen = block.functional.take(numbers)
        out.append(Observations(chosen, block.y[numbers], None))
    return Data(tuple(out))


def _has_random_nodes(functional: Functional) -> bool:
    return getattr(functional, "rule", "gauss") == "monte-carlo"


def quadrature_nodes(
    grid: Grid, data: Data, rows: Int[np.ndarray, " n"], density: int, resolution: Resolution
) -> Iterator[tuple[Nodes, np.ndarray]]:
    """Yield the nodes of some observations: `density` times as dense as on the grid, but no denser than `resolution`.

    Nodes that do not depend on the resolution stay as they are.
    """
    spacings = (resolution[number] for number in _block_numbers(data, rows))
    for (block, numbers, at), enough in zip(blocks_with_rows(data, rows), spacings, strict=True):
        spacing = np.asarray(grid.spacing) / (1 if _has_random_nodes(block.functional) else density)
        yield block.functional.nodes_of(numbers, np.maximum(spacing, enough)), at


def _block_numbers(data: Data, rows: Int[np.ndarray, " n"]) -> Int[np.ndarray, " b"]:
    """Return the numbers of the blocks that hold some of the observations `rows`."""
    ends = np.cumsum([len(block.y) for block in data.blocks])
    return np.unique(np.searchsorted(ends, rows, side="right"))
