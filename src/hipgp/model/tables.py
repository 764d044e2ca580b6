"""Tables, GeoDataFrames and arrays of xarray as observations: what is measured where, of columns and coordinates by name.

>>> import pandas as pd
>>> table = pd.DataFrame({"x": [0.0, 1.0], "depth": [2.0, 3.0], "error": [0.1, 0.2]})
>>> read = described(table, "depth", "error", None, None)
>>> read.functional.x.ravel().tolist(), read.y.tolist(), read.noise.tolist()
([0.0, 1.0], [2.0, 3.0], [0.1, 0.2])
"""

from typing import Any, NamedTuple

import numpy as np

from hipgp.model.degrees import degrees_among, refuse_degrees
from hipgp.model.functional import Functional
from hipgp.model.functionals import BoxAverages, Points
from hipgp.model.geometry import Kind, cells_in_degrees, from_degrees, has_geometry, of_geometry
from hipgp.model.labels import AXES


class Described(NamedTuple):
    """The arguments of `observe` with columns and coordinates read: a functional, numbers for each, and the names of the axes."""

    functional: Functional
    y: Any
    noise: Any
    covariates: Any
    axes: tuple[str, ...] = ()


def described(source: Any, y: Any, noise: Any, covariates: Any, kind: Kind | None) -> Described:
    """The functional, values, noise and covariates from a functional, a table, a GeoDataFrame or an array of xarray."""
    if has_geometry(source):
        return _of_geometry(source, y, noise, covariates, kind)
    if hasattr(source, "dims") and hasattr(source, "coords"):
        return _of_array(source, y, noise, covariates, kind)
    if kind is not None:
        raise ValueError(
            f"kind: expected None but for a GeoDataFrame or an array of xarray, got {kind!r}; the functional itself says "
            "what was measured"
        )
    if hasattr(source, "iloc") and hasattr(source, "columns"):
        places = [c for c in source.columns if not any(isinstance(n, str) and c == n for n in (y, noise))]
        variables = _column("y", source, y), _column("noise", source, noise)
        return Described(points_of(source[places]), *variables, covariates, _axes(places))
    if not isinstance(source, Functional):
        raise ValueError(
            f"functional: expected Points, LineIntegrals, ..., a table of coordinates, a GeoDataFrame or an array of xarray, "
            f"got {type(source).__name__}"
            + ("; write hg.Points(x) for values at the places x" if hasattr(source, "__len__") else "")
        )
    return Described(source, y, noise, covariates)


def points_of(table: Any, crs: str = "") -> Points:
    """The places in the rows of a table; longitudes and latitudes are on the plane `crs`, or on one about their middle.

    The plane's axes come first, then the columns beside longitude and latitude, such as depths or dates, as they are.
    """
    if (pair := degrees_among(table.columns)) is None:
        return Points(table)
    plane = from_degrees(table[pair[0]], table[pair[1]], crs)
    if table.shape[1] == 2:
        return plane
    beside = Points(table[[name for name in table.columns if name not in pair]])
    units = (*plane.units, *(beside.units or ("",) * beside.ndim))
    return Points(np.hstack([plane.x, beside.x])).with_fields({"crs": plane.crs, "units": units})


def _axes(names: Any) -> tuple[str, ...]:
    """The names of the axes of places in these columns; longitude and latitude are those of a plane, and come first."""
    pair = degrees_among(names) or ()
    return (*AXES[2][: len(pair)], *(str(name) for name in names if name not in pair))


def _column(name: str, table: Any, value: Any) -> Any:
    """The column with this name, or the value itself if it is no name."""
    if not isinstance(value, str):
        return value
    if value not in table.columns:
        raise ValueError(
            f"{name}: expected a column among {', '.join(map(str, table.columns))}, got {value!r}"
        )
    return table[value].to_numpy()


def _of_geometry(frame: Any, y: Any, noise: Any, covariates: Any, kind: Kind | None) -> Described:
    functional = of_geometry("functional", frame, kind)
    if not hasattr(frame, "columns"):  # a GeoSeries
        return Described(functional, y, noise, covariates)
    variables = _column("y", frame, y), _column("noise", frame, noise)
    if covariates is None:
        import pandas as pd

        covariates = pd.DataFrame(frame.drop(columns=frame.geometry.name))
    return Described(functional, *variables, covariates)


def _of_array(source: Any, y: Any, noise: Any, covariates: Any, kind: Kind | None) -> Described:
    """The cells of an array that hold numbers, as values in their middles or as averages over them."""
    if kind not in (None, "points", "averages"):
        raise ValueError(f'kind: expected "points" or "averages" for cells of an array, got {kind!r}')
    values = _variable(source, y)
    missing = [dim for dim in values.dims if dim not in values.coords]
    if missing:
        raise ValueError(
            f"functional: expected coordinates along every dimension, got none of {missing[0]!r}"
        )
    std = noise
    if isinstance(noise, str):
        std = _variable(source, noise)
    if hasattr(std, "dims"):
        std = std.transpose(*values.dims).values.ravel()
    numbers = np.asarray(values.values, float).ravel()
    good = np.isfinite(numbers)
    if not np.any(good):
        raise ValueError(
            f"y: expected some cells with numbers, got {len(numbers)} that are empty (NaN) or infinite"
        )
    std = std[good] if np.ndim(std) == 1 and len(std) == len(good) else std
    functional = _cells(source, values, kind == "averages", good)
    return Described(functional, numbers[good], std, covariates, _axes(values.dims))


def _variable(source: Any, name: Any) -> Any:
    """The array of values: a variable of a Dataset by its name, or the array itself."""
    if not hasattr(source, "data_vars"):
        if name is not None and not hasattr(name, "dims"):
            raise ValueError(
                f"y: expected None with a DataArray, whose values are measured, got {type(name).__name__}"
            )
        return source if name is None else name.transpose(*source.dims)
    if not isinstance(name, str) or name not in source.data_vars:
        raise ValueError(
            f"y: expected a variable of the Dataset, {', '.join(map(str, source.data_vars))}, got {name!r}"
        )
    return source[name]


def _cells(source: Any, values: Any, averages: bool, good: np.ndarray) -> Functional:
    """The cells marked `good` of an array with coordinates: their middles, or the boxes between the middles."""
    import pandas as pd

    def crossed(each: list[Any]) -> Any:
        """A row for each cell, of one value along each dimension."""
        parts = np.meshgrid(*[np.arange(len(v)) for v in each], indexing="ij")
        return pd.DataFrame({i: v[p.ravel()[good]] for i, (v, p) in enumerate(zip(each, parts, strict=True))})

    middles = [np.asarray(values.coords[dim].values) for dim in values.dims]
    pair = degrees_among(values.dims)
    if pair is not None and averages and len(values.dims) > 2:
        refuse_degrees("functional", values.dims)
    ends = [edges(source, values.coords[dim]) for dim in values.dims] if averages else []
    if pair is not None and averages:
        lower, upper = (crossed([e[i] for e in ends]).set_axis(values.dims, axis=1) for i in (0, 1))
        return cells_in_degrees(*(table[name] for name in pair for table in (lower, upper)))
    if pair is not None:
        points = points_of(crossed(middles).set_axis(values.dims, axis=1))
        return points.given_in(_with_attributes(points.units, pair, values)).with_fields({"crs": points.crs})
    if averages:
        functional: Functional = BoxAverages(*(crossed([e[i] for e in ends]) for i in (0, 1)))
    else:
        functional = Points(crossed(middles))
    return functional.given_in(_with_attributes(functional.units or ("",) * values.ndim, (), values))


def _with_attributes(units: tuple[str, ...], pair: tuple[Any, ...], values: Any) -> tuple[str, ...]:
    """The units of the axes, with those of the array where there are none; the dimensions `pair` come first."""
    dims = [*pair, *(dim for dim in values.dims if dim not in pair)]
    of_array = [str(values.coords[dim].attrs.get("units", "")) for dim in dims]
    return tuple(one or other for one, other in zip(units, of_array, strict=True))


def edges(source: Any, axis: Any) -> tuple[np.ndarray, np.ndarray]:
    """The lower and upper edge of every cell: its bounds by the CF conventions, or halfway to the next ones."""
    named = axis.attrs.get("bounds")
    if named is not None and named in getattr(source, "variables", source.coords):
        ends = np.sort(np.asarray(source[named].values), axis=1)
        return ends[:, 0], ends[:, 1]
    x = np.asarray(axis.values)
    if len(x) < 2:
        raise ValueError(
            f"functional: expected at least two cells along {axis.name!r}, between which their edges lie, got one; add "
            'bounds as in the CF conventions, or give kind="points"'
        )
    half = np.diff(x) / 2
    below, above = x - np.append(half[:1], half), x + np.append(half, half[-1:])
    return np.minimum(below, above), np.maximum(below, above)
