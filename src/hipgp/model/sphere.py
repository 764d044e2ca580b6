"""Places and paths on a sphere, in three dimensions, and regions of it as a plane.

A place (lon, lat) in degrees becomes the point (cos lat cos lon, cos lat sin lon, sin lat) times the radius, and distances
are chords through the sphere. A kernel of chords is a covariance on the sphere; one of distances along it need not be.

    >>> sphere([0.0, 90.0], [0.0, 0.0]).round(6).tolist()
    [[6371.0, 0.0, 0.0], [0.0, 6371.0, 0.0]]
    >>> GreatCircles([[0.0, 0.0]], [[90.0, 0.0]]).length.round(3).tolist()
    [10007.543]
"""

import math
from typing import Any, NamedTuple

import equinox as eqx
import numpy as np
from jaxtyping import Float, Int

from hipgp.model.arguments import as_float
from hipgp.model.functional import Functional, take_rows
from hipgp.model.functionals import NODES_PER_CELL
from hipgp.model.nodes import Nodes, gauss

EARTH = 6371.0  # mean radius in km
ON_ONE = 1e-6  # of the radius: places are on one sphere if their distances from its middle differ by no more
CLOSED = 1e-9  # of the radius: ends nearer than that to one place, or to opposite ones, have no one path between them
FLAT_ENOUGH = 0.02  # relative error of distances from which a region is no plane


def sphere(lon: Any, lat: Any, radius: float = EARTH) -> Float[np.ndarray, "N 3"]:
    """Places at longitude and latitude in degrees, as points (N, 3) of a sphere, in units of its radius (km unless given).

    For `Points`, `Derivatives` and grids: `hg.Points(hg.sphere(lon, lat))`.
    """
    east, north = checked_degrees(lon, lat)
    _check_radius(radius)
    east, north = np.radians(east), np.radians(north)
    return radius * np.stack([np.cos(north) * np.cos(east), np.cos(north) * np.sin(east), np.sin(north)], 1)


def checked_degrees(lon: Any, lat: Any) -> tuple[np.ndarray, np.ndarray]:
    """Longitudes and latitudes as arrays; a ValueError that names the row where one is beyond 360 or 90 degrees."""
    east, north = (
        np.atleast_1d(as_float(n, v, (0, 1))).astype(float) for n, v in (("lon", lon), ("lat", lat))
    )
    if east.shape != north.shape:
        raise ValueError(f"lat: expected {len(east)} numbers like lon, got {len(north)}")
    for name, values, most in (("lon", east, 360.0), ("lat", north, 90.0)):
        bad = np.flatnonzero(np.abs(values) > most)
        if len(bad):
            raise ValueError(
                f"{name}: expected degrees between -{most:g} and {most:g}, got {values[bad[0]]:g} in row {bad[0]}"
                + ("; give lon before lat" if name == "lat" else "")
            )
    return east, north


def _check_radius(radius: float) -> None:
    if not 0 < radius < math.inf:
        raise ValueError(f"radius: expected a positive number, got {radius!r}")


class GreatCircles(Functional):
    """The integral of the field along the shorter arcs of great circles, or its average with `average=True`.

    `start` and `end` are (N, 2), longitude and latitude in degrees, or (N, 3), places on a sphere about the origin; either may
    be one place shared by all. Integrals are in units of the radius: km on the Earth, unless `radius` says otherwise.

    Nodes are Gauss-Legendre in the angle, two for each cell of the grid that an arc crosses, as along straight lines: exact for
    polynomials of degree 31 in the angle on each sixteen nodes.
    """

    start: Float[np.ndarray, "N 3"]
    end: Float[np.ndarray, "N 3"]
    average: bool = eqx.field(static=True)

    def __init__(self, start: Any, end: Any, average: bool = False, radius: float = EARTH):
        a, b = (_on_sphere(name, v, radius) for name, v in (("start", start), ("end", end)))
        if len(a) != len(b) and 1 not in (len(a), len(b)):
            raise ValueError(f"end: expected {len(a)} places like start (or one shared by all), got {len(b)}")
        a, b = (np.array(v) for v in np.broadcast_arrays(a, b))
        sizes = np.linalg.norm(np.concatenate([a, b]), axis=1)
        if np.ptp(sizes) > ON_ONE * np.max(sizes):
            raise ValueError(
                f"end: expected places on one sphere about the origin, got distances from it of {np.min(sizes):.6g} to "
                f"{np.max(sizes):.6g}"
            )
        for other, what in (
            (b, "the same place"),
            (-b, "opposite places, between which every great circle is as short"),
        ):
            bad = np.flatnonzero(np.linalg.norm(a - other, axis=1) < CLOSED * np.max(sizes))
            if len(bad):
                raise ValueError(f"end: expected arcs between different places, got {what} in row {bad[0]}")
        self.start, self.end, self.average, self.units = a, b, bool(average), ()

    def _arcs(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Radius, angle, and the unit vectors at the start and a quarter of a circle ahead."""
        radius = np.linalg.norm(self.start, axis=1)
        a, b = self.start / radius[:, None], self.end / np.linalg.norm(self.end, axis=1)[:, None]
        axis = np.cross(a, b)
        sine = np.linalg.norm(axis, axis=1)
        return radius, np.arctan2(sine, np.sum(a * b, axis=1)), a, np.cross(axis / sine[:, None], a)

    @property
    def length(self) -> Float[np.ndarray, " N"]:
        """The length of each arc, in units of the radius."""
        radius, angle, *_ = self._arcs()
        return radius * angle

    @property
    def measure(self) -> int:
        return 0 if self.average else 1

    def nodes(self, spacing: Any) -> Nodes:
        radius, angle, a, ahead = self._arcs()
        cells = np.max(radius * angle) / np.min(np.asarray(spacing, float))
        t, c = gauss(int(np.ceil(NODES_PER_CELL * cells)))
        turned = angle[:, None] * t
        x = np.cos(turned)[..., None] * a[:, None] + np.sin(turned)[..., None] * ahead[:, None]
        size = np.ones(len(angle)) if self.average else radius * angle
        return Nodes(radius[:, None, None] * x, size[:, None] * c)

    def vertices(self, count: int) -> Float[np.ndarray, "N count 3"]:
        """Places along each arc, evenly spaced from its start to its end."""
        radius, angle, a, ahead = self._arcs()
        turned = (angle[:, None] * np.linspace(0, 1, count))[..., None]
        return radius[:, None, None] * (np.cos(turned) * a[:, None] + np.sin(turned) * ahead[:, None])

    def places(self) -> Float[np.ndarray, "N 2 3"]:
        """The lower and the upper corner of the box around each arc."""
        radius, angle, a, ahead = self._arcs()
        lower, upper = np.minimum(self.start, self.end), np.maximum(self.start, self.end)
        top = np.arctan2(
            ahead, a
        )  # the angle at which each coordinate is largest, and half a turn on smallest
        height = radius[:, None] * np.hypot(a, ahead)
        inside = lambda at: np.mod(at, 2 * np.pi) < angle[:, None]
        upper = np.where(inside(top), height, upper)
        return np.stack([np.where(inside(top + np.pi), -height, lower), upper], axis=1)

    def take(self, rows: Int[np.ndarray, " n"]) -> "GreatCircles":
        return take_rows(GreatCircles, self, rows)


def radius_of(functionals: list[Functional]) -> float | None:
    """The radius of the sphere about the origin on which all places and arcs lie; None where they lie on none."""
    sizes = []
    for one in functionals:
        if one.ndim != 3 or not (one.single or isinstance(one, GreatCircles)):
            return None
        sizes.append(np.linalg.norm(getattr(one, "start", one.places()[:, 0]), axis=1))
    every = np.concatenate(sizes)
    return float(np.mean(every)) if np.ptp(every) <= ON_ONE * np.max(every) and np.max(every) > 0 else None


def _on_sphere(name: str, value: Any, radius: float) -> Float[np.ndarray, "N 3"]:
    places = np.atleast_2d(as_float(name, value, (1, 2)).astype(float))
    if places.shape[1] == 2:
        return sphere(places[:, 0], places[:, 1], radius)
    if places.shape[1] != 3:
        raise ValueError(
            f"{name}: expected longitude and latitude in degrees, (N, 2), or places (N, 3), got {places.shape}"
        )
    return places


class Region(NamedTuple):
    """A part of the sphere as a plane: km east and north of a middle place (the azimuthal equidistant projection).

    Distances from the middle are exact. Across them they are too long by (c / sin c - 1), c the angle from the middle: 0.1%
    at 500 km, 1% at 1,550 km. `plane` refuses what would be off by more than 2%.
    """

    lon: float
    lat: float
    radius: float = EARTH

    @classmethod
    def of(cls, lon: Any, lat: Any, radius: float = EARTH) -> "Region":
        """The region around these places; one across the date line is taken the short way round."""
        east, north = checked_degrees(lon, lat)
        _check_radius(radius)
        east = east[0] + (east - east[0] + 180.0) % 360.0 - 180.0
        middle = [float((np.min(v) + np.max(v)) / 2) for v in (east, north)]
        return cls(middle[0], middle[1], radius)

    def plane(self, lon: Any, lat: Any) -> Float[np.ndarray, "N 2"]:
        """Places in degrees as km east and north of the middle."""
        x, (up, *along) = sphere(lon, lat, 1.0), self._axes()
        ahead = x @ np.transpose(along)
        angle = np.arctan2(np.linalg.norm(ahead, axis=1), x @ up)
        longer = 1 / np.sinc(angle / np.pi)
        if (off := float(np.max(longer)) - 1) > FLAT_ENOUGH:
            raise ValueError(
                f"lon, lat: expected places within {_reach(self.radius):,.0f} km of ({self.lon:.4g}, {self.lat:.4g}), where the "
                f"sphere is as good as flat, got some {self.radius * float(np.max(angle)):,.0f} km away, where distances "
                f"are off by {off:.1%}; use hg.sphere(lon, lat) and a kernel in three dimensions"
            )
        return self.radius * longer[:, None] * ahead

    def degrees(self, x: Any) -> tuple[Float[np.ndarray, " N"], Float[np.ndarray, " N"]]:
        """Longitude and latitude of places in km east and north of the middle."""
        places = as_float("x", x, (2,)).astype(float) / self.radius
        angle, (up, *along) = np.linalg.norm(places, axis=1)[:, None], self._axes()
        point = np.cos(angle) * up + np.sinc(angle / np.pi) * (places @ np.array(along))
        return np.degrees(np.arctan2(point[:, 1], point[:, 0])), np.degrees(np.arcsin(point[:, 2]))

    def _axes(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Up, east and north at the middle."""
        lon, lat = math.radians(self.lon), math.radians(self.lat)
        east = np.array([-math.sin(lon), math.cos(lon), 0.0])
        north = np.array([-math.sin(lat) * math.cos(lon), -math.sin(lat) * math.sin(lon), math.cos(lat)])
        return sphere(self.lon, self.lat, 1.0)[0], east, north


def _reach(radius: float) -> float:
    """The distance from the middle at which a plane is as far off as is allowed."""
    return radius * math.sqrt(6 * FLAT_ENOUGH)
