"""Learning with or without a grid: the bounds of lengthscales, and the warnings if one was met."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from hipgp.choices.domain import learning_grid
from hipgp.choices.grid import grid_for
from hipgp.choices.kernel import COMPARED, ChosenKernel, Judge, choose_kernel
from hipgp.engines import Method
from hipgp.learning.learned import Learned, LearnOptions, ScaledTask, in_unit, scaled_task
from hipgp.learning.parameters import SHORTEST
from hipgp.learning.search import count_in_stages, learn, log_likelihoods
from hipgp.model import scaling
from hipgp.model.grid import Grid
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
    if grid is not None and (names := _at_grid_bound(learned, grid, how.bounds)):
        anew = unpolished._replace(checkpoint=None, most=FREELY)
        freely = lambda: learn(task.problem._replace(grid=learning_grid(data)), method, anew)
        needed = lambda free: (
            grid_for(
                method, problem._replace(kernel=free.kernel, data=task.problem.data, noise=free.noise)
            ).reason
        )
        message, undetermined = _too_coarse(learned, names, grid, freely, needed)
        if message is not None:
            warn_caller(message, GridTooCoarse)
    warn_if_undetermined(undetermined)
    if chosen is not None:
        learned = learned._replace(choice=chosen.reason, seconds=time.perf_counter() - began)
    return in_unit(learned, task.unit)


def _at_grid_bound(learned: Learned, grid: Grid, user_bounds: dict[str, Any] | None) -> list[str]:
    """The names of learned lengthscales on the bound set by the grid's spacing, except those with bounds of the user."""
    spacing, found = np.asarray(grid.spacing), []
    for name, value in zip(learned.names, learned.values, strict=True):
        parameter = name.split(".")[-1]
        axis = int(parameter.split("[")[1][:-1]) if "[" in parameter else None
        # by which the user may have given bounds
        names = {name, name.split("[")[0], parameter, "lengthscale"}
        if parameter.split("[")[0] != "lengthscale" or names & set(user_bounds or {}):
            continue
        least = SHORTEST * (np.min(spacing) if axis is None else spacing[axis])
        if value <= 1.01 * least:
            found.append(name)
    return found


def _too_coarse(
    learned: Learned,
    names: list[str],
    grid: Grid,
    again: Callable[[], Learned],
    grid_needed: Callable[[Learned], str],
) -> tuple[str | None, list[str]]:
    """A warning that the grid is too coarse to learn on, or None, and the parameters that the data do not determine.

    `again` learns without the grid's bound. If the lengthscale meets a bound even then, the grid is not the cause.
    `grid_needed` describes the grid that the kernel found then would need.
    """
    free = again()
    if set(names) & set(free.undetermined):
        return None, learned.undetermined
    values = dict(zip(free.names, free.values, strict=True))
    wanted = ", ".join(f"{name} {values[name]:.3g}" for name in names)
    spacing = ", ".join(f"{h:.3g}" for h in grid.spacing)
    try:
        cost = grid_needed(free)
    except ValueError as error:
        cost = f"no grid that fits into memory would do ({error})"
    message = (
        f"the grid is too coarse for these data: the likelihood is best at the shortest lengthscale that a spacing of "
        f"({spacing}) allows; without that limit it is best at {wanted}, which needs {cost}. Give such a grid, or none: "
        "GP(kernel) chooses one"
    )
    return message, free.undetermined


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
