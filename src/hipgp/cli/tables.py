"""Tables in: reading, finding the columns, and turning rows into measurements."""

import difflib
import math
import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

import hipgp as hg
from hipgp.cli.console import BadInput

AXES = [("x", "y", "z", "t"), ("x", "y", "z"), ("x", "y"), ("easting", "northing"), ("longitude", "latitude"),
        ("lon", "lat"), ("x",), ("time",), ("t",)]  # fmt: skip
VALUES = (
    "value",
    "values",
    "measured",
    "extinction",
    "av",
    "a_v",
    "ebv",
    "price",
    "observed",
    "obs",
    "y_obs",
)
ERRORS = ("error", "err", "sigma", "std", "uncertainty", "noise", "value_error", "e_value")
SKY = [("l", "b"), ("ra", "dec")]
DISTANCES = ("distance", "dist", "d", "parallax", "plx")


class Sheet(NamedTuple):
    """A table with the units its file gave."""

    frame: pd.DataFrame
    units: dict[str, str]


class Units(NamedTuple):
    """What the coordinates and the field are in, as the user or the first file says; empty where nobody does."""

    axis: str = ""
    field: str = ""

    def completed(self, sheet: Sheet, columns: "Columns", average: bool) -> "Units":
        """With what the file says where nothing else was said."""
        first = (columns.first + columns.second)[0]
        axis = self.axis or ("kpc" if columns.kind == "sky" else sheet.units.get(first, ""))
        value = sheet.units.get(columns.value or "", "")
        if value and columns.integrates(average):  # a field times a length
            value = f"{value}/{axis}" if axis else ""
        return Units(axis, self.field or value)

    def of_values(self, columns: "Columns", average: bool) -> tuple[str, ...]:
        """What measured values are in: the product of these."""
        return (self.field, self.axis) if columns.integrates(average) else (self.field,)


UNSAID = Units()


class Columns(NamedTuple):
    """Which columns mean what."""

    kind: str  # points, rays, averages, sky
    first: tuple[
        str, ...
    ]  # coordinates; starts of rays; lower corners; the sky's two angles and the distance
    second: tuple[str, ...]  # ends of rays; upper corners
    value: str | None
    error: str | None

    @property
    def ndim(self) -> int:
        return 3 if self.kind == "sky" else len(self.second or self.first)

    def integrates(self, average: bool) -> bool:
        return self.kind in ("rays", "sky") and not average

    def described(self) -> str:
        what = {"points": "values at", "rays": "integrals from", "averages": "averages over boxes from",
                "sky": "integrals from the Sun to"}[self.kind]  # fmt: skip
        to = f" to ({', '.join(self.second)})" if self.second else ""
        error = f" ± {self.error}" if self.error else ""
        unit = (
            "; parallaxes are in mas, distances in kpc, where the file does not say"
            if self.kind == "sky"
            else ""
        )
        return f"{self.value or 'places'}{error}: {what} ({', '.join(self.first)}){to}{unit}"


def read_table(path: pathlib.Path) -> Sheet:
    """CSV, Parquet, FITS or ECSV, by the file's ending."""
    if not path.exists():
        raise BadInput(f"{path}: no such file")
    ending = path.suffix.lower()
    try:
        if ending in (".fits", ".fit", ".ecsv"):
            return _through_astropy(path)
        frame = (
            pd.read_parquet(path)
            if ending in (".parquet", ".pq")
            else pd.read_csv(path, skipinitialspace=True)
        )
    except (BadInput, MemoryError):
        raise
    except (
        Exception
    ) as error:  # each reader has its own; whatever is wrong with the file, it is said in one line
        said = str(error).strip().splitlines() or [type(error).__name__]
        raise BadInput(f"{path}: cannot be read as a table ({said[0]})") from None
    if frame.empty:
        raise BadInput(f"{path}: has no rows")
    return Sheet(frame.rename(columns=lambda c: str(c).strip()), {})


def _through_astropy(path: pathlib.Path) -> Sheet:
    try:
        from astropy.table import Table
    except ModuleNotFoundError:
        raise BadInput(f"{path}: FITS and ECSV tables need astropy: pip install 'hipgp[astro]'") from None
    table = Table.read(path)
    units = {name: str(table[name].unit) for name in table.colnames if table[name].unit is not None}
    return Sheet(table.to_pandas(), units)


def find(sheet: Sheet, name: str, path: Any = "table") -> str:
    """The column of that name, whatever its case; the nearest one is suggested where there is none."""
    known = {c.lower(): c for c in sheet.frame.columns}
    if name.lower() in known:
        return known[name.lower()]
    near = difflib.get_close_matches(name.lower(), list(known), n=1, cutoff=0.6)
    hint = (
        f"; did you mean {known[near[0]]!r}?"
        if near
        else f"; it has {', '.join(map(str, sheet.frame.columns))}"
    )
    raise BadInput(f"{path}: no column {name!r}{hint}")


def infer(
    sheet: Sheet, *, coordinates: Sequence[str] = (), start: Sequence[str] = (), end: Sequence[str] = (),
    lower: Sequence[str] = (), upper: Sequence[str] = (), value: str | None = None, error: str | None = None,
    need_value: bool = True, path: Any = "table",
) -> Columns:  # fmt: skip
    """What the columns mean: as told, and otherwise by their names."""
    get = lambda names: tuple(find(sheet, n, path) for n in names)
    known = {c.lower(): c for c in sheet.frame.columns}
    have = lambda names: all(n in known for n in names)
    if end:
        kind, first, second = "rays", get(start), get(end)
    elif lower or upper:
        kind, first, second = "averages", get(lower), get(upper)
    elif coordinates:
        kind, first, second = "points", get(coordinates), ()
    else:
        kind, first, second = _by_name(known, have, path)
    if kind in ("rays", "averages") and first and len(first) != len(second):
        raise BadInput(f"{path}: expected as many columns for both ends, got {first} and {second}")
    chosen = (
        find(sheet, value, path) if value else _value(sheet, known, set(first + second), need_value, path)
    )
    noise = (
        find(sheet, error, path) if error else next((known[e] for e in _errors(chosen) if e in known), None)
    )
    return Columns(kind, first, second, chosen, noise if chosen else None)


def _by_name(known: dict[str, str], have: Any, path: Any) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    for pair in SKY:
        distance = next((d for d in DISTANCES if d in known), None)
        if have(pair) and distance:
            return "sky", tuple(known[n] for n in (*pair, distance)), ()
    for kind, one, other in (("rays", "{}0", "{}1"), ("rays", "start_{}", "end_{}"), ("rays", "{}_start", "{}_end"),
                             ("averages", "lower_{}", "upper_{}"), ("averages", "{}_lower", "{}_upper")):  # fmt: skip
        for axes in AXES:
            a, b = ([f.format(n) for n in axes] for f in (one, other))
            if have(a) and have(b):
                return kind, tuple(known[n] for n in a), tuple(known[n] for n in b)
    for axes in AXES:
        if have(axes):
            return "points", tuple(known[n] for n in axes), ()
    raise BadInput(
        f"{path}: cannot tell which columns are coordinates among {', '.join(known.values())}; name them, e.g. "
        "--coordinates x,y or --start x0,y0 --end x1,y1"
    )


def _value(sheet: Sheet, known: dict[str, str], taken: set[str], need: bool, path: Any) -> str | None:
    if not need:
        return None
    for name in VALUES:
        if name in known and known[name] not in taken:
            return known[name]
    errors = {known[e] for name in (None, *known) for e in _errors(name) if e in known}
    rest = [c for c in sheet.frame.select_dtypes("number").columns if c not in taken | errors]
    if len(rest) == 1:
        return rest[0]
    raise BadInput(
        f"{path}: cannot tell which column holds the measured values among {', '.join(rest)}; give --value NAME"
    )


def _errors(value: str | None) -> tuple[str, ...]:
    own = (
        ()
        if value is None
        else tuple(f.format(value.lower()) for f in ("{}_error", "{}_err", "e_{}", "{}_std", "sigma_{}"))
    )
    return own + ERRORS


def numbers(
    sheet: Sheet, names: Sequence[str], drop_nan: bool, path: Any = "table"
) -> tuple[np.ndarray, np.ndarray]:
    """The columns as float64, and which rows are used. Cells that are no numbers are named by their row."""
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
    """Columns that the file gives in another unit, in the product of these, if all are known."""
    factors = np.ones(len(names))
    for i, name in enumerate(names):
        own = sheet.units.get(name, "")
        if own and all(units) and (own,) != units:
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
    units: Units = UNSAID,
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
        ends = from_sky(sheet, columns, one, path, units.axis or "kpc")
        return hg.LineIntegrals(np.zeros(3), ends, average=average), rest, good
    start = one if n else np.zeros(two.shape[1])
    return hg.LineIntegrals(start, two, average=average), rest, good


def from_sky(sheet: Sheet, columns: Columns, rows: np.ndarray, path: Any, length: str) -> np.ndarray:
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
