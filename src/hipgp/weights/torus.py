"""The torus of a circulant embedding: its lags, and the sizes that it may have.

It has at least twice the grid's points per axis, in numbers that transform fast; less where the kernel has died away before
it comes around, more where the circulant would have negative eigenvalues (`embed` in `weights/toeplitz.py`).
"""

import math
from typing import TYPE_CHECKING, Any

import equinox as eqx
import numpy as np
import scipy  # its submodules are imported when they are first used
from jaxtyping import Float

from hipgp.model.differences import kernel_at_differences
from hipgp.model.grid import Grid
from hipgp.model.kernel_scales import cells_of_periods
from hipgp.runtime import memory
from hipgp.runtime.precision import float64_available
from hipgp.weights.slabs import in_slabs

if TYPE_CHECKING:
    from hipgp.model.kernels import Kernel

WRAPPED = 1e-9  # largest correlation that may wrap around the torus
FAR_CORRELATIONS = (1.0, 0.5, 0.3, 0.2, 0.1, 0.05, 0.02, 0.01, 3e-3, 1e-3, 1e-4, 1e-6, 1e-9, 1e-12)
SMALLER_SIZES = (0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9)
GROWTH = (1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 12.0, 16.0)


class Torus(eqx.Module):
    """The torus of a circulant embedding: points per axis, and whether lags beyond the grid are flattened."""

    grid: Grid
    shape: tuple[int, ...] = eqx.field(static=True)
    flattened: bool = eqx.field(static=True)

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    def lags(self, flattened: bool) -> tuple[np.ndarray, ...]:
        """Return the lag of each torus point, per axis: the exact one for every pair of grid points."""
        per_axis = zip(self.shape, self.grid.shape, self.grid.spacing, strict=True)
        return tuple(h * _wrapped_lags(m, n, flattened) for m, n, h in per_axis)

    def multiplicity(self) -> np.ndarray:
        """Return how many modes of the full spectrum each mode of rfftn stands for, along the last axis."""
        return rfft_multiplicity(self.shape[-1])


def rfft_multiplicity(m: int) -> np.ndarray:
    """Return how many of m modes each of the m // 2 + 1 modes of a real FFT stands for."""
    twice = np.full(m // 2 + 1, 2.0)
    twice[0] = 1.0
    if m % 2 == 0:
        twice[-1] = 1.0
    return twice


def _wrapped_lags(m: int, n: int, flattened: bool) -> np.ndarray:
    lag = np.minimum(np.arange(m), m - np.arange(m)).astype(float)
    last, far = n - 1, m / 2
    if not flattened or far <= last:
        return lag
    t = np.clip((lag - last) / (far - last), 0.0, 1.0)
    # slope 1 at t = 0 and 0 at t = 1, both with two flat derivatives
    flat = t - (2.5 * t**4 - 3 * t**5 + t**6)
    return np.where(lag <= last, lag, last + (far - last) * flat)


@float64_available
def smallest_torus(kernel: "Kernel", grid: Grid, wrap: float = 0.0) -> tuple[int, ...]:
    """Return the shape of the smallest torus that `embed` may take; nothing of that size is computed."""
    return torus_shape(torus_sizes(kernel, grid, wrap), FAR_CORRELATIONS[0])


@float64_available
def torus_sizes(kernel: "Kernel", grid: Grid, wrap: float) -> list[tuple[list[int], np.ndarray]]:
    """Return, per axis, the FFT-friendly sizes to try, and the correlation left on the far side of each."""
    out, in_step = [], cells_of_periods(kernel, np.asarray(grid.spacing))
    for axis, n in enumerate(grid.shape):
        left = _correlations(kernel, grid, axis, np.arange(n))
        farther = np.maximum.accumulate(left[::-1])[::-1]  # from this distance on
        smaller = [
            m for m in (fast_size(n, g) for g in SMALLER_SIZES) if farther[min(m - n + 1, n - 1)] < wrap
        ]
        sizes = smaller + [fast_size(n, g) for g in GROWTH]
        if (cells := in_step[axis] or 1) > 1:  # around a whole number of periods
            even = math.lcm(cells, 2)
            sizes = [even * int(scipy.fft.next_fast_len(-(-m // even), real=True)) for m in sizes]
        out.append((sizes, _correlations(kernel, grid, axis, np.array(sizes) / 2)))
    return out


def fast_size(n: int, growth: float) -> int:
    """Return an even size with small factors, at least `growth` times twice the cells of n grid points."""
    half: Any = scipy.fft.next_fast_len(int(np.ceil(max(n - 1, 1) * growth)), real=True)
    return 2 * int(half)


def _correlations(kernel: "Kernel", grid: Grid, axis: int, cells: np.ndarray) -> Float[np.ndarray, " k"]:
    far = np.zeros((len(cells) + 1, grid.ndim))
    far[1:, axis] = cells * grid.spacing[axis]
    covariance = np.abs(kernel_at_differences(kernel, far))
    return covariance[1:] / covariance[0]


def torus_shape(sizes: list[tuple[list[int], np.ndarray]], far: float) -> tuple[int, ...]:
    """Return the smallest size per axis with at most the correlation `far` on its far side."""
    enough = [correlation <= far for _, correlation in sizes]
    return tuple(s[int(np.argmax(ok)) if ok.any() else -1] for (s, _), ok in zip(sizes, enough, strict=True))


def check_torus(
    kernel: "Kernel", grid: Grid, wrap: float = 0.0, slabs: bool = False, devices: int = 1
) -> None:
    """Raise a ValueError for a grid on whose torus no solve fits into memory; `slabs` says that it may go by slabs.

    Over several `devices`, each with a memory of its own, it does.
    """
    torus = smallest_torus(kernel, grid, wrap)
    slabs = devices > 1 or (slabs and in_slabs(grid.shape, torus)[0])
    what = f"{' x '.join(map(str, grid.shape))} grid points on a torus of {' x '.join(map(str, torus))}"
    memory.check(
        "grid",
        what,
        solve_bytes(grid, torus, slabs) / devices,
        "use a grid with a larger spacing, or one that covers less",
    )


def solve_bytes(grid: Grid, torus: tuple[int, ...], slabs: bool) -> float:
    """Return the bytes that a solve takes at its peak, by slabs or on the whole torus."""
    if slabs:
        return memory.slab_bytes(grid.size, np.prod([m // 2 + 1 for m in torus], dtype=float))
    return memory.torus_bytes(np.prod(torus, dtype=float))
