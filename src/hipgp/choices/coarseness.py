"""Detection of a grid too coarse for learning: the lengthscale meets the bound that the grid's spacing sets."""

from collections.abc import Callable
from typing import Any

import numpy as np

from hipgp.learning.learned import Learned
from hipgp.learning.parameters import SHORTEST
from hipgp.model.grid import Grid


def at_grid_bound(learned: Learned, grid: Grid, user_bounds: dict[str, Any] | None) -> list[str]:
    """The names of learned lengthscales on the bound set by the grid's spacing, except those with bounds of the user."""
    spacing, found = np.asarray(grid.spacing), []
    for name, value in zip(learned.names, learned.values, strict=True):
        parameter = name.split(".")[-1]
        axis = int(parameter.split("[")[1][:-1]) if "[" in parameter else None
        names = {
            name,
            name.split("[")[0],
            parameter,
            "lengthscale",
        }  # by which the user may have given bounds
        if parameter.split("[")[0] != "lengthscale" or names & set(user_bounds or {}):
            continue
        least = SHORTEST * (np.min(spacing) if axis is None else spacing[axis])
        if value <= 1.01 * least:
            found.append(name)
    return found


def too_coarse(
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
