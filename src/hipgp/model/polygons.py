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
from jaxtyping import Float, Int

from hipgp.model.arguments import as_float
from hipgp.model.coordinates import Units, as_places, conversion
from hipgp.model.functional import Functional
from hipgp.model.nodes import Nodes
from hipgp.model.polygon_rule import rule, trapezoids

TURN = np.array([[np.cos(0.7), np.sin(0.7)], [-np.sin(0.7), np.cos(0.7)]])
ROUNDED = 1e-3  # fraction of the area by which outlines with rounded coordinates may cross themselves


class PolygonAverages(Functional):
    """The average of the field over polygons in two dimensions, or with `total=True` its integral.

    `polygons` is a list with one entry for each: the vertices (n, 2) of its outline, a list of such rings for holes and
    for several parts, or a Polygon or MultiPolygon of shapely or anything else with `__geo_interface__`. A place within
    an odd number of rings is inside, so holes need no mark. Edges are straight in the coordinates given.

    The quadrature nodes lie inside and have positive weights. They are exact for polynomials of degree 7 on pieces of at
    most two cells of the grid, and of degree 5 for polygons within a cell.
    """

    vertices: Float[np.ndarray, "V 2"]
    rings: Float[np.ndarray, "V 2"]  # which polygon, and which of its rings, each vertex belongs to
    total: bool = eqx.field(static=True)

    def __init__(self, polygons: Any, total: bool = False):
        self.vertices, self.rings, self.units = (
            _from_table(polygons) if _is_table(polygons) else _read(polygons)
        )
        self.total = bool(total)
        for number, edges in enumerate(self._edges()):
            _check(number, edges)

    @property
    def table(self) -> Float[np.ndarray, "V 4"]:
        """A row for each vertex: number of the polygon, number of the ring, coordinates; a valid argument `polygons`."""
        return np.concatenate([self.rings.astype(self.vertices.dtype), self.vertices], axis=1)

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

    def places(self) -> Float[np.ndarray, "N C D"]:
        begins = self._begins()
        return np.stack([f.reduceat(self.vertices, begins) for f in (np.minimum, np.maximum)], axis=1)

    def take(self, rows: Int[np.ndarray, " n"]) -> "PolygonAverages":
        if len(rows) == 0:
            raise ValueError(f"index: expected at least one polygon to be picked, got none of {len(self)}")
        begins = np.append(self._begins(), len(self.vertices))
        count = np.diff(begins)[rows]
        number = np.repeat(np.arange(len(rows)), count)
        at = (
            np.repeat(begins[rows], count)
            + np.arange(len(number))
            - np.repeat(np.cumsum(count) - count, count)
        )
        rings = np.stack([number, self.rings[at, 1]], axis=1)
        return self.with_fields({"vertices": self.vertices[at], "rings": rings})

    @property
    def dtype(self) -> np.dtype:
        return self.vertices.dtype

    def __len__(self) -> int:
        return int(self.rings[-1, 0]) + 1

    def _begins(self) -> Int[np.ndarray, " N"]:
        """Where in `vertices` each polygon begins."""
        return np.flatnonzero(np.diff(self.rings[:, 0], prepend=-1))

    def edges(self, number: int) -> Float[np.ndarray, "E 4"]:
        """The edges of one polygon, each as the coordinates of both ends."""
        return self._edges()[number]

    def _edges(self) -> list[Float[np.ndarray, "E 4"]]:
        """The edges of each polygon in float64, every ring closed."""
        x = np.asarray(self.vertices, float)
        last = np.append(np.any(np.diff(self.rings, axis=0) != 0, axis=1), True)
        first = np.append(0, np.flatnonzero(last)[:-1] + 1)
        following = np.arange(1, len(x) + 1)
        following[last] = first
        return np.split(np.concatenate([x, x[following]], axis=1), self._begins()[1:])


def _is_table(polygons: Any) -> bool:
    return isinstance(polygons, np.ndarray) and polygons.ndim == 2 and polygons.shape[1] == 4


def _from_table(table: np.ndarray) -> tuple[np.ndarray, np.ndarray, Units]:
    table = as_float("polygons", table)
    step = np.diff(table[:, 0], prepend=-1)
    if len(table) == 0 or np.any((step != 0) & (step != 1)):
        raise ValueError(
            "polygons: expected a table whose first column counts polygons from 0 without gaps, got one that does not"
        )
    return table[:, 2:], table[:, :2].astype(float), ()


def _read(polygons: Any) -> tuple[np.ndarray, np.ndarray, Units]:
    """The vertices of all rings, the numbers of each vertex's polygon and ring, and the units of the axes."""
    if not isinstance(polygons, Iterable) or hasattr(polygons, "__geo_interface__"):
        polygons = [polygons]
    read = [_rings(f"polygons[{i}]", polygon) for i, polygon in enumerate(polygons)]
    if not read:
        raise ValueError("polygons: expected at least one polygon, got none")
    units = read[0][0][1]
    parts, labels = [], []
    for i, rings in enumerate(read):
        for j, (ring, its_units) in enumerate(rings):
            by, shift = conversion(f"polygons[{i}]", its_units, units)
            parts.append(ring if its_units == units else by * ring + shift)
            labels.append(np.broadcast_to([float(i), float(j)], (len(ring), 2)))
    return np.concatenate(parts), np.concatenate(labels), units


def _rings(name: str, polygon: Any) -> list[tuple[np.ndarray, Units]]:
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


def _ring(name: str, ring: Any) -> tuple[np.ndarray, Units]:
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
