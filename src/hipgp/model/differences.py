"""Differences of places, and kernels evaluated at many of them."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

if TYPE_CHECKING:
    from hipgp.model.kernels import Kernel

CHUNK_SIZES = 2**15, 2**18  # differences at which a kernel is evaluated together, if there are many more


def differences(x: Iterable[Array], y: Iterable[Array]) -> Float[Array, "D ..."]:
    """x - y, computed component by component.

    XLA fuses this into the kernel. It would write a difference of whole arrays to memory first, which is five times
    slower on a CPU.
    """
    return jnp.stack([a - b for a, b in zip(x, y, strict=True)])


def kernel_at_differences(kernel: "Kernel", differences: Float[np.ndarray, "n D"]) -> Float[np.ndarray, " n"]:
    """Evaluate the kernel at many differences, in chunks of two sizes, so that at most two programs are compiled."""
    n, d = differences.shape
    chunk = CHUNK_SIZES[n > CHUNK_SIZES[1]]
    padded = np.zeros((-(-n // chunk) * chunk, d))
    padded[:n] = differences
    return np.concatenate([_evaluate(kernel, part) for part in padded.reshape(-1, chunk, d)])[:n]


@eqx.filter_jit
def _evaluate(kernel: "Kernel", differences: Array | np.ndarray) -> Array:
    return kernel.evaluate(jnp.asarray(differences).T)
