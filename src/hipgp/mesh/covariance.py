"""K over slabs of the grid's first axis, one on each device.

Each device transforms its slab along the second axis, which is whole there. An all-to-all then gives it some frequencies of
that axis with the first axis whole; each frequency is a plane, filtered as on one device (`weights/slabs.py`), and a second
all-to-all brings the slabs back. So a product moves two complex numbers for each grid point, in two messages between any two
devices, and the torus is nowhere whole. (XLA would gather a field that is cut to transform it with `jnp.fft`.)
"""

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Complex, Float

from hipgp.mesh.devices import AXIS, along_first, cut, device_count, over_mesh, parts_of
from hipgp.runtime.hosts import gathered
from hipgp.runtime.programs import bounded_jit
from hipgp.weights.slabs import Slabs, slabs_of, unfolded
from hipgp.weights.toeplitz import SlabToeplitz, Toeplitz, TorusToeplitz
from hipgp.weights.torus import Torus


class MeshToeplitz(Toeplitz):
    """K whose products are cut over a mesh.

    Flat vectors are padded with zeros to slabs of equal size; `Toeplitz.flat_size` is their length.
    """

    torus: Torus
    orthant: Float[
        Array, "..."
    ]  # of the eigenvalues; the second axis comes first, padded, and is cut over the mesh
    clipped_mass: float | Array
    mesh: Mesh = eqx.field(static=True)
    in_one_piece: ClassVar[bool] = False

    @staticmethod
    def on(
        mesh: Mesh, torus: Torus, orthant: Float[np.ndarray, "..."], clipped_mass: float
    ) -> "MeshToeplitz":
        """Cut one orthant of the eigenvalues, on the host, over a mesh."""
        planes = np.swapaxes(orthant, 0, 1)
        each = parts_of(len(planes), mesh)

        def part(i: int) -> np.ndarray:
            some = planes[i * each : (i + 1) * each]
            return np.pad(some, [(0, each - len(some))] + [(0, 0)] * (planes.ndim - 1))

        return MeshToeplitz(
            torus=torus, orthant=along_first(mesh, part), clipped_mass=clipped_mass, mesh=mesh
        )

    @property
    def slab(self) -> int:
        """The number of planes along the grid's first axis that a device holds."""
        return parts_of(self.shape[0], self.mesh)

    @property
    def flat_size(self) -> int:
        return self.slab * device_count(self.mesh) * int(np.prod(self.shape[1:], dtype=np.int64))

    @property
    def eigenvalues(self) -> Float[Array, "..."]:
        half = jnp.swapaxes(self.orthant[: self.torus.shape[1] // 2 + 1], 0, 1)
        return unfolded(half, self.torus.shape, range(len(self.shape) - 1))

    def matmul(self, v: Float[Array, "..."]) -> Float[Array, "..."]:
        flat = self.flat_matmul(v.reshape(*v.shape[: v.ndim - len(self.shape)], -1))
        return flat[..., : self.torus.grid.size].reshape(v.shape)

    @bounded_jit()
    def flat_matmul(self, v: Float[Array, "... m"]) -> Float[Array, "... M"]:
        """Return K v; the result is padded to `flat_size`, and v may be."""
        rows = self._padded(v.reshape(-1, v.shape[-1]))
        run = over_mesh(self.mesh, self._product, (cut(), cut(1)), cut(1))
        return run(self.orthant, rows).reshape(*v.shape[:-1], self.flat_size)

    def draw(self, key: Array, count: int) -> Float[Array, "count ..."]:
        flat = self.flat_draw(key, count)[:, : self.torus.grid.size]
        return flat.reshape(count, *self.shape)

    @bounded_jit()
    def flat_draw(self, key: Array, count: int) -> Float[Array, "count M"]:
        run = over_mesh(
            self.mesh, lambda orthant, key: self._drawn(orthant, key, count), (cut(), cut(None)), cut(1)
        )
        return run(self.orthant, key)

    @bounded_jit()
    def root(self, e: Complex[Array, "k ..."]) -> Float[Array, "..."]:
        """Return R e, of white noise given as Fourier modes, cut by the frequencies of the first axis (`Slabs.root`)."""
        run = over_mesh(self.mesh, self._coloured, (cut(), cut()), cut())
        return run(self.orthant, e)[: self.torus.grid.size].reshape(self.shape)

    @bounded_jit()
    def root_transpose(self, u: Float[Array, "..."]) -> Complex[Array, "k ..."]:
        """Return R'u as Fourier modes, of which those beyond the last frequency are zero."""
        run = over_mesh(self.mesh, self._pulled, (cut(), cut()), cut())
        return run(self.orthant, self._padded(u.reshape(1, -1))[0])

    def gathered(self, flat: Float[Array, "... M"]) -> Float[np.ndarray, "... n"]:
        return gathered(flat)[..., : self.torus.grid.size]

    def astype(self, dtype: Any) -> "MeshToeplitz":
        return eqx.tree_at(lambda k: k.orthant, self, self.orthant.astype(dtype))

    def whole(self) -> TorusToeplitz:
        orthant: Any = np.swapaxes(gathered(self.orthant)[: self.torus.shape[1] // 2 + 1], 0, 1)
        return SlabToeplitz(torus=self.torus, orthant=orthant, clipped_mass=self.clipped_mass).whole()

    def _padded(self, rows: Float[Array, "B m"]) -> Float[Array, "B M"]:
        return jnp.pad(rows, ((0, 0), (0, self.flat_size - rows.shape[1])))

    # What follows runs on each device, on its part.

    def _product(self, orthant: Float[Array, "k ..."], rows: Float[Array, "B m"]) -> Float[Array, "B m"]:
        slabs, length = self._along_second, self.shape[0]
        frequencies = len(orthant) * device_count(self.mesh)

        def one(row: Array) -> Array:
            planes = _lengthened(slabs.to_planes(self._lines(row)), 0, frequencies)
            planes = _exchanged(planes, 0, 1)[:, :length]  # some frequencies, the first axis whole
            planes = _lengthened(slabs.filter(orthant, planes), 1, self.slab * device_count(self.mesh))
            lines = slabs.from_planes(_exchanged(planes, 1, 0)[: slabs.frequencies])
            return jnp.swapaxes(lines, 0, 1).reshape(-1)

        return jax.lax.map(one, rows)

    def _drawn(self, orthant: Float[Array, "k ..."], key: Array, count: int) -> Float[Array, "count m"]:
        slabs, amplitudes, first = self._along_first(orthant)
        planes = lambda number: slabs.noise_planes(amplitudes, jax.random.fold_in(key, number), first)
        return jax.lax.map(lambda number: self._slab_of(planes(number)), jnp.arange(count))

    def _coloured(self, orthant: Float[Array, "k ..."], modes: Complex[Array, "k ..."]) -> Float[Array, " m"]:
        slabs, amplitudes, first = self._along_first(orthant)
        return self._slab_of(slabs.root(amplitudes, modes, first))

    def _pulled(self, orthant: Float[Array, "k ..."], row: Float[Array, " m"]) -> Complex[Array, "k ..."]:
        slabs, amplitudes, first = self._along_first(orthant)
        field = row.reshape(self.slab, *self.shape[1:])
        lines = _exchanged(_lengthened(field, 1, self._wide), 1, 0)[: self.shape[0]]
        planes = _lengthened(slabs.to_planes(lines), 0, self._frequencies)
        return slabs.root_transpose(amplitudes, _exchanged(planes, 0, 1)[:, : self.shape[1]], first)

    def _along_first(self, orthant: Float[Array, "k ..."]) -> tuple[Slabs, Float[Array, "k ..."], Array]:
        """The transforms of the root, as on one device, the amplitudes of this device's planes, and the first plane's number."""
        each = self._frequencies // device_count(self.mesh)
        swapped = _exchanged(_lengthened(orthant, 1, self._frequencies), 1, 0)
        amplitudes = jnp.sqrt(jnp.swapaxes(swapped[: self.torus.shape[1] // 2 + 1], 0, 1))
        return slabs_of(self.shape, self.torus.shape), amplitudes, each * jax.lax.axis_index(AXIS)

    def _slab_of(self, planes: Complex[Array, "k ..."]) -> Float[Array, " m"]:
        """This device's slab of the field whose planes, one for each frequency of the first axis, the devices hold."""
        slabs = slabs_of(self.shape, self.torus.shape)
        planes = _exchanged(_lengthened(planes, 1, self._wide), 1, 0)[: slabs.frequencies]
        field = _lengthened(slabs.from_planes(planes), 0, self.slab * device_count(self.mesh))
        return _exchanged(field, 0, 1)[:, : self.shape[1]].reshape(-1)

    @property
    def _frequencies(self) -> int:
        """The number of frequencies along the first axis, with padding."""
        return parts_of(self.torus.shape[0] // 2 + 1, self.mesh) * device_count(self.mesh)

    @property
    def _wide(self) -> int:
        """The grid's points along the second axis, with padding."""
        return parts_of(self.shape[1], self.mesh) * device_count(self.mesh)

    @property
    def _along_second(self) -> Slabs:
        """The transforms of a product, whose first axis is the grid's second."""
        swap = lambda shape: (shape[1], shape[0], *shape[2:])
        return slabs_of(swap(self.shape), swap(self.torus.shape))

    def _lines(self, row: Float[Array, " m"]) -> Float[Array, "..."]:
        return jnp.swapaxes(row.reshape(self.slab, *self.shape[1:]), 0, 1)


def _lengthened(a: Array, axis: int, length: int) -> Array:
    return jnp.pad(a, [(0, length - a.shape[i] if i == axis else 0) for i in range(a.ndim)])


def _exchanged(a: Array, split: int, join: int) -> Array:
    """Send each device its part along `split`, and join what came along `join`."""
    return jax.lax.all_to_all(a, AXIS, split, join, tiled=True)
