"""The rows of W with the kind of weights in the settings, and the data by grid cell for joint residuals."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from hipgp.batch import decisions
from hipgp.mesh.devices import replicated
from hipgp.mesh.lines import cut_lines
from hipgp.mesh.weights import MeshWeights
from hipgp.model.data import Data
from hipgp.model.functional import Functional
from hipgp.model.grid import Grid
from hipgp.model.kernels import Kernel
from hipgp.runtime.callers import warn_caller
from hipgp.weights.exact import exact_weights
from hipgp.weights.joint_residuals import CellBlocks, cell_blocks
from hipgp.weights.matrix_free import MatrixFreeWeights, matrix_free_weights, stored_bytes
from hipgp.weights.operator import Weights
from hipgp.weights.stencils import LocalWeights, WeightRows, local_weight_rows
from hipgp.weights.toeplitz import Toeplitz

if TYPE_CHECKING:
    from hipgp.batch.engine import Batch
    from hipgp.model.problem import Problem

LARGE_WEIGHTS = 2**34  # bytes of stored weights above which a warning suggests matrix-free ones

Rows = Weights | WeightRows  # of W: an operator, or entries on the host


def points_per_axis(method: "Batch", data: Data) -> int:
    """The width of the stencils from which these data are interpolated."""
    return decisions.stencil(method, data.functionals, data.ndim).choice


def rows_of(
    method: "Batch",
    kernel: Kernel,
    grid: Grid,
    functionals: list[Functional],
    dtype: Any,
    toeplitz: Callable[[], Toeplitz],
) -> tuple[Rows, str]:
    """The rows of W for observations or targets, and a description; only exact weights call `toeplitz` for K."""
    count = sum(map(len, functionals))
    if method.weights == "exact":
        exact = exact_weights(kernel, toeplitz(), functionals)
        return exact, f"exact, {exact.unconverged} of {count} solves stopped short"
    if method.weights == "matrix-free":
        return matrix_free_weights(kernel, grid, functionals, dtype), "matrix-free"
    p = decisions.stencil(method, functionals, grid.ndim).choice
    if (size := stored_bytes(grid, functionals, p, dtype)) > LARGE_WEIGHTS:
        warn_caller(
            f"the weights of these {count:,} lines will take about {size / 2**30:,.0f} GiB; "
            'Batch(weights="matrix-free") keeps none, and is meant for a GPU',
        )
    return local_weight_rows(kernel, grid, functionals, p), f"local, stencil {p}"


def laid_out(method: "Batch", grid: Grid, rows: Rows, dtype: Any) -> Weights:
    """W where products are computed: on one device, or by columns over a mesh."""
    if method.mesh is not None and isinstance(rows, MatrixFreeWeights):
        residual = replicated(method.mesh, np.asarray(rows.residual))
        return MeshWeights(parts=cut_lines(method.mesh, rows), residual=residual, mesh=method.mesh)
    if not isinstance(rows, WeightRows):
        return rows
    if method.mesh is not None:
        return MeshWeights.on(method.mesh, grid, rows, dtype)
    return LocalWeights.from_rows(rows, dtype)


def cells(method: "Batch", problem: "Problem", rows: Rows) -> CellBlocks | None:
    """Points by grid cell, given their rows of W; None if no two points share a cell."""
    if not isinstance(rows, WeightRows):
        return None
    places = [np.asarray(f.places()[:, 0], float) for f in problem.data.functionals]
    p = points_per_axis(method, problem.data)
    return cell_blocks(problem.kernel, problem.grid, p, np.concatenate(places), rows.matrix)
