"""Interpolation of many nodes from the grid: means of f, and standard deviations from draws of the posterior.

The weights of the observations' nodes are kept between rounds. For few nodes the engine's predictions at points are used
instead.
"""

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
import scipy.sparse
from jaxtyping import Float

from hipgp.model.functionals import Points
from hipgp.model.grid import Grid
from hipgp.model.kernels import Kernel
from hipgp.model.trend import Trend
from hipgp.runtime.lazy import Lazy
from hipgp.weights.stencil_geometry import STENCIL
from hipgp.weights.stencils import local_weight_rows

if TYPE_CHECKING:
    from hipgp.engines import FittedPosterior

DRAW_NATS = 0.05  # of each draw: its error is small beside that of the standard deviations of so few
FEW = 2**12  # nodes up to which the engine predicts them as points


class Draws(NamedTuple):
    """Draws of f at nodes, minus the posterior mean."""

    values: Float[np.ndarray, "S n"]
    residual: Float[np.ndarray, " n"]  # residual variances given the grid values
    shape: tuple[int, int]

    @property
    def variance(self) -> Float[np.ndarray, " n"]:
        return np.sum(self.values**2, axis=0) / (len(self.values) - 1) + self.residual

    def of_sums(self, weights: Float[np.ndarray, "N Q"]) -> Float[np.ndarray, " N"]:
        """The standard deviation of sums over each functional's nodes."""
        squares = np.zeros(len(weights))
        for draw in self.values:
            squares += np.sum(weights * draw.reshape(self.shape), axis=1) ** 2
        return np.sqrt(squares / (len(self.values) - 1))


class Rows(NamedTuple):
    """The weights of the nodes of N functionals with Q nodes each, and what goes with them."""

    matrix: scipy.sparse.csr_array  # (N Q, M)
    columns: Float[np.ndarray, "n p"]  # of the trend, at the nodes
    residual: Float[np.ndarray, " n"]  # residual variances given the grid values
    shape: tuple[int, int]  # N, Q


class NodeReader:
    """Interpolation of nodes from the grid; the weights of the nodes `kept` are computed once.

    The arrays `kept` are known by identity, and are held, so that no other array can be taken for one of them.
    """

    def __init__(self, kernel: Kernel, grid: Grid, trend: Trend, count: int, kept: Sequence[np.ndarray] = ()):
        self.kernel, self.grid, self.trend, self.count = kernel, grid, trend, count
        self._kept = [(places, Lazy(functools.partial(self._rows, places))) for places in kept]
        self._last: tuple[Any, np.ndarray] | None = None
        self._start: np.ndarray | None = None  # of the next draws

    def rows(self, places: Float[np.ndarray, "N Q D"]) -> Rows:
        """The weights of these nodes."""
        for known, rows in self._kept:
            if known is places:
                return rows.get()
        return self._rows(places)

    def means(self, post: "FittedPosterior", rows: Rows) -> Float[np.ndarray, "N Q"]:
        beta = np.asarray(post.beta)  # type: ignore[attr-defined]
        field = np.asarray(post.grid_mean(), float).ravel() - self.trend.on_grid(self.grid) @ beta
        return (rows.matrix @ field + rows.columns @ beta).reshape(rows.shape)

    def interpolated(self, drawn: Float[np.ndarray, "S M"], rows: Rows) -> Float[np.ndarray, "S N Q"]:
        """Interpolate fields on the grid, trend included, to the nodes; their mean level is interpolated exactly."""
        level = drawn.mean(axis=1, keepdims=True) if rows.columns.shape[1] else 0.0
        return np.asarray((drawn - level) @ rows.matrix.T + level).reshape(len(drawn), *rows.shape)

    def draws(self, post: "FittedPosterior", rows: Rows) -> Draws:
        return Draws(np.asarray(self.on_grid(post) @ rows.matrix.T), rows.residual, rows.shape)

    def on_grid(self, post: "FittedPosterior") -> Float[np.ndarray, "S M"]:
        """Draws on the grid minus the posterior mean, from the same key in every round; those of the last one are kept."""
        if self._last is None or self._last[0] is not post:
            values, self._start = post.deviations(self.count, jax.random.key(0), DRAW_NATS, self._start)
            self._last = post, values
        return self._last[1]

    def _rows(self, places: Float[np.ndarray, "N Q D"]) -> Rows:
        points = Points(places.reshape(-1, places.shape[2]))
        p = STENCIL if self.grid.ndim <= 2 else 2
        rows = local_weight_rows(self.kernel, self.grid, [points], p)
        columns = self.trend.of(points, self.grid)
        return Rows(
            rows.matrix, columns, np.asarray(rows.residual, float), (places.shape[0], places.shape[1])
        )
