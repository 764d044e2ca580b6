"""Learning with or without a grid: the bounds of lengthscales, and the warnings if one was met."""

import functools

from hipgp.batch.engine import Batch
from hipgp.choices.coarseness import at_grid_bound, too_coarse
from hipgp.choices.domain import learning_grid
from hipgp.learning import search
from hipgp.learning.learned import Learned, in_unit
from hipgp.learning.units import LearnOptions
from hipgp.model import scaling
from hipgp.model.data import Data
from hipgp.model.grid import Grid
from hipgp.model.kernels import Kernel
from hipgp.model.trend import Trend
from hipgp.runtime.callers import warn_caller
from hipgp.vecchia.grid_check import GridTooCoarse
from hipgp.weights.torus import WRAPPED, check_torus


def learned_from(
    kernel: Kernel, grid: Grid | None, data: Data, noise: float | None, trend: Trend, how: LearnOptions
) -> Learned:
    """Learn kernel and noise; without a grid the spacing of the data bounds the lengthscale."""
    if how.polish and grid is None:
        raise ValueError(
            "polish: expected a GP with a grid, on which the exact bound is computed, got one without; give "
            "GP(kernel, grid), or leave polish out"
        )
    bounding = learning_grid(data) if grid is None else grid
    scaling.warn_if_far_from_zero(data, bounding, trend, None)
    scaling.check_learnable(data)
    given = kernel if how.start == "kernel" else None  # otherwise its variance is not used
    unit = scaling.exponent(given, data, noise)
    given, scaled, noise = scaling.scaled(given, data, noise, -unit)
    method = Batch()
    if how.polish:  # only the exact bound is computed on the grid
        check_torus(kernel, bounding, WRAPPED)
    find = functools.partial(
        search.learn,
        kernel if given is None else given,
        data=scaled,
        noise=noise,
        trend=trend,
        method=method,
        start=how.start,
        user_bounds=scaling.scaled_bounds(how.bounds, -unit),
        seed=how.key,
        progress=how.progress,
    )
    learned = find(grid=bounding, polish=False if grid is None else how.polish, checkpoint=how.checkpoint)
    undetermined = learned.undetermined
    if grid is not None and (names := at_grid_bound(learned, grid, how.bounds)):
        freely = lambda: find(grid=learning_grid(data), polish=False)
        message, undetermined = too_coarse(learned, names, grid, scaled, method, freely)
        if message is not None:
            warn_caller(message, GridTooCoarse)
    warn_if_undetermined(undetermined)
    return in_unit(learned, unit)


def warn_if_undetermined(names: list[str]) -> None:
    """Warn of parameters that the data do not determine."""
    if names:
        warn_caller(
            f"the data do not determine {', '.join(names)}: the likelihood is flat there or best at a bound; give "
            "bounds, a simpler kernel, or more data"
        )
