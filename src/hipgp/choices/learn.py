"""Learning with or without a grid: the bounds of lengthscales, and the warnings if one was met."""

import time

from hipgp.choices.coarseness import at_grid_bound, too_coarse
from hipgp.choices.domain import learning_grid
from hipgp.choices.grid import grid_for
from hipgp.choices.kernel import COMPARED, ChosenKernel, Judge, choose_kernel
from hipgp.engines import Method
from hipgp.learning.learned import Learned, in_unit
from hipgp.learning.search import count_in_stages, learn, log_likelihoods
from hipgp.learning.units import LearnOptions, ScaledTask, scaled_task
from hipgp.model import scaling
from hipgp.model.problem import OpenProblem
from hipgp.model.undecided import Undecided
from hipgp.runtime.callers import warn_caller
from hipgp.vecchia.grid_check import GridTooCoarse
from hipgp.weights.torus import WRAPPED, check_torus

FREELY = 2**14  # observations that tell, where a grid bounds the lengthscale, what it would be without


def learned_from(problem: OpenProblem, method: Method, how: LearnOptions) -> Learned:
    """Learn kernel and noise; without a grid the spacing of the data bounds the lengthscale.

    An undecided kernel is chosen first, from some of the data. `method` is the engine whose log evidence the last steps go
    up, and which a grid has to suit.
    """
    began = time.perf_counter()
    kernel, grid, data, _, trend = problem
    if how.polish and grid is None:
        raise ValueError(
            "polish: expected a GP with a grid, on which the exact bound is computed, got one without; give "
            "GP(kernel, grid), or leave polish out"
        )
    bounding = learning_grid(data) if grid is None else grid
    scaling.warn_if_far_from_zero(data, bounding, trend, None)
    task, chosen = scaled_task(problem.on(bounding), how), None
    if isinstance(kernel, Undecided):
        chosen = _chosen(task, method)
        task = _from_there(task, chosen.learned)
    if how.polish:  # only the exact bound is computed on the grid
        check_torus(task.problem.kernel, bounding, WRAPPED)
    unpolished = task.how._replace(polish=False)
    learned = learn(task.problem, method, unpolished if grid is None else task.how)
    undetermined = learned.undetermined
    if grid is not None and (names := at_grid_bound(learned, grid, how.bounds)):
        anew = unpolished._replace(checkpoint=None, most=FREELY)
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
    if chosen is not None:
        learned = learned._replace(choice=chosen.reason, seconds=time.perf_counter() - began)
    return in_unit(learned, task.unit)


def _chosen(task: ScaledTask, method: Method) -> ChosenKernel:
    """The kernel that the data choose, learned from some of them."""
    problem = task.problem
    judge = Judge(
        lambda kernel, how: learn(problem._replace(kernel=kernel), method, how),
        lambda found: log_likelihoods(found, problem, COMPARED, task.how.key),
        count_in_stages(problem.data, COMPARED),
    )
    return choose_kernel(judge, problem.data, task.how)


def _from_there(task: ScaledTask, learned: Learned) -> ScaledTask:
    """The task with the kernel and noise of `learned` to start from."""
    noise = task.problem.noise if learned.noise is None else learned.noise
    problem = task.problem._replace(kernel=learned.kernel, noise=noise)
    return task._replace(problem=problem, how=task.how._replace(start="kernel"))


def warn_if_undetermined(names: list[str]) -> None:
    """Warn of parameters that the data do not determine."""
    if names:
        warn_caller(
            f"the data do not determine {', '.join(names)}: the likelihood is flat there or best at a bound; give "
            "bounds, a simpler kernel, or more data"
        )
