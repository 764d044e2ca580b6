"""The grid covariance K as a hierarchical Toeplitz matrix inside a circulant C on a torus (paper, section 3.2).

K_ij = k(x_i - x_j) on a regular grid is block-Toeplitz, and sits in the corner of a circulant C = F' D F on a torus of
at least twice the size per axis (paper, algorithms 1 and 2), or of less if the kernel has decayed before it wraps around.
With white noise e on the torus, u = R e with R = crop . C^(1/2) has covariance R R' = K: the fast whitening. Each product
costs one pair of FFTs.

**Positive embedding.** C may have negative eigenvalues. Lags longer than the grid are free to choose, so larger tori are
tried, each with two choices of lags: the true ones, or lags smoothly flattened towards the far side, so that the wrapped
kernel has no kink there (Matern kernels then need 2 to 8 times fewer points in 3-D). Remaining negative eigenvalues are
clipped, their share of the total is reported as `clipped_mass`, and the clipped C *defines* K, so that R R' = K always
holds to rounding.
"""

import itertools
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import scipy  # its submodules are imported when they are first used
from jaxtyping import Array, Float

from hipgp.model.differences import kernel_at_differences
from hipgp.model.grid import Grid
from hipgp.model.kernels import Kernel
from hipgp.runtime import memory
from hipgp.runtime.arrays import on_device
from hipgp.runtime.precision import float64_available

WRAPPED = 1e-9  # largest correlation that may wrap around the torus
CLIP_TOLERANCE = 1e-9  # share of negative eigenvalues below which no larger torus is tried
STEEPEST_DECAY = 1e3
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

    def lags(self) -> tuple[np.ndarray, ...]:
        """Return the lag of each torus point, per axis: the exact one for every pair of grid points."""
        per_axis = zip(self.shape, self.grid.shape, self.grid.spacing, strict=True)
        return tuple(h * _wrapped_lags(m, n, self.flattened) for m, n, h in per_axis)

    def multiplicity(self) -> np.ndarray:
        """Return how many modes of the full spectrum each mode of rfftn stands for, along the last axis."""
        return _rfft_multiplicity(self.shape[-1])


def _rfft_multiplicity(m: int) -> np.ndarray:
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


class Toeplitz(eqx.Module):
    """K on a grid, through the eigenvalues of its circulant. Vectors are (..., *grid.shape), batched in front."""

    torus: Torus
    eigenvalues: Float[Array, "..."]  # of C, in rfftn's layout, none negative
    clipped_mass: float | Array

    @property
    def shape(self) -> tuple[int, ...]:
        return self.torus.grid.shape

    def matmul(self, v: Float[Array, "..."]) -> Float[Array, "..."]:
        """Return K v (paper, algorithm 2)."""
        return self._crop(self.filter(self.eigenvalues, v))

    def flat_matmul(self, v: Float[Array, "... M"]) -> Float[Array, "... M"]:
        """Return K v for vectors whose grid axes are flattened in C order."""
        return self.matmul(v.reshape(-1, *self.shape)).reshape(v.shape)

    def root(self, e: Float[Array, "..."]) -> Float[Array, "..."]:
        """Return R e, which turns white noise on the torus into a draw of the prior on the grid."""
        return self._crop(self.filter(self.amplitudes(), e))

    def root_transpose(self, u: Float[Array, "..."]) -> Float[Array, "..."]:
        """Return R'u, from the grid to the torus."""
        return self.filter(self.amplitudes(), u)

    def circulant_inverse(self, v: Float[Array, "..."]) -> Float[Array, "..."]:
        """Apply the corner of C^-1, the paper's preconditioner for K.

        Eigenvalues too small to carry information on K are raised first. This affects the preconditioner only.
        """
        return self._crop(self.filter(1 / jnp.maximum(self.eigenvalues, self._smallest_useful()), v))

    def _smallest_useful(self) -> Float[Array, ""]:
        """Return the eigenvalue below which C^-1 does not approximate K^-1.

        Rounding: if the smallest eigenvalues are below eps of the largest (or the size of the clipped ones), the limit is
        sqrt(eps) of the largest, so that noise is not amplified without bound. Leakage: a vector on the grid cannot follow
        a spectrum that falls by more than STEEPEST_DECAY from one frequency of the grid to the next, as for a smooth kernel
        whose lengthscale is not much shorter than the grid; there K has more variance than C.
        """
        eps, largest = jnp.finfo(self.eigenvalues.dtype).eps, jnp.max(self.eigenvalues)
        clipped = self.clipped_mass * jnp.mean(self.eigenvalues)
        rounding = 10 * jnp.maximum(eps * largest, clipped)
        floors = [jnp.where(jnp.min(self.eigenvalues) < rounding, np.sqrt(eps) * largest, 0.0)]
        for axis, (m, n) in enumerate(zip(self.torus.shape, self.shape, strict=True)):
            along_axis = tuple(slice(m // 2 + 1) if a == axis else 0 for a in range(len(self.shape)))
            line = self.eigenvalues[along_axis]
            step = -(-m // (n - 1))  # torus frequencies from one frequency of the grid to the next
            if step < len(line):
                here, there = line[:-step], line[step:]
                steep = (here > STEEPEST_DECAY * there) | (there < rounding)
                to_the_end = jnp.flip(jnp.cumprod(jnp.flip(steep)))
                floors.append(jnp.max(jnp.where(to_the_end, here, 0.0)))
        return jnp.max(jnp.stack(floors))

    def amplitudes(self) -> Float[Array, "..."]:
        """Return the square roots of the eigenvalues, with derivative zero, not NaN, where one was clipped."""
        positive = self.eigenvalues > 0
        return jnp.where(positive, jnp.sqrt(jnp.where(positive, self.eigenvalues, 1.0)), 0.0)

    def first_row(self) -> Float[Array, "..."]:
        """Return the covariances of the first grid point with all grid points, which determine K."""
        return self._crop(jnp.fft.irfftn(self.eigenvalues, s=self.torus.shape))

    def astype(self, dtype: Any) -> "Toeplitz":
        return Toeplitz(self.torus, self.eigenvalues.astype(dtype), self.clipped_mass)

    def filter(self, spectrum: Array, v: Array) -> Array:
        """Apply the circulant with eigenvalues `spectrum` to v, padded with zeros on the torus."""
        return self._on_torus(spectrum * self.modes(v))

    def modes(self, v: Float[Array, "..."]) -> Array:
        """Return the Fourier modes of v, padded with zeros on the torus."""
        return jnp.fft.rfftn(v, s=self.torus.shape, axes=tuple(range(-len(self.torus.shape), 0)))

    def from_modes(self, modes: Array) -> Float[Array, "..."]:
        """Return the grid's part of the field with these Fourier modes."""
        return self._crop(self._on_torus(modes))

    def _on_torus(self, modes: Array) -> Array:
        return jnp.fft.irfftn(modes, s=self.torus.shape, axes=tuple(range(-len(self.torus.shape), 0)))

    def _crop(self, v: Array) -> Array:
        return v[(..., *(slice(0, n) for n in self.shape))]


def toeplitz_on_torus(kernel: Kernel, torus: Torus) -> Toeplitz:
    """Return K of `kernel` on a given torus, differentiable in the kernel's parameters; for use inside jit."""
    lags = tuple(jnp.asarray(a) for a in torus.lags())
    row = kernel.evaluate(jnp.stack(jnp.meshgrid(*lags, indexing="ij")))
    raw = jnp.fft.rfftn(row).real
    return Toeplitz(torus, jnp.maximum(raw, 0.0), _negative_share(raw, [torus.multiplicity()], jnp))


@float64_available
def embed(kernel: Kernel, grid: Grid, dtype: Any = np.float64, wrap: float = 0.0) -> Toeplitz:
    """Return K of `kernel` on `grid`, on the smallest torus whose negative eigenvalues stay below CLIP_TOLERANCE.

    If no torus up to 8 times the least size qualifies, the one with the least clipped mass is taken. The least size is
    twice the grid's, or less if every correlation that then wraps around the torus stays below `wrap`.
    """
    kernel.check_dimension(grid.ndim)
    sizes = _torus_sizes(kernel, grid, wrap)
    least = np.prod([_fast_size(n, 1.0) for n in grid.shape], dtype=np.int64)
    best: tuple[Torus, np.ndarray, float] | None = None
    tried = set()
    for far, flattened in itertools.product(FAR_CORRELATIONS, (False, True)):
        shape = _torus_shape(sizes, far)
        if np.prod(shape, dtype=np.int64) > max(8 * least, 2**21) or (shape, flattened) in tried:
            continue
        tried.add((shape, flattened))
        torus = Torus(grid, shape, flattened)
        raw = _orthant(kernel, torus)
        share = _negative_share(raw, [_rfft_multiplicity(m) for m in shape], np)
        if best is None or share < best[2]:
            best = torus, raw, share
        if share < CLIP_TOLERANCE:
            break
    assert best is not None
    torus, eigenvalues, share = best
    for axis, m in enumerate(torus.shape[:-1]):
        eigenvalues = np.take(eigenvalues, np.minimum(np.arange(m), m - np.arange(m)), axis=axis)
    return Toeplitz(torus, on_device(np.maximum(eigenvalues, 0.0), dtype), float(share))


@float64_available
def smallest_torus(kernel: Kernel, grid: Grid, wrap: float = 0.0) -> tuple[int, ...]:
    """Return the shape of the smallest torus that `embed` may take; nothing of that size is computed."""
    return _torus_shape(_torus_sizes(kernel, grid, wrap), FAR_CORRELATIONS[0])


def _orthant(kernel: Kernel, torus: Torus) -> Float[np.ndarray, "..."]:
    """Return one orthant of C's eigenvalues on a torus of even size, without compiling anew for each shape.

    C is even in each lag, so the cosine transform of one orthant of the lags has one orthant of the eigenvalues.
    """
    half = [lag[: len(lag) // 2 + 1] for lag in torus.lags()]
    points = np.stack(np.meshgrid(*half, indexing="ij"), axis=-1).reshape(-1, len(half))
    row = kernel_at_differences(kernel, points).reshape([len(a) for a in half])
    return np.asarray(scipy.fft.dctn(row, type=1, workers=-1, overwrite_x=True))


@float64_available
def _torus_sizes(kernel: Kernel, grid: Grid, wrap: float) -> list[tuple[list[int], np.ndarray]]:
    """Return, per axis, the FFT-friendly sizes to try, and the correlation left on the far side of each."""
    out = []
    for axis, n in enumerate(grid.shape):
        left = _correlations(kernel, grid, axis, np.arange(n))
        farther = np.maximum.accumulate(left[::-1])[
            ::-1
        ]  # the largest correlation at this distance or beyond
        smaller = [
            m for m in (_fast_size(n, g) for g in SMALLER_SIZES) if farther[min(m - n + 1, n - 1)] < wrap
        ]
        sizes = smaller + [_fast_size(n, g) for g in GROWTH]
        out.append((sizes, _correlations(kernel, grid, axis, np.array(sizes) / 2)))
    return out


def _fast_size(n: int, growth: float) -> int:
    """Return an even size with small factors, at least `growth` times twice the cells of n grid points."""
    half: Any = scipy.fft.next_fast_len(int(np.ceil(max(n - 1, 1) * growth)), real=True)
    return 2 * int(half)


def _correlations(kernel: Kernel, grid: Grid, axis: int, cells: np.ndarray) -> Float[np.ndarray, " k"]:
    far = np.zeros((len(cells) + 1, grid.ndim))
    far[1:, axis] = cells * grid.spacing[axis]
    covariance = np.abs(kernel_at_differences(kernel, far))
    return covariance[1:] / covariance[0]


def _torus_shape(sizes: list[tuple[list[int], np.ndarray]], far: float) -> tuple[int, ...]:
    """Return the smallest size per axis with at most the correlation `far` on its far side."""
    enough = [correlation <= far for _, correlation in sizes]
    return tuple(s[int(np.argmax(ok)) if ok.any() else -1] for (s, _), ok in zip(sizes, enough, strict=True))


def _negative_share(raw: Any, multiplicity: list[np.ndarray], xp: Any) -> Any:
    """Return the share of negative eigenvalues in the sum of all; `multiplicity` counts each along the last axes."""
    negative, total = xp.maximum(-raw, 0.0), xp.abs(raw)
    for along in reversed(multiplicity):
        negative, total = negative @ along, total @ along
    return xp.sum(negative) / xp.sum(total)


def check_torus(kernel: Kernel, grid: Grid, wrap: float = 0.0) -> None:
    """Raise a ValueError for a grid on whose torus no solve fits into memory."""
    torus = smallest_torus(kernel, grid, wrap)
    what = f"{' x '.join(map(str, grid.shape))} grid points on a torus of {' x '.join(map(str, torus))}"
    memory.check(
        "grid",
        what,
        memory.torus_bytes(np.prod(torus, dtype=float)),
        "use a grid with a larger spacing, or one that covers less",
    )
