"""Learning with or without a grid: the bounds of lengthscales, and the warnings if one was met."""

from hipgp.choices.coarseness import at_grid_bound, too_coarse
from hipgp.choices.domain import learning_grid
from hipgp.choices.grid import grid_for
from hipgp.engines import Method
from hipgp.learning.learned import Learned, in_unit
from hipgp.learning.search import learn
from hipgp.learning.units import LearnOptions, scaled_task
from hipgp.model import scaling
from hipgp.model.problem import OpenProblem
from hipgp.runtime.callers import warn_caller
from hipgp.vecchia.grid_check import GridTooCoarse
from hipgp.weights.torus import WRAPPED, check_torus


def learned_from(problem: OpenProblem, method: Method, how: LearnOptions) -> Learned:
    """Learn kernel and noise; without a grid the spacing of the data bounds the lengthscale.

    `method` is the engine whose log evidence the last steps go up, and which a grid has to suit.
    """
    kernel, grid, data, _, trend = problem
    if how.polish and grid is None:
        raise ValueError(
            "polish: expected a GP with a grid, on which the exact bound is computed, got one without; give "
            "GP(kernel, grid), or leave polish out"
        )
    bounding = learning_grid(data) if grid is None else grid
    scaling.warn_if_far_from_zero(data, bounding, trend, None)
    task = scaled_task(problem.on(bounding), how)
    if how.polish:  # only the exact bound is computed on the grid
        check_torus(kernel, bounding, WRAPPED)
    unpolished = task.how._replace(polish=False)
    learned = learn(task.problem, method, unpolished if grid is None else task.how)
    undetermined = learned.undetermined
    if grid is not None and (names := at_grid_bound(learned, grid, how.bounds)):
        anew = unpolished._replace(checkpoint=None)
        freely = lambda: learn(task.problem._replace(grid=learning_grid(data)), method, anew)
        needed = lambda free: (
            grid_for(
                method, problem._replace(kernel=free.kernel, data=task.problem.data, noise=free.noise)
            ).reason
        )
        message, undetermined = too_coarse(learned, names, grid, freely, needed)
        if message is not None:
            warn_caller(message, GridTooCoarse)
    warn_if_undetermined(undetermined)
    return in_unit(learned, task.unit)


def warn_if_undetermined(names: list[str]) -> None:
    """Warn of parameters that the data do not determine."""
    if names:
        warn_caller(
            f"the data do not determine {', '.join(names)}: the likelihood is flat there or best at a bound; give "
            "bounds, a simpler kernel, or more data"
        )
