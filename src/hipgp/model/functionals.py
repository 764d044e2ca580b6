"""Linear functionals of a field: values, derivatives, integrals and averages.

Every functional is a set of nodes and weights, L_n f = sum_q c_nq (d f)(x_nq), where d is the identity or a derivative
along a direction. A point has one node, a line integral a few Gauss-Legendre nodes per grid cell, and a box average
their tensor product. Random nodes give the Monte Carlo quadrature of the paper (section 5.5).

    >>> rays = LineIntegrals(start=(0.0, 0.0), end=[[1.0, 0.0], [0.0, 2.0]])
    >>> len(rays), rays.ndim
    (2, 2)
"""

import math
from typing import Any, Literal

import equinox as eqx
import numpy as np
from jaxtyping import Float, Int

from hipgp.model.arguments import as_direction, as_float, check_not_empty, check_rule
from hipgp.model.coordinates import as_pair, as_places, as_points, as_spread
from hipgp.model.functional import Functional, take_rows
from hipgp.model.nodes import Nodes, Segments, gauss

PLACES_REACH = 4.0  # standard deviations of uncertain places that are looked at
NODES_PER_CELL = 2.0  # nodes per grid cell along a line or box edge

Rule = Literal["gauss", "monte-carlo"]


class Points(Functional):
    """The field's value at each row of x, (N, D) or, in one dimension, (N,).

    Like the coordinates of all functionals, x may be dates or astropy quantities. `std`, a number or an array that
    fits (N, D), is the standard deviation of errors of the places along each axis, if they have any.
    """

    x: Float[np.ndarray, "N D"]
    std: Float[np.ndarray, "N D"] | None

    def __init__(self, x: Any, std: Any = None):
        self.x, self.units = as_points("x", x)
        self.std = None if std is None else as_spread("std", std, self.x.shape, self.units)

    @property
    def uncertain(self) -> bool:
        return self.std is not None

    def nodes(self, spacing: Any) -> Nodes:
        return Nodes(self.x[:, None, :], np.ones((len(self.x), 1), self.x.dtype))

    def places(self) -> Float[np.ndarray, "N C D"]:
        if self.std is None:
            return self.x[:, None, :]
        return np.stack([self.x - PLACES_REACH * self.std, self.x + PLACES_REACH * self.std], axis=1)

    def take(self, rows: Int[np.ndarray, " n"]) -> "Points":
        return take_rows(Points, self, rows)


def as_functional(value: Any) -> Functional:
    """Return a functional unchanged; anything else becomes Points."""
    return value if isinstance(value, Functional) else Points(value)


class Derivatives(Functional):
    """The field's derivative at each row of x, along `axis` (0 by default) or along a `direction` vector.

    The derivative is direction . grad f, so the length of the direction scales it. Each row may have its own direction.
    """

    x: Float[np.ndarray, "N D"]
    direction: Float[np.ndarray, "N D"]

    def __init__(self, x: Any, axis: int | None = None, direction: Any = None):
        self.x, self.units = as_points("x", x)
        self.direction = as_direction(self.x.shape[0], self.x.shape[1], self.x.dtype, axis, direction)

    @property
    def derivative(self) -> bool:
        return True

    def nodes(self, spacing: Any) -> Nodes:
        n = len(self.x)
        ones = np.ones((n, 1), self.x.dtype)
        return Nodes(self.x[:, None, :], ones, np.zeros(n, self.x.dtype), self.direction)

    def places(self) -> Float[np.ndarray, "N C D"]:
        return self.x[:, None, :]

    def take(self, rows: Int[np.ndarray, " n"]) -> "Derivatives":
        return take_rows(Derivatives, self, rows)


class LineIntegrals(Functional):
    """The integral of the field along straight lines from `start` to `end`, or its average with `average=True`.

    `start` and `end` are (N, D); either may be one point shared by all. `nodes_per_ray` and `rule` override the
    quadrature: "gauss" (composite Gauss-Legendre) or "monte-carlo" (random nodes, reproducible from `seed`). `end_std`, a
    number or one per line, is the standard deviation of the error of the distance from start to end, if it has one.
    """

    start: Float[np.ndarray, "N D"]
    end: Float[np.ndarray, "N D"]
    end_std: Float[np.ndarray, " N"] | None
    average: bool = eqx.field(static=True)
    nodes_per_ray: int | None = eqx.field(static=True)
    rule: Rule = eqx.field(static=True)
    seed: int = eqx.field(static=True)

    def __init__(
        self,
        start: Any,
        end: Any,
        average: bool = False,
        *,
        end_std: Any = None,
        nodes_per_ray: int | None = None,
        rule: Rule = "gauss",
        seed: int = 0,
    ):
        self.start, self.end, self.units = as_pair("start", start, "end", end)
        zero = np.flatnonzero(np.all(self.start == self.end, axis=1))
        if len(zero):
            raise ValueError(
                f"end: expected rays of positive length, got {len(zero)} of zero length (first: ray {zero[0]}); "
                "use Points for a value at a place"
            )
        check_rule(rule, nodes_per_ray)
        self.average, self.nodes_per_ray, self.rule, self.seed = bool(average), nodes_per_ray, rule, seed
        count = (len(self.end),)
        self.end_std = None if end_std is None else as_spread("end_std", end_std, count, self.units)

    @property
    def uncertain(self) -> bool:
        return self.end_std is not None

    @property
    def length(self) -> Float[np.ndarray, " N"]:
        return np.linalg.norm(self.end - self.start, axis=1)

    @property
    def measure(self) -> int:
        return 0 if self.average else 1

    def nodes(self, spacing: Any) -> Nodes:
        if self.rule == "gauss":
            return self.segments(spacing).nodes()
        start, delta, size = self._geometry(slice(None))
        count = self._count(delta, spacing)
        t = np.random.default_rng(self.seed).uniform(size=(len(delta), count)).astype(start.dtype)
        x = start[:, None, :] + t[:, :, None] * delta[:, None, :]
        return Nodes(x, np.repeat(size[:, None] / count, count, axis=1).astype(start.dtype))

    def segments(self, spacing: Any, rows: Any = slice(None)) -> Segments:
        """The lines numbered `rows`, with one Gauss-Legendre rule that is fine enough for all of them."""
        start, delta, size = self._geometry(rows)
        return Segments(start, delta, size, *gauss(self._count(delta, spacing)))

    def _geometry(self, rows: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The start of each line, the vector from there to its end, and the sum of its weights."""
        start, delta = self.start[rows], self.end[rows] - self.start[rows]
        size = np.ones(len(delta), delta.dtype) if self.average else np.linalg.norm(delta, axis=1)
        return start, delta, size

    @property
    def ruled(self) -> bool:
        """Whether `segments` has the nodes of `nodes`: False if they are random, or a subclass overrides them."""
        return self.rule == "gauss" and type(self).nodes is LineIntegrals.nodes

    def _count(self, delta: Float[np.ndarray, "N D"], spacing: Any) -> int:
        cells = np.max(np.linalg.norm(delta / np.asarray(spacing), axis=1))
        return self.nodes_per_ray or int(np.ceil(NODES_PER_CELL * cells))

    def places(self) -> Float[np.ndarray, "N C D"]:
        if self.end_std is None:
            return np.stack([self.start, self.end], axis=1)
        farther = 1 + PLACES_REACH * self.end_std / self.length
        return np.stack([self.start, self.start + farther[:, None] * (self.end - self.start)], axis=1)

    def finer(self) -> "LineIntegrals":
        return LineIntegrals(self.start, self.end, self.average)

    def take(self, rows: Int[np.ndarray, " n"]) -> "LineIntegrals":
        return take_rows(LineIntegrals, self, rows)


class BoxAverages(Functional):
    """The average of the field over axis-aligned boxes from `lower` to `upper`, (N, D) each or one shared."""

    lower: Float[np.ndarray, "N D"]
    upper: Float[np.ndarray, "N D"]
    nodes_per_box: int | None = eqx.field(static=True)
    rule: Rule = eqx.field(static=True)
    seed: int = eqx.field(static=True)

    def __init__(
        self, lower: Any, upper: Any, *, nodes_per_box: int | None = None, rule: Rule = "gauss", seed: int = 0
    ):
        self.lower, self.upper, self.units = as_pair("lower", lower, "upper", upper)
        flat = np.flatnonzero(np.any(self.upper <= self.lower, axis=1))
        if len(flat):
            raise ValueError(
                f"upper: expected more than lower on every axis, got {len(flat)} boxes of no volume"
            )
        check_rule(rule, nodes_per_box)
        self.nodes_per_box, self.rule, self.seed = nodes_per_box, rule, seed

    def nodes(self, spacing: Any) -> Nodes:
        n, d = self.lower.shape
        size = self.upper - self.lower
        dtype = self.lower.dtype
        if self.rule == "monte-carlo":
            count = self.nodes_per_box or 10**d
            t = np.random.default_rng(self.seed).uniform(size=(n, count, d))
            c = np.full((n, count), 1 / count)
        else:
            rules = self._rules(size, spacing)
            t = np.stack(np.meshgrid(*[r[0] for r in rules], indexing="ij"), axis=-1).reshape(1, -1, d)
            c = np.prod(np.stack(np.meshgrid(*[r[1] for r in rules], indexing="ij")), axis=0).reshape(1, -1)
            c = np.broadcast_to(c, (n, c.shape[1]))
        return Nodes(self.lower[:, None, :] + t.astype(dtype) * size[:, None, :], c.astype(dtype))

    def nodes_each(self, rows: Int[np.ndarray, " n"], spacing: Any) -> int:
        if self.rule == "monte-carlo":
            return super().nodes_each(rows, spacing)
        return math.prod(len(t) for t, _ in self._rules(self.upper[rows] - self.lower[rows], spacing))

    def _rules(self, size: Float[np.ndarray, "N D"], spacing: Any) -> list[tuple[np.ndarray, np.ndarray]]:
        """One Gauss-Legendre rule for each axis, fine enough for boxes of all these sizes."""
        cells, ndim = np.max(size / np.asarray(spacing), axis=0), size.shape[1]
        fixed = None if self.nodes_per_box is None else max(1, round(self.nodes_per_box ** (1 / ndim)))
        return [gauss(fixed or int(np.ceil(NODES_PER_CELL * m))) for m in cells]

    def places(self) -> Float[np.ndarray, "N C D"]:
        return np.stack([self.lower, self.upper], axis=1)

    def finer(self) -> "BoxAverages":
        return BoxAverages(self.lower, self.upper)

    def take(self, rows: Int[np.ndarray, " n"]) -> "BoxAverages":
        return take_rows(BoxAverages, self, rows)


class Functionals(Functional):
    """Any linear functional of the field, sum_q weights_nq f(nodes_nq), with nodes (N, Q, D) and weights (N, Q) or (Q,).

    With `axis` or `direction` the derivative along it replaces the value in the sum. Pad functionals that have fewer nodes
    than others with weight zero.
    """

    positions: Float[np.ndarray, "N Q D"]
    weights: Float[np.ndarray, "N Q"]
    direction: Float[np.ndarray, "N D"] | None

    def __init__(self, nodes: Any, weights: Any, axis: int | None = None, direction: Any = None):
        self.positions, self.units = as_places("nodes", nodes, ndim=(3,))
        n, q, d = self.positions.shape
        check_not_empty("nodes", self.positions)
        c = as_float("weights", weights, ndim=(1, 2)).astype(self.positions.dtype)
        if c.shape not in ((n, q), (q,)):
            raise ValueError(
                f"weights: expected shape {(n, q)} or {(q,)} to go with nodes {(n, q, d)}, got {c.shape}"
            )
        self.weights = np.broadcast_to(c, (n, q)).copy()
        plain = axis is None and direction is None
        self.direction = None if plain else as_direction(n, d, self.positions.dtype, axis, direction)

    @property
    def derivative(self) -> bool:
        return self.direction is not None

    def nodes(self, spacing: Any) -> Nodes:
        value = None if self.direction is None else np.zeros(len(self.positions), self.positions.dtype)
        return Nodes(self.positions, self.weights, value, self.direction)

    def places(self) -> Float[np.ndarray, "N C D"]:
        return self.positions

    def take(self, rows: Int[np.ndarray, " n"]) -> "Functionals":
        return take_rows(Functionals, self, rows)
