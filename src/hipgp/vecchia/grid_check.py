"""The check that the grid is fine enough for the data, and the warning with a spacing that would be.

`vecchia/grid_error.py` estimates the difference of the posterior from that of the same model without a grid. If it is too
large, finer grids are tried until one is fine enough.
"""

from typing import Any

import numpy as np

from hipgp.model.data import Data
from hipgp.model.functionals import Points
from hipgp.model.grid import Grid
from hipgp.model.kernel_scales import typical_lengthscale
from hipgp.model.kernels import Kernel
from hipgp.model.problem import FEW, Problem
from hipgp.runtime.callers import warn_caller
from hipgp.runtime.precision import float64_available
from hipgp.runtime.threads import one_blas_thread
from hipgp.vecchia.grid_error import (
    USUAL_ORDER,
    GridApproximation,
    GridError,
    GridModel,
    convergence_order,
    grid_error,
    stencil_approximation,
)
from hipgp.vecchia.local_problems import LocalProblems, local_problems

# errors above which there is a warning: of the mean in posterior standard deviations, and relative errors of these
MEAN, STD = 0.12, 0.5
HALVINGS = 3  # halvings of the spacing to try, as long as PAIRS kernel evaluations suffice; further ones are extrapolated
PAIRS = 4e7
# Fraction of these errors that a proposed finer grid may have, since its worst places may be others.
MARGIN = 0.5


class GridTooCoarse(UserWarning):
    """The grid misses so much of the field's variation that the posterior has noticeable errors."""


@one_blas_thread
@float64_available
def grid_diagnostics(problem: Problem, model: GridModel) -> dict[str, Any]:
    """Return diagnostics: the errors of the posterior due to the grid and, if they are too large, a grid that would do."""
    kernel, grid = problem.kernel, problem.grid
    entries = None if model.rows is None else int(np.mean(model.rows.csr.row_lengths))
    problems = local_problems(problem, model.residual, model.stencil, entries, model.block)
    if model.rows is not None:
        approximation = GridApproximation.from_rows(
            model.rows, problems, model.residual_as_noise, model.stencil
        )
    else:
        approximation = stencil_approximation(kernel, grid, problems, model.stencil, model.residual_as_noise)
    found = grid_error(kernel, grid, problems, approximation, model.vecchia_std)
    facts = {"grid_mean_error": found.mean, "grid_std_error": found.std, "grid_error_places": found.places}
    if _excess(found) <= 1:
        return facts
    needed = _fine_enough(kernel, grid, problems, model, found)
    shape = None if needed is None else needed.shape
    return facts | {
        "grid_needed": shape,
        "grid_merging_helps": _merging_helps(kernel, grid, problems, approximation, model),
    }


def _merging_helps(
    kernel: Kernel, grid: Grid, problems: LocalProblems, approximation: GridApproximation, model: GridModel
) -> bool:
    """Tell whether the grid is fine enough after merging repeated points into one observation each.

    The residuals of points in one cell are then jointly Gaussian.
    """
    if not model.vecchia_std or model.block is not None or np.max(problems.count) == 1:
        return False
    merged = problems._replace(count=np.ones_like(problems.count), shares=approximation.by_cell())
    return _excess(grid_error(kernel, grid, merged, approximation, vecchia=True)) <= 1


def _excess(found: GridError) -> float:
    """Return the larger of the two errors, relative to the size that causes a warning."""
    return max(found.mean / MEAN, found.std / STD)


def _fine_enough(
    kernel: Kernel, grid: Grid, problems: LocalProblems, model: GridModel, found: GridError
) -> Grid | None:
    """Return a grid on which the error would be small enough, or None if it would have too many points."""
    now, order = _excess(found) / MARGIN, USUAL_ORDER
    try:
        for _ in range(HALVINGS):
            finer = _halved(kernel, grid)
            if problems.pairs(finer) > PAIRS:
                break
            grid, before = finer, now
            approximation = stencil_approximation(
                kernel, grid, problems, model.stencil, model.residual_as_noise
            )
            shared = problems if model.block is None else problems._replace(shares=approximation.by_cell())
            now = _excess(grid_error(kernel, grid, shared, approximation, model.vecchia_std)) / MARGIN
            if now <= 1:
                return grid
            order = convergence_order(now / before, 0.5)
        for _ in range(int(np.ceil(np.log2(now) / order))):
            grid = _halved(kernel, grid)
    except ValueError:  # more points than a grid can have
        return None
    return grid


def _halved(kernel: Kernel, grid: Grid) -> Grid:
    """Halve the spacing along the axes where it is coarsest in lengthscales; the grid's points stay grid points."""
    coarse = np.asarray(grid.spacing) / typical_lengthscale(kernel, grid.ndim)
    parts = np.where(coarse > np.max(coarse) / 2, 2, 1)
    shape = (np.asarray(grid.shape) - 1) * parts + 1
    return Grid(grid.origin, np.asarray(grid.spacing) / parts, tuple(int(n) for n in shape))


def warn_if_coarse(facts: dict[str, Any], grid: Grid, data: Data, residual: str, stencil: int) -> None:
    """Warn at the user's line if the grid is too coarse."""
    if "grid_needed" not in facts:
        return
    message = describe_error(facts, grid)
    if facts["grid_merging_helps"]:
        message += "; or merge observations of nearly the same place into their weighted means"
    if grid.ndim > 2 and stencil == 2:
        message += "; or try Batch(stencil=4)"
    if residual != "joint" and all(isinstance(functional, Points) for functional in data.functionals):
        message += '; or try Batch(residual="joint")'
    if len(data) <= FEW:
        message += '; or use method="auto", which computes few observations without a grid'
    warn_caller(message, GridTooCoarse)


def describe_error(facts: dict[str, Any], grid: Grid) -> str:
    """Describe the errors of the posterior due to the grid, and a grid that would do, in words."""
    errors = (
        f"the grid is too coarse for these data: at the worst of {facts['grid_error_places']} places tried, the "
        f"posterior mean is off by {facts['grid_mean_error']:.2g} posterior standard deviations"
    )
    if facts["grid_std_error"] > 0.01:
        errors += f", and its standard deviation by a factor of {1 + facts['grid_std_error']:.3g}"
    shape = facts["grid_needed"]
    if shape is None:
        return f"{errors}; no grid of a size that fits would do"
    spacing = np.asarray(grid.spacing) * (np.asarray(grid.shape) - 1) / (np.asarray(shape) - 1)
    size = float(np.prod(shape, dtype=float))
    return (
        f"{errors}; a spacing of ({', '.join(f'{h:.3g}' for h in spacing)}) would do: "
        f"{' x '.join(map(str, shape))} = {size:,.0f} grid points, {_bytes(8 * size * 2**grid.ndim)} for one float64 "
        "array on their torus"
    )


def _bytes(size: float) -> str:
    power = min(int(np.log2(max(size, 1)) // 10), 4)
    return f"{size / 2 ** (10 * power):.3g} {('B', 'KiB', 'MiB', 'GiB', 'TiB')[power]}"
