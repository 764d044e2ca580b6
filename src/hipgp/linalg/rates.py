"""What this device computes in a second, measured in a fraction of one: the ground of expected times before a fit.

Each rate is that of a small piece of the work of a fit: Fourier transforms of products with K, gathers of sparse products,
Cholesky factors of small matrices for the preconditioner, products of dense matrices, values of a kernel, and searches for
nearest neighbours. The first run of each program is its compilation; what it takes beyond a later run is kept too.
They are those of an idle machine: what other work takes of it is not in them.
"""

import functools
import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy  # its submodules are imported when they are first used

from hipgp.linalg.matrices import cholesky, map_matrices
from hipgp.runtime.arrays import on_cpu, on_device
from hipgp.runtime.precision import float64_available
from hipgp.runtime.threads import one_blas_thread, thread_count

SMALL, LARGE = 32, 128  # rows of the matrices that are factored
# Of each program, the fastest of which counts: each is so short that other work seldom breaks into it.
ROUNDS = 20


class Rates(NamedTuple):
    """The amounts of work that this device does in a second."""

    transformed: float  # points of a real FFT times the binary logarithm of their number
    gathered: float  # entries of a sparse product
    small: float  # Cholesky factors of SMALL rows
    large: float  # Cholesky factors of LARGE rows
    multiplied: float  # multiplications in products of large matrices on the host, in float64
    kernel: float  # covariances
    found: float  # points whose 20 nearest others are found
    compiled: float  # programs


def transform_work(points: float) -> float:
    """Return the work of one real FFT of this many points, in the units of `Rates.transformed`."""
    return float(points) * math.log2(max(points, 2.0))


@functools.cache
@one_blas_thread
@float64_available
def measured_rates(dtype: Any) -> Rates:
    """Return the rates of this device for numbers of this dtype; they are measured once in a process."""
    rng, many = np.random.default_rng(0), 1 if on_cpu() else 64
    side, entries = (256, 2**17) if on_cpu() else (4096, 2**25)
    field = on_device(rng.normal(size=(side, side)), dtype)
    index = on_device(rng.integers(0, side**2, entries), np.int32)
    programs = [
        (jax.jit(lambda x: jnp.fft.irfft2(jnp.fft.rfft2(x))), field, 2 * transform_work(side**2)),
        (jax.jit(lambda i: jnp.sum(field.ravel()[i].reshape(-1, 16) * 1.5, axis=1)), index, entries),
        (jax.jit(_matern), on_device(rng.uniform(size=(3, many * 2**16))), many * 2.0**16),
    ]
    (fft, of_fft), (gather, of_gather), (kernel, of_kernel) = (_rate(*program) for program in programs)
    (small, of_small), (large, of_large) = (_factored(n, many) for n in (SMALL, LARGE))
    matrix, places = rng.normal(size=(256, 256)), rng.uniform(size=(1024, 2))
    compiling = np.mean([of_fft, of_gather, of_kernel, of_small, of_large])
    return Rates(
        transformed=fft,
        gathered=gather,
        small=small,
        large=large,
        multiplied=thread_count() * 256**3 / _fastest(lambda: matrix @ matrix),
        kernel=kernel,
        found=len(places) / _fastest(lambda: scipy.spatial.KDTree(places).query(places, k=20, workers=-1)),
        compiled=1 / float(max(compiling, 1e-4)),
    )


def _matern(x: jax.Array) -> jax.Array:
    r = jnp.sqrt(3 * jnp.sum(x**2, axis=0) + 1e-12)
    return (1 + r) * jnp.exp(-r)


def _factored(rows: int, many: int) -> tuple[float, float]:
    """Return how many matrices of `rows` rows all cores factor in a second, and the seconds that compilation took."""
    count = many * 2**21 // rows**3
    matrices = on_device(np.broadcast_to(np.eye(rows) * 2, (count, rows, rows)).copy())
    return _rate(
        jax.jit(lambda a: map_matrices(cholesky, a)), matrices, count * (thread_count() if on_cpu() else 1)
    )


def _rate(program: Callable[[Any], Any], x: Any, work: float) -> tuple[float, float]:
    """Return the work done in a second, and the seconds that compilation took."""
    clock = time.process_time if on_cpu() else time.perf_counter
    first = _timed(lambda: program(x).block_until_ready(), clock)
    seconds = _fastest(lambda: program(x).block_until_ready())
    return work / seconds, max(first - seconds, 0.0)


def _fastest(run: Callable[[], Any]) -> float:
    return min(_timed(run, time.perf_counter) for _ in range(ROUNDS))


def _timed(run: Callable[[], Any], clock: Callable[[], float]) -> float:
    began = clock()
    run()
    return max(clock() - began, 1e-7)
