"""What is learned from, in a unit of y in which no number overflows."""

from typing import Any, NamedTuple

from hipgp.model import scaling
from hipgp.model.problem import Problem


class LearnOptions(NamedTuple):
    """The options of `GP.learn`."""

    start: str = "data"
    bounds: dict[str, tuple[float, float]] | None = None
    key: int = 0
    polish: bool | None = None
    progress: bool = True
    checkpoint: Any = None
    most: int | None = None  # observations whose likelihood is computed, at most


class ScaledTask(NamedTuple):
    """A problem and options of learning, y and all that goes with it divided by 2^unit."""

    problem: Problem
    how: LearnOptions
    unit: int


def scaled_task(problem: Problem, how: LearnOptions) -> ScaledTask:
    """The task in a unit in which no number overflows; `in_unit` takes what was learned back to the data's own."""
    kernel, _, data, noise, _ = problem
    scaling.check_learnable(data)
    start = kernel if how.start == "kernel" else None  # otherwise its variance is not used
    unit = scaling.exponent(start, data, noise)
    scaled, data, noise = scaling.scaled(start, data, noise, -unit)
    problem = problem._replace(kernel=kernel if scaled is None else scaled, data=data, noise=noise)
    return ScaledTask(problem, how._replace(bounds=scaling.scaled_bounds(how.bounds, -unit)), unit)
