"""The Vecchia factor by rows: each device holds the rows of some observations.

S'S r is the sum of what the devices' rows give. Other preconditioners are replicated: those of low rank, and the factors of
clusters of points, which are small beside their data.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float

from hipgp.linalg.csr import CSR
from hipgp.linalg.preconditioner import Preconditioner
from hipgp.linalg.sparse import BlockRows, SparseMatrix, common_layout, laid_out
from hipgp.mesh.devices import AXIS, cut, device_count, over_mesh, own, parts_of, replicated, stacked
from hipgp.mesh.sparse import cut_sparse


class MeshRows(Preconditioner):
    """A preconditioner whose root S is cut by rows over a mesh, after some rows of zeros at its end."""

    parts: SparseMatrix | BlockRows  # a leading axis over devices
    used: Float[Array, " k"] | None  # `rows_used` of the whole root
    count: int = eqx.field(static=True)  # rows of the whole root
    log_determinant: Float[Array, ""]
    words: str = eqx.field(static=True)
    padded: int = eqx.field(static=True)  # rows with those of zeros
    mesh: Mesh = eqx.field(static=True)

    @property
    def description(self) -> str:
        return self.words

    @property
    def rows_used(self) -> Float[Array, " k"] | None:
        return self.used

    def whiten(self, r: Float[Array, "... N"]) -> Float[Array, "... k"]:
        product = lambda parts, r: own(parts).matmul(r)
        return self._run(product, r, None, 1)[..., : self.count]

    def whiten_transpose(self, v: Float[Array, "... k"]) -> Float[Array, "... N"]:
        product = lambda parts, v: jax.lax.psum(own(parts).transpose_matmul(v), AXIS)
        return self._run(
            product, jnp.pad(v, [(0, 0)] * (v.ndim - 1) + [(0, self.padded - self.count)]), 1, None
        )

    def precondition(self, r: Float[Array, "... N"]) -> Float[Array, "... N"]:
        def product(parts: Any, r: Array) -> Array:
            rows = own(parts)
            return jax.lax.psum(rows.transpose_matmul(rows.matmul(r)), AXIS)

        return self._run(product, r, None, None)

    def _run(self, product: Any, v: Array, given: int | None, found: int | None) -> Array:
        run = over_mesh(self.mesh, product, (cut(), cut(given)), cut(found))
        rows = run(self.parts, v.reshape(-1, v.shape[-1]))
        return rows.reshape(*v.shape[:-1], rows.shape[-1])


def cut_by_rows(mesh: Mesh, whole: Preconditioner) -> Preconditioner:
    """Cut the rows of a sparse root over a mesh; a preconditioner of another kind is replicated."""
    factor: Any = getattr(whole, "factor", None)
    if isinstance(factor, BlockRows):
        parts, count, padded = _blocks(mesh, factor)
    elif isinstance(factor, SparseMatrix):
        parts, count, padded = _rows(mesh, factor)
    else:
        return replicated(mesh, whole)
    used = whole.rows_used
    return MeshRows(
        parts=parts,
        used=None if used is None else replicated(mesh, used),
        count=count,
        log_determinant=replicated(mesh, whole.log_determinant),
        words=f"{whole.description}, cut by observation",
        padded=padded,
        mesh=mesh,
    )


def _rows(mesh: Mesh, factor: SparseMatrix) -> tuple[SparseMatrix, int, int]:
    """Return the parts of a root of single rows, their number, and that with the padding."""
    matrix, width = factor.rows.to_scipy(factor.column_count), factor.column_count
    dtype = factor.rows.slices[0].values.dtype
    count, each = matrix.shape[0], parts_of(matrix.shape[0], mesh)

    def some(i: int) -> CSR:
        rows = matrix[i * each : (i + 1) * each]
        rows.resize(each, width)
        return CSR.from_scipy(rows)

    csrs = [some(i) for i in range(device_count(mesh))]
    return cut_sparse(mesh, csrs, dtype), count, each * device_count(mesh)


def _blocks(mesh: Mesh, factor: BlockRows) -> tuple[BlockRows, int, int]:
    """Return the parts of a root of blocks, the number of its rows, and that with the padding."""
    values = np.asarray(factor.values)
    each, count = parts_of(len(values), mesh), factor.scatter.row_count
    missing = each * device_count(mesh) - len(values)
    fill = lambda a: np.pad(a, [(0, missing)] + [(0, 0)] * (a.ndim - 1))
    filled: Any = fill(values)
    columns: Any = fill(np.asarray(factor.columns))
    some = [slice(i * each, (i + 1) * each) for i in range(device_count(mesh))]
    tables = [BlockRows.scatter_table(columns[s], np.any(filled[s] != 0, axis=1), count) for s in some]
    layout = common_layout([table.starts for table in tables])
    make = lambda i: BlockRows(filled[some[i]], columns[some[i]], laid_out(tables[i], layout, values.dtype))
    rows = lambda groups: len(groups) * values.shape[1]
    return stacked(mesh, make), rows(values), rows(filled)
