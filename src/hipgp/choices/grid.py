"""The automatic grid of inducing points: the coarsest on which the posterior is close to that without a grid.

First the spacing is reduced until the residual variances, which count as noise, are small compared with the noise; that
takes covariances of a few observations with the grid points around them. Then local kriging with the grid's covariances is
compared with local kriging with the kernel's (`vecchia/grid_error.py`), and the spacing is reduced while they differ.
Memory and the cost of a step of the solve limit the number of points.
"""

from collections.abc import Callable

import numpy as np
from jaxtyping import Float

from hipgp.batch.decisions import SHARED, Decision
from hipgp.choices.domain import MOST_POINTS, covering, domain, in_step
from hipgp.engines import Method
from hipgp.model.data import Data, Observations
from hipgp.model.functionals import Points
from hipgp.model.grid import Grid
from hipgp.model.kernel_scales import shortest_lengthscale
from hipgp.model.kernels import Kernel
from hipgp.model.problem import OpenProblem, Problem
from hipgp.runtime import memory
from hipgp.runtime.precision import float64_available
from hipgp.runtime.threads import one_blas_thread
from hipgp.vecchia.grid_error import (
    USUAL_ORDER,
    convergence_order,
    grid_error,
    stencil_approximation,
    unseen_variances,
)
from hipgp.vecchia.local_problems import local_problems, needed_resolution
from hipgp.weights.torus import WRAPPED, smallest_torus

UNSEEN = 0.02  # largest mean residual variance, relative to the noise variance
# Largest error of the mean in posterior standard deviations, and largest relative error of these.
NEAR_ENOUGH = 0.08
COARSEST, FINEST, STEP = 0.5, 0.12, 2**-0.5  # spacings tried before the local kriging, in lengthscales
REFINEMENTS = 5  # refinements by local kriging, each at most by the factor LARGEST_STEP
LARGEST_STEP, MARGIN = 0.25, 0.7  # a refinement aims at MARGIN times NEAR_ENOUGH
SAMPLE = 48  # observations whose residual variances are computed
HOPELESS = 0.5  # residual variance, relative to the prior variance, above which a grid is refused


@one_blas_thread
@float64_available
def grid_for(method: Method, problem: OpenProblem) -> Decision[Grid]:
    """Choose the grid on which `method` conditions the problem."""
    kernel, data = problem.kernel, problem.data
    box, length = domain(kernel, data), shortest_lengthscale(kernel, data.ndim)
    some, rows = _sample(data)
    grid, spacing = _grid(kernel, box, COARSEST * length), COARSEST
    variance = problem.on(grid).noise_std ** 2
    stencil, resolution = method.points_per_axis(data), needed_resolution(problem.on(grid), variance)
    while True:
        unseen, prior = unseen_variances(kernel, grid, some, stencil, resolution)
        share = float(np.mean(unseen / variance[rows]))
        if share <= UNSEEN or spacing * STEP < FINEST:
            break
        finer = _grid(kernel, box, spacing * STEP * length)
        if finer.size <= grid.size:
            break
        grid, spacing = finer, spacing * STEP
    with_spacing = lambda by: _grid(kernel, box, by * length)
    grid, found = _refined(problem.on(grid), stencil, share, with_spacing)
    unseen, prior = unseen_variances(kernel, grid, some, stencil, resolution)
    _check(grid, float(np.mean(unseen) / np.mean(prior)), length)
    return Decision(grid, _reason(kernel, grid, float(np.mean(unseen / variance[rows])), found[0]))


def _refined(
    problem: Problem, stencil: int, share: float, with_spacing: Callable[[float], Grid]
) -> tuple[Grid, tuple[float, float]]:
    """The first grid whose errors by local kriging are small enough, or the finest; each spacing extrapolates the error."""
    grid = problem.grid
    spacing = float(np.max(np.asarray(grid.spacing) / shortest_lengthscale(problem.kernel, grid.ndim)))
    found, order = _error(problem, stencil, share), USUAL_ORDER
    for _ in range(REFINEMENTS):
        if (worst := max(found)) <= NEAR_ENOUGH:
            break
        by = float(np.clip((MARGIN * NEAR_ENOUGH / worst) ** (1 / order), LARGEST_STEP, STEP))
        finer = with_spacing(by * spacing)
        if finer.size <= grid.size:
            break
        ratio = float(np.max(np.asarray(finer.spacing) / np.asarray(grid.spacing)))
        grid, spacing, share = finer, spacing * ratio, share * ratio
        found = _error(problem._replace(grid=grid), stencil, share)
        order = convergence_order(max(found) / worst, ratio)
    return grid, found


def _grid(kernel: Kernel, box: tuple[np.ndarray, np.ndarray], step: Float[np.ndarray, " D"]) -> Grid:
    """A grid over the box with spacing `step`, or as fine as memory and MOST_POINTS allow."""
    most = MOST_POINTS
    while True:
        grid = in_step(kernel, covering(*box, step, most))
        needed = memory.torus_bytes(np.prod(smallest_torus(kernel, grid, WRAPPED), dtype=float))
        if memory.fits(needed) or grid.size <= 2**grid.ndim:
            return grid
        most = min(most, grid.size) / 1.5
        if most < 2**grid.ndim:
            return grid  # the engine refuses what does not fit into memory


def _sample(data: Data) -> tuple[Data, np.ndarray]:
    """A sample of the observations of every block, and their numbers."""
    blocks, rows, begin = [], [], 0
    each = max(4, SAMPLE // len(data.blocks))
    for block in data.blocks:
        some = np.unique(np.linspace(0, len(block.y) - 1, each).astype(int))
        blocks.append(Observations(block.functional.take(some), block.y[some], None))
        rows.append(begin + some)
        begin += len(block.y)
    return Data(tuple(blocks)), np.concatenate(rows)


def _error(problem: Problem, stencil: int, share: float) -> tuple[float, float]:
    """Errors of mean and std due to the grid; residuals of points are joint if the batch engine would treat them so."""
    kernel, grid, data, _, _ = problem
    problems = local_problems(problem, None, stencil)
    view = stencil_approximation(kernel, grid, problems, stencil, True)
    plain = all(isinstance(functional, Points) for functional in data.functionals)
    if plain and SHARED[0] < share < SHARED[1]:
        problems = problems._replace(shares=view.by_cell())
    found = grid_error(kernel, grid, problems, view, plain)
    return found.mean, found.std


def _check(grid: Grid, unseen: float, length: Float[np.ndarray, " D"]) -> None:
    """Raise a ValueError if even the finest grid that fits is far too coarse for the kernel."""
    if unseen <= HOPELESS:
        return
    times = float(np.max(np.asarray(grid.spacing) / length))
    raise ValueError(
        f"grid: expected a kernel that a grid in memory can carry over the data's extent, but the finest one, "
        f"{_shape(grid)} points with a spacing of {_spacing(grid)}, leaves {unseen:.0%} of the variance of the data "
        f"unseen: the spacing is {times:.2g} of the kernel's lengthscales; use method=Exact() if the data are few, fit "
        "smaller regions one by one, or give a kernel with a longer lengthscale"
    )


def _reason(kernel: Kernel, grid: Grid, share: float, off: float) -> str:
    size = memory.torus_bytes(np.prod(smallest_torus(kernel, grid, WRAPPED), dtype=float))
    return (
        f"grid {_shape(grid)}, spacing {_spacing(grid)}: the grid leaves {share:.2g} of the noise variance unseen, and "
        f"puts the mean off by about {off:.1g} standard deviations at worst; {max(size / 2**20, 0.1):,.1f} MiB"
    )


def _shape(grid: Grid) -> str:
    return " x ".join(map(str, grid.shape))


def _spacing(grid: Grid) -> str:
    return ", ".join(f"{h:.3g}" for h in grid.spacing)
