"""What is learned from, in a unit of y in which no number overflows."""

from typing import Any, NamedTuple

from hipgp.model import scaling
from hipgp.model.data import Data
from hipgp.model.kernels import Kernel


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
    """A kernel, data and options of learning, y and all that goes with it divided by 2^unit."""

    kernel: Kernel
    data: Data
    noise: float | None
    how: LearnOptions
    unit: int


def scaled_task(kernel: Kernel, data: Data, noise: float | None, how: LearnOptions) -> ScaledTask:
    """The task in a unit in which no number overflows; `in_unit` takes what was learned back to the data's own."""
    scaling.check_learnable(data)
    given = kernel if how.start == "kernel" else None  # otherwise its variance is not used
    unit = scaling.exponent(given, data, noise)
    scaled, data, noise = scaling.scaled(given, data, noise, -unit)
    bounds = scaling.scaled_bounds(how.bounds, -unit)
    return ScaledTask(kernel if scaled is None else scaled, data, noise, how._replace(bounds=bounds), unit)
