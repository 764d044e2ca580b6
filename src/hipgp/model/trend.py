"""A trend: a few functions of place with unknown coefficients under a flat prior, estimated together with the field.

A functional acts on a trend as it acts on the field: the column of "constant" is L_n 1, those of "linear" are also L_n x_d.
"""

from typing import TYPE_CHECKING, Any

import equinox as eqx
import numpy as np
from jaxtyping import Float, Int

from hipgp.model.arguments import as_float
from hipgp.model.functionals import Functional
from hipgp.model.grid import Grid

if TYPE_CHECKING:
    from hipgp.model.data import Data

KINDS = ("constant", "linear")


class Trend(eqx.Module):
    """`kind` is None, "constant", "linear" or "columns" (the user's own, given for the data and for each prediction)."""

    kind: str | None = eqx.field(static=True)
    columns: Float[np.ndarray, "N p"] | None

    def __init__(self, trend: Any):
        self.columns = None
        if trend is None or isinstance(trend, str):
            if trend is not None and trend not in KINDS:
                raise ValueError(
                    f'trend: expected None, "constant", "linear" or an (N, p) array, got {trend!r}'
                )
            self.kind = trend
        else:
            self.columns = as_float("trend", trend, ndim=(2,)).astype(float)
            self.kind = "columns"

    def count(self, ndim: int) -> int:
        """How many coefficients there are."""
        given = 0 if self.columns is None else self.columns.shape[1]
        return {None: 0, "constant": 1, "linear": 1 + ndim, "columns": given}[self.kind]

    def of_data(self, data: "Data", grid: Grid) -> Float[np.ndarray, "N p"]:
        """The columns of the observations."""
        if self.columns is None:
            return np.concatenate([self.of(functional, grid) for functional in data.functionals])
        if len(self.columns) != len(data):
            raise ValueError(f"trend: expected one row per observation, {len(data)}, got {len(self.columns)}")
        return self.columns

    def in_order(self, order: Int[np.ndarray, " N"]) -> "Trend":
        """The trend of the same observations in another order."""
        return self if self.columns is None else Trend(self.columns[order])

    def of(self, functional: Functional, grid: Grid, columns: Any = None) -> Float[np.ndarray, "N p"]:
        """The columns of any functional; the user's own must be given."""
        n = len(functional)
        if self.kind == "columns":
            if columns is None:
                raise ValueError(
                    "columns: expected the trend's columns for these functionals, (N, p), got None"
                )
            given = as_float("columns", columns, ndim=(2,)).astype(float)
            if given.shape != (n, self.count(grid.ndim)):
                raise ValueError(f"columns: expected shape {(n, self.count(grid.ndim))}, got {given.shape}")
            return given
        if columns is not None:
            raise ValueError(
                "columns: expected None unless the trend was given as columns, got some; give those of the data as "
                "GP(..., trend=columns)"
            )
        if self.kind is None:
            return np.zeros((n, 0))
        nodes = functional.finer().nodes(1e9)  # the fewest there are: exact for what is linear in place
        c = np.asarray(nodes.weights, float)
        value = np.ones(n) if nodes.value is None else np.asarray(nodes.value, float)
        constant = (value * c.sum(axis=1))[:, None]
        if self.kind == "constant":
            return constant
        middle, half = self.frame(grid)
        linear = value[:, None] * np.einsum("nq,nqd->nd", c, (np.asarray(nodes.x, float) - middle) / half)
        if nodes.direction is not None:
            linear = linear + c.sum(axis=1)[:, None] * np.asarray(nodes.direction, float) / half
        return np.concatenate([constant, linear], axis=1)

    def on_grid(self, grid: Grid) -> Float[np.ndarray, "M p"]:
        """The columns at the grid points; the user's own are not known there and count as zero."""
        if self.kind in (None, "columns"):
            return np.zeros((grid.size, self.count(grid.ndim)))
        ones = np.ones((grid.size, 1))
        if self.kind == "constant":
            return ones
        middle, half = self.frame(grid)
        return np.concatenate([ones, (grid.coordinates() - middle) / half], axis=1)

    def frame(self, grid: Grid) -> tuple[np.ndarray, np.ndarray]:
        """The centre and half the width of the grid; linear columns run from -1 to 1 across it."""
        lower, upper = np.asarray(grid.lower), np.asarray(grid.upper)
        return (lower + upper) / 2, (upper - lower) / 2
