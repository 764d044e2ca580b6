"""Arrays on the host and where JAX computes."""

from typing import Any

import jax
import numpy as np

AnyArray = jax.Array | np.ndarray  # NumPy outside jit, a JAX tracer inside


def on_device(array: Any, dtype: Any = None) -> jax.Array:
    """Place a NumPy array where JAX computes, sharing its memory where possible: do not change the array afterwards.

    `jnp.asarray` would compile a copy for each new shape.
    """
    return jax.device_put(np.asarray(array, dtype))


def on_cpu() -> bool:
    """Whether JAX computes on a CPU."""
    return jax.default_backend() == "cpu"
