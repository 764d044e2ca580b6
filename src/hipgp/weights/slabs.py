"""Products with a circulant slab by slab: the torus that K is embedded in is never all there.

A field on the grid, padded with zeros to the torus, is transformed along its first axis, some lines at a time. Each plane of
the torus that has one frequency along that axis is then a problem of its own: pad the other axes, transform, multiply by the
eigenvalues, transform back and crop. The kernel is even in each lag, so one orthant of the eigenvalues has all of them. At no
time is there more of the torus than some planes, which on a CPU stay in the cache, and no transform runs over lines of
padding along the first axis.

On a GPU an inverse transform of 2^31 elements or more comes back unscaled, without a word (JAX 0.11.2). None is that large.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Complex, Float

from hipgp.runtime import memory
from hipgp.runtime.arrays import AnyArray, on_cpu
from hipgp.runtime.programs import bounded_jit

LARGEST_TRANSFORM = 2**31 - 1  # elements
FEW = 2**12  # points of a torus that a CPU transforms at once as fast
CACHED, ON_GPU = 2**18, 2**27  # complex elements of the planes that are transformed together


class Slabs(NamedTuple):
    """The amount of a torus that is transformed at once: planes of the other axes, and lines along the first axis."""

    grid: tuple[int, ...]
    torus: tuple[int, ...]
    planes: int
    lines: int

    @property
    def frequencies(self) -> int:
        """The number of frequencies of a real transform of the first axis."""
        return self.torus[0] // 2 + 1

    @bounded_jit()
    def matmul(self, orthant: Float[Array, "..."], v: Float[Array, "..."]) -> Float[Array, "..."]:
        """Return the grid's part of the circulant with these eigenvalues times v, batched in front."""
        one = lambda field: self.from_planes(self.filter(orthant, self.to_planes(field)))
        return jax.lax.map(one, v.reshape(-1, *self.grid)).reshape(v.shape)

    def to_planes(self, v: Float[Array, "..."]) -> Complex[Array, "k ..."]:
        """Transform a field along the first axis, which gives one plane for each frequency."""
        lines = v.reshape(v.shape[0], -1)
        out = jnp.zeros((self.frequencies, lines.shape[1]), _complex(v.dtype))
        some = lambda part: jnp.fft.rfft(part, n=self.torus[0], axis=0)
        return self._along_lines(some, lines, out).reshape(-1, *v.shape[1:])

    def from_planes(self, planes: Complex[Array, "k ..."]) -> Float[Array, "..."]:
        """Return the grid's part of the field with these planes."""
        lines = planes.reshape(planes.shape[0], -1)
        out = jnp.zeros((self.grid[0], lines.shape[1]), planes.real.dtype)
        some = lambda part: jnp.fft.irfft(part, n=self.torus[0], axis=0)[: self.grid[0]]
        return self._along_lines(some, lines, out).reshape(-1, *planes.shape[1:])

    def filter(
        self, orthant: Float[Array, "k ..."], planes: Complex[Array, "k ..."]
    ) -> Complex[Array, "k ..."]:
        """Multiply the modes of planes, which are cropped to the grid, by the eigenvalues."""

        def filtered(part: Array, at: Array) -> Array:
            modes = jnp.fft.fftn(part, s=self.torus[1:], axes=self._other_axes)
            return self._cropped(modes * self._unfolded(_planes_at(orthant, at, len(part))))

        return self._plane_by_plane(filtered, planes)

    @bounded_jit()
    def draw(self, amplitudes: Float[Array, "..."], key: Array, count: int) -> Float[Array, "count ..."]:
        """Return the grid's part of white noise times these amplitudes, one orthant: draws of the prior.

        The noise is drawn as Fourier modes, those of one plane from the key, the draw's number and the plane's: it depends
        neither on the slabs nor on the devices that made it.
        """

        def one(number: Array) -> Array:
            return self.from_planes(self.noise_planes(amplitudes, jax.random.fold_in(key, number)))

        return jax.lax.map(one, jnp.arange(count))

    def noise_planes(
        self, amplitudes: Float[Array, "k ..."], key: Array, first: int | Array = 0
    ) -> Complex[Array, "k ..."]:
        """Return the planes, numbered from `first` on, of one draw; each has a key of its own, by its number."""
        size, dtype = int(np.prod(self.torus[1:], dtype=np.int64)), amplitudes.dtype

        def drawn(part: Array, at: Array) -> Array:
            numbers = first + at + jnp.arange(len(part))
            white = jax.vmap(lambda k: _white(jax.random.fold_in(key, k), size, dtype))(numbers)
            white = white.reshape(len(part), *self.torus[1:])
            return self._coloured(white, _planes_at(amplitudes, at, len(part)), numbers)

        planes = jnp.zeros((len(amplitudes), *self.grid[1:]), _complex(dtype))
        return self._plane_by_plane(drawn, planes)

    def root(
        self, amplitudes: Float[Array, "k ..."], white: Complex[Array, "k ..."], first: int | Array = 0
    ) -> Complex[Array, "k ..."]:
        """Return the planes of R e, for white noise e on the torus given as Fourier modes, plane by plane.

        Modes are independent, their real and imaginary parts have variance 1; `from_planes` makes R e of the planes.
        """

        def coloured(part: Array, at: Array) -> Array:
            count = len(part)
            numbers = first + at + jnp.arange(count)
            return self._coloured(_planes_at(white, at, count), _planes_at(amplitudes, at, count), numbers)

        planes = jnp.zeros((len(white), *self.grid[1:]), white.dtype)
        return self._plane_by_plane(coloured, planes)

    def root_transpose(
        self, amplitudes: Float[Array, "k ..."], planes: Complex[Array, "k ..."], first: int | Array = 0
    ) -> Complex[Array, "k ..."]:
        """Return R'u as modes, given the planes of u: the transpose of `root` as a map of real and imaginary parts."""
        total = float(np.prod(self.torus, dtype=float))

        def pulled(part: Array, at: Array) -> Array:
            count = len(part)
            modes = jnp.fft.fftn(_planes_at(planes, at, count), s=self.torus[1:], axes=self._other_axes)
            scale = jnp.sqrt(jnp.where(self._real(first + at + jnp.arange(count)), 1 / total, 2 / total))
            unfolded_part = self._unfolded(_planes_at(amplitudes, at, count))
            return modes * (unfolded_part * scale.astype(amplitudes.dtype))

        out = jnp.zeros((len(planes), *self.torus[1:]), planes.dtype)
        return self._plane_by_plane(pulled, out)

    def _coloured(self, white: Array, amplitudes: Array, numbers: Array) -> Array:
        """Return planes of R e, from white modes and from amplitudes; `numbers` are the planes' frequencies."""
        real, total = self._real(numbers), float(np.prod(self.torus, dtype=float))
        fields = self._cropped(white * self._unfolded(amplitudes))
        fields = fields * jnp.sqrt(jnp.where(real, total, total / 2)).astype(amplitudes.dtype)
        return jnp.where(real, fields.real, fields)

    def _real(self, numbers: Array) -> Array:
        """Tell which planes are real fields: those of the lowest and the highest frequency, their own mirror images.

        The real part of what complex noise makes is such a plane, of half the variance.
        """
        real = (numbers == 0) | (2 * numbers == self.torus[0])
        return real.reshape(-1, *[1] * (len(self.torus) - 1))

    @property
    def _other_axes(self) -> tuple[int, ...]:
        return tuple(range(1, len(self.torus)))

    def _cropped(self, modes: Complex[Array, "k ..."]) -> Complex[Array, "k ..."]:
        crop = (slice(None), *(slice(n) for n in self.grid[1:]))
        return jnp.fft.ifftn(modes, axes=self._other_axes)[crop] if self._other_axes else modes

    def _unfolded(self, orthant: Float[Array, "k ..."]) -> Float[Array, "k ..."]:
        return unfolded(orthant, self.torus, self._other_axes)

    def _along_lines(self, transform: Callable[[Array], Array], lines: Array, out: Array) -> Array:
        """Transform the lines in chunks; the last chunk overlaps the one before, and repeats some of its lines."""
        total = lines.shape[1]
        count = min(self.lines, total)
        if count == total:
            return transform(lines)

        def step(i: Array, out: Array) -> Array:
            at = jnp.minimum(i * count, total - count)
            part = transform(jax.lax.dynamic_slice_in_dim(lines, at, count, axis=1))
            return jax.lax.dynamic_update_slice_in_dim(out, part, at, axis=1)

        return jax.lax.fori_loop(0, -(-total // count), step, out)

    def _plane_by_plane(self, change: Callable[[Array, Array], Array], planes: Array) -> Array:
        """Replace some planes after the other by `change(planes, number of the first)`; none is changed twice."""
        total = planes.shape[0]
        count = min(self.planes, total)

        def step(i: Array, planes: Array) -> Array:
            at = jnp.minimum(i * count, total - count)
            part = _planes_at(planes, at, count)
            done = (at + jnp.arange(count) < i * count).reshape(-1, *[1] * (planes.ndim - 1))
            part = jnp.where(done, part, change(part, at))
            return jax.lax.dynamic_update_slice_in_dim(planes, part, at, 0)

        return jax.lax.fori_loop(0, -(-total // count), step, planes)


def in_slabs(grid: tuple[int, ...], torus: tuple[int, ...]) -> tuple[bool, str]:
    """Tell whether products go slab by slab, and why."""
    size = int(np.prod(torus, dtype=np.int64))
    if len(grid) == 1:
        return False, "the whole torus at once: it has one axis"
    points = f"the torus has {size:,} points"
    if on_cpu():
        if size < FEW:
            return False, f"the whole torus at once: {points}, and slabs pay from {FEW:,} on"
        return True, f"slab by slab: {points}, and slabs stay in the processor's cache"
    if size > LARGEST_TRANSFORM:
        return (
            True,
            f"slab by slab: {points}, more than the {LARGEST_TRANSFORM:,} that one transform may have",
        )
    if not memory.fits(memory.torus_bytes(size)):
        return True, f"slab by slab: {points}, and a solve on all of them does not fit into memory"
    return False, f"the whole torus at once: {points}, which fit into memory"


def unfolded(orthant: AnyArray, torus: tuple[int, ...], axes: Iterable[int], xp: Any = jnp) -> Any:
    """Return all eigenvalues along these axes, from one orthant of them: they are even in each frequency."""
    for axis in axes:
        inner = tuple(slice(1, torus[axis] // 2) if a == axis else slice(None) for a in range(orthant.ndim))
        orthant = xp.concatenate([orthant, xp.flip(orthant[inner], axis)], axis=axis)
    return orthant


def slabs_of(grid: tuple[int, ...], torus: tuple[int, ...], most: int | None = None) -> Slabs:
    """Return slabs whose transforms have at most `most` elements, or of one plane or line where that has more."""
    if most is None:
        most = CACHED if on_cpu() else ON_GPU
    most = min(most, LARGEST_TRANSFORM)
    plane, lines = (int(np.prod(shape, dtype=np.int64)) for shape in (torus[1:], grid[1:]))
    frequencies = torus[0] // 2 + 1
    if max(plane, torus[0]) > LARGEST_TRANSFORM:
        raise ValueError(
            f"grid: expected at most {LARGEST_TRANSFORM:,} points in a plane of its torus, which is transformed at once, got "
            f"a torus of {' x '.join(map(str, torus))}; use a grid with a larger spacing"
        )
    even = lambda total, least: -(-total // -(-total // max(least, 1)))  # parts of about the same size
    return Slabs(grid, torus, even(frequencies, most // plane), even(lines, most // torus[0]))


def _planes_at(planes: Array, at: Array, count: int) -> Array:
    return jax.lax.dynamic_slice_in_dim(planes, at, count, 0)


def _white(key: Array, size: int, dtype: Any) -> Complex[Array, " k"]:
    """Draw complex numbers whose real and imaginary parts have variance 1."""
    real, imaginary = jax.random.normal(key, (2, size), dtype)
    return jax.lax.complex(real, imaginary)


def _complex(dtype: Any) -> Any:
    return jnp.result_type(dtype, jnp.complex64)
