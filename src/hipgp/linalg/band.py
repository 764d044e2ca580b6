"""Symmetric matrices with few diagonals, whose products are shifts: what points on a grid know of it.

>>> import jax.numpy as jnp
>>> Band(jnp.array([[2.0, 2.0, 2.0], [1.0, 1.0, 0.0]]), (0, 1)).matmul(jnp.ones(3)).tolist()
[3.0, 4.0, 3.0]
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

FUSED = 32  # diagonals up to which a product is one pass over memory


class Band(eqx.Module):
    """A symmetric matrix by its diagonals on and above the main one; entry r of a diagonal is in row r."""

    diagonals: Float[Array, "k M"]
    offsets: tuple[int, ...] = eqx.field(static=True)  # the first is 0

    def matmul(self, u: Float[Array, "... M"]) -> Float[Array, "... M"]:
        if len(self.offsets) > FUSED:
            return self._one_by_one(u)
        total = self.diagonals[0] * u
        for diagonal, offset in zip(self.diagonals[1:], self.offsets[1:], strict=True):
            total = total + diagonal * shifted(u, -offset) + shifted(diagonal * u, offset)
        return total

    def _one_by_one(self, u: Float[Array, "... M"]) -> Float[Array, "... M"]:
        """Return the product by a loop over diagonals, which compiles in a time that does not grow with their number."""
        size, most, ends = u.shape[-1], max(self.offsets), [(0, 0)] * (u.ndim - 1)
        longer = jnp.pad(u, [*ends, (0, most)])
        some = lambda a, begin: jax.lax.dynamic_slice_in_dim(a, begin, size, axis=-1)

        def add(total: Array, terms: tuple[Array, Array]) -> tuple[Array, None]:
            diagonal, offset = terms
            above = jnp.where(offset > 0, diagonal, 0.0) * some(longer, offset)
            total = total.at[..., :size].add(above)
            below = some(total, offset) + diagonal * u
            return jax.lax.dynamic_update_slice_in_dim(total, below, offset, axis=-1), None

        each = self.diagonals, jnp.asarray(self.offsets)
        return jax.lax.scan(add, jnp.zeros_like(longer), each)[0][..., :size]


def shifted(u: Float[Array, "... M"], by: int) -> Float[Array, "... M"]:
    """Return u moved by some places along its last axis, with zeros where nothing came from."""
    size, ends = u.shape[-1], [(0, 0)] * (u.ndim - 1)
    if by >= 0:
        return jnp.pad(u, [*ends, (by, 0)])[..., :size]
    return jnp.pad(u, [*ends, (0, -by)])[..., -by:]
