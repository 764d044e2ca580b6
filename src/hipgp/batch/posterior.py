"""The posterior of the batch engine: means, standard deviations, and exact draws by Matheron's rule.

The fit's solve with A gives the mean of every functional. A solve with simulated data as right-hand side gives an exact
draw of the whole posterior, u + K W' A^-1 (y - W u - e). Standard deviations are in `batch/variances.py`.
"""

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy  # its submodules are imported when they are first used
from jaxtyping import Array, Float, Int

from hipgp.batch import beyond, decisions, estimates, evidence, exact_variances, interpolation, variances
from hipgp.batch.interpolation import Rows
from hipgp.batch.leave_out import leave_out
from hipgp.batch.reference import Reference
from hipgp.batch.simulation import GridTarget, simulate, warn_if_far
from hipgp.batch.systems import System, draws_at_once, field_of, solve
from hipgp.batch.updating import start_from
from hipgp.engines import EVIDENCE_PROBES, DataPosterior, Estimate, Gradient, as_key
from hipgp.model.functionals import Functional, LineIntegrals, Points
from hipgp.model.packing import pack_observations
from hipgp.model.problem import Problem
from hipgp.predictions import DEFAULT_STD, Prediction, SampleOptions, StdOptions
from hipgp.runtime.plain import Arrays, Json
from hipgp.runtime.precision import float64_available
from hipgp.scores import LeaveOut
from hipgp.weights.joint_residuals import CellBlocks
from hipgp.weights.stencils import WeightRows

if TYPE_CHECKING:
    from hipgp.batch.build import LazyParts
    from hipgp.batch.engine import Batch

QUICK_POINTS = 250_000  # given points, on the CPU: a few seconds
# arrays that a file holds
SOLVED = ("alpha", "field", "beta", "beta_covariance", "noise_variance", "order", "alpha_of_columns")


class _Target(NamedTuple):
    """Functionals to be predicted, their trend columns, and their rows of W."""

    functional: Functional
    columns: Float[np.ndarray, "T p"]
    rows: Rows | None  # None if they are not needed

    def __len__(self) -> int:
        return len(self.functional)


class BatchPosterior(DataPosterior):
    """The posterior of the batch engine."""

    method: "Batch"
    lazy: "LazyParts" = eqx.field(
        static=True
    )  # posteriors from files build the system only when they need it
    alpha: Float[Array, " N"]
    field: Float[Array, " M"]  # posterior mean on the grid, without the trend
    noise_variance: Float[np.ndarray, " N"]  # includes the residual variance if the method adds it
    order: Int[np.ndarray, " N"]  # the number of each observation of `data` in the user's data
    alpha_of_columns: Float[np.ndarray, "p N"]  # A^-1 X, which an update starts from

    @property
    def system(self) -> System:
        """The linear system of the data."""
        return self.lazy.system.get()

    def grid_mean(self) -> Float[np.ndarray, "..."]:
        total = np.asarray(self.field) + self.trend.on_grid(self.grid) @ self.beta
        return total.reshape(self.grid.shape).astype(self.data.dtype)

    def grid_std(self, how: StdOptions = DEFAULT_STD) -> tuple[np.ndarray, np.ndarray | None]:
        columns = self.trend.on_grid(self.grid) if self.trend.kind == "columns" else None
        points = Points(self.grid.coordinates().astype(self.dtype))
        algorithm = self._algorithm(points, how)
        targets = self._targets(points, columns, how, algorithm, with_rows=algorithm != "vecchia")
        std, error = _concatenated([self._std(target, how, algorithm) for target in targets])
        on_grid = lambda a: None if a is None else a.reshape(self.grid.shape).astype(self.dtype)
        return on_grid(std), on_grid(error)  # type: ignore[return-value]

    def predict(self, functional: Functional, how: StdOptions = DEFAULT_STD) -> Prediction:
        algorithm, means, deviations = self._algorithm(functional, how), [], []
        for target in self._targets(functional, how.columns, how, algorithm):
            means.append(self._mean(target))
            deviations.append(self._std(target, how, algorithm))
        return Prediction(np.concatenate(means), *_concatenated(deviations))

    def _algorithm(self, functional: Functional, how: StdOptions) -> str:
        """The algorithm for standard deviations."""
        if how.method == "auto":
            return variances.automatic(self, functional, how.samples).choice
        if how.method not in ("vecchia", "samples", "exact"):
            raise ValueError(f'std: expected "auto", "vecchia", "samples" or "exact", got {how.method!r}')
        return how.method

    def _std(self, target: _Target, how: StdOptions, algorithm: str) -> tuple[np.ndarray, np.ndarray | None]:
        """Standard deviations, and their Monte Carlo error or None."""
        error = None
        if algorithm == "vecchia":
            variance = variances.vecchia_variance(self, target.functional, target.columns)
        elif algorithm == "exact":
            variance = exact_variances.exact_variance(
                self, self.on_device(target), target.columns, how.report
            )
        else:
            arguments = target.functional, self.on_device(target), target.columns
            variance, error = variances.sampled_variance(
                self, *arguments, how.samples, as_key(how.key), how.report
            )
        std = np.sqrt(variance)
        return std, None if error is None else error / (2 * std)

    def _targets(
        self, functional: Functional, columns: Any, how: StdOptions, algorithm: str, with_rows: bool = True
    ) -> Iterator[_Target]:
        """Yield the functionals in chunks that fit into memory; only millions of them take more than one chunk."""
        p = decisions.stencil(self.method, [functional], functional.ndim).choice
        if self.trend.kind == "columns":
            columns = self.trend.of(functional, self.grid, columns)
        draws = how.samples if algorithm == "samples" else 0
        for rows in estimates.pieces(functional, self.grid, p, self.dtype, draws):
            of_rows = columns[rows] if self.trend.kind == "columns" else columns
            part = functional if len(rows) == len(functional) else functional.take(rows)
            yield self.target(part, of_rows, with_rows)

    def target(self, functional: Functional, columns: Any = None, with_rows: bool = True) -> _Target:
        """Functionals with their trend columns and their rows of W."""
        trend = self.trend.of(functional, self.grid, columns)
        return _Target(functional, trend, self._rows(functional) if with_rows else None)

    @float64_available
    def _rows(self, functional: Functional) -> Rows:
        method = self.method
        if method.weights == "matrix-free" and not isinstance(functional, LineIntegrals):
            method = dataclasses.replace(method, weights="local")
        toeplitz = lambda: self.system.toeplitz
        arguments = self.kernel, self.grid, [functional], np.result_type(self.dtype, functional.dtype)
        return interpolation.rows_of(method, *arguments, toeplitz)[0]

    @float64_available
    def on_device(self, target: _Target) -> GridTarget:
        """Functionals in a layout for many products, with the regression of their residuals if residuals are joint."""
        rows, functional = target.rows, target.functional
        assert rows is not None
        weights = interpolation.laid_out(self.method, self.grid, rows, self.data.dtype)
        if not isinstance(rows, WeightRows):
            return GridTarget(weights, None)
        cells = self._joint_cells(functional)
        if cells is None:
            return GridTarget(weights, None)
        return GridTarget(
            weights, cells.regression(np.asarray(functional.places()[:, 0], float), rows.matrix)
        )

    def _joint_cells(self, functional: Functional) -> CellBlocks | None:
        """The data by cell, if the residuals of these functionals and of the data are correlated."""
        joint = self.diagnostics.get("residual") == "joint" and isinstance(functional, Points)
        return self.lazy.cells.get() if joint else None

    @float64_available
    def _mean(self, target: _Target) -> Float[np.ndarray, " T"]:
        rows, functional = target.rows, target.functional
        if isinstance(
            rows, WeightRows
        ):  # a single product on the host; a layout in JAX pays for many products
            matrix = rows.matrix
            field = _product(matrix, self.field)
            if (cells := self._joint_cells(functional)) is not None:
                x = np.asarray(functional.places()[:, 0], float)
                field = field + cells.cross(x, matrix) @ np.asarray(self.alpha, float)
        else:
            assert rows is not None
            field = np.asarray(rows.matmul(self.field))
        return field + target.columns @ self.beta

    def mean(self, functional: Functional, columns: Any = None) -> Float[np.ndarray, " T"]:
        """The mean of functionals that all fit into memory at once."""
        return self._mean(self.target(functional, columns))

    def log_evidence(self, probes: int, key: Any) -> Estimate:
        return evidence.log_evidence(self, probes, key)

    def log_evidence_gradient(self, probes: int = EVIDENCE_PROBES, key: Any = 0) -> Gradient:
        return self.method.log_evidence_slope(self.problem, probes, key).gradient

    def at_points(self, x: Float[np.ndarray, "N D"], std: bool) -> tuple[np.ndarray, np.ndarray | None]:
        inside = self.grid.outside(x) == 0
        mean = np.empty(len(x))
        if np.any(inside):
            mean[inside] = self.mean(Points(x[inside]))
        if not np.all(inside):
            mean[~inside] = beyond.mean_from_data(self, x[~inside])
        if not std:
            return mean, None
        columns = self.trend.of(Points(x), self.grid)
        return mean, np.sqrt(variances.vecchia_variance(self, Points(x), columns))

    def quick_points(self) -> tuple[int, int]:
        if (
            self.trend.kind == "columns"
            or not decisions.all_points(self.data)
            or self.method.weights != "local"
        ):
            return 0, 0
        return QUICK_POINTS, QUICK_POINTS

    def leave_out(self, groups: Any = None) -> LeaveOut:
        return leave_out(self, groups, exact_variances.inverse_of_covariance)

    def user_numbers(self) -> Int[np.ndarray, " N"]:
        return self.order

    def updated(
        self, problem: Problem, kept: Int[np.ndarray, " n"], progress: bool = True
    ) -> "BatchPosterior":
        start = start_from(self, kept, len(problem.data) - len(kept))
        found = self.method.fit(problem, progress, check_grid=True, start=start)
        of_kept = np.argsort(np.argsort(self.order[kept]))  # numbered from 0 in their order
        numbers = np.concatenate([of_kept, np.arange(len(kept), len(problem.data))])
        started = f"from the posterior of {len(self.order):,} observations, of which {len(kept):,} are kept"
        info = found.diagnostics | {"started": started}
        return dataclasses.replace(found, order=numbers[found.order], diagnostics=info)

    def residuals(self) -> tuple[np.ndarray, np.ndarray]:
        noise = np.asarray(self.noise_variance, float)
        return noise * np.asarray(self.alpha, float), np.sqrt(noise)  # y minus the fitted mean is N alpha

    def pack(self) -> tuple[Arrays, Json]:
        arrays, described = pack_observations(self.data, self.trend)
        return arrays | {name: np.asarray(getattr(self, name)) for name in SOLVED}, described

    @float64_available
    def sample(self, how: SampleOptions, functional: Functional | None = None) -> np.ndarray:
        """Exact draws of the posterior, on the grid or of a functional (its residual variance included)."""
        count, key, columns, report = how
        at, trend = None, None
        if functional is None:
            trend = self.trend.on_grid(self.grid)
        else:
            if self.method.weights == "local":
                p = decisions.stencil(self.method, [functional], functional.ndim).choice
                estimates.check_joint_draws(functional, self.grid, p, self.dtype)
            target = self.target(functional, columns)
            at, trend = self.on_device(target), target.columns
        of_columns = self.solved_columns()
        draws = []
        for begin in range(0, count, size := draws_at_once(self.system)):
            part = jax.random.fold_in(key, begin), min(size, count - begin)
            values, betas = self._draws(*part, at, of_columns)
            draws.append(values + betas @ trend.T)
            report(min(begin + size, count), count)
        out = np.concatenate(draws).astype(self.data.dtype)
        return out.reshape(count, *self.grid.shape) if functional is None else out

    def _draws(
        self, key: Array, count: int, at: GridTarget | None, of_columns: tuple[Array, Array]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Draws of the field and of the trend's coefficients.

        The coefficients are those of the mean plus a correction for each draw.
        """
        columns = self.trend.of_data(self.data, self.grid)
        rest = np.asarray(self.data.y, float) - columns @ self.beta
        prior, residual, rhs = simulate(self.system, jnp.asarray(rest, self.data.dtype), key, count)
        tolerance = self.method.tolerance
        solved = solve(self.system, rhs, tolerance, self.method.max_iterations)
        warn_if_far(float(np.max(solved.kl_bound)), tolerance, solved.steps)
        betas = np.asarray(solved.alpha, float) @ columns @ self.beta_covariance
        correction = jnp.asarray(betas, prior.dtype)
        alpha, field = (
            a - correction @ b for a, b in zip((solved.alpha, solved.field), of_columns, strict=True)
        )
        if at is None:
            values = self.system.toeplitz.gathered(prior + field)
        else:
            values = at.draw(prior, residual, jax.random.fold_in(key, 2**30)) + at.mean(field, alpha)
        return np.asarray(values), self.beta + betas

    @float64_available
    def deviations(
        self, count: int, key: Any, tolerance: float, start: Float[np.ndarray, "S N"] | None = None
    ) -> tuple[Float[np.ndarray, "S M"], Float[np.ndarray, "S N"] | None]:
        reference = Reference(self)
        found = reference.draws(count, key, tolerance, None if start is None else start[:, self.order])
        return found.field + found.beta @ reference.on_grid.T, found.alpha[:, np.argsort(self.order)]

    def reference(self) -> Reference:
        """This posterior's mean and covariance, with residual variances as independent noise."""
        if self.diagnostics.get("residual") != "joint":
            return Reference(self)
        method = dataclasses.replace(self.method, residual="noise")
        return Reference(method.refit(self.problem, self.method.tolerance))

    def solved_columns(self) -> tuple[Float[Array, "p N"], Float[Array, "p M"]]:
        """A^-1 X and K W' A^-1 X."""
        columns = self.trend.of_data(self.data, self.grid)
        if columns.shape[1] == 0:
            sizes = len(columns), self.system.toeplitz.flat_size
            return tuple(jnp.zeros((0, n), self.data.dtype) for n in sizes)  # type: ignore[return-value]
        alpha = jnp.asarray(self.alpha_of_columns, self.data.dtype)
        return alpha, field_of(self.system, alpha)

    def trend_variance(self, gap: Float[np.ndarray, "T p"]) -> Float[np.ndarray, " T"]:
        """The variance due to the trend's coefficients; `gap` is a functional's columns less X' A^-1 c."""
        return np.einsum("tp,pq,tq->t", gap, self.beta_covariance, gap)


def _product(matrix: Any, field: Any) -> Float[np.ndarray, " T"]:
    """W times the field, of which only the part that W reads is converted, or read from a file."""
    if len(matrix.indices) > matrix.shape[1] // 8:
        return matrix @ np.asarray(field, float)
    used = np.unique(matrix.indices)
    part = scipy.sparse.csr_array(
        (matrix.data, np.searchsorted(used, matrix.indices), matrix.indptr), (matrix.shape[0], len(used))
    )
    return part @ np.asarray(np.asarray(field)[used], float)


def _concatenated(parts: list[tuple[np.ndarray, np.ndarray | None]]) -> tuple[np.ndarray, np.ndarray | None]:
    std, error = zip(*parts, strict=True)
    return np.concatenate(std), None if error[0] is None else np.concatenate(error)
