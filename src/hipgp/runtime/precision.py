"""One place for floating-point precision.

JAX computes in float32 unless told otherwise, and truncates float64 input without an error. hipgp follows the dtype of
its input instead: every public entry point runs under `float64_available`, so float64 data stay float64 whatever the
user's JAX configuration, and the set-up of float32 problems (small factorisations, quadrature) is done in float64.
Matrix products have the full precision of their dtype: on a GPU JAX would do float32 ones in TF32, with three digits,
and conjugate gradients need the preconditioner to be the same symmetric matrix in every step.
"""

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import jax
import numpy as np

from hipgp.runtime.processes import check_not_forked, keep_backend

F = TypeVar("F", bound=Callable[..., Any])

AnyArray = jax.Array | np.ndarray  # made in NumPy, and a tracer inside jit


def float64_available(function: F) -> F:
    """Run `function` with 64-bit types and full-precision products, whatever the caller's JAX configuration."""

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        check_not_forked()
        with jax.enable_x64(True), jax.default_matmul_precision("highest"):
            try:
                return function(*args, **kwargs)
            except KeyboardInterrupt:
                keep_backend()
                raise

    return cast(F, wrapped)


def on_device(array: Any, dtype: Any = None) -> jax.Array:
    """Place a NumPy array where JAX computes, sharing its memory where possible: do not change the array afterwards.

    `jnp.asarray` would compile a copy for each new shape.
    """
    return jax.device_put(np.asarray(array, dtype))


def as_float(name: str, value: Any, ndim: tuple[int, ...] | None = None) -> np.ndarray:
    """Convert `value` to a finite float32 or float64 NumPy array, or raise a ValueError that names the argument."""
    if value is None:
        raise ValueError(f"{name}: expected numbers, got None")
    for part in (value, *value) if isinstance(value, list | tuple) else (value,):
        _check_plain(name, part)
    try:
        array = np.array(value)  # a copy: what the caller later does to theirs is not ours
        if array.dtype.kind in "iubO":
            array = array.astype(np.float64)
    except (TypeError, ValueError) as error:
        missing = "; it has missing values (NA): drop or fill them first" if "NAType" in str(error) else ""
        raise ValueError(f"{name}: expected numbers, got {type(value).__name__} ({error}){missing}") from None
    if array.dtype not in (np.float32, np.float64):
        raise ValueError(
            f"{name}: expected float32 or float64 numbers, got dtype {array.dtype}; convert with .astype(float)"
        )
    if ndim is not None and array.ndim not in ndim:
        wanted = " or ".join(f"{n}-D" for n in ndim)
        raise ValueError(f"{name}: expected a {wanted} array, got shape {array.shape}")
    if not np.all(np.isfinite(array)):
        bad = np.argwhere(~np.isfinite(array))
        first = tuple(int(i) for i in bad[0])
        raise ValueError(
            f"{name}: expected finite numbers, got {array[first]} at index {first} "
            f"({len(bad)} of {array.size} are not finite); remove or impute them first"
        )
    return array


def _check_plain(name: str, value: Any) -> None:
    """Raise a ValueError where a conversion to a NumPy array would lose a unit or uncover masked numbers."""
    kind = type(value)
    for attribute in ("unit", "units"):  # looked up on the class: xarray answers for its attributes as well
        unit = getattr(value, attribute, None) if hasattr(kind, attribute) else None
        if unit is not None:
            raise ValueError(
                f"{name}: expected plain numbers, got {kind.__name__} in units of {str(unit)!r}; pass "
                f"{_plain_numbers(value)}, with one unit for all arguments of the same kind"
            )
    mask = getattr(value, "mask", None)  # of pandas a method
    masked = 0 if callable(mask) or mask is None else int(np.sum(np.asarray(mask, bool)))
    if masked:
        raise ValueError(
            f"{name}: expected numbers, got {kind.__name__} with {masked} of {np.size(value)} masked; leave them out, "
            "e.g. x[~y.mask] and y[~y.mask]"
        )


def _plain_numbers(value: Any) -> str:
    """Return the expression that makes plain numbers of a quantity or a table's column with a unit."""
    if hasattr(value, "to_value"):
        return ".to_value(unit)"
    return ".quantity.to_value(unit)" if hasattr(value, "quantity") else ".to(unit).magnitude"
