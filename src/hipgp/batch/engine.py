"""The batch engine: the exact full-rank posterior from one certified solve, its samples and standard deviations.

The optimum of the paper's bound over all Gaussians has its mean on the grid at K W' A^-1 y, A = W K W' + N. One solve
of A gives the mean of every functional; another, with simulated data as right-hand side, an exact draw of the whole
posterior (Matheron's rule: u + K W' A^-1 (y - W u - e)). No covariance is ever formed. A trend with a flat prior is
part of the same algebra: its coefficients come from generalised least squares, in the mean and in every draw.
"""

import dataclasses
import functools
import time
import warnings
from collections.abc import Callable
from numbers import Integral, Real
from typing import Any, ClassVar, Literal

import equinox as eqx
import numpy as np
from jaxtyping import Float

from hipgp.batch import estimates, evidence
from hipgp.batch.checkpoint import Checkpoint
from hipgp.batch.grid_space import grid_system, hardness
from hipgp.batch.least_squares import combine, right_hand_sides, row_tolerances
from hipgp.batch.ordering import in_order
from hipgp.batch.posterior import SOLVED, BatchPosterior, Deferred
from hipgp.batch.simulation import warn_if_far
from hipgp.batch.systems import DataSystem, System, solve
from hipgp.engines import Method, Problem, Slope, as_key
from hipgp.model.data import Data
from hipgp.model.functionals import Points
from hipgp.model.grid import Grid
from hipgp.model.kernels import Kernel
from hipgp.model.packing import Arrays, Json, check_shapes, unpack_observations
from hipgp.model.trend import Trend
from hipgp.runtime.checkpoints import fingerprint
from hipgp.runtime.precision import float64_available, on_device
from hipgp.runtime.progress import Progress
from hipgp.runtime.threads import run_both
from hipgp.vecchia import factor as vecchia
from hipgp.vecchia.grid_check import GridModel, grid_diagnostics, warn_if_coarse, wide_stencil
from hipgp.weights.exact import Weights, exact_weights
from hipgp.weights.joint_residuals import CellBlocks, cell_blocks
from hipgp.weights.matrix_free import matrix_free_weights, stored_bytes
from hipgp.weights.stencils import STENCIL, LocalWeights, WeightRows, check_stencil, local_weight_rows
from hipgp.weights.toeplitz import Toeplitz, check_torus, embed

# observations per grid point from which the grid-space form is the faster one
MANY_POINTS, MANY_OTHERS = 2, 10
STEPS_SAVED = 6  # how many times more steps it may take with each point more
WRAPPED = 1e-9  # correlation that may come back around the torus
# Residual variances, in those of the noise, that are worth holding jointly. Beyond, the certificate would be loose: it
# takes what the noise alone leaves of the solve's residual.
SHARED = 0.05, 100.0
STATE = "direction and rho of the step before"  # what a solve's checkpoint holds: another kind is refused
MUCH = 2**34  # bytes of weights from which it is said that there is another way

Residual = Literal["joint", "noise", "bound"]


class Batch(Method):
    """Settings of the batch engine.

    - `tolerance`: nats; the solve stops when the posterior is provably this close to the exact one (KL divergence).
    - `neighbours`: of the Vecchia preconditioner; by default 20 for points, and 96 for groups of 32 functionals of
      several nodes (lines, boxes, mixtures with them), twice as many of both on a GPU; 0 for no preconditioner. Where
      they are given, the solve is in data space, and `space="grid"` is an error.
    - `stencil`: grid points per axis that a node sees (`weights="local"`), an even number; by default 4, and 2 for
      lines and boxes in three dimensions and more, where sums over many nodes make up for it. `weights="exact"` is
      the paper's choice, for small problems; "matrix-free", for line integrals alone, keeps no weights: what millions of
      lines through tens of millions of cells need, on a GPU.
    - `residual`: what the grid cannot see of each observation is added to its noise ("noise"), or only to the bound
      ("bound", the paper); "joint" is "noise", but points of one cell have it jointly where that matters, which it does
      in data space alone.
    - `space`: "data", "grid", or "auto": grid where there are more points than two a grid point, few modes matter and
      the grid sees nearly all, or, in one or two dimensions, more lines or boxes than grid points.
    """

    name: ClassVar[str] = "batch"
    tolerance: float = eqx.field(static=True, default=0.01)
    max_iterations: int = eqx.field(static=True, default=1000)
    neighbours: int | None = eqx.field(static=True, default=None)
    weights: Literal["local", "exact", "matrix-free"] = eqx.field(static=True, default="local")
    stencil: int | None = eqx.field(static=True, default=None)
    residual: Residual = eqx.field(static=True, default="joint")
    space: Literal["auto", "data", "grid"] = eqx.field(static=True, default="auto")

    def __check_init__(self) -> None:
        if self.stencil is not None:
            check_stencil(self.stencil)
        if not isinstance(self.tolerance, Real) or not self.tolerance > 0:
            raise ValueError(f"tolerance: expected a positive number of nats, got {self.tolerance!r}")
        _check_whole("max_iterations", self.max_iterations, 1)
        if self.neighbours is not None:
            _check_whole("neighbours", self.neighbours, 0)
            if self.space == "grid":
                raise ValueError(
                    'neighbours: expected None with space="grid", whose preconditioner has none, got '
                    f'{self.neighbours}; leave neighbours out, or use space="data"'
                )
        for name, options in (
            ("weights", ("local", "exact", "matrix-free")),
            ("residual", ("joint", "noise", "bound")),
            ("space", ("auto", "data", "grid")),
        ):
            if getattr(self, name) not in options:
                raise ValueError(f"{name}: expected one of {options}, got {getattr(self, name)!r}")

    def condition(self, problem: Problem, progress: bool = True, checkpoint: Any = None) -> "BatchPosterior":
        """The posterior of a problem, which is checked first: that it fits into memory, and the grid's spacing."""
        kernel, grid, data, noise, trend = problem
        check_torus(kernel, grid, WRAPPED)
        estimates.check_weights(grid, data, self)
        found = self.fit(kernel, grid, data, noise, trend, progress, checkpoint, check_grid=True)
        warn_if_coarse(found.diagnostics, grid, data, self.residual, self.points_per_axis(data))
        return found

    def refit(self, problem: Problem, tolerance: float) -> "BatchPosterior":
        kernel, grid, data, noise, trend = problem
        method = dataclasses.replace(self, tolerance=min(tolerance, self.tolerance))
        return method.fit(kernel, grid, data, noise, trend, progress=False)

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
        check_grid: bool = False,
    ) -> "BatchPosterior":
        """The posterior given `data`; `noise` stands in where an observation came without one.

        `check_grid` adds to the diagnostics how far the grid puts the posterior off.
        """
        trend = Trend(None) if trend is None else trend
        columns = trend.of_data(data, grid)  # says so where there are too few
        data, order = in_order(data)
        trend, columns = trend.in_order(order), columns[order]
        std = data.noise_std(noise)
        began = time.perf_counter()
        with Progress("setting up", progress) as bar:
            system, info, seen = self._assembled(kernel, grid, data, std)
            info |= grid_diagnostics(kernel, grid, data, std, seen) if check_grid else {}
            setup = time.perf_counter() - began
            rows = right_hand_sides(data.y, columns, std)
            targets = row_tolerances(self.tolerance, columns.shape[1])
            saved = self._checkpoint(checkpoint, kernel, grid, data, std, trend)
            began = time.perf_counter()
            bar.describe("solving")
            z = on_device(rows.z, data.dtype)
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
        given = kernel, grid, noise, self, info, data.dtype
        return BatchPosterior(*given, data, trend, deferred, *found)

    @float64_available
    def log_evidence_slope(self, problem: Problem, probes: int, key: Any) -> Slope:
        post = evidence.differentiable(self).fit(*problem, progress=False)
        return evidence.slope(post, evidence.random_signs(post.system, probes, as_key(key)))

    def unpack(
        self, kernel: Kernel, grid: Grid, noise: float | None, arrays: Arrays, model: Json
    ) -> BatchPosterior:
        data, trend = unpack_observations(noise, grid.ndim, arrays, model)
        for block in data.blocks:
            self.check(kernel, grid, block.functional)
        n, p = len(data), trend.count(grid.ndim)
        shapes = {"alpha": (n,), "field": (grid.size,), "noise_variance": (n,), "beta": (p,)}
        check_shapes(arrays, shapes | {"beta_covariance": (p, p)})
        if not np.all(arrays["noise_variance"] > 0):
            raise ValueError("noise_variance: expected positive numbers, got others")
        solved: dict[str, Any] = {name: arrays[name] for name in SOLVED}
        given = kernel, grid, noise, self, model["diagnostics"], data.dtype
        return BatchPosterior(*given, data, trend, Deferred(self, kernel, grid, data, noise), **solved)

    def system(
        self, kernel: Kernel, grid: Grid, data: Data, std: Float[np.ndarray, " N"]
    ) -> tuple[System, dict[str, Any]]:
        """The linear system of these data, and facts about it."""
        return self._assembled(kernel, grid, data, std)[:2]

    def _assembled(
        self, kernel: Kernel, grid: Grid, data: Data, std: Float[np.ndarray, " N"]
    ) -> tuple[System, dict[str, Any], GridModel]:
        """The system, facts about it, and what the grid sees of the data."""
        kernel.check_dimension(grid.ndim)
        dtype = data.dtype
        k, noise = self.neighbours, np.asarray(std, float) ** 2
        # K, W and who is near whom, side by side; of points the noise, W's included, decides on the neighbours
        beside = k != 0 and self.weights == "local" and not _plain(data)
        early = beside and not self._in_grid_space(data, grid, lambda: 0.0, joint=False)
        near_whom = lambda: vecchia.choose_conditioning_sets(kernel, data, k) if early else None
        embedded = functools.cache(lambda: embed(kernel, grid, dtype, WRAPPED))
        if self.weights == "exact":
            embedded()  # W needs it
        with_w = lambda: self.rows(kernel, grid, data, embedded)
        ((rows, how), near), toeplitz = run_both(lambda: run_both(with_w, near_whom), embedded)
        residual = np.asarray(rows.residual, float)
        variance = noise if self.residual == "bound" else noise + residual
        info = {
            "engine": "batch",
            "observations": len(data),
            "grid": grid.shape,
            "grid_points": grid.size,
            "torus": toeplitz.torus.shape,
            "clipped_mass": float(toeplitz.clipped_mass),
            "dtype": str(dtype),
            "weights": how,
            "residual_to_noise": float(np.mean(residual / noise)),
            "residual": "bound" if self.residual == "bound" else "noise",
        }
        seen = GridModel(
            rows if isinstance(rows, WeightRows) else None,
            residual,
            self.points_per_axis(data) if self.weights != "exact" else wide_stencil(grid),
            residual_as_noise=self.residual != "bound",
            vecchia_std=_plain(data),
        )
        joint = (
            self.residual == "joint" and _plain(data) and SHARED[0] < info["residual_to_noise"] < SHARED[1]
        )
        if self._in_grid_space(data, grid, lambda: hardness(toeplitz, variance), joint):
            assert isinstance(rows, WeightRows)
            on_grid = grid_system(toeplitz, rows, variance, points=_plain(data))
            name = f"{len(on_grid.low.inverse)} modes and a circulant"
            return on_grid, info | {"space": "grid", "preconditioner": name}, seen
        cells = self.cells(kernel, grid, data, rows) if joint else None
        if cells is not None:
            variance, info["residual"] = noise, "joint"
            seen = seen._replace(block=cells.block)
        if near is None and k != 0:
            near = vecchia.choose_conditioning_sets(kernel, data, k)
        factor, weights = run_both(
            lambda: None if near is None else vecchia.vecchia_factor(kernel, near, variance, dtype),
            lambda: LocalWeights.from_rows(rows, dtype) if isinstance(rows, WeightRows) else rows,
        )
        name = "none" if factor is None else f"Vecchia, {factor.description}"
        shared = None if cells is None else cells.covariance(dtype)
        system = DataSystem(toeplitz, weights, on_device(variance, dtype), factor, shared)
        return system, info | {"space": "data", "preconditioner": name}, seen

    def rows(
        self, kernel: Kernel, grid: Grid, data: Data, toeplitz: Callable[[], Toeplitz]
    ) -> tuple[Weights | WeightRows, str]:
        """W, its entries where it is local, and a word on it; `toeplitz` gives K, where it is needed."""
        match self.weights:
            case "exact":
                exact = exact_weights(kernel, toeplitz(), data)
                return exact, f"exact, {exact.unconverged} of {len(data)} solves stopped short"
            case "matrix-free":
                return matrix_free_weights(kernel, grid, data, data.dtype), "matrix-free"
            case _:
                p = self.points_per_axis(data)
                if (size := stored_bytes(grid, data, p)) > MUCH:
                    warnings.warn(
                        f"the weights of these {len(data):,} lines will take about {size / 2**30:,.0f} GiB; "
                        'Batch(weights="matrix-free") keeps none, and is meant for a GPU',
                        stacklevel=4,
                    )
                return local_weight_rows(kernel, grid, data, p), f"local, stencil {p}"

    def cells(self, kernel: Kernel, grid: Grid, data: Data, rows: Weights | WeightRows) -> CellBlocks | None:
        """Points by cell, with what their rows of W leave."""
        if not isinstance(rows, WeightRows):
            return None
        x = np.concatenate([np.asarray(block.functional.places()[:, 0], float) for block in data.blocks])
        return cell_blocks(kernel, grid, self.points_per_axis(data), x, rows.matrix)

    def points_per_axis(self, data: Data) -> int:
        """The stencil's width."""
        if self.stencil is not None:
            return self.stencil
        return STENCIL if data.ndim <= 2 or _single(data) else 2

    def _in_grid_space(self, data: Data, grid: Grid, hard: Callable[[], float], joint: bool) -> bool:
        if self.space == "grid" and self.weights != "local":
            raise ValueError(
                f'space: expected "data" or "auto" unless weights="local", got "grid" and "{self.weights}"'
            )
        if self.space != "auto" or self.neighbours is not None or self.weights != "local":
            return self.space == "grid"
        many = len(data) / grid.size
        if _plain(data):
            return not joint and many > MANY_POINTS and hard() < (STEPS_SAVED * many) ** 2
        return many > (1 if data.ndim <= 2 else MANY_OTHERS)

    def _checkpoint(self, path: Any, *problem: Any) -> Checkpoint | None:
        return None if path is None else Checkpoint(path, fingerprint(STATE, self, *problem))


def _check_whole(name: str, value: Any, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise ValueError(f"{name}: expected a whole number of at least {least}, got {value!r}")


def _single(data: Data) -> bool:
    """Whether all observations have but one node."""
    return all(block.functional.single for block in data.blocks)


def _plain(data: Data) -> bool:
    """Whether all observations are values at points."""
    return all(isinstance(block.functional, Points) for block in data.blocks)


def _recorded(
    report: Callable[[int, float], None], trace: list[tuple[int, float]]
) -> Callable[[int, float], None]:
    def both(steps: int, nats: float) -> None:
        trace.append((steps, nats))
        report(steps, nats)

    return both
