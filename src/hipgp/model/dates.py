"""Dates as coordinates: days since midnight (UTC) of the first date, with a unit that names it.

The unit follows xarray and NetCDF, "days since 2020-01-01". Times without a time zone are taken as UTC.
"""

import datetime
import re
from typing import Any

import numpy as np

SECONDS = {"days": 86400.0, "hours": 3600.0, "minutes": 60.0, "seconds": 1.0}
NAMED = ((730 * 86400.0, 365.25 * 86400.0, "years"), (2 * 86400.0, 86400.0, "days"), (7200.0, 3600.0, "hours"),
         (120.0, 60.0, "minutes"), (1.0, 1.0, "seconds"), (1e-3, 1e-3, "ms"), (0.0, 1e-6, "µs"))  # fmt: skip


def are_dates(value: Any) -> bool:
    """Whether a value, list or array holds dates (of NumPy, pandas, astropy or the standard library)."""
    dtype = getattr(value, "dtype", None)
    if dtype is not None and (getattr(dtype, "kind", "") == "M" or getattr(dtype, "tz", None) is not None):
        return True
    if hasattr(value, "datetime64"):  # astropy's Time
        return True
    if isinstance(value, list | tuple) or (dtype is not None and dtype.kind == "O" and np.ndim(value)):
        return any(are_dates(part) for part in np.asarray(value, object).ravel()[:1])
    return isinstance(value, datetime.date)


def as_days(name: str, value: Any) -> tuple[np.ndarray, str]:
    """Dates as numbers of days in float64, and the unit "days since ..." of these numbers."""
    moments = as_moments(name, value)
    bad = np.argwhere(np.isnat(moments))
    if len(bad):
        first = tuple(int(i) for i in bad[0])
        raise ValueError(
            f"{name}: expected dates, got NaT (no date) at index {first} ({len(bad)} of {moments.size} are missing); leave "
            "them out"
        )
    seconds = moments.astype("M8[s]")
    midnight = seconds.astype("M8[D]")
    first = midnight.min() if moments.size else np.datetime64("1970-01-01")
    days = (midnight - first).astype(float) + (seconds - midnight).astype(float) / SECONDS["days"]
    if np.datetime_data(moments.dtype)[0] in ("ms", "us", "ns", "ps"):
        days += (moments - seconds) / np.timedelta64(1, "s") / SECONDS["days"]
    return days, f"days since {first}"


def as_moments(name: str, value: Any) -> np.ndarray:
    """Dates (of NumPy, pandas, astropy or the standard library) as datetime64 in UTC."""
    if hasattr(value, "datetime64"):
        return np.array(value.utc.datetime64)
    dtype = getattr(value, "dtype", None)
    if getattr(dtype, "tz", None) is not None:
        return np.asarray(value, f"M8[{dtype.unit}]")  # type: ignore[union-attr]
    array = np.asarray(value)
    if array.dtype.kind == "M":
        return array
    parts = [_moment(name, i, part) for i, part in enumerate(array.astype(object).ravel())]
    return np.array(parts).reshape(array.shape)


def _moment(name: str, number: int, value: Any) -> np.datetime64:
    if not isinstance(value, datetime.date | np.datetime64):
        raise ValueError(
            f"{name}: expected dates throughout, got {value!r} at index {number}; convert with "
            "pandas.to_datetime, or leave it out"
        )
    if isinstance(value, datetime.datetime) and value.tzinfo is not None:
        value = value.astimezone(datetime.UTC).replace(tzinfo=None)
    return value.to_datetime64() if hasattr(value, "to_datetime64") else np.datetime64(value)  # type: ignore[union-attr]


def origin(unit: str) -> tuple[np.datetime64, float] | None:
    """The origin of a unit such as "days since 2020-01-01", and the unit's length in seconds; None for other units."""
    found = re.fullmatch(r"(days|hours|minutes|seconds) since (\S.*)", unit)
    if found is None:
        return None
    try:
        first = np.datetime64(found[2].strip(), "us")  # NumPy 2.5 deprecates a NaT without a unit
    except ValueError:
        return None
    return None if np.isnat(first) else (first, SECONDS[found[1]])


def moments(values: Any, unit: str) -> np.ndarray | None:
    """Convert coordinates in a unit of dates to dates, to a microsecond; None for other units."""
    known = origin(unit)
    if known is None:
        return None
    after = np.round(np.asarray(values, float) * known[1] * 1e6).astype("m8[us]")
    return known[0].astype("M8[us]") + after


def factor_and_shift(unit: str, other: str) -> tuple[float, float] | None:
    """`a` and `b` such that `a x + b` in unit `other` is the date `x` in `unit`; None unless both are units of dates."""
    one, two = origin(unit), origin(other)
    if one is None or two is None:
        return None
    return one[1] / two[1], float((one[0] - two[0]) / np.timedelta64(1, "s")) / two[1]


def length(value: float, unit: str) -> str:
    """A distance along an axis in words: a duration such as "12.3 days" along dates, otherwise with its unit."""
    known = origin(unit)
    if known is None:
        return f"{value:.4g} {unit}".strip()
    seconds = value * known[1]
    _, each, name = next(step for step in NAMED if seconds >= step[0])
    return f"{seconds / each:.3g} {name}"


def place(value: float, unit: str) -> str:
    """A coordinate in words: a date, to the second, along dates, otherwise a number."""
    moment = moments(value, unit)
    if moment is None:
        return f"{value:.4g}"
    return str(moment.astype("M8[s]")).replace("T00:00:00", "").replace("T", " ")
