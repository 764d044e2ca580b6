"""Places to predict in tables and on grids of xarray, and predictions in the same shape."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hipgp.model import dates
from hipgp.model.coordinates import Units
from hipgp.model.degrees import degrees_among
from hipgp.model.functionals import (
    BoxAverages,
    Derivatives,
    Functional,
    LineIntegrals,
    Points,
    as_functional,
)
from hipgp.model.labels import Labels
from hipgp.model.sky import angles, is_sky
from hipgp.model.tables import points_of

if TYPE_CHECKING:
    from hipgp.model.geometry import Kind
    from hipgp.predictions import Prediction

Shaped = Callable[["Prediction"], Any]
# For each kind, its fields with the form of a column's name.
COLUMNS: dict[type[Functional], dict[str, str]] = {
    Points: {"x": "{}"},
    Derivatives: {"x": "{}"},
    LineIntegrals: {"start": "start_{}", "end": "end_{}"},
    BoxAverages: {"lower": "lower_{}", "upper": "upper_{}"},
}


def places_and_shape(
    at: Any, labels: Labels, crs: str = "", kind: "Kind | None" = None
) -> tuple[Functional, Shaped]:
    """The functional that `at` describes, and what turns its prediction into the shape of `at`.

    DataFrames and xarray's Datasets and DataArrays have a column or a coordinate for each axis, by its name; GeoDataFrames
    have geometries, and tables longitudes and latitudes, which are placed on the plane `crs`. The prediction at a SkyCoord names its angles and distances; all
    else gives a prediction as it is.
    """
    if all(hasattr(at, name) for name in ("crs", "geometry")):
        return _of_geometry(at, crs, kind)
    if is_sky(at):
        return Points(at), lambda p: p.placed(angles(at))
    if kind is not None:
        raise ValueError(f"kind: expected None but for a GeoDataFrame, got {kind!r}; the functional says it")
    if hasattr(at, "iloc") and hasattr(at, "columns"):
        return _of_frame(at, labels, crs)
    if hasattr(at, "coords") and hasattr(at, "dims"):
        return _of_xarray(at, labels, crs)
    return as_functional(at), lambda p: p


def _of_geometry(frame: Any, crs: str, kind: "Kind | None") -> tuple[Functional, Shaped]:
    if not crs:
        raise ValueError(
            "functional: expected plain coordinates like the data, got a GeoDataFrame; observe the data as a GeoDataFrame, "
            "or give Points or PolygonAverages(frame.geometry) on their plane"
        )
    from hipgp.model.geometry import of_geometry

    def shaped(p: "Prediction") -> Any:
        table = frame if hasattr(frame, "columns") else frame.to_frame("geometry")
        taken = [name for name in _columns(p) if name in table.columns]
        return table.drop(columns=taken).assign(**_columns(p))

    return of_geometry("functional", frame, kind, crs), shaped


def _of_frame(frame: Any, labels: Labels, crs: str) -> tuple[Functional, Shaped]:
    missing = [axis for axis in labels.axes if axis not in frame.columns]
    pair = degrees_among(frame.columns) if missing and crs else None
    if missing and pair is None and frame.shape[1] != len(labels.axes):
        raise ValueError(
            f"functional: expected a table with the columns {', '.join(labels.axes)}, got none called {missing[0]!r} among "
            f"{', '.join(map(str, frame.columns))}; rename them, or name the axes with post.labelled(...)"
        )
    axes = _beside("functional", pair, list(frame.columns), labels) if pair else labels.axes
    used = frame[list(axes)] if pair or not missing else frame
    used = used if missing else used.set_axis(range(used.shape[1]), axis=1)  # of the map's own axes

    def shaped(p: "Prediction") -> Any:
        taken = [name for name in _columns(p) if name in frame.columns]
        return frame.drop(columns=taken).assign(**_columns(p))

    return points_of(used, crs), shaped


def _of_xarray(at: Any, labels: Labels, crs: str) -> tuple[Functional, Shaped]:
    import pandas as pd
    import xarray as xr

    missing = [axis for axis in labels.axes if axis not in at.coords]
    pair = degrees_among(at.coords) if missing and crs else None
    axes = _beside("functional", pair, list(at.dims), labels) if pair else labels.axes
    if missing and pair is None:
        raise ValueError(
            f"functional: expected coordinates called {', '.join(labels.axes)}, got none called {missing[0]!r} among "
            f"{', '.join(map(str, at.coords))}; rename them, or name the axes with post.labelled(...)"
        )
    parts = xr.broadcast(*(at.coords[axis] for axis in axes))
    table = pd.DataFrame({i: part.values.ravel() for i, part in enumerate(parts)})
    if pair:
        points: Functional = points_of(table.set_axis(axes, axis=1), crs)
    else:
        points = Points(table)
        dated = points.units or ("",) * len(axes)
        units_of_axes = (str(at.coords[axis].attrs.get("units", "")) for axis in axes)
        points = points.given_in(tuple(one or other for one, other in zip(dated, units_of_axes, strict=True)))

    def shaped(p: "Prediction") -> Any:
        attributes = {"units": labels.unit} if labels.unit else {}
        fields = {
            name: (parts[0].dims, values.reshape(parts[0].shape), {"long_name": f"posterior {name} of {labels.name}"} | attributes)
            for name, values in _columns(p).items()
        }  # fmt: skip
        return xr.Dataset(fields, {axis: at.coords[axis] for axis in axes})

    return points, shaped


def _beside(name: str, pair: tuple[Any, Any], known: list[Any], labels: Labels) -> list[Any]:
    """Longitude, latitude, and what the map has beside them: columns by the names of its axes, or all others of a table."""
    wanted, others = list(labels.axes[2:]), [one for one in known if one not in pair]
    if all(one in known for one in wanted):
        return [*pair, *wanted]
    if len(others) == len(wanted):
        return [*pair, *others]
    raise ValueError(
        f"{name}: expected {', '.join(map(str, wanted))} beside {pair[0]} and {pair[1]}, got "
        f"{', '.join(map(str, others)) or 'nothing'}; rename them, or name the map's axes with post.labelled(...)"
    )


def _columns(p: "Prediction") -> dict[str, np.ndarray]:
    return {name: np.asarray(values) for name, values in p._asdict().items() if values is not None}


def columns_of(functional: Functional, axes: Sequence[str], units: Units = ()) -> dict[str, np.ndarray]:
    """The coordinates of points, both ends of lines and both corners of boxes by name; none of other kinds.

    Along axes whose unit is one of dates they are dates.
    """
    fields, found = COLUMNS.get(type(functional), {}), {}
    for field, form in fields.items():
        for i, axis in enumerate(axes):
            values = getattr(functional, field)[:, i]
            moments = dates.moments(values, units[i]) if units else None
            found[form.format(axis)] = values if moments is None else moments
    return found
