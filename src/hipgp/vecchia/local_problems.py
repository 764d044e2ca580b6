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
from hipgp.model.functionals import BoxAverages, Derivatives, Functional, Functionals, LineIntegrals, Points
from hipgp.model.grid import Grid
from hipgp.model.kernel_scales import typical_lengthscale
from hipgp.model.nodes import Nodes
from hipgp.model.problem import Problem
from hipgp.vecchia.conditioning_sets import ordered_ends

# (number of local problems, observations in each): the first pair within PAIRS kernel evaluations is taken
SIZES = (
    *((32, 256), (32, 128), (32, 64), (32, 48), (32, 32), (32, 24)),
    *((24, 20), (16, 16), (12, 16), (8, 16), (8, 12), (6, 10), (4, 8), (4, 6)),
)
PAIRS = 4e6
LEAST_VARIANCE = 1e-290  # of noise, whose inverses then have a sum
TABLE = 2**20  # grid points up to which covariances between them are tabulated
LOOKUP_COST = 0.25  # the cost of looking up a covariance, relative to computing it
DENSE = 11  # number of leading SIZES with nodes twice as dense as on the grid
MERGED_FROM = 8  # observations in a cell above which those within a quarter of it are merged
MERGEABLE = (Points, Derivatives, LineIntegrals, BoxAverages, Functionals)


class LocalProblems(NamedTuple):
    """Local problems; `members` holds the numbers in `data` of each problem's observations, the central one first.

    Each observation represents `count` observations with the total `precision`. `shares` holds their shares in the blocks
    within which residuals are jointly Gaussian. `points` are the grid points nearest to the centres.
    """

    data: Data
    rows: Int[np.ndarray, " n"]  # the observations' numbers among all
    precision: Float[np.ndarray, " n"]
    count: Float[np.ndarray, " n"]
    shares: Any  # (n, blocks), sparse, or None
    members: Int[np.ndarray, "c k"]
    points: Float[np.ndarray, "c D"]
    density: int  # density of quadrature nodes relative to that on the grid

    def pairs(self, grid: Grid) -> float:
        """Count the pairs of nodes of all problems, on a grid."""
        most = max(
            nodes.rule_size
            for nodes, _ in quadrature_nodes(grid, self.data, np.arange(len(self.rows)), self.density)
        )
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
    (count, most), density = _affordable(grid, data, first, stencil, entries)
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
    points = _grid_points(grid, chosen, members[:, 0])
    return LocalProblems(chosen, first[used], precision[used], standing_for, shares, members, points, density)


def _grid_points(grid: Grid, data: Data, rows: Int[np.ndarray, " c"]) -> Float[np.ndarray, "c D"]:
    """Return the grid point nearest to the middle node of each of some observations."""
    nodes = [part for row in rows for part, _ in quadrature_nodes(grid, data, np.array([row]), 1)]
    origin, spacing = np.asarray(grid.origin), np.asarray(grid.spacing)
    index = np.rint((np.array([n.x[0, n.rule_size // 2] for n in nodes]) - origin) / spacing)
    return origin + np.clip(index, 0, np.asarray(grid.shape) - 1) * spacing


def _centres(shared: Float[np.ndarray, " G"], count: int) -> Int[np.ndarray, " c"]:
    """Choose the groups with the largest residual variance relative to their noise, and as many at random."""
    worst = np.argsort(-shared, kind="stable")[: count // 2]
    some = np.random.default_rng(0).permutation(len(shared))[: count // 2]
    return np.unique(np.concatenate([worst, some]))


def _affordable(
    grid: Grid, data: Data, rows: Int[np.ndarray, " n"], stencil: int, entries: int | None
) -> tuple[tuple[int, int], int]:
    """Return the affordable number of problems and of observations in each, and the density of nodes."""
    some = rows[np.unique(np.linspace(0, len(rows) - 1, 16).astype(int))]
    for density, sizes in ((2, SIZES[:DENSE]), (1, SIZES)):
        nodes = max(part.rule_size for part, _ in quadrature_nodes(grid, data, some, density))
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
    grid: Grid, data: Data, rows: Int[np.ndarray, " n"], density: int
) -> Iterator[tuple[Nodes, np.ndarray]]:
    """Yield the nodes of some observations, `density` times as dense as on the grid if they depend on the resolution."""
    for block, numbers, at in blocks_with_rows(data, rows):
        spacing = np.asarray(grid.spacing) / (1 if _has_random_nodes(block.functional) else density)
        yield block.functional.nodes_of(numbers, spacing), at
