"""Learning in a unit of y in which no number overflows, and the answer in the user's own."""

from typing import Any, NamedTuple

from hipgp.engines import Method
from hipgp.learning.learned import Learned, in_unit
from hipgp.learning.search import learn
from hipgp.model import scaling
from hipgp.model.data import Data
from hipgp.model.grid import Grid
from hipgp.model.kernels import Kernel
from hipgp.model.trend import Trend


class LearnOptions(NamedTuple):
    """The options of `GP.learn`."""

    start: str = "data"
    bounds: dict[str, tuple[float, float]] | None = None
    key: int = 0
    polish: bool | None = None
    progress: bool = True
    checkpoint: Any = None


def learn_in_unit(
    kernel: Kernel,
    grid: Grid,
    data: Data,
    noise: float | None,
    trend: Trend,
    method: Method,
    how: LearnOptions,
) -> Learned:
    """Kernel and noise learned from data whose numbers may be of any size."""
    scaling.check_learnable(data)
    given = kernel if how.start == "kernel" else None  # otherwise its variance is not used
    unit = scaling.exponent(given, data, noise)
    scaled, data, noise = scaling.scaled(given, data, noise, -unit)
    learned = learn(
        kernel if scaled is None else scaled,
        grid,
        data,
        noise,
        trend,
        method,
        start=how.start,
        user_bounds=scaling.scaled_bounds(how.bounds, -unit),
        seed=how.key,
        polish=how.polish,
        progress=how.progress,
        checkpoint=how.checkpoint,
    )
    return in_unit(learned, unit)
