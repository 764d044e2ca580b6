"""What the batch engine knows after the data: means, standard deviations, and exact draws by Matheron's rule.

One solve of A gave the mean of every functional; another, with simulated data as right-hand side, gives an exact draw of the
whole posterior: u + K W' A^-1 (y - W u - e). No covariance is ever formed. For standard deviations see `batch/variances.py`.
"""

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from hipgp.batch import beyond, estimates, evidence, variances
from hipgp.batch.exact_variances import exact_variance
from hipgp.batch.least_squares import right_hand_sides, row_tolerances
from hipgp.batch.simulation import Target, simulate, warn_if_far
from hipgp.batch.systems import System, solve
from hipgp.engines import (
    EVIDENCE_PROBES,
    USUAL_STD,
    Estimate,
    FittedPosterior,
    Gradient,
    Prediction,
    Problem,
    StdOptions,
    as_key,
)
from hipgp.model.data import Data, observe
from hipgp.model.functionals import Functional, LineIntegrals, Points
from hipgp.model.grid import Grid
from hipgp.model.kernels import Kernel
from hipgp.model.packing import Arrays, Json, pack_observations
from hipgp.model.trend import Trend
from hipgp.runtime.precision import float64_available
from hipgp.runtime.progress import Report, silent
from hipgp.weights.exact import Weights
from hipgp.weights.joint_residuals import CellBlocks
from hipgp.weights.stencils import LocalWeights, WeightRows

if TYPE_CHECKING:
    from hipgp.batch.engine import Batch

MOST_DRAWS = 64  # solved together
ON_CPU, SHARE_OF_GPU = 2**30, 0.4  # bytes that a solve of several draws may take, about; of the card's memory
SOLVED = ("alpha", "field", "beta", "beta_covariance", "noise_variance")  # arrays that a file holds


class Deferred:
    """A system that is built when first asked for: a map from a file, or unpickled, may never need it."""

    def __init__(
        self,
        method: "Batch",
        kernel: Kernel,
        grid: Grid,
        data: Data,
        noise: float | None,
        made: System | None = None,
    ):
        self.parts = method, kernel, grid, data, noise
        self.made = made
        self.factor: Any = None  # of `exact_variances`, where standard deviations were asked for that need it
        self.of_cells: CellBlocks | None = None

    def cells(self) -> CellBlocks:
        """The data by cell, of a posterior whose residuals are joint."""
        if self.of_cells is None:
            method, kernel, grid, data, _ = self.parts
            rows = method.rows(kernel, grid, data, lambda: self.get().toeplitz)[0]  # type: ignore[attr-defined]
            self.of_cells = method.cells(kernel, grid, data, rows)
            assert self.of_cells is not None
        return self.of_cells

    def get(self) -> System:
        if self.made is None:
            method, kernel, grid, data, noise = self.parts
            self.made = method.system(kernel, grid, data, data.noise_std(noise))[0]
        return self.made

    def __reduce__(self) -> tuple[Any, ...]:
        return Deferred, self.parts


class BatchPosterior(FittedPosterior):
    """What the batch engine knows after the data."""

    method: "Batch"
    data: Data
    trend: Trend
    deferred: Deferred = eqx.field(static=True)
    alpha: Float[Array, " N"]
    field: Float[Array, " M"]  # posterior mean on the grid, without the trend
    beta: Float[np.ndarray, " p"]
    beta_covariance: Float[np.ndarray, "p p"]
    noise_variance: Float[np.ndarray, " N"]  # with the residual variance where the method adds it

    def grid_mean(self) -> Float[np.ndarray, "..."]:
        total = np.asarray(self.field) + self.trend.on_grid(self.grid) @ self.beta
        return total.reshape(self.grid.shape).astype(self.data.dtype)

    def grid_std(self, how: StdOptions = USUAL_STD) -> tuple[np.ndarray, np.ndarray | None]:
        own = self.trend.on_grid(self.grid) if self.trend.kind == "columns" else None
        std, error = self._std(Points(self.grid.coordinates().astype(self.dtype)), how._replace(columns=own))
        on_grid = lambda a: None if a is None else a.reshape(self.grid.shape).astype(self.dtype)
        return on_grid(std), on_grid(error)  # type: ignore[return-value]

    def predict(self, functional: Functional, how: StdOptions = USUAL_STD) -> Prediction:
        mean = np.concatenate([self.mean(*some) for some in self._pieces(functional, how.columns)])
        return Prediction(mean, *self._std(functional, how))

    def _std(self, functional: Functional, how: StdOptions) -> tuple[np.ndarray, np.ndarray | None]:
        """Standard deviations and their Monte Carlo error, where they have one."""
        key, method = as_key(how.key), how.method
        if method == "auto":
            method = variances.automatic(self, functional, how.samples)
        ways = {
            "vecchia": lambda some, own: (variances.vecchia_variance(self, some, own), None),
            "samples": lambda some, own: variances.sampled_variance(
                self, some, how.samples, key, own, how.report
            ),
            "exact": lambda some, own: (exact_variance(self, some, own, how.report), None),
        }
        if method not in ways:
            raise ValueError(f'std: expected "auto", "vecchia", "samples" or "exact", got {method!r}')
        held = how.samples if method == "samples" else 0
        parts = [ways[method](*some) for some in self._pieces(functional, how.columns, held)]
        variance, error = zip(*parts, strict=True)
        std = np.sqrt(np.concatenate(variance))
        return std, None if error[0] is None else np.concatenate(error) / (2 * std)

    def _pieces(
        self, functional: Functional, columns: Any, samples: int = 0
    ) -> Iterator[tuple[Functional, Any]]:
        """Functionals and their trend columns, as many at a time as fit into memory: all of them, but for millions."""
        p = self.method.points_per_axis(observe(functional, np.zeros(len(functional), self.dtype)))
        if self.trend.kind == "columns":
            columns = self.trend.of(functional, self.grid, columns)
        for rows in estimates.pieces(functional, self.grid, p, self.dtype, samples):
            own = columns[rows] if self.trend.kind == "columns" else columns
            yield (functional, own) if len(rows) == len(functional) else (functional.take(rows), own)

    def log_evidence(self, probes: int, key: Any) -> Estimate:
        return evidence.log_evidence(self, probes, key)

    def log_evidence_gradient(self, probes: int = EVIDENCE_PROBES, key: Any = 0) -> Gradient:
        problem = Problem(self.kernel, self.grid, self.data, self.noise, self.trend)
        return self.method.log_evidence_slope(problem, probes, key).gradient

    def at_points(self, x: Float[np.ndarray, "N D"], std: bool) -> tuple[np.ndarray, np.ndarray | None]:
        inside = self.grid.outside(x) == 0
        mean = np.empty(len(x))
        if np.any(inside):
            mean[inside] = self.mean(Points(x[inside]))
        if not np.all(inside):
            mean[~inside] = beyond.mean_from_data(self, x[~inside])
        return mean, np.sqrt(variances.vecchia_variance(self, Points(x))) if std else None

    def observations(self) -> Data:
        return self.data

    def residuals(self) -> tuple[np.ndarray, np.ndarray]:
        noise = np.asarray(self.noise_variance, float)
        return noise * np.asarray(self.alpha, float), np.sqrt(noise)  # y minus the fitted mean is N alpha

    def pack(self) -> tuple[Arrays, Json]:
        arrays, described = pack_observations(self.data, self.trend)
        return arrays | {name: np.asarray(getattr(self, name)) for name in SOLVED}, described

    @float64_available
    def mean(self, functional: Functional, columns: Any = None) -> Float[np.ndarray, " T"]:
        rows = self._target_rows(functional)
        if isinstance(rows, WeightRows):  # once, and on the host: a matrix in JAX is made for many products
            field = rows.matrix @ np.asarray(self.field, float)
        else:
            field = np.asarray(rows.matmul(self.field))
        if isinstance(rows, WeightRows) and self._is_joint(functional):
            cells, x = self.deferred.cells(), np.asarray(functional.places()[:, 0], float)
            field = field + cells.cross(x, rows.matrix) @ np.asarray(self.alpha, float)
        return field + self.trend.of(functional, self.grid, columns) @ self.beta

    @float64_available
    def target(self, functional: Functional) -> Target:
        """Functionals to be predicted, in the engine's kind of weights."""
        rows = self._target_rows(functional)
        weights = LocalWeights.from_rows(rows, self.data.dtype) if isinstance(rows, WeightRows) else rows
        if not isinstance(rows, WeightRows) or not self._is_joint(functional):
            return Target(weights, None)
        x = np.asarray(functional.places()[:, 0], float)
        return Target(weights, self.deferred.cells().regression(x, rows.matrix))

    def _is_joint(self, functional: Functional) -> bool:
        """Whether residuals of these functionals and of the data are correlated."""
        return self.diagnostics.get("residual") == "joint" and isinstance(functional, Points)

    def _target_rows(self, functional: Functional) -> Weights | WeightRows:
        target = observe(functional, np.zeros(len(functional), self.data.dtype))
        method = self.method
        if method.weights == "matrix-free" and not isinstance(functional, LineIntegrals):
            method = dataclasses.replace(method, weights="local")
        toeplitz = lambda: self.system.toeplitz  # type: ignore[attr-defined]
        return method.rows(self.kernel, self.grid, target, toeplitz)[0]

    @property
    def system(self) -> System:
        """The linear system of the data."""
        with jax.enable_x64(True):
            return self.deferred.get()

    @float64_available
    def sample(
        self,
        count: int,
        key: Any,
        functional: Functional | None = None,
        columns: Any = None,
        report: Report = silent,
    ) -> np.ndarray:
        """`count` exact draws of the posterior, on the grid or of a functional (its residual variance included)."""
        at = None if functional is None else self.target(functional)
        trend = (
            self.trend.on_grid(self.grid)
            if functional is None
            else self.trend.of(functional, self.grid, columns)
        )
        columns_of_data = self.trend.of_data(self.data, self.grid)
        of_columns = self.solved_columns(columns_of_data)
        draws = []
        for begin in range(0, count, size := self.draws_at_once()):
            part = jax.random.fold_in(key, begin), min(size, count - begin)
            for values, beta in self._draws(*part, at, columns_of_data, of_columns):
                draws.append(values + trend @ beta)
            report(len(draws), count)
        out = np.stack(draws).astype(self.data.dtype)
        return out.reshape(count, *self.grid.shape) if functional is None else out

    def draws_at_once(self) -> int:
        """Draws solved together: as many as take about a gigabyte, or two fifths of a GPU's memory."""
        size = self.system.toeplitz.torus.size + len(self.data)  # type: ignore[attr-defined]
        card = jax.local_devices()[0].memory_stats() or {}  # a CPU has none
        most = SHARE_OF_GPU * card["bytes_limit"] if "bytes_limit" in card else ON_CPU
        return int(np.clip(most // (6 * size * self.data.dtype.itemsize), 1, MOST_DRAWS))

    def _draws(
        self,
        key: Array,
        count: int,
        at: Target | None,
        columns: Float[np.ndarray, "N p"],
        of_columns: tuple[Array, Array],
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """Draws of the field, and of the trend's coefficients: those of the mean, corrected draw by draw."""
        rest = np.asarray(self.data.y, float) - columns @ self.beta
        prior, residual, rhs = simulate(self.system, jnp.asarray(rest, self.data.dtype), key, count)
        tolerance = self.method.tolerance
        solved = solve(self.system, rhs, tolerance, self.method.max_iterations)
        warn_if_far(float(np.max(solved.nats)), tolerance, solved.steps)
        self.diagnostics["sample_kl_nats"] = float(np.max(solved.nats))
        self.diagnostics["sample_iterations"] = solved.steps
        betas = np.asarray(solved.alpha, float) @ columns @ self.beta_covariance
        less = jnp.asarray(betas, prior.dtype)
        alpha, field = (a - less @ b for a, b in zip((solved.alpha, solved.field), of_columns, strict=True))
        if at is None:
            values = prior + field
        else:
            values = at.draw(prior, residual, jax.random.fold_in(key, 2**30)) + at.mean(field, alpha)
        return list(zip(np.asarray(values), self.beta + betas, strict=True))

    def solved_columns(
        self, columns: Float[np.ndarray, "N p"]
    ) -> tuple[Float[Array, "p N"], Float[Array, "p M"]]:
        """A^-1 X and K W' A^-1 X."""
        p = columns.shape[1]
        if p == 0:
            return tuple(jnp.zeros((0, n), self.data.dtype) for n in (len(columns), self.grid.size))  # type: ignore[return-value]
        std = np.sqrt(self.noise_variance)
        rows = right_hand_sides(self.data.y, columns, std)
        target = row_tolerances(self.method.tolerance, p)[1:]
        z = jnp.asarray(rows.z[1:], self.data.dtype)
        solved = solve(self.system, z, target, self.method.max_iterations)
        scale = jnp.asarray(rows.scale, z.dtype)[:, None]
        return solved.alpha / scale, solved.field / scale

    def trend_variance(self, gap: Float[np.ndarray, "T p"]) -> Float[np.ndarray, " T"]:
        """What not knowing the trend's coefficients adds; `gap` is a functional's x* less what the data's columns make of it."""
        return np.einsum("tp,pq,tq->t", gap, self.beta_covariance, gap)
