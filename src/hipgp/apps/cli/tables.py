"""Tables in: reading, finding the columns, and turning rows into measurements."""

import math
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

import hipgp as hg
from hipgp.apps.cli.columns import Columns, infer
from hipgp.apps.cli.console import BadInput
from hipgp.apps.cli.reading import Sheet, read_table
from hipgp.model import dates
from hipgp.model.geometry import from_degrees, of_geometry

__all__ = ["NO_UNITS", "Columns", "Sheet", "Units", "functional", "infer", "numbers", "read_table"]


class Units(NamedTuple):
    """The units of the coordinates and of the field, from the user or the first file; empty where neither gives one."""

    axis: str = ""
    field: str = ""
    crs: str = ""  # of a map to predict from

    def completed(self, sheet: Sheet, columns: Columns, average: bool, path: Any = "table") -> "Units":
        """These units, with those of the file where one is empty."""
        places = columns.first + columns.second
        if columns.kind == "geometry":
            return self
        if not self.axis and columns.kind != "sky":
            _check_all_or_none(sheet, places, "--axis-unit", path)
        if not self.field and columns.value not in sheet.units and columns.error in sheet.units:
            _check_all_or_none(sheet, (columns.value or "", columns.error or ""), "--unit", path)
        usual = {"sky": "kpc"}.get(columns.kind) or (
            LENGTHS[0] if columns.degrees else sheet.units.get(places[0], "")
        )
        axis = self.axis or usual
        value = sheet.units.get(columns.value or "", "")
        if value and columns.integrates(average):  # a field times a length
            value = f"{value}/{axis}" if axis else ""
        return Units(axis, self.field or value, self.crs)

    def of_values(self, columns: Columns, average: bool) -> tuple[str, ...]:
        """The units whose product is that of the measured values."""
        return (self.field, self.axis) if columns.integrates(average) else (self.field,)


NO_UNITS = Units()
ANGLES, LENGTHS = (
    ("deg", "degree", "degrees"),
    ("km", "m"),
)  # what --axis-unit may say of longitude and latitude


def _check_all_or_none(sheet: Sheet, names: Sequence[str], flag: str, path: Any) -> None:
    """Raise BadInput where some columns of one kind have a unit and others have none."""
    without = [name for name in names if name not in sheet.units]
    if without and len(without) < len(names):
        other = next(name for name in names if name in sheet.units)
        raise BadInput(
            f"{path}: column {other!r} is in {sheet.units[other]!r}, but {without[0]!r} has no unit; give the unit of "
            f"those without one with {flag}, or write it into the file"
        )


def numbers(
    sheet: Sheet, names: Sequence[str], drop_nan: bool, path: Any = "table", places: int = 0
) -> tuple[np.ndarray, np.ndarray, dict[str, str]]:
    """The columns as float64, which rows are used, and the units of columns of dates.

    BadInput names the rows whose cells are no numbers. The first `places` columns are coordinates and may hold dates, which
    become days since the first of them.
    """
    if not names:
        return np.empty((len(sheet.frame), 0)), np.ones(len(sheet.frame), bool), {}
    cells = [_moments(sheet, name, path) for name in names[:places]]
    cells += [None] * (len(names) - len(cells))
    table = np.stack(
        [_cells(sheet, n, path) if c is None else _missing(c) for n, c in zip(names, cells, strict=True)],
        axis=1,
    )
    good = np.all(np.isfinite(table), axis=1)
    if not np.all(good) and not drop_nan:
        rows = ", ".join(str(i + 2) for i in np.flatnonzero(~good)[:5])
        more = ", ..." if np.sum(~good) > 5 else ""
        raise BadInput(
            f"{path}: {int(np.sum(~good))} rows have empty, NaN or infinite cells (rows {rows}{more}); "
            "give --drop-nan to leave them out"
        )
    if not np.any(good):
        raise BadInput(f"{path}: no row has all of {', '.join(names)}")
    table = table[good]
    dated = [i for i, c in enumerate(cells) if c is not None]
    if not dated:
        return table, good, {}
    together = np.stack([cells[i][good].astype("M8[ns]") for i in dated], axis=1)  # type: ignore[index]
    table[:, dated], unit = dates.as_days("coordinates", together)
    return table, good, {names[i]: unit for i in dated}


def _missing(moments: np.ndarray) -> np.ndarray:
    """NaN where a date is missing, and zero elsewhere."""
    return np.where(np.isnat(moments), np.nan, 0.0)


def _cells(sheet: Sheet, name: str, path: Any) -> np.ndarray:
    """A column as float64, NaN where it is empty."""
    raw: Any = sheet.frame[name]
    if dates.are_dates(raw):
        raise BadInput(
            f"{path}: column {name!r} should hold numbers, but holds dates, which can be coordinates only"
        )
    cells: Any = pd.to_numeric(raw, errors="coerce")
    values = cells.to_numpy(float, na_value=np.nan)
    _refuse_words(raw, np.isnan(values), name, "numbers", path)
    return values


def _moments(sheet: Sheet, name: str, path: Any) -> np.ndarray | None:
    """A column of dates as datetime64 in UTC, NaT where it is empty; None for a column of numbers.

    Words are read as dates of ISO 8601 where any of them is one.
    """
    raw: Any = sheet.frame[name]
    if dates.are_dates(raw.dropna()):
        return dates.as_moments(name, pd.to_datetime(raw, utc=True))
    if pd.api.types.is_numeric_dtype(raw) or np.any(pd.notna(pd.to_numeric(raw, errors="coerce"))):
        return None
    read: Any = pd.to_datetime(raw, format="ISO8601", utc=True, errors="coerce")
    if not read.notna().any():
        return None
    _refuse_words(raw, read.isna().to_numpy(), name, "dates such as 2020-02-01 or 2020-02-01T12:30Z", path)
    return dates.as_moments(name, read)


def _refuse_words(raw: pd.Series, unread: np.ndarray, name: str, what: str, path: Any) -> None:
    """Raise BadInput where a cell that could not be read is not empty."""
    words = np.flatnonzero(unread & raw.notna().to_numpy())
    if len(words):
        # line numbers, with the header
        where = ", ".join(f"row {i + 2} has {raw.iloc[i]!r}" for i in words[:3])
        more = f" and {len(words) - 3} more" if len(words) > 3 else ""
        dated = re.match(r"\s*\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}", str(raw.iloc[words[0]])) is not None
        remedy = "; write dates as 2020-02-01, since 01/02/2020 is two days" if dated else ""
        raise BadInput(f"{path}: column {name!r} should hold {what}, but {where}{more}{remedy}")


def _converted(
    sheet: Sheet, names: Sequence[str], table: np.ndarray, units: tuple[str, ...], path: Any
) -> np.ndarray:
    """The columns converted to the product of `units`, or to the first column's unit if one of those is empty."""
    factors = np.ones(len(names))
    if not all(units):
        units = tuple(sheet.units[name] for name in names if name in sheet.units)[:1]
    for i, name in enumerate(names):
        of_column = sheet.units.get(name, "")
        if of_column and units and (of_column,) != units:
            import astropy.units as u  # the file's units came through it

            try:
                factors[i] = u.Unit(of_column).to(
                    math.prod((u.Unit(unit) for unit in units), start=u.Unit(""))
                )
            except (u.UnitConversionError, ValueError) as error:
                wanted = " times ".join(repr(unit) for unit in units)
                raise BadInput(
                    f"{path}: column {name!r} is in {of_column!r}, which does not convert to {wanted} ({error})"
                ) from None
    return table * factors


def functional(
    sheet: Sheet,
    columns: Columns,
    drop_nan: bool,
    average: bool,
    path: Any = "table",
    units: Units = NO_UNITS,
) -> tuple[Any, np.ndarray, np.ndarray]:
    """The functional of every row, the numbers of the value, error, limits and scale columns, and which rows are used; in `units`."""
    extra = [c for c in (columns.value, columns.error, *columns.limits) if c]
    places, scale = [*columns.first, *columns.second], [columns.scale] if columns.scale else []
    table, good, dated = numbers(sheet, [*places, *extra, *scale], drop_nan, path, len(places))
    n = len(columns.first)
    values = slice(len(places), len(places) + len(extra))
    table[:, values] = _converted(sheet, extra, table[:, values], units.of_values(columns, average), path)
    flat = columns.degrees and (bool(units.crs) or units.axis not in ("", *ANGLES))
    if flat:
        angles = [i for i in range(len(places)) if i % n < 2]
        table[:, angles] = _converted(sheet, [places[i] for i in angles], table[:, angles], ANGLES[:1], path)
    elif columns.kind != "sky":  # the sky has units of its own
        plain = [i for i, name in enumerate(places) if name not in dated]
        table[:, plain] = _converted(sheet, [places[i] for i in plain], table[:, plain], (units.axis,), path)
    one, two, rest = table[:, :n], table[:, n : n + len(columns.second)], table[:, n + len(columns.second) :]
    if columns.error and np.any(rest[:, 1] <= 0):
        rows = np.flatnonzero(good)[rest[:, 1] <= 0] + 2
        raise BadInput(
            f"{path}: errors must be positive, but column {columns.error!r} has {len(rows)} that are not "
            f"(first: row {rows[0]})"
        )
    if flat:
        beside = tuple(dated.get(name, sheet.units.get(name, "")) for name in columns.first[2:])
        return _on_plane(columns, one, two, average, path, units, beside), rest, good
    if columns.kind == "geometry":
        kind: Any = "averages" if average else "totals" if columns.total else None
        return of_geometry(str(path), sheet.frame.loc[good], kind, units.crs), rest, good
    made = _made(sheet, columns, one, two, average, path, units)
    return made.given_in(_of_axes(columns, dated, path)), rest, good


def _on_plane(
    columns: Columns,
    one: np.ndarray,
    two: np.ndarray,
    average: bool,
    path: Any,
    units: Units,
    beside: tuple[str, ...],
) -> Any:
    """Longitudes and latitudes on a plane, whose unit of length is that of the axes; `beside` are the units of other axes."""
    if len(columns.second) > 2:
        raise BadInput(
            f"{path}: expected rays between places by longitude and latitude alone, got {columns.second[2]} beside them; "
            "compute columns in km, or give --axis-unit deg for plain numbers"
        )
    if columns.kind not in ("points", "rays") or (columns.kind == "rays" and not columns.first):
        raise BadInput(
            f"{path}: expected points, or rays with both ends, by longitude and latitude, got {columns.kind}; give shapes in "
            "GeoJSON, or --axis-unit deg for plain degrees"
        )
    if not units.crs and units.axis not in LENGTHS:
        raise BadInput(
            f"axis_unit: expected {', '.join(LENGTHS)} or deg for longitude and latitude, got {units.axis!r}"
        )
    both = np.concatenate([one, two]) if columns.second else one
    found = from_degrees(both[:, 0], both[:, 1], units.crs, units.axis)
    if not columns.second and one.shape[1] > 2:
        places: Any = hg.Points(np.hstack([found.x, one[:, 2:]]))
        return places.with_fields({"crs": found.crs, "units": (*found.units, *beside)})
    if not columns.second:
        return found
    rays: Any = hg.LineIntegrals(found.x[: len(one)], found.x[len(one) :], average=average)
    return rays.with_fields({"crs": found.crs, "units": found.units})


def _made(
    sheet: Sheet, columns: Columns, one: np.ndarray, two: np.ndarray, average: bool, path: Any, units: Units
) -> Any:
    """The functional of the rows, from the first and the second places."""
    if columns.kind == "points" and average:
        raise BadInput(
            f"{path}: expected rays, polygons or the cells of NetCDF with --average, got values at points; leave it out"
        )
    if columns.kind == "points":
        return hg.Points(one)
    if columns.kind == "averages":
        return hg.BoxAverages(one, two)
    if columns.kind == "sky":
        ends = _from_sky(sheet, columns, one, path, units.axis or "kpc")
        return hg.LineIntegrals(np.zeros(3), ends, average=average)
    start = one if len(columns.first) else np.zeros(two.shape[1])
    return hg.LineIntegrals(start, two, average=average)


def _of_axes(columns: Columns, dated: dict[str, str], path: Any) -> tuple[str, ...]:
    """The unit of each axis, "" where it is not one of dates."""
    if not dated:
        return ()
    ends = [tuple(dated.get(name, "") for name in side) for side in (columns.first, columns.second) if side]
    if columns.kind == "sky" or (columns.second and not columns.first) or len(set(ends)) > 1:
        raise BadInput(
            f"{path}: expected dates at both ends of an axis or at none, got {', '.join(dated)} alone"
        )
    return ends[0]


def _from_sky(sheet: Sheet, columns: Columns, rows: np.ndarray, path: Any, length: str) -> np.ndarray:
    """Galactic Cartesian coordinates with the Sun at the origin, in the unit `length`, through astropy."""
    try:
        import astropy.units as u
        from astropy.coordinates import Distance, SkyCoord
    except ModuleNotFoundError:
        raise BadInput(f"{path}: sky coordinates need astropy: pip install 'hipgp[astro]'") from None
    unit: Any = lambda i, default: u.Unit(sheet.units.get(columns.first[i]) or default)
    parallax = columns.first[2].lower() in ("parallax", "plx")
    try:
        angles = [(rows[:, i] * unit(i, "deg")).to(u.deg) for i in (0, 1)]
        far = rows[:, 2] * unit(2, "mas" if parallax else "kpc")
        if parallax and np.any(rows[:, 2] <= 0):
            raise BadInput(f"{path}: parallaxes must be positive to give a distance")
        distance = Distance(parallax=far) if parallax else far.to(u.kpc)
        per_kpc = u.kpc.to(u.Unit(length))
    except (u.UnitConversionError, ValueError) as error:
        raise BadInput(f"{path}: units do not convert ({error})") from None
    frame = "galactic" if columns.first[0].lower() == "l" else "icrs"
    sky: Any = SkyCoord(angles[0], angles[1], distance=distance, frame=frame)
    found = sky.galactic.cartesian
    return np.stack([per_kpc * a.to_value(u.kpc) for a in (found.x, found.y, found.z)], axis=1)
