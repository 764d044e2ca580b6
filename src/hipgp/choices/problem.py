"""The engine and the grid of a problem, as given by the user or chosen."""

from typing import Any

from hipgp.choices.domain import map_grid
from hipgp.choices.grid import grid_for
from hipgp.choices.method import method_for
from hipgp.engines import Method
from hipgp.model.data import check_differentiable
from hipgp.model.grid import Grid
from hipgp.model.problem import OpenProblem
from hipgp.runtime.progress import Progress

Facts = dict[str, Any]
AUTO = "auto"


def settled_method(method: Any, batch: Method, problem: OpenProblem, checkpoint: Any) -> tuple[Method, Facts]:
    """The engine, and the reason if it was chosen: for "auto", and without both a method and a grid.

    `batch` is the batch engine as it is used where nothing is said of it.
    """
    kernel, data = problem.kernel, problem.data
    kernel.check_dimension(data.ndim)
    check_differentiable(kernel.differentiable, data)
    if method is None:
        method = batch if problem.grid is not None else AUTO
    if isinstance(method, str) and method == AUTO:
        chosen = method_for(batch, problem, checkpoint)
        return chosen.choice, {"engine_chosen": chosen.reason}
    if not isinstance(method, Method):
        shown = repr(method) if isinstance(method, str) else type(method).__name__
        raise ValueError(f'method: expected Batch(...), Variational(...), Exact(...) or "auto", got {shown}')
    return method, {}


def settled_grid(method: Method, problem: OpenProblem, progress: bool) -> tuple[Grid, Facts]:
    """The grid, and the reason for its size if it was chosen."""
    if problem.grid is not None:
        return problem.grid, {}
    problem.data.noise_std(problem.noise)  # an error where there is none
    if not method.on_grid:
        shown = map_grid(problem.kernel, problem.data)
        points = " x ".join(map(str, shown.shape))
        return shown, {
            "grid_chosen": f"grid {points}, to show the map on: the {method.name} engine computes without a grid"
        }
    with Progress("choosing a grid", progress):
        chosen = grid_for(method, problem)
    return chosen.choice, {"grid_chosen": chosen.reason}
