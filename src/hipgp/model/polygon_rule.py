"""Quadrature over polygons with few nodes, all inside, with positive weights, exact for polynomials.

A polygon is cut into trapezoids by vertical lines through its vertices, and further into pieces of at most two cells of
the requested resolution. Gauss-Legendre nodes in the trapezoids of a piece integrate polynomials of degree d exactly. A
few of these nodes are kept, with new positive weights that preserve the moments (Tchakaloff's theorem; non-negative
least squares finds them: Sommariva and Vianello, 2015). The number of nodes follows the size of a polygon, not the
number of its vertices.
"""

import functools
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

PIECE = 2.0  # cells across a piece, at most
EXACT = 1e-13  # relative error of moments below which a rule counts as exact


class _Trapezoids(NamedTuple):
    """_Trapezoids with two vertical sides: at `left` from `low[:, 0]` to `high[:, 0]`, at `right` from `low[:, 1]` on."""

    left: Float[np.ndarray, " T"]
    right: Float[np.ndarray, " T"]
    low: Float[np.ndarray, "T 2"]
    high: Float[np.ndarray, "T 2"]
    crossed: float  # area where edges cross, so that inside and outside are ambiguous

    @property
    def area(self) -> Float[np.ndarray, " T"]:
        return (self.right - self.left) * np.mean(self.high - self.low, axis=1)


def trapezoids(edges: Float[np.ndarray, "E 4"], step: float = np.inf) -> _Trapezoids:
    """The interior of rings by the even-odd rule, cut at every vertex and into strips at most `step` wide.

    An edge holds the coordinates of both ends, (x, y, x, y).
    """
    a, b = edges[:, :2], edges[:, 2:]
    back = a[:, 0] > b[:, 0]
    a, b = np.where(back[:, None], b, a), np.where(back[:, None], a, b)
    levels = np.unique(np.concatenate([a[:, 0], b[:, 0]]))
    strips = max(1, int(np.ceil((levels[-1] - levels[0]) / step - 1e-9)))
    levels = np.union1d(levels, np.linspace(levels[0], levels[-1], strips + 1))
    first, last = np.searchsorted(levels, a[:, 0]), np.searchsorted(levels, b[:, 0])
    edge = np.repeat(np.arange(len(a)), last - first)
    strip = np.arange(len(edge)) - np.repeat(np.cumsum(last - first) - last, last - first)
    left, right = levels[strip], levels[strip + 1]
    slope = (b[edge, 1] - a[edge, 1]) / (b[edge, 0] - a[edge, 0])
    sides = np.stack([a[edge, 1] + slope * (x - a[edge, 0]) for x in (left, right)], axis=1)
    order = np.lexsort((sides.sum(axis=1), strip))
    strip, sides = strip[order], sides[order]
    left, right = left[order], right[order]
    gaps = np.diff(sides, axis=0)
    falls = np.where((np.diff(strip) == 0) & np.any(gaps < 0, axis=1), np.min(gaps, axis=1), 0.0)
    share = falls / np.maximum(np.sum(np.abs(gaps), axis=1), np.finfo(float).tiny)
    crossed = float(np.sum((right - left)[1:] * falls * share))  # both triangles, where two lines cross
    return _Trapezoids(
        left[::2], right[::2], sides[::2], np.maximum(*sides.reshape(-1, 2, 2).swapaxes(0, 1)), crossed
    )


@functools.lru_cache(2**15)
def rule(edges: bytes, step: tuple[float, float]) -> tuple[Float[np.ndarray, "Q 2"], Float[np.ndarray, " Q"]]:
    """Nodes and weights over a polygon, given by the bytes of its edges in float64, for cells of size `step`.

    The rule is exact to degree 7 on pieces at most two cells wide, to degree 5 on a polygon smaller than a cell, and to
    degree 3 on one smaller than a sixteenth of a cell.
    """
    outline = np.frombuffer(edges).reshape(-1, 4)
    size = np.max(np.ptp(outline.reshape(-1, 2), axis=0) / step)
    degree = 3 if size <= 1 / 16 else 5 if size <= 1 else 7
    x, c, piece = _fine_rule(trapezoids(outline, PIECE * step[0]), degree, PIECE * np.array(step))
    order = np.argsort(piece, kind="stable")
    parts = np.split(order, np.flatnonzero(np.diff(piece[order])) + 1)
    kept = [_compressed(x[part], c[part], degree) for part in parts]
    return np.concatenate([k[0] for k in kept]), np.concatenate([k[1] for k in kept])


def _fine_rule(
    shape: _Trapezoids, degree: int, size: Float[np.ndarray, " 2"]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Gauss-Legendre nodes and weights in every trapezoid, cut to at most `size`, and the number of each node's piece."""
    tall = np.maximum(1, np.ceil(np.max(shape.high - shape.low, axis=1) / size[1] - 1e-9)).astype(int)
    whole = np.repeat(np.arange(len(tall)), tall)
    part = np.arange(len(whole)) - np.repeat(np.cumsum(tall) - tall, tall)
    (s, cs), (t, ct) = (_gauss(n) for n in (degree // 2 + 2, degree // 2 + 1))
    left, wide = shape.left[whole, None, None], (shape.right - shape.left)[whole, None, None]
    low = _between(shape.low, s)[whole]
    height = (_between(shape.high, s) - _between(shape.low, s))[whole] / tall[whole, None]
    y = low[:, :, None] + height[:, :, None] * (part[:, None, None] + t)
    x = np.broadcast_to(left + wide * s[:, None], y.shape)
    c = wide * height[:, :, None] * cs[:, None] * ct
    origin = [np.min(shape.left), np.min(shape.low)]
    middle = np.stack([x.mean(axis=(1, 2)), y.mean(axis=(1, 2))], axis=1)
    cell = np.floor((middle - origin) / size + 1e-9).astype(int)
    piece = cell[:, 0] * (1 + np.max(cell[:, 1])) + cell[:, 1]
    return (
        np.stack([x, y], axis=-1).reshape(-1, 2),
        c.reshape(-1),
        np.repeat(piece, len(s) * len(t)),
    )


def _between(sides: Float[np.ndarray, "T 2"], s: Float[np.ndarray, " n"]) -> Float[np.ndarray, "T n"]:
    return sides[:, :1] + (sides[:, 1:] - sides[:, :1]) * s


def _gauss(count: int) -> tuple[np.ndarray, np.ndarray]:
    t, c = np.polynomial.legendre.leggauss(count)
    return (t + 1) / 2, c / 2


def _compressed(
    x: Float[np.ndarray, "n 2"], c: Float[np.ndarray, " n"], degree: int
) -> tuple[np.ndarray, np.ndarray]:
    """At most as many of the nodes as there are polynomials of this degree, with positive weights and equal moments."""
    from scipy.optimize import nnls

    count = (degree + 1) * (degree + 2) // 2
    x, c = x[c > 0], c[c > 0]
    if len(c) <= count:
        return x, c
    moments, total = _polynomials(x, degree), np.sum(c)
    sums = moments @ (c / total)
    tried = 4 * count
    while tried < 2 * len(c):
        # candidates spread evenly over the area; more of them where their moments do not suffice
        reached = np.searchsorted(np.cumsum(c) / total, (np.arange(tried) + 0.5) / tried)
        some = np.unique(np.minimum(reached, len(c) - 1))
        found, left = nnls(moments[:, some], sums, maxiter=100 * count)
        if left < EXACT:
            return x[some][found > 0], total * found[found > 0]
        tried *= 4
    found, left = nnls(moments, sums, maxiter=100 * count)
    return (x[found > 0], total * found[found > 0]) if left < EXACT else (x, c)


def _polynomials(x: Float[np.ndarray, "n 2"], degree: int) -> Float[np.ndarray, "m n"]:
    """Products of Legendre polynomials up to a total degree, over the box that holds the places."""
    low, high = x.min(axis=0), x.max(axis=0)
    u = (2 * x - low - high) / np.where(high > low, high - low, 1.0)
    a, b = (np.polynomial.legendre.legvander(u[:, i], degree) for i in (0, 1))
    return np.stack([a[:, i] * b[:, j] for i in range(degree + 1) for j in range(degree + 1 - i)])
