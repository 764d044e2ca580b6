"""GeoDataFrames as functionals: points, lines as integrals, polygons as averages or totals, on a plane in kilometres.

Degrees are projected to a plane about the middle of the data (azimuthal equidistant on the WGS84 ellipsoid); projected
coordinates stay as they are. `crs` of a functional names its plane, so that others are converted to it.
"""

from typing import Any, Literal

import numpy as np

from hipgp.model.frames import plane_units
from hipgp.model.functional import Functional
from hipgp.model.functionals import LineIntegrals, Points
from hipgp.model.paths import PathIntegrals
from hipgp.model.polygons import PolygonAverages
from hipgp.model.sphere import Region, checked_degrees

Kind = Literal["points", "averages", "totals", "integrals"]
KINDS = {"Point": "points", "LineString": "lines", "LinearRing": "lines", "MultiLineString": "lines",
         "Polygon": "polygons", "MultiPolygon": "polygons"}  # fmt: skip
MEASURES = {"points": ("points",), "lines": ("integrals", "averages"), "polygons": ("averages", "totals")}
PIECES = 4  # of the side of a cell in degrees, each of which is straight on a plane
STRETCHED = 0.02  # relative error of distances on a map from which it is refused


def has_geometry(value: Any) -> bool:
    """Whether this is a GeoDataFrame or a GeoSeries."""
    return all(hasattr(type(value), name) for name in ("crs", "geometry", "to_crs"))


def of_geometry(name: str, frame: Any, kind: Kind | None = None, crs: str = "") -> Functional:
    """The functional that the geometries of a GeoDataFrame describe, in `crs` or else in a plane that suits them."""
    series = frame.geometry
    sort = _sort(name, series)
    allowed = MEASURES[sort]
    if kind not in (None, *allowed):
        expected = " or ".join(f'"{one}"' for one in allowed)
        raise ValueError(f"kind: expected {expected} for {sort}, got {kind!r}")
    if series.crs is None:
        raise ValueError(
            f"{name}: expected geometries with a coordinate reference system, got none; say which it is, such as "
            'frame.set_crs("EPSG:4326") for degrees, or give plain coordinates as Points or PolygonAverages(frame.geometry)'
        )
    _check_sound(name, series)
    _check_flat(name, series)
    target = crs or plane_of(name, series)
    found = _made(sort, kind or allowed[0], series.to_crs(target))
    return found.with_fields({"crs": target}).given_in(plane_units(target))


def _sort(name: str, series: Any) -> str:
    """points, lines or polygons; a ValueError that names the row of another or an empty geometry."""
    if len(series) == 0:
        raise ValueError(f"{name}: expected at least one geometry, got none")
    empty = np.flatnonzero(np.asarray(series.isna() | series.is_empty))
    if len(empty):
        raise ValueError(
            f"{name}: expected a geometry in every row, got none in row {empty[0]} ({len(empty)} rows in all); leave such "
            "rows out: frame[~(frame.geometry.isna() | frame.geometry.is_empty)]"
        )
    types = np.asarray(series.geom_type)
    first = KINDS.get(types[0])
    other = [i for i, one in enumerate(types) if KINDS.get(one) != first or first is None]
    if other:
        remedy = (
            "; observe them apart, and add the data: observe(...) + observe(...)"
            if first
            else "; use frame.explode()"
        )
        expected = f"{first} like row 0" if first else "points, lines or polygons"
        raise ValueError(f"{name}: expected {expected}, got a {types[other[0]]} in row {other[0]}{remedy}")
    return str(first)


def _check_sound(name: str, series: Any) -> None:
    """Raise a ValueError that names the first polygon that crosses itself."""
    bad = np.flatnonzero(~np.asarray(series.is_valid))
    if len(bad):
        from shapely.validation import explain_validity  # type: ignore[import-not-found]

        why = explain_validity(series.iloc[bad[0]])
        raise ValueError(
            f"{name}: expected sound geometries, got {why} in row {bad[0]} ({len(bad)} rows in all); mend them: "
            "frame.geometry = frame.geometry.make_valid()"
        )


def _check_flat(name: str, series: Any) -> None:
    """Raise a ValueError where geometries have different heights, which a plane would leave out without a word."""
    with_height = np.flatnonzero(np.asarray(series.has_z))
    if len(with_height) == 0:
        return
    import shapely  # type: ignore[import-not-found]

    heights = shapely.get_coordinates(np.asarray(series), include_z=True)[:, 2]
    if np.any(heights != heights[0]):  # also where some have none, which is NaN
        raise ValueError(
            f"{name}: expected geometries on a plane, got heights in row {with_height[0]} ({len(with_height)} rows in all); "
            "leave the heights out: frame.geometry = frame.geometry.force_2d(), or give three columns of coordinates"
        )


def plane_of(name: str, series: Any) -> str:
    """The plane on which geometries are placed, as PROJ names it: their own, or for degrees one about their middle."""
    crs = series.crs
    if not crs.is_geographic:
        _check_true(name, series)
        return str(crs.to_string())
    west, south, east, north = series.to_crs("EPSG:4326").total_bounds
    middle = Region.of([west, east, west, east], [south, south, north, north])
    middle.plane([west, east, west, east], [south, south, north, north])  # raises where they reach too far
    return _about(middle)


def from_degrees(lon: Any, lat: Any, crs: str = "", unit: str = "km") -> Points:
    """Places in degrees (WGS84) on the plane `crs`, or on one about their middle."""
    try:
        from pyproj import Transformer  # type: ignore[import-not-found]
    except ModuleNotFoundError:
        raise ImportError(
            "longitude and latitude need pyproj to become distances: pip install 'hipgp[geo]'; or give plain degrees: arrays "
            "in place of tables, --axis-unit deg"
        ) from None
    lon, lat = checked_degrees(lon, lat)
    if not crs:
        middle = Region.of(lon, lat)
        middle.plane(lon, lat)  # raises where they reach too far
        crs = _about(middle, unit)
    x, y = Transformer.from_crs("EPSG:4326", crs, always_xy=True).transform(lon, lat)
    points: Any = Points(np.stack([x, y], axis=1))
    return points.with_fields({"crs": crs, "units": plane_units(crs)})


def cells_in_degrees(west: Any, east: Any, south: Any, north: Any) -> PolygonAverages:
    """Averages over cells between meridians and parallels, on a plane about their middle."""
    import geopandas  # type: ignore[import-not-found]
    import shapely  # type: ignore[import-not-found]

    w, s, e, n = (np.asarray(v, float) for v in (west, south, east, north))
    cells = geopandas.GeoSeries(shapely.box(w, s, e, n), crs="EPSG:4326")
    found: Any = of_geometry("functional", cells.segmentize(np.min(e - w) / PIECES), "averages")
    return found


def _about(middle: Region, unit: str = "km") -> str:
    return f"+proj=aeqd +lat_0={middle.lat:.6f} +lon_0={middle.lon:.6f} +datum=WGS84 +units={unit} +no_defs"


def _check_true(name: str, series: Any) -> None:
    """Raise a ValueError where distances on the user's map are far from those on the ground, as in Web Mercator."""
    from pyproj import Proj  # type: ignore[import-not-found]

    west, south, east, north = series.to_crs(series.crs.geodetic_crs).total_bounds
    factors = Proj(series.crs).get_factors((west + east) / 2, (south + north) / 2)
    scale = np.sqrt(np.abs(factors.areal_scale))
    if np.isfinite(scale) and abs(scale - 1) > STRETCHED:
        raise ValueError(
            f"{name}: expected a map on which distances are those on the ground, got {series.crs.name!r}, which multiplies "
            f"them by {scale:.3g} there; give degrees, frame.to_crs('EPSG:4326'), which are projected to a plane in km"
        )


def _made(sort: str, kind: str, series: Any) -> Functional:
    if sort == "points":
        return Points(np.stack([series.x.to_numpy(), series.y.to_numpy()], axis=1))
    if sort == "polygons":
        return PolygonAverages(list(series), total=kind == "totals")
    lines = [[np.asarray(part.coords)[:, :2] for part in getattr(one, "geoms", [one])] for one in series]
    average = kind == "averages"
    if all(len(parts) == 1 and len(parts[0]) == 2 for parts in lines):
        ends = np.stack([parts[0] for parts in lines])
        return LineIntegrals(ends[:, 0], ends[:, 1], average=average)
    return PathIntegrals(lines, average=average)
