"""Interpolation of many nodes from the grid: means of f, and standard deviations from draws of the posterior.

The weights of all nodes are kept between rounds. For few nodes the engine's predictions at points are used instead.
"""

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
import scipy.sparse
from jaxtyping import Float

from hipgp.model.functionals import Points
from hipgp.model.grid import Grid
from hipgp.model.kernels import Kernel
from hipgp.model.trend import Trend
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


class NodeReader:
    """Interpolation of the nodes of several blocks, with the same sparse matrix in every round."""

    def __init__(self, kernel: Kernel, grid: Grid, trend: Trend, count: int):
        self.kernel, self.grid, self.trend, self.count = kernel, grid, trend, count
        self.kept: dict[int, tuple[Any, np.ndarray, np.ndarray]] = {}
        self.last: tuple[Any, np.ndarray] | None = None
        self.start: np.ndarray | None = None  # of the next draws

    def means(self, post: "FittedPosterior", places: Float[np.ndarray, "N Q D"]) -> Float[np.ndarray, "N Q"]:
        matrix, columns, _ = self._of(places)
        beta = np.asarray(post.beta)  # type: ignore[attr-defined]
        field = np.asarray(post.grid_mean(), float).ravel() - self.trend.on_grid(self.grid) @ beta
        return (matrix @ field + columns @ beta).reshape(places.shape[:2])

    def interpolated(
        self, drawn: Float[np.ndarray, "S M"], places: Float[np.ndarray, "N Q D"]
    ) -> Float[np.ndarray, "S N Q"]:
        """Interpolate fields on the grid, trend included, to the nodes; their mean level is interpolated exactly."""
        matrix, columns, _ = self._of(places)
        level = drawn.mean(axis=1, keepdims=True) if columns.shape[1] else 0.0
        return np.asarray((drawn - level) @ matrix.T + level).reshape(len(drawn), *places.shape[:2])

    def draws(self, post: "FittedPosterior", places: Float[np.ndarray, "N Q D"]) -> Draws:
        matrix, _, residual = self._of(places)
        values = self.on_grid(post) @ matrix.T
        return Draws(np.asarray(values), residual, (places.shape[0], places.shape[1]))

    def on_grid(self, post: "FittedPosterior") -> Float[np.ndarray, "S M"]:
        """Draws on the grid minus the posterior mean, from the same key in every round."""
        if self.last is None or self.last[0] is not post:
            values, self.start = post.deviations(self.count, jax.random.key(0), DRAW_NATS, self.start)
            self.last = post, values
        return self.last[1]

    def _of(
        self, places: Float[np.ndarray, "N Q D"]
    ) -> tuple[scipy.sparse.csr_array, np.ndarray, np.ndarray]:
        """Weights of the nodes, their trend columns, and their residual variances."""
        if id(places) not in self.kept:
            points = Points(places.reshape(-1, places.shape[2]))
            p = STENCIL if self.grid.ndim <= 2 else 2
            rows = local_weight_rows(self.kernel, self.grid, [points], p)
            columns = self.trend.of(points, self.grid)
            self.kept[id(places)] = rows.matrix, columns, np.asarray(rows.residual, float)
        return self.kept[id(places)]
