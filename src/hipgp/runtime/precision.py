"""One place for floating-point precision.

JAX computes in float32 by default, and truncates float64 input without an error. hipgp follows the dtype of
its input instead: every public entry point runs under `float64_available`, so float64 data stay float64 whatever the
user's JAX configuration, and the set-up of float32 problems (small factorisations, quadrature) is done in float64.
Matrix products have the full precision of their dtype: on a GPU JAX would do float32 ones in TF32, with three digits,
and conjugate gradients need the preconditioner to be the same symmetric matrix in every step.
"""

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import jax

from hipgp.runtime.processes import check_not_forked, keep_backend

F = TypeVar("F", bound=Callable[..., Any])


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
