"""Checks of users' arguments: conversion to arrays of numbers, places and directions, with errors that name them."""

import re
from numbers import Integral
from typing import Any

import numpy as np


def as_float(name: str, value: Any, ndim: tuple[int, ...] | None = None) -> np.ndarray:
    """Convert `value` to a finite float32 or float64 NumPy array, or raise a ValueError that names the argument."""
    if value is None:
        raise ValueError(f"{name}: expected numbers, got None")
    for part in (value, *value) if isinstance(value, list | tuple) else (value,):
        _check_plain(name, part)
    try:
        array = np.array(value)  # a copy, so that later changes to the caller's array have no effect here
        if array.dtype.kind in "iubO":
            array = array.astype(np.float64)
    except (TypeError, ValueError) as error:
        missing = "; it has missing values (NA): drop or fill them first" if "NAType" in str(error) else ""
        if (fault := _words(value)) is not None:
            raise ValueError(f"{name}: {fault}") from None
        raise ValueError(f"{name}: expected numbers, got {type(value).__name__} ({error}){missing}") from None
    if array.dtype.kind in "US" and (fault := _words(array)) is not None:
        raise ValueError(f"{name}: {fault}")
    if array.dtype not in (np.float32, np.float64):
        raise ValueError(
            f"{name}: expected float32 or float64 numbers, got dtype {array.dtype}; {_remedy(array.dtype)}"
        )
    if ndim is not None and array.ndim not in ndim:
        expected = " or ".join(f"{n}-D" for n in ndim)
        raise ValueError(f"{name}: expected a {expected} array, got shape {array.shape}")
    if not np.all(np.isfinite(array)):
        bad = np.argwhere(~np.isfinite(array))
        first = tuple(int(i) for i in bad[0])
        raise ValueError(
            f"{name}: expected finite numbers, got {array[first]} at index {first} "
            f"({len(bad)} of {array.size} are not finite); remove or impute them first"
        )
    return array


def _words(value: Any) -> str | None:
    """What to say of the first value that is a word and no number, and what to do; None where there is none."""
    cells = np.asarray(value, object).ravel()
    for row, cell in enumerate(cells):
        if isinstance(cell, str) and not _is_number(cell):
            date = re.match(r"\s*\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}", cell)
            remedy = (
                "read dates with pandas.to_datetime"
                if date
                else "convert it, or leave out what is not a number"
            )
            where = f" in row {row}" if np.ndim(value) else ""
            return f"expected numbers{' or dates' if date else ''}, got the word {cell!r}{where}; {remedy}"
    return None


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _remedy(dtype: np.dtype) -> str:
    if dtype.kind == "m":
        return 'divide by a unit of time, e.g. numpy.timedelta64(1, "D")'
    if dtype.kind == "M":
        return "dates can be coordinates only; elsewhere give numbers, such as days since the first date"
    return "convert with .astype(float)"


def _check_plain(name: str, value: Any) -> None:
    """Raise a ValueError if converting to a NumPy array would lose a unit or expose masked numbers."""
    kind = type(value)
    if getattr(getattr(value, "dtype", None), "kind", "") == "M":
        raise ValueError(f"{name}: expected numbers, got dates; {_remedy(np.dtype('M8[s]'))}")
    for attribute in ("unit", "units"):  # looked up on the class: xarray answers for its attributes as well
        unit = getattr(value, attribute, None) if hasattr(kind, attribute) else None
        if unit is not None:
            raise ValueError(
                f"{name}: expected plain numbers, got {kind.__name__} in units of {str(unit)!r}; pass "
                f"{_plain_numbers(value)}, with one unit for all arguments of the same kind"
            )
    mask = getattr(value, "mask", None)  # a method in pandas
    masked = 0 if callable(mask) or mask is None else int(np.sum(np.asarray(mask, bool)))
    if masked:
        raise ValueError(
            f"{name}: expected numbers, got {kind.__name__} with {masked} of {np.size(value)} masked; leave them out, "
            "e.g. x[~y.mask] and y[~y.mask]"
        )


def _plain_numbers(value: Any) -> str:
    """Return the expression that converts a quantity, or a table column with a unit, to plain numbers."""
    if hasattr(value, "to_value"):
        return ".to_value(unit)"
    return ".quantity.to_value(unit)" if hasattr(value, "quantity") else ".to(unit).magnitude"


def as_points(name: str, x: Any) -> np.ndarray:
    """Convert places to an array (N, D); an array of shape (N,) holds places in one dimension."""
    array = as_float(name, x, ndim=(1, 2))
    array = array[:, None] if array.ndim == 1 else array
    check_not_empty(name, array)
    return array


def as_direction(n: int, d: int, dtype: Any, axis: int | None, direction: Any) -> np.ndarray:
    """Directions of n derivatives as an array (n, d), from an axis, one shared vector, or one vector each."""
    if direction is None:
        axis = 0 if axis is None else axis
        if not isinstance(axis, int | np.integer) or not 0 <= axis < d:
            raise ValueError(
                f"axis: expected a whole number from 0 to {d - 1} for data in {d} dimensions, got {axis!r}"
            )
        return np.tile(np.eye(d, dtype=dtype)[axis], (n, 1))
    if axis is not None:
        raise ValueError("axis, direction: expected one of the two, got both")
    v = as_float("direction", direction, ndim=(1, 2)).astype(dtype)
    if v.shape not in ((d,), (n, d)):
        raise ValueError(f"direction: expected shape {(d,)} or {(n, d)}, got {v.shape}")
    v = np.broadcast_to(v, (n, d)).copy()
    if np.any(np.all(v == 0, axis=1)):
        raise ValueError("direction: expected vectors of positive length, got a zero vector")
    return v


def check_whole(name: str, value: Any, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise ValueError(f"{name}: expected a whole number of at least {least}, got {value!r}")


def check_not_empty(name: str, array: np.ndarray) -> None:
    """Raise a ValueError if there are no functionals, or no dimensions."""
    if 0 in array.shape:
        raise ValueError(
            f"{name}: expected at least one functional in at least one dimension, got shape {array.shape}"
        )


def check_rule(rule: str, count: int | None) -> None:
    """Raise a ValueError if a quadrature rule is unknown, or its number of nodes is not positive."""
    if rule not in ("gauss", "monte-carlo"):
        raise ValueError(f'rule: expected "gauss" or "monte-carlo", got {rule!r}')
    if count is not None and count < 1:
        raise ValueError(f"nodes: expected a positive number of nodes, got {count}")
