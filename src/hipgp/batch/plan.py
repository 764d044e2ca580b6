"""What a fit with the batch engine will take: bytes and expected seconds of each part, from counted work.

The counts are those of the algorithms that `batch/build.py` carries out. What only K and W decide is assumed: many points
are solved in grid space, and a solve takes STEPS steps. Memory is counted as it is at the peak of each part.
"""

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from hipgp.batch import decisions, estimates, low_rank, variances
from hipgp.batch.decisions import Work
from hipgp.batch.grid_space import LINE_MODES, LINES, POINT_MODES
from hipgp.batch.interpolation import points_per_axis
from hipgp.linalg.rates import LARGE, SMALL, Rates, transform_work
from hipgp.model.data import Data
from hipgp.model.functionals import Points
from hipgp.model.kernel_scales import repeats
from hipgp.model.problem import Problem
from hipgp.planning import Part, compilation
from hipgp.predictions import DEFAULT_STD
from hipgp.runtime import memory
from hipgp.runtime.arrays import on_cpu
from hipgp.vecchia import factor as vecchia
from hipgp.vecchia.grid_error import unseen_variances
from hipgp.vecchia.group_covariances import coarse_nodes
from hipgp.weights.slabs import in_slabs
from hipgp.weights.torus import WRAPPED, smallest_torus, solve_bytes

if TYPE_CHECKING:
    from hipgp.batch.engine import Batch

STEPS = {"data": 25, "grid": 80}  # of a solve, for most data whatever their number: 10 to 30, and 40 to 130
INVERSE = 4.0  # time of the inverse of a matrix, relative to one product of such matrices
PROGRAMS = 30  # that a first fit compiles
CHECKED, AROUND, MOST_AROUND = (
    64,
    31,
    1000,
)  # places where the grid is checked, observations and grid points around each
TORI = 2  # that an embedding tries
OF_SLABS = 0.5  # time of a product by slabs on a CPU, relative to one on the whole torus
LOOSE = 3.0  # numbers of an entry of W that are read and written while it is computed, merged and laid out
COVARIANCES = 2.0**22 * 8 * 8  # bytes of places and covariances evaluated together, at most
FACTOR_ENTRY = 24  # bytes of an entry of the sparse factor, by rows and by columns


class _Sizes(NamedTuple):
    """The counts that the work and the memory of every part follow from."""

    observations: int
    grid_points: int
    ndim: int
    torus: tuple[int, ...]
    slabs: bool
    space: str
    itemsize: int
    entries: float  # of W
    nodes: float  # of the data on the grid
    right_hand_sides: int

    @property
    def torus_size(self) -> float:
        return float(np.prod(self.torus, dtype=float))

    @property
    def orthant(self) -> float:
        return float(np.prod([m // 2 + 1 for m in self.torus], dtype=float))


def _sizes(method: "Batch", problem: Problem) -> _Sizes:
    kernel, grid, data, _, trend = problem
    torus = smallest_torus(kernel, grid, WRAPPED)
    where = _space(method, problem)
    p, local = points_per_axis(method, data), method.weights == "local"
    entries = (
        estimates.data_entries(grid, data, p) if method.weights != "exact" else float(len(data)) * grid.size
    )
    slabs = where == "data" and in_slabs(grid.shape, torus)[0]
    return _Sizes(
        len(data), grid.size, grid.ndim, torus, slabs, where, data.dtype.itemsize,
        entries, estimates.data_nodes(grid, data) if local else entries, 1 + trend.count(grid.ndim),
    )  # fmt: skip


def _space(method: "Batch", problem: Problem) -> str:
    """The space of the solve; residual variances are those of a sample of the points, and no mode is thought too hard."""
    data, grid = problem.data, problem.grid
    where = lambda joint: decisions.space(method, data, grid.size, joint, lambda: 0.0).choice
    if where(False) == where(True):
        return where(False)
    some = Data(tuple(block.take(_sample(len(block.y))) for block in data.blocks))
    values = tuple(np.zeros(grid.ndim) for _ in some.blocks)  # points have no quadrature
    unseen, _ = unseen_variances(problem.kernel, grid, some, points_per_axis(method, data), values)
    ratio = float(np.mean(unseen) / np.mean(problem.noise_std**2))
    return where(decisions.residual(method, data, ratio, share_a_cell=lambda: True).choice == "joint")


def parts(method: "Batch", problem: Problem, rates: Rates) -> list[Part]:
    """The parts of a fit, then those of predictions on the grid and of a draw."""
    s = _sizes(method, problem)
    precondition = _of_grid_space if s.space == "grid" else _of_data_space
    set_up = [
        _covariance(s, rates),
        _weights(method, problem, s, rates),
        precondition(method, problem, s, rates),
    ]
    compiling = compilation(PROGRAMS, rates)
    step = _step_seconds(s, set_up[2].kept, rates)
    fit = [compiling, *set_up, _check(method, problem, rates), _solve(problem, s, step)]
    return [*fit, _std(problem, s, step, rates), _draw(s, step, rates)]


def _covariance(s: _Sizes, rates: Rates) -> Part:
    kept = s.itemsize * (s.orthant if s.slabs else s.torus_size / 2)
    peak = 24 * s.orthant + min(COVARIANCES, 64 * s.orthant) + (0.0 if s.slabs else 8 * s.torus_size)
    seconds = TORI * (s.orthant / rates.kernel + transform_work(s.orthant) / rates.transformed)
    how = "slab by slab" if s.slabs else "whole"
    work = f"the covariance K of {s.grid_points:,} grid points on a torus of {' x '.join(map(str, s.torus))}, {how}"
    return Part("covariance", kept + peak, kept, seconds, work)


def _weights(method: "Batch", problem: Problem, s: _Sizes, rates: Rates) -> Part:
    n = f"{s.observations:,} observations"
    if method.weights == "matrix-free":
        kept = 16.0 * s.ndim * s.observations
        return Part("weights", 2 * kept, kept, 0.0, f"none stored for {n}")
    if method.weights == "exact":
        solves = s.observations * 50 * 2 * transform_work(s.torus_size) / rates.transformed
        return Part(
            "weights", 24 * s.entries, 8 * s.entries, solves, f"exact weights: a solve for each of {n}"
        )
    stencil = float(points_per_axis(method, problem.data)) ** s.ndim
    seconds = (
        s.nodes * stencil * (1 / rates.kernel + 3 * stencil / rates.multiplied)
        + LOOSE * s.entries / rates.gathered
    )
    work = f"{s.entries:.3g} weights of {n} with {s.nodes:.3g} nodes"
    return Part(
        "weights", estimates.BYTES_AT_PEAK * s.entries, estimates.BYTES_KEPT * s.entries, seconds, work
    )


def _check(method: "Batch", problem: Problem, rates: Rates) -> Part:
    single = all(functional.single for functional in problem.data.functionals)
    points = AROUND * points_per_axis(method, problem.data) ** problem.data.ndim
    points = float(min(points, MOST_AROUND)) if single else float(MOST_AROUND)
    seconds, size = CHECKED * points**2 / rates.kernel, 2 * CHECKED * points**2
    return Part(
        "check of the grid",
        size,
        0.0,
        seconds,
        f"local kriging at {CHECKED} places, with the grid and without it",
    )


def _of_grid_space(method: "Batch", problem: Problem, s: _Sizes, rates: Rates) -> Part:
    points = decisions.all_points(problem.data)
    pairs = float(np.clip(s.torus_size // 200, *POINT_MODES)) if points else LINE_MODES
    modes = min(2 * pairs, s.torus_size)
    inverse = 24.0 * modes**2
    if not points:
        seconds = (
            min(LINES, s.observations) * modes**2 / rates.multiplied + INVERSE * modes**3 / rates.multiplied
        )
        return Part(
            "preconditioner", 2 * inverse, inverse / 3, seconds, f"a dense block of {modes:,.0f} modes"
        )
    stencil = s.entries / s.observations
    band = s.grid_points * (2 * stencil ** (1 / s.ndim) - 1) ** s.ndim
    seconds = (
        3 * s.entries * stencil / rates.multiplied
        + INVERSE * modes**3 / rates.multiplied
        + band / rates.gathered
    )
    work = f"W'N^-1 W with {band:.3g} entries and a dense block of {modes:,.0f} modes"
    return Part("preconditioner", 36 * band + inverse, 12 * band + inverse / 3, seconds, work)


def _of_data_space(method: "Batch", problem: Problem, s: _Sizes, rates: Rates) -> Part:
    if method.neighbours == 0:
        return Part("preconditioner", 0.0, 0.0, 0.0, "none, as asked")
    data, n = problem.data, float(s.observations)
    if decisions.tries_low_rank(method, lambda: low_rank.crossing(data, problem.kernel)):
        columns = float(low_rank.MOST_COLUMNS)
        seconds = 2 * n * columns**2 / rates.multiplied
        work = f"a factor of at most {columns:,.0f} columns, or of neighbours where that leaves too much"
        return Part("preconditioner", 24 * n * columns, 8 * n * columns, seconds, work)
    if all(functional.single for functional in data.functionals):
        k = (method.neighbours or vecchia.NEIGHBOURS) + 1
        seconds = n * ((k / SMALL) ** 3 / rates.small + k**2 / rates.kernel + k / 20 / rates.found)
        work = f"the sparse Vecchia factor, {s.observations:,} systems of {k} points"
        return Part("preconditioner", 2 * FACTOR_ENTRY * n * k, FACTOR_ENTRY * n * k, seconds, work)
    of_cpu = vecchia.GROUP_SIZE, vecchia.GROUP_NEIGHBOURS
    group, neighbours = of_cpu if on_cpu() else (vecchia.GPU_GROUP, vecchia.GPU_GROUP_NEIGHBOURS)
    rows, count = group + (method.neighbours or neighbours), n / group
    seconds = count * _group_seconds(problem, rows, rates)
    work = f"the sparse Vecchia factor, {count:,.0f} systems of {rows} observations"
    return Part("preconditioner", 24 * n * rows, (s.itemsize + 1) * n * rows, seconds, work)


def _group_seconds(problem: Problem, rows: int, rates: Rates) -> float:
    """The seconds that a covariance matrix of a group by coarse quadrature takes, and its factor."""
    nodes = [
        coarse_nodes(f.take(_sample(len(f))), problem.kernel).rule_size for f in problem.data.functionals
    ]
    return (rows / LARGE) ** 3 / rates.large + (rows * max(nodes)) ** 2 / rates.kernel


def _sample(count: int) -> np.ndarray:
    return np.unique(np.linspace(0, count - 1, 16).astype(int))


def _step_seconds(s: _Sizes, preconditioner: float, rates: Rates) -> float:
    """The seconds of one step of a solve, for one right-hand side."""
    faster = OF_SLABS if s.slabs and on_cpu() else 1.0
    product = faster * 2 * transform_work(s.torus_size) / rates.transformed
    of_preconditioner = preconditioner / (s.itemsize + 4)  # entries, by rows and by columns
    many_points = s.space == "grid" and preconditioner > 0
    return (
        product
        + (0.0 if many_points else 2 * s.entries / rates.gathered)
        + of_preconditioner / rates.gathered
    )


def _solve(problem: Problem, s: _Sizes, step: float) -> Part:
    vectors = 12 * 8.0 * s.right_hand_sides * s.observations
    grid = solve_bytes(problem.grid, s.torus, s.slabs) * (1 if s.slabs else s.right_hand_sides)
    kept = s.itemsize * s.right_hand_sides * (s.observations + s.grid_points)
    work = f"about {STEPS[s.space]} steps of conjugate gradients in {s.space} space, {s.right_hand_sides} right-hand sides"
    return Part("solve", vectors + grid, kept, (STEPS[s.space] + 2) * s.right_hand_sides * step, work)


def _std(problem: Problem, s: _Sizes, step: float, rates: Rates) -> Part:
    """Mean and standard deviation at the grid points, by the algorithm that a prediction would take."""
    data, m, samples = problem.data, s.grid_points, DEFAULT_STD.samples
    needed = Work(min(s.observations, m), STEPS[s.space], int(s.torus_size))
    one, nearest_suffice = Points(np.zeros((1, s.ndim))), not repeats(problem.kernel)
    how = decisions.standard_deviations(
        data, one, m, samples, lambda: needed, variances.from_one_place, nearest_suffice
    )
    name, rows = "mean and std on the grid", float(needed.rows)
    if how.choice == "vecchia":
        size, k = variances.ALONE
        seconds = m * (
            ((k + size) / SMALL) ** 3 / rates.small + (k + size) ** 2 / rates.kernel + 1 / rates.found
        )
        bytes_at_once = min(float(estimates.NEAR_POINT) * m, estimates.PIECE * memory.bytes_available())
        return Part(name, bytes_at_once, 16.0 * m, seconds, how.reason, True)
    if how.choice == "exact" and decisions.exact_by_factor(needed, m, samples):
        products = (rows + m) * transform_work(s.torus_size) * 2 / rates.transformed
        seconds = products + (rows**3 / 3 + rows**2 * m) / rates.multiplied
        return Part(name, 32 * rows**2, 8 * rows**2, seconds, how.reason, True)
    solves = samples if how.choice == "samples" else m
    together = min(solves, 64) * (solve_bytes(problem.grid, s.torus, s.slabs) + 96.0 * s.observations)
    return Part(name, min(together, 2.0**31), 16.0 * m, solves * STEPS[s.space] * step, how.reason, True)


def _draw(s: _Sizes, step: float, rates: Rates) -> Part:
    seconds = (STEPS[s.space] + 2) * step + 4 * transform_work(s.torus_size) / rates.transformed
    size = memory.slab_bytes(s.grid_points, s.orthant) if s.slabs else memory.torus_bytes(s.torus_size)
    work = "one joint sample on the grid: a solve for simulated data"
    return Part("a draw", size + 96.0 * s.observations, 8.0 * s.grid_points, seconds, work, True)
