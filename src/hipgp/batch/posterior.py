"""What the batch engine knows after the data: means, and exact draws by Matheron's rule.

One solve of A gave the mean of every functional; another, with simulated data as right-hand side, gives an exact draw of the
whole posterior: u + K W' A^-1 (y - W u - e). No covariance is ever formed. For standard deviations see `batch/variances.py`.
"""

import dataclasses
import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from hipgp.batch.least_squares import right_hand_sides, row_tolerances
from hipgp.batch.systems import System, solve
from hipgp.model.data import Data, observe
from hipgp.model.functionals import Functional, LineIntegrals, Points
from hipgp.model.grid import Grid
from hipgp.model.kernels import Kernel
from hipgp.model.trend import Trend
from hipgp.runtime.precision import float64_available
from hipgp.runtime.programs import bounded_jit
from hipgp.runtime.progress import Report, silent
from hipgp.weights.exact import Weights
from hipgp.weights.joint_residuals import Cells, Joint
from hipgp.weights.stencils import LocalWeights, Stencilled

if TYPE_CHECKING:
    from hipgp.batch.engine import Batch

MOST_DRAWS = 64  # solved together
ON_CPU, SHARE_OF_GPU = 2**30, 0.4  # bytes that a solve of several draws may take, about; of the card's memory


def warn_if_far(nats: float, tolerance: float, steps: int) -> None:
    if nats > tolerance:
        warnings.warn(
            f"the solve stopped after {steps} steps at most {nats:.3g} nats from the exact posterior (tolerance "
            f"{tolerance:g}); try more max_iterations, more neighbours, or float64 data",
            stacklevel=4,
        )


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
        self.of_cells: Cells | None = None

    def cells(self) -> Cells:
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


class Target(NamedTuple):
    """Functionals to be predicted: W, and their residuals beside those of the data, where these are joint."""

    weights: Weights
    joint: Joint | None

    def mean(self, field: Float[Array, "s M"], alpha: Float[Array, "s N"]) -> Float[np.ndarray, "s T"]:
        """What the data say of them, from K W' alpha and alpha = A^-1 y."""
        values = np.asarray(self.weights.matmul(field))
        return values if self.joint is None else values + (self.joint.cross @ np.asarray(alpha, float).T).T

    def draw(
        self, field: Float[Array, "s M"], residual: Float[Array, "s N"] | None, key: Array
    ) -> Float[np.ndarray, "s T"]:
        """Of the prior, given its draws on the grid and of the data's residuals."""
        white = jax.random.normal(key, (len(field), len(self.weights.residual)), field.dtype)
        values = np.asarray(self.weights.matmul(field), float)
        if self.joint is None or residual is None:
            return values + np.sqrt(np.asarray(self.weights.residual, float)) * np.asarray(white)
        own = (self.joint.given @ np.asarray(residual, float).T).T
        return values + own + np.sqrt(self.joint.variance) * np.asarray(white)


class BatchPosterior(eqx.Module):
    """What the batch engine knows after the data."""

    kernel: Kernel
    grid: Grid
    noise: float | None
    data: Data
    trend: Trend
    method: "Batch"
    deferred: Deferred = eqx.field(static=True)
    alpha: Float[Array, " N"]
    field: Float[Array, " M"]  # posterior mean on the grid, without the trend
    beta: Float[np.ndarray, " p"]
    beta_covariance: Float[np.ndarray, "p p"]
    noise_variance: Float[np.ndarray, " N"]  # with the residual variance where the method adds it
    diagnostics: dict[str, Any] = eqx.field(static=True)

    def grid_mean(self) -> Float[np.ndarray, "..."]:
        total = np.asarray(self.field) + self.trend.on_grid(self.grid) @ self.beta
        return total.reshape(self.grid.shape).astype(self.data.dtype)

    @float64_available
    def mean(self, functional: Functional, columns: Any = None) -> Float[np.ndarray, " T"]:
        rows = self._target_rows(functional)
        if isinstance(rows, Stencilled):  # once, and on the host: a matrix in JAX is made for many products
            field = rows.matrix @ np.asarray(self.field, float)
        else:
            field = np.asarray(rows.matmul(self.field))
        if isinstance(rows, Stencilled) and self._is_joint(functional):
            cells, x = self.deferred.cells(), np.asarray(functional.places()[:, 0], float)
            field = field + cells.cross(x, rows.matrix) @ np.asarray(self.alpha, float)
        return field + self.trend.of(functional, self.grid, columns) @ self.beta

    @float64_available
    def target(self, functional: Functional) -> Target:
        """Functionals to be predicted, in the engine's kind of weights."""
        rows = self._target_rows(functional)
        weights = LocalWeights.of(rows, self.data.dtype) if isinstance(rows, Stencilled) else rows
        if not isinstance(rows, Stencilled) or not self._is_joint(functional):
            return Target(weights, None)
        x = np.asarray(functional.places()[:, 0], float)
        return Target(weights, self.deferred.cells().at(x, rows.matrix))

    def _is_joint(self, functional: Functional) -> bool:
        """Whether residuals of these functionals and of the data are correlated."""
        return self.diagnostics.get("residual") == "joint" and isinstance(functional, Points)

    def _target_rows(self, functional: Functional) -> Weights | Stencilled:
        target = observe(functional, np.zeros(len(functional), self.data.dtype))
        method = self.method
        if method.weights == "traced" and not isinstance(functional, LineIntegrals):
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

    def grid_points(self) -> Points:
        return Points(self.grid.coordinates().astype(self.data.dtype))


@bounded_jit()
def simulate(system: Any, y: Array, key: Array, count: int) -> tuple[Array, Array | None, Array]:
    """Prior draws on the grid, of the data's residuals where they are joint, and y minus data simulated from both."""
    toeplitz, weights, noise = system.toeplitz, system.weights, system.noise
    field_key, noise_key = jax.random.split(key)
    # drawn flat: XLA takes seconds to compile this many-dimensional
    white = jax.random.normal(field_key, (count, toeplitz.torus.size), noise.dtype)
    prior = toeplitz.root(white.reshape(count, *toeplitz.torus.shape)).reshape(count, -1)
    draw = lambda k: jax.random.normal(k, (count, len(noise)), noise.dtype)
    rest = y - weights.matmul(prior) - jnp.sqrt(noise) * draw(noise_key)
    if system.residuals is None:
        return prior, None, rest
    residual = system.residuals.draw(draw(jax.random.fold_in(noise_key, 1)))
    return prior, residual, rest - residual
