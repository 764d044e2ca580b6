"""A whole problem from what was given and what was chosen: the engine, and its grid."""

from typing import Any

from hipgp.batch.engine import Batch
from hipgp.choices.domain import grown, map_grid
from hipgp.choices.grid import MOST_POINTS, grid_for
from hipgp.choices.method import method_for
from hipgp.engines import FittedPosterior, Method
from hipgp.model.data import Data, check_differentiable
from hipgp.model.functionals import Functional
from hipgp.model.grid import Grid
from hipgp.model.kernels import Kernel
from hipgp.runtime.progress import Progress

Facts = dict[str, Any]
AUTO = "auto"


def settled_method(
    method: Any, kernel: Kernel, grid: Grid | None, data: Data, noise: float | None, checkpoint: Any
) -> tuple[Method, Facts]:
    """The engine, and why where it was chosen: with "auto", and where there is neither a method nor a grid."""
    kernel.check_dimension(data.ndim)
    check_differentiable(kernel.differentiable, data)
    if method is None:
        method = Batch() if grid is not None else AUTO
    if isinstance(method, str) and method == AUTO:
        chosen = method_for(kernel, data, noise, checkpoint)
        return chosen.method, {"engine_chosen": chosen.said}
    if not isinstance(method, Method):
        shown = repr(method) if isinstance(method, str) else type(method).__name__
        raise ValueError(f'method: expected Batch(...), Variational(...), Exact(...) or "auto", got {shown}')
    return method, {}


def settled_grid(
    method: Method, kernel: Kernel, grid: Grid | None, data: Data, noise: float | None, progress: bool
) -> tuple[Grid, Facts]:
    """The grid, and why it is as it is where it was chosen."""
    if grid is not None:
        return grid, {}
    std = data.noise_std(noise)
    if not method.on_grid:
        shown = map_grid(kernel, data)
        points = " x ".join(map(str, shown.shape))
        return shown, {
            "grid_chosen": f"grid {points}, to show the map on: the {method.name} engine computes on none"
        }
    with Progress("choosing a grid", progress):
        chosen = grid_for(method, kernel, data, std)
    return chosen.grid, {"grid_chosen": chosen.said}


def reaching(engine: FittedPosterior, functional: Functional, progress: bool) -> FittedPosterior:
    """The posterior of the same data on its grid with cells added, so that `functional` lies within."""
    problem = engine.conditioned_on()
    if problem is None:
        return engine  # which says that it cannot
    wider = grown(engine.grid, functional, 4 * max(MOST_POINTS, engine.grid.size))
    with Progress(f"again on a grid of {' x '.join(map(str, wider.shape))}", progress):
        return engine.method.condition(problem._replace(grid=wider), progress=False)
