"""The grid that a user gave, as every so many points of a finer one on which an engine computes."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from hipgp.model.grid import Grid


class Sublattice(NamedTuple):
    """Every `steps[i]`-th point along axis i of a grid, the first and the last included; all points without `steps`."""

    steps: tuple[int, ...] = ()

    @staticmethod
    def between(coarse: Grid, fine: Grid) -> "Sublattice":
        """The points of `coarse` among those of `fine`, which has the same corners and contains them all."""
        if coarse.shape == fine.shape:
            return Sublattice()
        return Sublattice(tuple((m - 1) // (n - 1) for n, m in zip(coarse.shape, fine.shape, strict=True)))

    def grid(self, fine: Grid) -> Grid:
        """The grid of these points of `fine`."""
        if not self.steps:
            return fine
        spacing = np.asarray(fine.spacing) * self.steps
        shape = tuple((m - 1) // step + 1 for m, step in zip(fine.shape, self.steps, strict=True))
        return Grid(fine.origin, spacing, shape)

    def refined(self, coarse: Grid) -> Grid:
        """The finer grid of which `coarse` are these points."""
        if not self.steps:
            return coarse
        shape = tuple((n - 1) * step + 1 for n, step in zip(coarse.shape, self.steps, strict=True))
        return Grid(coarse.origin, np.asarray(coarse.spacing) / self.steps, shape)

    def of(self, values: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
        """The values at these points; the last axes of `values` are those of the finer grid."""
        return values[(..., *(slice(None, None, step) for step in self.steps))] if self.steps else values
