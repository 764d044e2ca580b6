"""Averages and totals of a field over polygons, with holes and several parts.

>>> square, hole = [(0, 0), (4, 0), (4, 4), (0, 4)], [(1, 1), (2, 1), (2, 2), (1, 2)]
>>> ring = PolygonAverages([[square, hole], [square]])
>>> ring.area.tolist()
[15.0, 16.0]
"""

from collections.abc import Iterable
from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Float

from hipgp.model.coordinates import Units, as_places
from hipgp.model.nodes import Nodes
from hipgp.model.polygon_rule import rule, trapezoids
from hipgp.model.vertices import FromVertices, Line, from_lines, from_table, is_table

TURN = np.array([[np.cos(0.7), np.sin(0.7)], [-np.sin(0.7), np.cos(0.7)]])
ROUNDED = 1e-3  # fraction of the area by which outlines with rounded coordinates may cross themselves


class PolygonAverages(FromVertices):
    """The average of the field over polygons in two dimensions, or with `total=True` its integral.

    `polygons` is a list with one entry for each: the vertices (n, 2) of its outline, a list of such rings for holes and
    for several parts, or a Polygon or MultiPolygon of shapely or anything else with `__geo_interface__`. A place within
    an odd number of rings is inside, so holes need no mark. Edges are straight in the coordinates given.

    The quadrature nodes lie inside and have positive weights. They are exact for polynomials of degree 7 on pieces of at
    most two cells of the grid, and of degree 5 for polygons within a cell.
    """

    total: bool = eqx.field(static=True)

    def __init__(self, polygons: Any, total: bool = False):
        self.vertices, self.numbers, self.units = (
            from_table("polygons", polygons) if is_table(polygons, columns=4) else _read(polygons)
        )
        self.total = bool(total)
        for number, edges in enumerate(self._edges()):
            _check(number, edges)

    @property
    def area(self) -> Float[np.ndarray, " N"]:
        """The area of each polygon, in the coordinates given."""
        return np.array([np.sum(trapezoids(edges).area) for edges in self._edges()])

    @property
    def measure(self) -> int:
        return 2 if self.total else 0

    def nodes(self, spacing: Any) -> Nodes:
        step = tuple(np.broadcast_to(np.asarray(spacing, float), (2,)).tolist())
        found = [rule(edges.tobytes(), step) for edges in self._edges()]
        most = max(len(c) for _, c in found)
        x = [np.pad(x, ((0, most - len(c)), (0, 0)), mode="edge") for x, c in found]
        c = [np.pad(c if self.total else c / np.sum(c), (0, most - len(c))) for _, c in found]
        return Nodes(np.stack(x).astype(self.dtype), np.stack(c).astype(self.dtype))

    def edges(self, number: int) -> Float[np.ndarray, "E 4"]:
        """The edges of one polygon, each as the coordinates of both ends."""
        return self._edges()[number]

    def _edges(self) -> list[Float[np.ndarray, "E 4"]]:
        """The edges of each polygon in float64, every ring closed."""
        x = np.asarray(self.vertices, float)
        last = np.append(np.any(np.diff(self.numbers, axis=0) != 0, axis=1), True)
        first = np.append(0, np.flatnonzero(last)[:-1] + 1)
        following = np.arange(1, len(x) + 1)
        following[last] = first
        return np.split(np.concatenate([x, x[following]], axis=1), self._begins()[1:])


def _read(polygons: Any) -> tuple[np.ndarray, np.ndarray, Units]:
    if not isinstance(polygons, Iterable) or hasattr(polygons, "__geo_interface__"):
        polygons = [polygons]
    return from_lines("polygons", [_rings(f"polygons[{i}]", polygon) for i, polygon in enumerate(polygons)])


def _rings(name: str, polygon: Any) -> list[Line]:
    """The rings of one polygon, open, with their units."""
    if hasattr(polygon, "__geo_interface__"):
        polygon = polygon.__geo_interface__
    if isinstance(polygon, dict):
        rings = _of_geojson(name, polygon)
    else:
        several = isinstance(polygon, list | tuple) and (not polygon or np.ndim(polygon[0]) == 2)
        rings = list(polygon) if several or np.ndim(polygon) == 3 else [polygon]
    if not rings:
        raise ValueError(
            f"{name}: expected at least one ring of vertices, got an empty polygon; leave it out"
        )
    return [_ring(name, ring) for ring in rings]


def _of_geojson(name: str, geometry: dict[str, Any]) -> list[Any]:
    kind = geometry.get("type")
    if kind == "Feature":
        return _of_geojson(name, geometry.get("geometry") or {})
    if kind == "Polygon":
        return list(geometry["coordinates"])
    if kind == "MultiPolygon":
        return [ring for part in geometry["coordinates"] for ring in part]
    raise ValueError(
        f"{name}: expected a Polygon or a MultiPolygon, got {kind or 'none'}; use Points or LineIntegrals for places and "
        "lines, and leave out what is empty"
    )


def _ring(name: str, ring: Any) -> Line:
    x, units = as_places(name, ring)
    if x.ndim != 2 or x.shape[1] not in (2, 3):
        raise ValueError(
            f"{name}: expected the vertices of its outline, of shape (n, 2), or a list of such rings, got shape {x.shape}; "
            "give a list of polygons, also for one"
        )
    x, units = x[:, :2], units[:2]  # a height is left out
    x = x[:-1] if len(x) > 1 and np.array_equal(x[0], x[-1]) else x
    if len(x) < 3:
        raise ValueError(f"{name}: expected at least 3 different vertices in every ring, got {len(x)}")
    return x, units


def _check(number: int, edges: Float[np.ndarray, "E 4"]) -> None:
    """Raise a ValueError if a polygon has no area or crosses itself."""
    size = np.prod(np.ptp(edges[:, :2], axis=0))
    # rotated, so that no edge is vertical: crossings of vertical edges go unnoticed
    shape = trapezoids(edges @ np.kron(np.eye(2), TURN)) if size > 0 else None
    area = 0.0 if shape is None else float(np.sum(shape.area))
    if shape is None or area <= 1e-12 * size:
        raise ValueError(
            f"polygons[{number}]: expected a polygon of positive area, got none; leave it out, or use Points or "
            "LineIntegrals"
        )
    if shape.crossed > ROUNDED * area:
        raise ValueError(
            f"polygons[{number}]: expected an outline that does not cross itself, got one that does, over "
            f"{shape.crossed / area:.2g} of its area; mend it, for example with shapely.make_valid(polygon)"
        )
