"""W by columns: each device holds the part of every row that lies in its slab of the grid.

A functional is a sum over grid points, so W u is the sum of what the slabs give, and W'a needs no message at all.
"""

from typing import Any

import equinox as eqx
import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float

from hipgp.linalg.csr import CSR
from hipgp.mesh.devices import AXIS, cut, device_count, over_mesh, own, parts_of, replicated
from hipgp.mesh.sparse import cut_sparse
from hipgp.model.grid import Grid
from hipgp.runtime.programs import bounded_jit
from hipgp.weights.operator import Weights
from hipgp.weights.stencils import WeightRows


class MeshWeights(Weights):
    """W cut over a mesh; vectors on the grid are padded to slabs of equal size (`MeshToeplitz`)."""

    parts: Any  # an operator with both products, whose arrays have a leading axis over devices
    residual: Float[Array, " N"]
    mesh: Mesh = eqx.field(static=True)

    @staticmethod
    def on(mesh: Mesh, grid: Grid, rows: WeightRows, dtype: np.dtype) -> "MeshWeights":
        """Cut the rows of W, on the host, over a mesh."""
        width = parts_of(grid.shape[0], mesh) * int(np.prod(grid.shape[1:], dtype=np.int64))
        matrix = rows.matrix
        csrs = [CSR.from_scipy(_columns(matrix, i * width, width)) for i in range(device_count(mesh))]
        parts = cut_sparse(mesh, csrs, dtype)
        residual = replicated(mesh, np.asarray(rows.residual, dtype))
        return MeshWeights(parts=parts, residual=residual, mesh=mesh)

    @bounded_jit()
    def matmul(self, u: Float[Array, "... M"]) -> Float[Array, "... N"]:
        product = lambda parts, u: jax.lax.psum(own(parts).matmul(u), AXIS)
        rows = u.reshape(-1, u.shape[-1])
        found = over_mesh(self.mesh, product, (cut(), cut(1)), cut(None))(self.parts, rows)
        return found.reshape(*u.shape[:-1], found.shape[-1])

    @bounded_jit()
    def transpose_matmul(self, a: Float[Array, "... N"]) -> Float[Array, "... M"]:
        product = lambda parts, a: own(parts).transpose_matmul(a)
        rows = a.reshape(-1, a.shape[-1])
        found = over_mesh(self.mesh, product, (cut(), cut(None)), cut(1))(self.parts, rows)
        return found.reshape(*a.shape[:-1], found.shape[-1])


def _columns(matrix: object, begin: int, count: int) -> object:
    """Return `count` columns of a SciPy matrix from `begin` on; columns beyond the last are empty."""
    some = matrix[:, begin : begin + count]  # type: ignore[index]
    some.resize(some.shape[0], count)
    return some
