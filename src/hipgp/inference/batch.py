"""The batch engine: the exact full-rank posterior from one certified solve, its samples and standard deviations.

The optimum of the paper's bound over all Gaussians has its mean on the grid at K W' A^-1 y, A = W K W' + N. One solve
of A gives the mean of every functional; another, with simulated data as right-hand side, an exact draw of the whole
posterior (Matheron's rule: u + K W' A^-1 (y - W u - e)). No covariance is ever formed. A trend with a flat prior is
part of the same algebra: its coefficients come from generalised least squares, in the mean and in every draw.
"""

import time
import warnings
from collections.abc import Callable
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from hipgp import vecchia
from hipgp.data import Data, observe
from hipgp.functionals import Functional, Points
from hipgp.grid import Grid
from hipgp.inference.checkpoint import Checkpoint, fingerprint
from hipgp.inference.grid_space import grid_system, hardness
from hipgp.inference.least_squares import combine, right_hand_sides, row_tolerances
from hipgp.inference.progress import Progress, Report, silent
from hipgp.inference.systems import DataSystem, System, solve
from hipgp.kernels import Kernel
from hipgp.precision import float64_available
from hipgp.toeplitz import Toeplitz, embed
from hipgp.trend import Trend
from hipgp.weights import STENCIL, LocalWeights, Weights, exact_weights, local_weights

# observations per grid point from which the grid-space form is the faster one
MANY_POINTS, MANY_OTHERS = 2, 10
STEPS_SAVED = 6  # how many times more steps it may take with each point more
MOST_DRAWS = 64  # solved together
WRAPPED = 1e-9  # correlation that may come back around the torus

Residual = Literal["noise", "bound"]


class Batch(eqx.Module):
    """Settings of the batch engine.

    - `tolerance`: nats; the solve stops when the posterior is provably this close to the exact one (KL divergence).
    - `neighbours`: of the Vecchia preconditioner; by default 20 for points, and 96 for groups of 32 functionals of
      several nodes (lines, boxes, mixtures with them); 0 for no preconditioner. Given, the solve is in data space.
    - `stencil`: grid points per axis that a node sees (`weights="local"`), an even number; by default 4, and 2 for
      lines and boxes in three dimensions and more, where sums over many nodes make up for it. `weights="exact"` is
      the paper's choice, for small problems.
    - `residual`: what the grid cannot see is added to the noise ("noise"), or only to the bound ("bound", the paper).
    - `space`: "data", "grid", or "auto": grid where there are more points than two a grid point and few modes matter, or,
      in one or two dimensions, more lines or boxes than grid points.
    """

    tolerance: float = eqx.field(static=True, default=0.01)
    max_iterations: int = eqx.field(static=True, default=1000)
    neighbours: int | None = eqx.field(static=True, default=None)
    weights: Literal["local", "exact"] = eqx.field(static=True, default="local")
    stencil: int | None = eqx.field(static=True, default=None)
    residual: Residual = eqx.field(static=True, default="noise")
    space: Literal["auto", "data", "grid"] = eqx.field(static=True, default="auto")

    def __check_init__(self) -> None:
        if not self.tolerance > 0:
            raise ValueError(f"tolerance: expected a positive number of nats, got {self.tolerance!r}")
        if self.max_iterations < 1 or (self.neighbours is not None and self.neighbours < 0):
            raise ValueError("max_iterations, neighbours: expected at least 1 and at least 0")
        for name, options in (
            ("weights", ("local", "exact")),
            ("residual", ("noise", "bound")),
            ("space", ("auto", "data", "grid")),
        ):
            if getattr(self, name) not in options:
                raise ValueError(f"{name}: expected one of {options}, got {getattr(self, name)!r}")

    @float64_available
    def fit(
        self,
        kernel: Kernel,
        grid: Grid,
        data: Data,
        noise: float | None,
        trend: Trend | None = None,
        progress: bool = True,
        checkpoint: Any = None,
    ) -> "BatchPosterior":
        """The posterior given `data`; `noise` stands in where an observation came without one."""
        trend = Trend(None) if trend is None else trend
        std = data.noise_std(noise)
        began = time.perf_counter()
        with Progress("setting up", progress) as bar:
            system, info = self.system(kernel, grid, data, std)
            setup = time.perf_counter() - began
            columns = trend.of_data(data, grid)
            rows = right_hand_sides(data.y, columns, std)
            targets = row_tolerances(self.tolerance, columns.shape[1])
            saved = self._checkpoint(checkpoint, kernel, grid, data, std, trend)
            began = time.perf_counter()
            bar.describe("solving")
            z = jnp.asarray(rows.z, data.dtype)
            trace: list[tuple[int, float]] = []
            report = _recorded(bar.nats(self.tolerance), trace)
            solved = solve(system, z, targets, self.max_iterations, report, saved)
            fit = combine(system, solved, rows, self.tolerance, self.max_iterations, data.dtype)
        if saved is not None:
            saved.remove()
        info |= {
            "iterations": fit.steps,
            "kl_nats": fit.nats,
            "tolerance_nats": self.tolerance,
            "converged": fit.nats <= self.tolerance,
            "setup_seconds": setup,
            "solve_seconds": time.perf_counter() - began,
            "kl_trace": trace,
        }
        warn_if_far(info["kl_nats"], self.tolerance, fit.steps)
        deferred = Deferred(self, kernel, grid, data, noise, system)
        found = (fit.alpha, fit.field, fit.beta, fit.covariance, np.asarray(system.noise, float))  # type: ignore[attr-defined]
        return BatchPosterior(kernel, grid, noise, data, trend, self, deferred, *found, info)

    def system(
        self, kernel: Kernel, grid: Grid, data: Data, std: Float[np.ndarray, " N"]
    ) -> tuple[System, dict[str, Any]]:
        """The linear system of these data, and facts about it."""
        dtype = data.dtype
        toeplitz = embed(kernel, grid, dtype, WRAPPED)
        weights = (
            local_weights(kernel, grid, data, self.points_per_axis(data), dtype)
            if self.weights == "local"
            else exact_weights(kernel, toeplitz, data)
        )
        variance = np.asarray(std, float) ** 2
        if self.residual == "noise":
            variance = variance + np.asarray(weights.residual, float)
        info = {
            "engine": "batch",
            "observations": len(data),
            "grid": grid.shape,
            "grid_points": grid.size,
            "torus": toeplitz.torus.shape,
            "clipped_mass": float(toeplitz.clipped_mass),
            "dtype": str(dtype),
            "weights": f"local, stencil {self.points_per_axis(data)}"
            if isinstance(weights, LocalWeights)
            else f"exact, {weights.unconverged} of {len(data)} solves stopped short",
            "residual_to_noise": float(
                np.mean(np.asarray(weights.residual, float) / np.asarray(std, float) ** 2)
            ),
        }
        if self._in_grid_space(data, toeplitz, weights, variance):
            assert isinstance(weights, LocalWeights)
            on_grid = grid_system(toeplitz, weights, variance, points=_plain(data))
            name = f"{len(on_grid.low.inverse)} modes and a circulant"
            return on_grid, info | {"space": "grid", "preconditioner": name}
        factor, name = None, "none"
        if self.neighbours != 0:
            factor = vecchia.preconditioner(kernel, data, variance, self.neighbours, dtype=dtype)
            name = f"Vecchia, {factor.description}"
        system = DataSystem(toeplitz, weights, jnp.asarray(variance, dtype), factor)
        return system, info | {"space": "data", "preconditioner": name}

    def points_per_axis(self, data: Data) -> int:
        """The stencil's width."""
        if self.stencil is not None:
            return self.stencil
        return STENCIL if data.ndim <= 2 or _single(data) else 2

    def _in_grid_space(
        self, data: Data, toeplitz: Toeplitz, weights: Weights, variance: Float[np.ndarray, " N"]
    ) -> bool:
        if self.space == "grid" and not isinstance(weights, LocalWeights):
            raise ValueError('space: "grid" needs weights="local", got weights="exact"')
        if self.space != "auto" or self.neighbours is not None or not isinstance(weights, LocalWeights):
            return self.space == "grid"
        many = len(data) / toeplitz.torus.grid.size
        if _plain(data):
            return many > MANY_POINTS and hardness(toeplitz, variance) < (STEPS_SAVED * many) ** 2
        return many > (1 if data.ndim <= 2 else MANY_OTHERS)

    def _checkpoint(self, path: Any, *problem: Any) -> Checkpoint | None:
        return None if path is None else Checkpoint(path, fingerprint(self, *problem))


def _single(data: Data) -> bool:
    """Whether all observations have but one node."""
    return all(block.functional.single for block in data.blocks)


def _plain(data: Data) -> bool:
    """Whether all observations are values at points."""
    return all(isinstance(block.functional, Points) for block in data.blocks)


def warn_if_far(nats: float, tolerance: float, steps: int) -> None:
    if nats > tolerance:
        warnings.warn(
            f"the solve stopped after {steps} steps at most {nats:.3g} nats from the exact posterior (tolerance "
            f"{tolerance:g}); try more max_iterations, more neighbours, or float64 data",
            stacklevel=4,
        )


def _recorded(
    report: Callable[[int, float], None], trace: list[tuple[int, float]]
) -> Callable[[int, float], None]:
    def both(steps: int, nats: float) -> None:
        trace.append((steps, nats))
        report(steps, nats)

    return both


class Deferred:
    """A system that is built when first asked for: a map from a file, or unpickled, may never need it."""

    def __init__(
        self,
        method: Batch,
        kernel: Kernel,
        grid: Grid,
        data: Data,
        noise: float | None,
        made: System | None = None,
    ):
        self.parts = method, kernel, grid, data, noise
        self.made = made
        self.factor: np.ndarray | None = None  # of A, where standard deviations were asked for that need it

    def get(self) -> System:
        if self.made is None:
            method, kernel, grid, data, noise = self.parts
            self.made = method.system(kernel, grid, data, data.noise_std(noise))[0]
        return self.made

    def __reduce__(self) -> tuple[Any, ...]:
        return Deferred, self.parts


class BatchPosterior(eqx.Module):
    """What the batch engine knows after the data."""

    kernel: Kernel
    grid: Grid
    noise: float | None
    data: Data
    trend: Trend
    method: Batch
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
        weights = self.target_weights(functional)
        return (
            np.asarray(weights.matmul(self.field)) + self.trend.of(functional, self.grid, columns) @ self.beta
        )

    @float64_available
    def target_weights(self, functional: Functional) -> Weights:
        """W of functionals to be predicted, in the engine's kind of weights."""
        target = observe(functional, np.zeros(len(functional), self.data.dtype))
        if self.method.weights == "exact":
            return exact_weights(self.kernel, self.system.toeplitz, target)  # type: ignore[attr-defined]
        p = self.method.points_per_axis(target)
        return local_weights(self.kernel, self.grid, target, p, self.data.dtype)

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
        at = None if functional is None else self.target_weights(functional)
        trend = (
            self.trend.on_grid(self.grid)
            if functional is None
            else self.trend.of(functional, self.grid, columns)
        )
        columns_of_data = self.trend.of_data(self.data, self.grid)
        of_columns = self._solved_columns(columns_of_data)
        draws = []
        for begin in range(0, count, size := self.draws_at_once()):
            part = jax.random.fold_in(key, begin), min(size, count - begin)
            for values, beta in self._draws(*part, at, columns_of_data, of_columns):
                draws.append(np.asarray(values) + trend @ beta)
            report(len(draws), count)
        out = np.stack(draws).astype(self.data.dtype)
        return out.reshape(count, *self.grid.shape) if functional is None else out

    def draws_at_once(self) -> int:
        """Draws solved together: as many as keep the solver's working set near a gigabyte."""
        size = self.system.toeplitz.torus.size + len(self.data)  # type: ignore[attr-defined]
        return int(np.clip(2**30 // (6 * size * self.data.dtype.itemsize), 1, MOST_DRAWS))

    def _draws(
        self, key: Array, count: int, at: Weights | None, columns: Float[np.ndarray, "N p"], of_columns: Array
    ) -> list[tuple[Array, np.ndarray]]:
        """Draws of the field, and of the trend's coefficients: those of the mean, corrected draw by draw."""
        rest = np.asarray(self.data.y, float) - columns @ self.beta
        prior, rhs = _simulate(self.system, jnp.asarray(rest, self.data.dtype), key, count)
        tolerance = self.method.tolerance
        solved = solve(self.system, rhs, tolerance, self.method.max_iterations)
        warn_if_far(float(np.max(solved.nats)), tolerance, solved.steps)
        self.diagnostics["sample_kl_nats"] = float(np.max(solved.nats))
        self.diagnostics["sample_iterations"] = solved.steps
        betas = np.asarray(solved.alpha, float) @ columns @ self.beta_covariance
        values = prior + solved.field - jnp.asarray(betas, prior.dtype) @ of_columns
        if at is not None:
            extra = jax.random.normal(jax.random.fold_in(key, 2**30), (count, len(at.residual)), values.dtype)
            values = at.matmul(values) + jnp.sqrt(at.residual) * extra
        return list(zip(values, self.beta + betas, strict=True))

    def _solved_columns(self, columns: Float[np.ndarray, "N p"]) -> Float[Array, "p M"]:
        """K W' A^-1 X."""
        p = columns.shape[1]
        if p == 0:
            return jnp.zeros((0, self.grid.size), self.data.dtype)
        std = np.sqrt(self.noise_variance)
        rows = right_hand_sides(self.data.y, columns, std)
        target = row_tolerances(self.method.tolerance, p)[1:]
        z = jnp.asarray(rows.z[1:], self.data.dtype)
        field = solve(self.system, z, target, self.method.max_iterations).field
        return field / jnp.asarray(rows.scale, field.dtype)[:, None]

    def grid_points(self) -> Points:
        return Points(self.grid.coordinates().astype(self.data.dtype))


@eqx.filter_jit
def _simulate(system: Any, y: Array, key: Array, count: int) -> tuple[Array, Array]:
    """Prior draws on the grid, and y minus data simulated from them."""
    toeplitz, weights, noise = system.toeplitz, system.weights, system.noise
    field_key, noise_key = jax.random.split(key)
    white = jax.random.normal(field_key, (count, *toeplitz.torus.shape), noise.dtype)
    prior = toeplitz.root(white).reshape(count, -1)
    errors = jnp.sqrt(noise) * jax.random.normal(noise_key, (count, len(noise)), noise.dtype)
    return prior, y - weights.matmul(prior) - errors
