"""Sparse matrices of which each device holds one, in arrays of equal shapes."""

from typing import Any

from jax.sharding import Mesh

from hipgp.linalg.csr import CSR
from hipgp.linalg.sparse import SparseMatrix, common_layout, laid_out
from hipgp.mesh.devices import stacked


def cut_sparse(mesh: Mesh, parts: list[CSR], dtype: Any) -> SparseMatrix:
    """Lay out matrices of one shape, one for each device, both by rows and by columns; the arrays are stacked."""
    transposed = [csr.transpose() for csr in parts]
    along, across = (common_layout([csr.starts for csr in kind]) for kind in (parts, transposed))

    def part(i: int) -> SparseMatrix:
        both = laid_out(parts[i], along, dtype), laid_out(transposed[i], across, dtype)
        return SparseMatrix(*both, parts[i].column_count)

    return stacked(mesh, part)
