"""Coordinates with units: conversion of plain numbers, dates and quantities to float arrays.

Units are strings, one for each axis; the tuple is empty for plain numbers.
"""

from typing import Any

import numpy as np

from hipgp.model import dates, quantities, sky
from hipgp.model.arguments import as_float, check_not_empty
from hipgp.model.degrees import refuse_degrees

Units = tuple[str, ...]


def as_quantity(name: str, value: Any, ndim: tuple[int, ...] | None = None) -> tuple[np.ndarray, str]:
    """Numbers and their unit, which is "" for plain numbers; quantities are those of astropy and of pint."""
    numbers, unit = quantities.split(value)
    return as_float(name, numbers, ndim), unit


def as_places(name: str, value: Any, ndim: tuple[int, ...] = (1, 2)) -> tuple[np.ndarray, Units]:
    """Places as an array of floats, and the unit of each axis; tables and mixed arrays are converted by column."""
    if hasattr(value, "columns") and hasattr(value, "iloc"):  # a pandas DataFrame
        refuse_degrees(name, value.columns)
        return _stacked([(f"{name}[{str(label)!r}]", value[label]) for label in value.columns])
    if isinstance(value, np.ndarray) and value.dtype == object and value.ndim == 2:
        return _stacked([(name, value[:, i]) for i in range(value.shape[1])])
    if sky.is_sky(value):
        array, unit = sky.cartesian(name, value)
        as_float(name, array, ndim)
    elif dates.are_dates(value):
        array, unit = dates.as_days(name, value)
        as_float(name, array, ndim)
    else:
        array, unit = as_quantity(name, value, ndim)
    if not unit:
        return array, ()
    return array, (unit,) * (array.shape[-1] if array.ndim > 1 else 1)


def _stacked(columns: list[tuple[str, Any]]) -> tuple[np.ndarray, Units]:
    """Stack columns; dates are converted to days, and every other column must hold plain numbers."""
    parts, units = [], []
    for label, column in columns:
        found = (
            dates.as_days(label, column) if dates.are_dates(column) else (as_float(label, column, (1,)), "")
        )
        parts.append(found[0])
        units.append(found[1])
    array = np.stack(parts, axis=1) if parts else np.zeros((0, 0))
    return array, tuple(units) if any(units) else ()


def as_points(name: str, value: Any) -> tuple[np.ndarray, Units]:
    """Places as an array (N, D) with the units of the axes; an array of shape (N,) holds places in one dimension."""
    array, units = as_places(name, value)
    array = array[:, None] if array.ndim == 1 else array
    check_not_empty(name, array)
    return array, units


def as_pair(first: str, a: Any, second: str, b: Any) -> tuple[np.ndarray, np.ndarray, Units]:
    """Two sets of places as arrays (N, D) each, in the units of the first; one of the two may be a single place."""
    (x, units), (y, others) = (as_places(name, value, (0, 1, 2)) for name, value in ((first, a), (second, b)))
    x, y = (np.atleast_1d(v)[None, :] if v.ndim < 2 else v for v in (x, y))
    check_not_empty(first, x)
    check_not_empty(second, y)
    if x.shape[1] != y.shape[1] or (len(x) != len(y) and 1 not in (len(x), len(y))):
        raise ValueError(
            f"{second}: expected (N, D) like {first} (or one point shared by all), got {y.shape} beside {x.shape}"
        )
    units, others = (u * x.shape[1] if len(u) == 1 else u for u in (units, others))
    units, others = (
        (units or others * (not np.any(x))),
        (others or units * (not np.any(y))),
    )  # zero in any unit
    factor, shift = conversion(second, others, units)
    y = y if units == others else factor * y + shift
    dtype = np.result_type(x, y)
    shape = np.broadcast_shapes(x.shape, y.shape)
    return np.broadcast_to(x, shape).astype(dtype), np.broadcast_to(y, shape).astype(dtype), units


def conversion(name: str, units: Units, target: Units) -> tuple[np.ndarray, np.ndarray]:
    """Factor and shift per axis that convert coordinates from `units` to `target`; a ValueError if none exist."""
    if units == target:
        return np.ones(1), np.zeros(1)
    count = max(len(units), len(target))
    units, target = (u or ("",) * count for u in (units, target))
    if len(units) != len(target):
        raise ValueError(f"{name}: expected {len(target)} coordinates, got {len(units)}")
    pairs = [_factor_and_shift(name, one, other) for one, other in zip(units, target, strict=True)]
    return np.array([p[0] for p in pairs]), np.array([p[1] for p in pairs])


def _factor_and_shift(name: str, unit: str, target: str) -> tuple[float, float]:
    if unit == target:
        return 1.0, 0.0
    if (found := dates.factor_and_shift(unit, target)) is not None:
        return found
    if dates.origin(unit) or dates.origin(target):
        expected, got = ("dates" if dates.origin(u) else quantities.in_words(u) for u in (target, unit))
        raise ValueError(f"{name}: expected {expected} like the others along this axis, got {got}")
    return quantities.factor(name, unit, target), 0.0


def as_spread(name: str, value: Any, shape: tuple[int, ...], units: Units) -> np.ndarray:
    """Standard deviations of places, as an array of this shape; places with units are refused."""
    if units:
        raise ValueError(
            f"{name}: expected places as plain numbers with it, got some in {', '.join(map(repr, units))}; convert them first"
        )
    std = as_float(name, value)
    if np.any(std <= 0):
        raise ValueError(
            f"{name}: expected positive numbers, got {float(np.min(std)):g}; observe what is certain by itself"
        )
    try:
        return np.broadcast_to(std, shape).copy()
    except ValueError:
        raise ValueError(
            f"{name}: expected a number, or an array that fits {shape}, got shape {std.shape}"
        ) from None
