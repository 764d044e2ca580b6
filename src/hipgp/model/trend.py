"""Trends: a few functions of place whose coefficients have a flat prior and are estimated together with the field.

A functional acts on the trend as on the field: "constant" has the column L_n 1, and "linear" has the columns L_n x_d too.
"""

from typing import TYPE_CHECKING, Any

import equinox as eqx
import numpy as np
from jaxtyping import Float, Int

from hipgp.model.arguments import as_float
from hipgp.model.functional import Functional
from hipgp.model.grid import Grid

if TYPE_CHECKING:
    from hipgp.model.data import Data

KINDS = ("constant", "linear")


class Trend(eqx.Module):
    """A trend; `kind` is None, "constant", "linear" or "columns" (given for the data and for each prediction)."""

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
        """The number of coefficients."""
        columns = 0 if self.columns is None else self.columns.shape[1]
        return {None: 0, "constant": 1, "linear": 1 + ndim, "columns": columns}[self.kind]

    def of_data(self, data: "Data", grid: Grid) -> Float[np.ndarray, "N p"]:
        """The trend's columns for the observations."""
        if self.columns is None:
            return np.concatenate([self.of(functional, grid) for functional in data.functionals])
        if len(self.columns) != len(data):
            raise ValueError(f"trend: expected one row per observation, {len(data)}, got {len(self.columns)}")
        return self.columns

    def in_order(self, order: Int[np.ndarray, " N"]) -> "Trend":
        """The trend of reordered observations."""
        return self if self.columns is None else Trend(self.columns[order])

    def of(self, functional: Functional, grid: Grid, columns: Any = None) -> Float[np.ndarray, "N p"]:
        """The trend's columns for any functional; a trend given as columns needs them in `columns`."""
        n = len(functional)
        if self.kind == "columns":
            if columns is None:
                raise ValueError(
                    "columns: expected the trend's columns for these functionals, (N, p), got None"
                )
            given_columns = as_float("columns", columns, ndim=(2,)).astype(float)
            if given_columns.shape != (n, self.count(grid.ndim)):
                raise ValueError(
                    f"columns: expected shape {(n, self.count(grid.ndim))}, got {given_columns.shape}"
                )
            return given_columns
        if columns is not None:
            raise ValueError(
                "columns: expected None unless the trend was given as columns, got some; give those of the data as "
                "GP(..., trend=columns)"
            )
        if self.kind is None:
            return np.zeros((n, 0))
        nodes = functional.finer().nodes(
            1e9
        )  # the coarsest quadrature is exact for linear functions of place
        c = np.asarray(nodes.weights, float)
        value = np.ones(n) if nodes.value is None else np.asarray(nodes.value, float)
        constant = (value * c.sum(axis=1))[:, None]
        if self.kind == "constant":
            return constant
        middle, half = self.centre_and_half_width(grid)
        linear = value[:, None] * np.einsum("nq,nqd->nd", c, (np.asarray(nodes.x, float) - middle) / half)
        if nodes.direction is not None:
            linear = linear + c.sum(axis=1)[:, None] * np.asarray(nodes.direction, float) / half
        return np.concatenate([constant, linear], axis=1)

    def on_grid(self, grid: Grid) -> Float[np.ndarray, "M p"]:
        """The trend's columns at the grid points; those of a trend given as columns are unknown there and zero."""
        if self.kind in (None, "columns"):
            return np.zeros((grid.size, self.count(grid.ndim)))
        ones = np.ones((grid.size, 1))
        if self.kind == "constant":
            return ones
        middle, half = self.centre_and_half_width(grid)
        return np.concatenate([ones, (grid.coordinates() - middle) / half], axis=1)

    def centre_and_half_width(self, grid: Grid) -> tuple[np.ndarray, np.ndarray]:
        """The centre and half the width of the grid; linear columns run from -1 to 1 across it."""
        lower, upper = np.asarray(grid.lower), np.asarray(grid.upper)
        return (lower + upper) / 2, (upper - lower) / 2
