"""A problem: what an engine conditions, as one object."""

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import Float

if TYPE_CHECKING:
    from hipgp.model.data import Data
    from hipgp.model.grid import Grid
    from hipgp.model.kernels import Kernel
    from hipgp.model.trend import Trend

FEW = 4_000  # observations up to which the exact engine is as fast as one on a grid


class Problem(NamedTuple):
    """A prior, data and a trend; `noise` is the standard deviation for observations that were given none."""

    kernel: "Kernel"
    grid: "Grid"
    data: "Data"
    noise: float | None
    trend: "Trend"

    @property
    def noise_std(self) -> Float[np.ndarray, " N"]:
        """The noise's standard deviation of each observation, in float64."""
        return np.asarray(self.data.noise_std(self.noise), float)


class OpenProblem(NamedTuple):
    """A problem whose grid may be None: it is still to be chosen."""

    kernel: "Kernel"
    grid: "Grid | None"
    data: "Data"
    noise: float | None
    trend: "Trend"

    def on(self, grid: "Grid") -> Problem:
        """The problem on this grid."""
        return Problem(self.kernel, grid, self.data, self.noise, self.trend)
