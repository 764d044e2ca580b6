"""Whether the grid is fine enough for the data, which spacing would be, and the words for it."""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from hipgp.data import Data
from hipgp.grid import Grid
from hipgp.inference.grid_error import View, grid_error, local_problems
from hipgp.kernels import Kernel
from hipgp.stencils import Stencilled, stencilled
from hipgp.weights import Weights


class Seen(NamedTuple):
    """What an engine's grid sees of the data: W, from stencils of `stencil` points an axis if it is local.

    `counted`: residual variances count as noise. Observations with the same `block` have residuals held jointly.
    """

    rows: Weights | Stencilled
    stencil: int
    counted: bool
    block: Int[np.ndarray, " N"] | None = None


def grid_facts(kernel: Kernel, grid: Grid, data: Data, std: Float[np.ndarray, " N"], seen: Seen) -> dict[str, Any]:
    noise, residual = np.asarray(std, float) ** 2, np.asarray(seen.rows.residual, float)
    entries = int(np.mean(seen.rows.entries.counts)) if isinstance(seen.rows, Stencilled) else 100
    problems = local_problems(kernel, grid, data, noise, residual, entries, seen.block)
    if isinstance(seen.rows, Stencilled):
        view = View.of(seen.rows, problems.rows, seen.counted)
    else:
        rows = stencilled(kernel, grid, problems.data, seen.stencil)
        view = View.of(rows, np.arange(len(problems.rows)), seen.counted)
    found = grid_error(kernel, grid, problems, view)
    return {"grid_mean_error": found.mean, "grid_std_error": found.std, "grid_error_places": found.places}
