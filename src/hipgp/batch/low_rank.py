"""The low-rank preconditioner: P = N + F F', for long functionals that cross.

Vecchia factors suit local functionals. Lines that cross have no neighbours that determine them, but if they are many
lengthscales long and noisy, few eigenvalues of their covariance W K W' exceed the noise N. A partial Cholesky factor with
random pivots (`linalg/pivoted_cholesky.py`) finds their eigenvectors from a few hundred columns.

A column takes a product with W, K and W'. It is computed on a coarser grid, of CELLS cells to a lengthscale, where it is
far cheaper. That is accurate enough for sums over many nodes, and the certificate of the solve does not depend on P.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from hipgp.linalg.low_rank import IdentityPlusLowRank
from hipgp.linalg.pivoted_cholesky import PartialCholesky, pivoted_cholesky
from hipgp.linalg.preconditioner import Preconditioner
from hipgp.model.data import Data
from hipgp.model.grid import Grid
from hipgp.model.kernel_scales import shortest_lengthscale, typical_lengthscale
from hipgp.model.kernels import Kernel
from hipgp.model.problem import Problem
from hipgp.runtime.arrays import on_device
from hipgp.runtime.buckets import round_up, round_up_to_power_of_two
from hipgp.runtime.precision import float64_available
from hipgp.runtime.programs import bounded_jit
from hipgp.vecchia.conditioning_sets import share_one_end
from hipgp.vecchia.group_covariances import MOST_NODES, coarse_data_nodes, coarse_data_quadrature
from hipgp.weights.covariance import prior_variances
from hipgp.weights.stencil_geometry import STENCIL
from hipgp.weights.stencils import WeightRows, local_weight_rows
from hipgp.weights.toeplitz import Toeplitz, embed
from hipgp.weights.torus import WRAPPED

CELLS = 3.0  # cells of the coarser grid to the shortest lengthscale
MUCH_COARSER = 0.5  # fraction of the grid's points below which the coarser grid pays
DIAGONAL_NODES = 64  # nodes of a functional for the diagonal of the covariance
ENOUGH = 0.1  # mean remaining variance of an observation, in noise variances, at which the factor is complete
FEWEST_COLUMNS, MOST_COLUMNS = 64, 1024
MOST_BYTES = 2**30  # size of the factor in float64
PROBED, PROBE_COLUMNS = 2048, 128  # observations and columns of the probe
CHECKED = 256  # observations whose remaining variance is computed exactly
LONG = 1.0  # lengthscales between the ends of the median functional
FEWEST_OBSERVATIONS = 1024  # observations: with fewer, the solve takes less time than the factor
MOST_OBSERVATIONS = 250_000  # observations: with more, the factor has too few columns


class LowRank(Preconditioner):
    """P = N + F F', with N^(-1/2) P N^(-1/2) = I + L L'; its root S, S'S = P^-1, is (I + L L')^(-1/2) N^(-1/2)."""

    scale: Float[Array, " N"]  # N^(1/2)
    inner: IdentityPlusLowRank
    log_determinant: Float[Array, ""]

    @property
    def description(self) -> str:
        return f"{np.count_nonzero(np.asarray(self.inner.eigenvalues))} columns"  # others are padding

    def precondition(self, r: Float[Array, "... N"]) -> Float[Array, "... N"]:
        return self.inner.solve(r / self.scale) / self.scale

    def whiten(self, r: Float[Array, "... N"]) -> Float[Array, "... N"]:
        return self.inner.inverse_root_matmul(r / self.scale)

    def whiten_transpose(self, v: Float[Array, "... N"]) -> Float[Array, "... N"]:
        return self.inner.inverse_root_matmul(v) / self.scale


class Trial(NamedTuple):
    """The outcome of trying a factor of `columns` columns, which leaves `left` noise variances of an observation."""

    preconditioner: LowRank | None  # None if the probe predicts that too much is left
    columns: int
    left: float


class _Covariances(NamedTuple):
    """The covariance of the data through a grid, divided by their noise std on both sides."""

    matrix: Any  # rows of W over noise std
    toeplitz: Toeplitz
    diagonal: Float[np.ndarray, " N"]
    missed: float  # mean residual variance of an observation, in noise variances

    def entries(
        self, rows: Int[np.ndarray, " n"], columns: Int[np.ndarray, " m"]
    ) -> Float[np.ndarray, "n m"]:
        of_rows = self.matrix if len(rows) == self.matrix.shape[0] else self.matrix[rows]
        return of_rows @ self._on_grid(columns).T

    def some(self, rows: Int[np.ndarray, " n"]) -> "_Covariances":
        return self._replace(matrix=self.matrix[rows], diagonal=self.diagonal[rows])

    def left(self, found: PartialCholesky) -> float:
        """The mean of the remaining diagonal over CHECKED observations, plus the mean residual variance."""
        count = self.matrix.shape[0]
        rows = np.linspace(0, count - 1, min(count, CHECKED)).astype(int)
        prior = np.einsum("nm,nm->n", self.matrix[rows].toarray(), self._on_grid(rows))
        return float(np.mean(prior - np.sum(found.factor[rows] ** 2, axis=1))) + self.missed

    def _on_grid(self, rows: Int[np.ndarray, " m"]) -> Float[np.ndarray, "m M"]:
        """Return rows of W K; in a bucketed number, to limit recompilation."""
        missing = round_up_to_power_of_two(len(rows)) - len(rows)
        some = np.pad(self.matrix[rows].toarray(), ((0, missing), (0, 0)))
        return np.asarray(_product(self.toeplitz, on_device(some)))[: len(rows)]


@bounded_jit()
def _product(toeplitz: Toeplitz, v: Float[Array, "m M"]) -> Float[Array, "m M"]:
    return toeplitz.flat_matmul(v)


def crossing(data: Data, kernel: Kernel) -> bool:
    """Tell whether the observations are many, long compared with the lengthscale, and do not start from one place.

    Their box must also hold no more lengthscales (area, volume) than the factor may have columns, since each takes a
    column or more.
    """
    if not FEWEST_OBSERVATIONS <= len(data) <= MOST_OBSERVATIONS or all(
        functional.single for functional in data.functionals
    ):
        return False
    ends = coarse_data_quadrature(data, kernel, MOST_NODES).ends()
    first, last = (np.asarray(end, float) / typical_lengthscale(kernel, data.ndim) for end in ends)
    long = np.median(np.linalg.norm(last - first, axis=1)) > LONG
    box = np.prod(np.ptp(np.concatenate([first, last]), axis=0))
    return bool(long and box <= MOST_COLUMNS and not share_one_end(first, last))


@float64_available
def low_rank(
    problem: Problem,
    variance: Float[np.ndarray, " N"],
    rows: WeightRows | None,
    toeplitz: Toeplitz,
    enough: float,
) -> Trial:
    """Return the preconditioner, unless a probe predicts that it leaves more than `enough` noise variances.

    `variance` holds the noise variances; `rows` and `toeplitz` are W and K on the full grid.
    """
    covariances = _covariances(problem, variance, rows, toeplitz)
    count, dtype = len(problem.data), problem.data.dtype
    most = int(min(MOST_COLUMNS, count // 2, MOST_BYTES / (8 * count)))
    if np.isfinite(enough) and (promised := _promised(covariances, most)) > enough:
        return Trial(None, most, promised)
    end = (ENOUGH + covariances.missed) * count
    found = pivoted_cholesky(covariances.entries, covariances.diagonal, most, end)
    columns = found.factor.shape[1]
    # columns of zeros change nothing, and limit recompilation
    missing = max(FEWEST_COLUMNS, round_up(columns, steps=4)) - columns
    inner = IdentityPlusLowRank.from_factor(np.pad(found.factor, ((0, 0), (0, missing))), dtype)
    scale = on_device(np.sqrt(variance), dtype)
    logs = 2 * jnp.sum(jnp.log(scale)) + inner.log_determinant
    made = LowRank(scale=scale, inner=inner, log_determinant=logs)
    return Trial(made, columns, covariances.left(found))


def _promised(covariances: _Covariances, most: int) -> float:
    """The predicted variance that `most` columns leave, by a power law fitted to few columns on some observations."""
    count = covariances.matrix.shape[0]
    rows = np.linspace(0, count - 1, min(count, PROBED)).astype(int)
    some = covariances.some(rows)
    few = min(PROBE_COLUMNS, len(rows) // 4)
    found = pivoted_cholesky(some.entries, some.diagonal, few)
    half = found._replace(factor=found.factor[:, : few // 2])
    missed = covariances.missed
    before, after = (max(some.left(f) - missed, 1e-6) for f in (half, found))
    power = max(np.log2(before / after), 0.0)
    return float(after * (most / few) ** -power + missed)


def _covariances(
    problem: Problem, variance: Float[np.ndarray, " N"], rows: WeightRows | None, toeplitz: Toeplitz
) -> _Covariances:
    kernel, grid, data, _, _ = problem
    coarser = _coarser(kernel, grid)
    if coarser is not grid or rows is None:
        rows = local_weight_rows(kernel, coarser, data.functionals, STENCIL)
        toeplitz = embed(kernel, coarser, np.float64, WRAPPED)
    nodes = coarse_data_nodes(data, kernel, DIAGONAL_NODES)
    diagonal = np.asarray(_prior_variances(kernel, nodes)) / variance  # includes the residual variances
    matrix = rows.matrix.multiply((1 / np.sqrt(variance))[:, None]).tocsr()
    missed = float(np.mean(np.asarray(rows.residual, float) / variance))
    return _Covariances(matrix, toeplitz.astype(jnp.float64), diagonal, missed)


_prior_variances = bounded_jit()(prior_variances)


def _coarser(kernel: Kernel, grid: Grid) -> Grid:
    """The grid with CELLS cells to the shortest lengthscale, or the given one if that is not much coarser."""
    spacing = np.maximum(np.asarray(grid.spacing), shortest_lengthscale(kernel, grid.ndim) / CELLS)
    shape = np.ceil((np.asarray(grid.upper) - np.asarray(grid.lower)) / spacing - 1e-9).astype(int) + 1
    if np.prod(shape, dtype=float) >= MUCH_COARSER * grid.size or np.min(shape) < STENCIL:
        return grid
    return Grid.cover(grid.lower, grid.upper, shape=tuple(shape.tolist()))
