"""Tables in: reading, finding the columns, and turning rows into measurements."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

import hipgp as hg
from hipgp.apps.cli.columns import Columns, infer
from hipgp.apps.cli.console import BadInput
from hipgp.apps.cli.reading import Sheet, read_table

__all__ = ["NO_UNITS", "Columns", "Sheet", "Units", "functional", "infer", "numbers", "read_table"]


class Units(NamedTuple):
    """The units of the coordinates and of the field, from the user or the first file; empty where neither gives one."""

    axis: str = ""
    field: str = ""

    def completed(self, sheet: Sheet, columns: Columns, average: bool, path: Any = "table") -> "Units":
        """These units, with those of the file where one is empty."""
        places = columns.first + columns.second
        if not self.axis and columns.kind != "sky":
            _check_all_or_none(sheet, places, "--axis-unit", path)
        if not self.field and columns.value not in sheet.units and columns.error in sheet.units:
            _check_all_or_none(sheet, (columns.value or "", columns.error or ""), "--unit", path)
        axis = self.axis or ("kpc" if columns.kind == "sky" else sheet.units.get(places[0], ""))
        value = sheet.units.get(columns.value or "", "")
        if value and columns.integrates(average):  # a field times a length
            value = f"{value}/{axis}" if axis else ""
        return Units(axis, self.field or value)

    def of_values(self, columns: Columns, average: bool) -> tuple[str, ...]:
        """The units whose product is that of the measured values."""
        return (self.field, self.axis) if columns.integrates(average) else (self.field,)


NO_UNITS = Units()


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
    sheet: Sheet, names: Sequence[str], drop_nan: bool, path: Any = "table"
) -> tuple[np.ndarray, np.ndarray]:
    """The columns as float64, and which rows are used; BadInput names the rows whose cells are no numbers."""
    columns = []
    for name in names:
        raw = sheet.frame[name]
        cells: Any = pd.to_numeric(raw, errors="coerce")
        values = cells.to_numpy(float, na_value=np.nan)
        words = np.flatnonzero(np.isnan(values) & raw.notna().to_numpy())
        if len(words):
            where = ", ".join(
                f"row {i + 2} has {raw.iloc[i]!r}" for i in words[:3]
            )  # line numbers, with the header
            more = f" and {len(words) - 3} more" if len(words) > 3 else ""
            raise BadInput(f"{path}: column {name!r} should hold numbers, but {where}{more}")
        columns.append(values)
    table = np.stack(columns, axis=1)
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
    return table[good], good


def _converted(
    sheet: Sheet, names: Sequence[str], table: np.ndarray, units: tuple[str, ...], path: Any
) -> np.ndarray:
    """The columns converted to the product of `units`, or to the first column's unit if one of those is empty."""
    factors = np.ones(len(names))
    if not all(units):
        units = tuple(sheet.units[name] for name in names if name in sheet.units)[:1]
    for i, name in enumerate(names):
        own = sheet.units.get(name, "")
        if own and units and (own,) != units:
            import astropy.units as u  # the file's units came through it

            try:
                factors[i] = u.Unit(own).to(math.prod((u.Unit(unit) for unit in units), start=u.Unit("")))
            except (u.UnitConversionError, ValueError) as error:
                wanted = " times ".join(repr(unit) for unit in units)
                raise BadInput(
                    f"{path}: column {name!r} is in {own!r}, which does not convert to {wanted} ({error})"
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
    """The functional of every row, the value and error columns' numbers, and which rows are used; in `units`."""
    extra = [c for c in (columns.value, columns.error) if c]
    table, good = numbers(sheet, [*columns.first, *columns.second, *extra], drop_nan, path)
    n = len(columns.first)
    places = [] if columns.kind == "sky" else [*columns.first, *columns.second]  # the sky has its own
    table[:, : len(places)] = _converted(sheet, places, table[:, : len(places)], (units.axis,), path)
    values = slice(table.shape[1] - len(extra), None)
    table[:, values] = _converted(sheet, extra, table[:, values], units.of_values(columns, average), path)
    one, two, rest = table[:, :n], table[:, n : n + len(columns.second)], table[:, n + len(columns.second) :]
    if columns.error and np.any(rest[:, -1] <= 0):
        rows = np.flatnonzero(good)[rest[:, -1] <= 0] + 2
        raise BadInput(
            f"{path}: errors must be positive, but column {columns.error!r} has {len(rows)} that are not "
            f"(first: row {rows[0]})"
        )
    if columns.kind == "points":
        return hg.Points(one), rest, good
    if columns.kind == "averages":
        return hg.BoxAverages(one, two), rest, good
    if columns.kind == "sky":
        ends = _from_sky(sheet, columns, one, path, units.axis or "kpc")
        return hg.LineIntegrals(np.zeros(3), ends, average=average), rest, good
    start = one if n else np.zeros(two.shape[1])
    return hg.LineIntegrals(start, two, average=average), rest, good


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
