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

from hipgp.processes import check_not_forked

F = TypeVar("F", bound=Callable[..., Any])


def float64_available(function: F) -> F:
    """Run `function` with 64-bit types and full-precision products, whatever the caller's JAX configuration."""

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        check_not_forked()
        with jax.enable_x64(True), jax.default_matmul_precision("highest"):
            return function(*args, **kwargs)

    return cast(F, wrapped)


def on_device(array: Any, dtype: Any = None) -> jax.Array:
    """A NumPy array where JAX computes, in the same memory where it can be: it is not to be changed any more.

    `jnp.asarray` would compile a copy for each new shape.
    """
    return jax.device_put(np.asarray(array, dtype))


def as_float(name: str, value: Any, ndim: tuple[int, ...] | None = None) -> np.ndarray:
    """`value` as a finite float32 or float64 NumPy array; a ValueError that names the argument otherwise."""
    if value is None:
        raise ValueError(f"{name}: expected numbers, got None")
    try:
        array = np.array(value)  # a copy: what the caller later does to theirs is not ours
        if array.dtype.kind in "iubO":
            array = array.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name}: expected numbers, got {type(value).__name__} ({error})") from None
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
