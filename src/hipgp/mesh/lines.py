"""Matrix-free weights of lines over a mesh: each device walks the pieces of lines that lie in its slab.

A node between two slabs touches a plane of either. Both devices walk it, each with a plane of zeros beyond either end of its slab,
so that every corner of every cell counts once.
"""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float

from hipgp.mesh.devices import parts_of, stacked
from hipgp.weights.matrix_free import MatrixFreeWeights, Walk


class _Slab(eqx.Module):
    """Weights on a slab with one more plane at either end, which is zero or dropped."""

    inner: MatrixFreeWeights

    @property
    def _plane(self) -> int:
        return int(np.prod(self.inner.shape[1:], dtype=np.int64))

    def matmul(self, u: Float[Array, "... m"]) -> Float[Array, "... N"]:
        return self.inner.matmul(jnp.pad(u, [(0, 0)] * (u.ndim - 1) + [(self._plane, self._plane)]))

    def transpose_matmul(self, a: Float[Array, "... N"]) -> Float[Array, "... m"]:
        return self.inner.transpose_matmul(a)[..., self._plane : -self._plane]


def cut_lines(mesh: Mesh, whole: MatrixFreeWeights) -> Any:
    """Return the parts of the weights of lines on each device of a mesh, for `MeshWeights`."""
    walk, planes = whole.walk, parts_of(whole.shape[0], mesh)
    shape, gain = (planes + 2, *whole.shape[1:]), np.asarray(whole.gain)
    none, dtype = np.zeros(len(walk.counts)), whole.weight.dtype

    def part(i: int) -> _Slab:
        return _Slab(MatrixFreeWeights.of(_within(walk, i * planes, planes), gain, none, shape, dtype))

    return stacked(mesh, part)


def _within(walk: Walk, begin: int, planes: int) -> Walk:
    """The nodes at most one plane before a slab or in it, in cells from the plane before it."""
    along, step = walk.first[:, 0], walk.step[:, 0]
    moves = step != 0
    turns = lambda plane: np.divide(plane - along, step, out=np.zeros_like(along), where=moves)
    enter, leave = turns(begin - 1), turns(begin + planes)
    forward = step > 0
    low = np.where(forward, np.ceil(enter), np.floor(leave) + 1)
    high = np.where(forward, np.ceil(leave), np.floor(enter) + 1)
    inside = (along >= begin - 1) & (along < begin + planes)
    low, high = np.where(moves, low, 0), np.where(moves, high, np.where(inside, walk.counts, 0))
    low, high = (np.clip(a, 0, walk.counts).astype(int) for a in (low, high))
    first = walk.first + low[:, None] * walk.step
    first[:, 0] -= begin - 1
    return Walk(first, walk.step, walk.weight, np.maximum(high - low, 0))
