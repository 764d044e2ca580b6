"""Which columns of a table are coordinates, values and errors: as the user says, and otherwise by their names.

A name matches the column of exactly that name. Where there is none, it matches a column that differs in case alone, if
there is only one such column.
"""

import difflib
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from hipgp.apps.cli.console import BadInput
from hipgp.apps.cli.reading import Sheet
from hipgp.model.degrees import NAMES, degrees_among
from hipgp.model.geometry import has_geometry

AXES = [("x", "y", "z", "t"), ("x", "y", "z"), ("x", "y"), ("easting", "northing"), ("longitude", "latitude"),
        ("lon", "lat"), ("x",), ("time",), ("t",), ("date",), ("datetime",), ("timestamp",)]  # fmt: skip
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
OWN_ERRORS = ("{}_error", "{}_err", "e_{}", "{}_std", "sigma_{}")
SKY = [("l", "b"), ("ra", "dec")]
DISTANCES = ("distance", "dist", "d", "parallax", "plx")
PAIRS = (("rays", "{}0", "{}1"), ("rays", "start_{}", "end_{}"), ("rays", "{}_start", "{}_end"),
         ("averages", "lower_{}", "upper_{}"), ("averages", "{}_lower", "{}_upper"))  # fmt: skip


class Columns(NamedTuple):
    """The columns of coordinates, values and errors, and the kind of functional that they describe."""

    kind: str  # points, rays, averages, sky, geometry, whose shapes have no columns
    first: tuple[
        str, ...
    ]  # coordinates; starts of rays; lower corners; the sky's two angles and the distance
    second: tuple[str, ...]  # ends of rays; upper corners
    value: str | None
    error: str | None
    scale: str | None = None  # exposures or trials
    limits: tuple[str, ...] = ()  # of detection
    total: bool = False  # whether polygons hold totals

    @property
    def ndim(self) -> int:
        return {"sky": 3, "geometry": 2}.get(self.kind) or len(self.second or self.first)

    def integrates(self, average: bool) -> bool:
        return self.kind in ("rays", "sky") and not average

    @property
    def degrees(self) -> bool:
        """Whether the coordinates are longitude and latitude by their names, of places or of the ends of rays and boxes."""
        forms = {"{}", *(form for pair in PAIRS for form in pair[1:])}
        named = {tuple(form.format(name) for name in pair) for form in forms for pair in NAMES}
        return tuple(name.lower() for name in (self.second or self.first)[:2]) in named

    def described(self) -> str:
        if self.kind == "geometry":
            return f"{self.value or 'places'}{f' ± {self.error}' if self.error else ''}: of the shapes in the file"
        what = {"points": "values at", "rays": "integrals from", "averages": "averages over boxes from",
                "sky": "integrals from the Sun to"}[self.kind]  # fmt: skip
        to = f" to ({', '.join(self.second)})" if self.second else ""
        error = f" ± {self.error}" if self.error else f" of {self.scale}" if self.scale else ""
        unit = (
            "; parallaxes are in mas, distances in kpc, where the file does not say"
            if self.kind == "sky"
            else ""
        )
        error += f" up to the limits {' and '.join(self.limits)}" if self.limits else ""
        return f"{self.value or 'places'}{error}: {what} ({', '.join(self.first)}){to}{unit}"


class Names:
    """The names of a table's columns, to look others up in."""

    def __init__(self, names: Iterable[Any], path: Any):
        self.names, self.path = [str(name) for name in names], path

    def match(self, name: str) -> str | None:
        """The column of that name; None where there is none, BadInput where several differ from it in case alone."""
        if name in self.names:
            return name
        found = [column for column in self.names if column.lower() == name.lower()]
        if len(found) > 1:
            raise BadInput(
                f"{self.path}: {name!r} fits the columns {' and '.join(map(repr, found))}; write it exactly "
                "as the column, or rename the others"
            )
        return found[0] if found else None

    def find(self, name: str) -> str:
        """The column of that name; the nearest one is suggested where there is none."""
        found = self.match(name)
        if found is not None:
            return found
        lower = {column.lower(): column for column in self.names}
        near = difflib.get_close_matches(name.lower(), list(lower), n=1, cutoff=0.6)
        hint = f"; did you mean {lower[near[0]]!r}?" if near else f"; it has {', '.join(self.names)}"
        raise BadInput(f"{self.path}: no column {name!r}{hint}")

    def group(self, names: Sequence[str]) -> tuple[str, ...] | None:
        """Columns that belong together, such as x and y; None where one is missing.

        Single letters must all be in one case: beside x, a Y may mean anything.
        """
        lower = [column.lower() for column in self.names]
        if set(names) <= set(self.names):
            return tuple(names)
        if not set(names) <= set(lower):
            return None
        if any(len(name) == 1 for name in names) and not {n.upper() for n in names} <= set(self.names):
            return None
        return tuple(self.find(name) for name in names)

    def first(self, names: Iterable[str]) -> str | None:
        """The first of the names that there is a column for."""
        return next((found for found in map(self.match, names) if found is not None), None)


def find(sheet: Sheet, name: str, path: Any = "table") -> str:
    """The column of that name."""
    return Names(sheet.frame.columns, path).find(name)


def infer(
    sheet: Sheet, *, coordinates: Sequence[str] = (), start: Sequence[str] = (), end: Sequence[str] = (),
    lower: Sequence[str] = (), upper: Sequence[str] = (), value: str | None = None, error: str | None = None,
    need_value: bool = True, with_error: bool = True, scale: str | None = None, limits: Sequence[str] = (), path: Any = "table",
    others: Sequence[str] = (), total: bool = False,
) -> Columns:  # fmt: skip
    """The columns that the user names, and otherwise those that their names suggest; `others` hold no values."""
    names = Names(sheet.frame.columns, path)
    shapes = has_geometry(sheet.frame)
    get = lambda wanted: tuple(names.find(n) for n in wanted)
    if end:
        kind, first, second = "rays", get(start), get(end)
    elif lower or upper:
        kind, first, second = "averages", get(lower), get(upper)
    elif coordinates:
        kind, first, second = "points", _degrees_first(get(coordinates)), ()
    elif shapes:
        kind, first, second = "geometry", (), ()
    elif sheet.axes:
        kind, first, second = _of_cells(sheet, names)
    else:
        kind, first, second = _by_name(names)
    if total and kind != "geometry":
        raise BadInput(
            f"{path}: expected polygons, of GeoJSON or GeoPackage, with --total, got {kind}; leave it out"
        )
    if kind in ("rays", "averages") and first and len(first) != len(second):
        raise BadInput(f"{path}: expected as many columns for both ends, got {first} and {second}")
    times = names.find(scale) if scale else None
    found = get(limits)
    taken = {*first, *second, *found, *others} | ({times} if times else set())
    chosen = names.find(value) if value else _value(sheet, names, taken, need_value)
    noise = names.find(error) if error else names.first(_errors(chosen)) if with_error else None
    return Columns(kind, first, second, chosen, noise if chosen else None, times, found, total)


def _degrees_first(coordinates: tuple[str, ...]) -> tuple[str, ...]:
    """Longitude and latitude before what is beside them, as on a plane, in whatever order the user names them."""
    pair = degrees_among(coordinates) or ()
    return (*pair, *(name for name in coordinates if name not in pair))


def _of_cells(sheet: Sheet, names: Names) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """The axes of an array, in the usual order where their names have one, or its cells' lower and upper corners."""
    axes = next((known for known in AXES if set(known) == set(sheet.axes)), sheet.axes)
    axes = _degrees_first(tuple(axes))
    if axes[0] in names.names:
        return "points", axes, ()
    lower, upper = (tuple(f"{side}_{axis}" for axis in axes) for side in ("lower", "upper"))
    return "averages", lower, upper


def _by_name(names: Names) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    for pair in SKY:
        angles, distance = names.group(pair), names.first(DISTANCES)
        # l, b and d in lower case alone: L is a luminosity, B a magnitude, D a diameter
        if angles and distance and angles[0] != "L" and distance != "D":
            return "sky", (*angles, distance), ()
    for kind, one, other in PAIRS:
        for axes in AXES:
            found = names.group([f.format(n) for f in (one, other) for n in axes])
            if found:
                return kind, found[: len(axes)], found[len(axes) :]
    for axes in AXES:
        if found := names.group(axes):
            return "points", found, ()
    raise BadInput(
        f"{names.path}: cannot tell which columns are coordinates among {', '.join(names.names)}; name them, e.g. "
        "--coordinates x,y or --start x0,y0 --end x1,y1"
    )


def _value(sheet: Sheet, names: Names, taken: set[str], need: bool) -> str | None:
    if not need:
        return None
    free = Names([name for name in names.names if name not in taken], names.path)
    if found := free.first(VALUES):
        return found
    errors = {e.lower() for column in (None, *names.names) for e in _errors(column)}
    rest = [
        c for c in sheet.frame.select_dtypes("number").columns if c not in taken and c.lower() not in errors
    ]
    if len(rest) == 1:
        return rest[0]
    raise BadInput(
        f"{names.path}: cannot tell which column holds the measured values among {', '.join(rest)}; give --value NAME"
    )


def _errors(value: str | None) -> tuple[str, ...]:
    """Names that a column of errors of the column `value` may have, the likeliest first."""
    return (() if value is None else tuple(form.format(value) for form in OWN_ERRORS)) + ERRORS
