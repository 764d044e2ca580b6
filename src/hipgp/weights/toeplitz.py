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

import abc
import itertools
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import scipy  # its submodules are imported when they are first used
from jaxtyping import Array, Float

from hipgp.model.differences import kernel_at_differences
from hipgp.model.grid import Grid
from hipgp.model.kernel_scales import repeats, spacing_in_step
from hipgp.model.kernels import Kernel
from hipgp.runtime.arrays import AnyArray, on_cpu, on_device
from hipgp.runtime.precision import float64_available
from hipgp.weights.slabs import Slabs, in_slabs, slabs_of, unfolded
from hipgp.weights.torus import (
    FAR_CORRELATIONS,
    Torus,
    fast_size,
    rfft_multiplicity,
    torus_shape,
    torus_sizes,
)

CLIP_TOLERANCE = 1e-9  # share of negative eigenvalues below which no larger torus is tried
CLIPPED_OF_PERIODS = 1e-3  # share beyond which a kernel that repeats is refused
STEEPEST_DECAY = 1e3
ROW_AT_ONCE = 2**22  # covariances of the torus' first point computed together
# Points of a torus from which K is checked on a CPU too: below, compiling that takes longer than a fit.
CHECKED_FROM = 2**22
WRONG = 1e-3  # error of K, in variances, that neither rounding nor wrapping explains


class Toeplitz(eqx.Module):
    """K on a grid, through the eigenvalues of its circulant. Vectors are (..., *grid.shape), batched in front."""

    torus: eqx.AbstractVar[Torus]
    clipped_mass: eqx.AbstractVar[float | Array]
    in_one_piece: ClassVar[bool] = True  # False: vectors on the grid are cut over devices, and padded

    @property
    @abc.abstractmethod
    def eigenvalues(self) -> Float[Array, "..."]:
        """The eigenvalues of C in rfftn's layout, none negative."""

    @abc.abstractmethod
    def matmul(self, v: Float[Array, "..."]) -> Float[Array, "..."]:
        """Return K v (paper, algorithm 2)."""

    @abc.abstractmethod
    def draw(self, key: Array, count: int) -> Float[Array, "count ..."]:
        """Return draws u = R e of the prior; both subclasses return equal draws for a key."""

    @abc.abstractmethod
    def astype(self, dtype: Any) -> "Toeplitz":
        """Return K in another precision."""

    @abc.abstractmethod
    def whole(self) -> "TorusToeplitz":
        """Return K in the form that transforms the whole torus at once; outside of jit."""

    @property
    def shape(self) -> tuple[int, ...]:
        return self.torus.grid.shape

    @property
    def flat_size(self) -> int:
        """The length of a vector on the grid whose axes are flattened."""
        return self.torus.grid.size

    def flat_matmul(self, v: Float[Array, "... M"]) -> Float[Array, "... M"]:
        """Return K v for vectors whose grid axes are flattened in C order."""
        return self.matmul(v.reshape(-1, *self.shape)).reshape(v.shape)

    def flat_draw(self, key: Array, count: int) -> Float[Array, "count M"]:
        """Return draws of the prior whose grid axes are flattened."""
        return self.draw(key, count).reshape(count, -1)

    def gathered(self, flat: Float[Array, "... M"]) -> Float[AnyArray, "... n"]:
        """Return vectors on the grid in one piece and without padding; outside of jit."""
        return flat

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


class TorusToeplitz(Toeplitz):
    """K by transforms of the whole torus."""

    torus: Torus
    half: Float[Array, "..."]  # of the eigenvalues: those that a real transform needs
    clipped_mass: float | Array

    @property
    def eigenvalues(self) -> Float[Array, "..."]:
        return self.half

    def matmul(self, v: Float[Array, "..."]) -> Float[Array, "..."]:
        return self._crop(self.filter(self.eigenvalues, v))

    def draw(self, key: Array, count: int) -> Float[Array, "count ..."]:
        orthant = self.amplitudes()[tuple(slice(m // 2 + 1) for m in self.torus.shape)]
        return slabs_of(self.shape, self.torus.shape).draw(orthant, key, count)

    def astype(self, dtype: Any) -> "TorusToeplitz":
        return TorusToeplitz(
            torus=self.torus, half=self.eigenvalues.astype(dtype), clipped_mass=self.clipped_mass
        )

    def whole(self) -> "TorusToeplitz":
        return self


class SlabToeplitz(Toeplitz):
    """K slab by slab (`weights/slabs.py`), from one orthant of the eigenvalues."""

    torus: Torus
    orthant: Float[Array, "..."]
    clipped_mass: float | Array

    @property
    def slabs(self) -> Slabs:
        return slabs_of(self.shape, self.torus.shape)

    @property
    def eigenvalues(self) -> Float[Array, "..."]:
        return unfolded(self.orthant, self.torus.shape, self._unfolded_axes)

    def matmul(self, v: Float[Array, "..."]) -> Float[Array, "..."]:
        return self.slabs.matmul(self.orthant, v)

    def draw(self, key: Array, count: int) -> Float[Array, "count ..."]:
        return self.slabs.draw(jnp.sqrt(self.orthant), key, count)

    def astype(self, dtype: Any) -> "SlabToeplitz":
        return SlabToeplitz(
            torus=self.torus, orthant=self.orthant.astype(dtype), clipped_mass=self.clipped_mass
        )

    def whole(self) -> TorusToeplitz:
        all_of_them = unfolded(np.asarray(self.orthant), self.torus.shape, self._unfolded_axes, np)
        return TorusToeplitz(torus=self.torus, half=on_device(all_of_them), clipped_mass=self.clipped_mass)

    @property
    def _unfolded_axes(self) -> range:
        return range(len(self.shape) - 1)  # a real transform has one half of the last one


def toeplitz_on_torus(kernel: Kernel, torus: Torus) -> TorusToeplitz:
    """Return K of `kernel` on a given torus, differentiable in the kernel's parameters; for use inside jit."""
    each = [[jnp.asarray(a) for a in torus.lags(flat)] for flat in (torus.flattened, False)]
    row = kernel.evaluate_around(*(jnp.stack(jnp.meshgrid(*lags, indexing="ij")) for lags in each))
    raw = jnp.fft.rfftn(row).real
    return TorusToeplitz(
        torus=torus,
        half=jnp.maximum(raw, 0.0),
        clipped_mass=_negative_share(raw, [torus.multiplicity()], jnp),
    )


@float64_available
def embed(
    kernel: Kernel,
    grid: Grid,
    dtype: Any = np.float64,
    wrap: float = 0.0,
    place: Callable[[Torus, np.ndarray, float], Toeplitz] | None = None,
) -> Toeplitz:
    """Return K of `kernel` on `grid`, on the smallest torus whose negative eigenvalues stay below CLIP_TOLERANCE.

    If no torus up to 8 times the least size qualifies, the one with the least clipped mass is taken. The least size is
    twice the grid's, or less if every correlation that then wraps around the torus stays below `wrap`. `place` makes K of
    the torus, one orthant of the eigenvalues and the clipped mass; by default K is on one device.
    """
    kernel.check_dimension(grid.ndim)
    sizes = torus_sizes(kernel, grid, wrap)
    least = np.prod([max(s[0], fast_size(n, 1.0)) for (s, _), n in zip(sizes, grid.shape, strict=True)])
    best: tuple[Torus, np.ndarray, float] | None = None
    tried = set()
    for far, flattened in itertools.product(FAR_CORRELATIONS, (False, True)):
        shape = torus_shape(sizes, far)
        if np.prod(shape, dtype=np.int64) > max(8 * least, 2**21) or (shape, flattened) in tried:
            continue
        tried.add((shape, flattened))
        torus = Torus(grid, shape, flattened)
        raw = _orthant(kernel, torus)
        share = _negative_share(raw, [rfft_multiplicity(m) for m in shape], np)
        if best is None or share < best[2]:
            best = torus, raw, share
        if share < CLIP_TOLERANCE:
            break
    assert best is not None
    torus, eigenvalues, share = best
    if repeats(kernel) and share > CLIPPED_OF_PERIODS:
        _refuse_out_of_step(kernel, grid, share)
    orthant = np.maximum(eigenvalues, 0.0).astype(dtype)
    toeplitz = (_on_one_device if place is None else place)(torus, orthant, float(share))
    if torus.size >= CHECKED_FROM or not on_cpu():
        check_first_column(kernel, toeplitz, dtype)
    return toeplitz


def _on_one_device(torus: Torus, orthant: Float[np.ndarray, "..."], clipped_mass: float) -> Toeplitz:
    toeplitz = SlabToeplitz(torus=torus, orthant=on_device(orthant), clipped_mass=clipped_mass)
    return toeplitz if in_slabs(torus.grid.shape, torus.shape)[0] else toeplitz.whole()


def _refuse_out_of_step(kernel: Kernel, grid: Grid, share: float) -> None:
    spacing = np.asarray(grid.spacing)
    better = ", ".join(f"{h:.9g}" for h in spacing_in_step(kernel, spacing))
    raise ValueError(
        f"grid: expected a spacing that divides the kernel's period, without which its covariance does not close around "
        f"a torus, got {', '.join(f'{h:.9g}' for h in spacing)}, with which {share:.2g} of it would be lost; use "
        f"spacing=({better}), leave the grid out, use method=Exact(), or multiply Periodic by a kernel that decays "
        "within the grid, such as Matern32(lengthscale=...)"
    )


def check_first_column(kernel: Kernel, toeplitz: Toeplitz, dtype: Any) -> None:
    """Raise a RuntimeError where the first column of K, at some places, is not the kernel: transforms can go wrong."""
    grid = toeplitz.torus.grid
    rng = np.random.default_rng(0)
    corner = np.minimum(rng.integers(0, 4, (8, grid.ndim)), np.array(grid.shape) - 1)
    index = np.concatenate(
        [np.zeros((1, grid.ndim), int), corner, rng.integers(0, grid.shape, (7, grid.ndim))]
    )
    unit = np.zeros(grid.shape, dtype)
    unit[(0,) * grid.ndim] = 1.0
    found = np.asarray(toeplitz.matmul(on_device(unit))[tuple(index.T)], float)
    expected = kernel_at_differences(kernel, index * np.array(grid.spacing))
    share = min(float(toeplitz.clipped_mass), 0.4)
    worst = int(np.argmax(np.abs(found - expected)))
    if not np.max(np.abs(found - expected)) <= (WRONG + share / (1 - 2 * share)) * expected[0]:
        raise RuntimeError(
            f"K: expected {expected[worst]:.6g} between grid points 0 and {index[worst].tolist()}, got {found[worst]:.6g}: the "
            f"Fourier transform of this device goes wrong on a torus of {' x '.join(map(str, toeplitz.torus.shape))}; use a "
            "smaller grid, or set JAX_PLATFORMS=cpu, and report it with the versions of jax and the driver"
        )


class _Around(eqx.Module):
    """A kernel as a function of flattened lags and, behind them, those around the torus."""

    kernel: Kernel

    def evaluate(self, both: Float[Array, "2D ..."]) -> Float[Array, "..."]:
        return self.kernel.evaluate_around(*jnp.split(both, 2))


def _orthant(kernel: Kernel, torus: Torus) -> Float[np.ndarray, "..."]:
    """Return one orthant of C's eigenvalues on a torus of even size, without compiling anew for each shape.

    C is even in each lag, so the cosine transform of one orthant of the lags has one orthant of the eigenvalues.
    """
    kinds = (torus.flattened, False) if torus.flattened and repeats(kernel) else (torus.flattened,)
    each = [[lag[: len(lag) // 2 + 1] for lag in torus.lags(flat)] for flat in kinds]
    at: Any = _Around(kernel) if len(kinds) == 2 else kernel
    first = each[0][0]
    row = np.empty([len(a) for a in each[0]])
    at_once = max(1, ROW_AT_ONCE * len(first) // row.size)
    for begin in range(0, len(first), at_once):
        some = slice(begin, begin + at_once)
        lags = [np.stack(np.meshgrid(half[0][some], *half[1:], indexing="ij"), axis=-1) for half in each]
        points = np.concatenate(
            [a.reshape(-1, len(half)) for a, half in zip(lags, each, strict=True)], axis=1
        )
        row[some] = kernel_at_differences(at, points).reshape(-1, *row.shape[1:])
    return np.asarray(scipy.fft.dctn(row, type=1, workers=-1, overwrite_x=True))


def _negative_share(raw: Any, multiplicity: list[np.ndarray], xp: Any) -> Any:
    """Return the share of negative eigenvalues in the sum of all; `multiplicity` counts each along the last axes."""
    negative, total = xp.maximum(-raw, 0.0), xp.abs(raw)
    for along in reversed(multiplicity):
        negative, total = negative @ along, total @ along
    return xp.sum(negative) / xp.sum(total)
