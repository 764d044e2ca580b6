"""The batch engine: the exact full-rank posterior from one certified solve, its samples and standard deviations.

The optimum of the paper's bound over all Gaussians has the mean K W' A^-1 y on the grid, with A = W K W' + N. One solve
with A gives the mean of every functional. Another solve, with simulated data as right-hand side, gives an exact draw of
the whole posterior (Matheron's rule: u + K W' A^-1 (y - W u - e)). No covariance matrix is formed. The coefficients of a
trend with a flat prior come from generalised least squares, in the mean and in every draw.
"""

import dataclasses
import time
from collections.abc import Callable
from numbers import Real
from typing import Any, ClassVar, Literal

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Float, Int

from hipgp.batch import decisions, estimates, evidence, interpolation, plan, variances
from hipgp.batch.build import Built, build, lazy_parts
from hipgp.batch.checkpoint import Checkpoint
from hipgp.batch.least_squares import TrendSolution, combine, right_hand_sides, row_tolerances
from hipgp.batch.ordering import in_order
from hipgp.batch.posterior import SOLVED, BatchPosterior
from hipgp.batch.simulation import warn_if_far
from hipgp.batch.systems import System, solve
from hipgp.batch.updating import Start, guess
from hipgp.engines import Method, Slope, as_key
from hipgp.linalg.rates import Rates
from hipgp.mesh.devices import as_mesh
from hipgp.model.arguments import check_whole
from hipgp.model.data import Data
from hipgp.model.grid import Grid
from hipgp.model.kernels import Kernel
from hipgp.model.packing import check_shapes, unpack_observations
from hipgp.model.problem import Problem
from hipgp.planning import Part
from hipgp.runtime import hosts
from hipgp.runtime.arrays import on_cpu, on_device
from hipgp.runtime.checkpoints import fingerprint
from hipgp.runtime.plain import Arrays, Json
from hipgp.runtime.precision import float64_available
from hipgp.runtime.progress import Progress
from hipgp.vecchia.grid_check import grid_diagnostics, warn_if_coarse
from hipgp.weights.stencils import check_stencil
from hipgp.weights.torus import WRAPPED, check_torus

STATE = "direction and rho of the step before"  # names the contents of a checkpoint; others are refused

Residual = Literal["joint", "noise", "bound"]


class Batch(Method):
    """Settings of the batch engine.

    - `tolerance`: nats; the solve stops when the posterior is provably this close to the exact one (KL divergence).
    - `neighbours`: number of neighbours in the Vecchia preconditioner. The default is 20 for points, and 96 for groups of
      32 functionals of several nodes (lines, boxes, mixtures with them), twice as many of both on a GPU; 0 turns the
      preconditioner off. If it is given, the solve is in data space, and `space="grid"` is an error.
    - `preconditioner`: preconditioner in data space. "auto" tries "low-rank" if observations are long and cross, as paths
      between many places do, and takes it if few eigenvalues exceed the noise; otherwise it takes "vecchia". If it is
      given, the solve is in data space.
    - `weights`: "local" interpolates each node from the grid points around it; "exact" is the paper's choice, for small
      problems; "matrix-free", for line integrals alone, stores no weights, for millions of lines through tens of millions
      of cells on a GPU.
    - `stencil`: width of local weights' stencils in grid points per axis, an even number. The default is 4, and 2 for
      lines and boxes in three dimensions and more, where sums over many nodes compensate for it.
    - `residual`: the residual variance of each observation given the grid values is added to its noise ("noise", FITC), or
      subtracted from the bound alone ("bound", VFE, the paper). "joint" (PIC) treats the residuals of points in one cell
      as jointly Gaussian where that matters, which needs data space, and is "noise" otherwise.
    - `space`: "data", "grid", or "auto". "auto" takes grid space for more than two points per grid point, if few modes
      matter and the grid resolves nearly all, and in one or two dimensions for more lines or boxes than grid points.
    """

    name: ClassVar[str] = "batch"
    tolerance: float = eqx.field(static=True, default=0.01)
    max_iterations: int = eqx.field(static=True, default=1000)
    neighbours: int | None = eqx.field(static=True, default=None)
    preconditioner: Literal["auto", "vecchia", "low-rank"] = eqx.field(static=True, default="auto")
    weights: Literal["local", "exact", "matrix-free"] = eqx.field(static=True, default="local")
    stencil: int | None = eqx.field(static=True, default=None)
    residual: Residual = eqx.field(static=True, default="joint")
    space: Literal["auto", "data", "grid"] = eqx.field(static=True, default="auto")
    mesh: Mesh | None = eqx.field(static=True, default=None, repr=False)  # where `condition` was given one

    def __check_init__(self) -> None:
        if self.stencil is not None:
            check_stencil(self.stencil)
        if not isinstance(self.tolerance, Real) or not self.tolerance > 0:
            raise ValueError(f"tolerance: expected a positive number of nats, got {self.tolerance!r}")
        check_whole("max_iterations", self.max_iterations, 1)
        if self.neighbours is not None:
            check_whole("neighbours", self.neighbours, 0)
            if self.space == "grid":
                raise ValueError(
                    'neighbours: expected None with space="grid", whose preconditioner has none, got '
                    f'{self.neighbours}; leave neighbours out, or use space="data"'
                )
            if self.preconditioner == "low-rank":
                raise ValueError(
                    'neighbours: expected None with preconditioner="low-rank", which has none, got '
                    f"{self.neighbours}; leave one of the two out"
                )
        for name, options in (
            ("preconditioner", ("auto", "vecchia", "low-rank")),
            ("weights", ("local", "exact", "matrix-free")),
            ("residual", ("joint", "noise", "bound")),
            ("space", ("auto", "data", "grid")),
        ):
            if getattr(self, name) not in options:
                raise ValueError(f"{name}: expected one of {options}, got {getattr(self, name)!r}")
        if self.preconditioner != "auto" and self.space == "grid":
            raise ValueError(
                'preconditioner: expected "auto" with space="grid", which has its own, got '
                f'{self.preconditioner!r}; leave preconditioner out, or use space="data"'
            )

    def on_mesh(self, mesh: Any, grid: Grid) -> "Batch":
        for name, usable in (("weights", ("matrix-free", "local")), ("space", ("auto", "data"))):
            if getattr(self, name) not in usable:
                raise ValueError(
                    f"mesh: expected None with Batch({name}={getattr(self, name)!r}), which computes on one device, got a "
                    f'mesh; use {name}="{usable[-1]}"'
                )
        return dataclasses.replace(self, mesh=as_mesh(mesh, grid.shape))

    def settings(self) -> Json:
        """The settings that decide what is computed; on which devices is not among them."""
        return {name: value for name, value in super().settings().items() if name != "mesh"}

    def digest(self, problem: Problem) -> str:
        """A digest of the problem and these settings, whatever the devices."""
        return fingerprint(STATE, dataclasses.replace(self, mesh=None), problem)

    def condition(self, problem: Problem, progress: bool = True, checkpoint: Any = None) -> "BatchPosterior":
        """The posterior of a problem, after checks that it fits into memory and that the grid is fine enough."""
        return self._checked(problem, progress, checkpoint, refine=False)

    def condition_finely(
        self, problem: Problem, progress: bool = True, checkpoint: Any = None, *begin: Any
    ) -> "BatchPosterior":
        return self._checked(problem, progress, checkpoint, refine=True)

    def _checked(self, problem: Problem, progress: bool, checkpoint: Any, refine: bool) -> "BatchPosterior":
        self.check_memory(problem)
        p = interpolation.points_per_axis(self, problem.data)
        found = self.fit(problem, progress, checkpoint, check_grid=True, refine=refine)
        warn_if_coarse(found.diagnostics, found.grid, problem.data, self.residual, p)
        return found

    def check_memory(self, problem: Problem) -> None:
        slabs = decisions.surely_in_data_space(self, problem.data, problem.grid.size)
        devices = 1 if self.mesh is None or on_cpu() else self.mesh.devices.size  # CPUs share one memory
        check_torus(problem.kernel, problem.grid, WRAPPED, slabs, devices)
        if self.weights == "local":
            p = interpolation.points_per_axis(self, problem.data)
            estimates.check_weights(problem.grid, problem.data, p)

    @float64_available
    def parts(self, problem: Problem, rates: Rates) -> list[Part]:
        return plan.parts(self, problem, rates)

    def refit(self, problem: Problem, tolerance: float) -> "BatchPosterior":
        method = dataclasses.replace(self, tolerance=min(tolerance, self.tolerance))
        return method.fit(problem, progress=False)

    @float64_available
    def fit(
        self,
        problem: Problem,
        progress: bool = True,
        checkpoint: Any = None,
        check_grid: bool = False,
        start: Start | None = None,
        refine: bool = False,
    ) -> "BatchPosterior":
        """The posterior of a problem, solved from `start` where something of it is known.

        `check_grid` adds the errors of the posterior due to the grid to the diagnostics. With `refine` it is computed on a
        finer grid where they are too large.
        """
        problem, columns, order = _ordered(problem)
        problem.data.noise_std(problem.noise)  # an error where there is none
        if hosts.several():
            hosts.check_equal("data", "data, model and settings", self.digest(problem))
        began = time.perf_counter()
        with Progress("setting up", progress) as bar:
            problem, built, info = self._build(problem, check_grid, refine)
            setup = time.perf_counter() - began
            saved = None if checkpoint is None else Checkpoint(checkpoint, self.digest(problem))
            began = time.perf_counter()
            bar.describe("solving")
            trace: list[tuple[int, float]] = []
            report = _recorded(bar.nats(self.tolerance), trace)
            known = None if start is None else start.in_order(order)
            solution = self._solve(built.system, problem, columns, report, saved, known)
        if saved is not None:
            saved.remove()
        of_std = variances.automatic_on_grid(problem, built.system, solution.steps)
        info |= solution.diagnostics(self.tolerance) | {
            "decisions": info["decisions"] | {"standard deviations on the grid": of_std.reason},
            "setup_seconds": setup,
            "solve_seconds": time.perf_counter() - began,
            "kl_trace": trace,
        }
        warn_if_far(solution.kl_bound, self.tolerance, solution.steps)
        solved = solution.solved | {"noise_variance": np.asarray(built.system.noise, float), "order": order}
        solved["field"] = jnp.asarray(built.system.toeplitz.gathered(solution.solved["field"]))
        return self._posterior(problem, info, solved, built)

    def _build(
        self, problem: Problem, check_grid: bool, refine: bool
    ) -> tuple[Problem, Built, dict[str, Any]]:
        """The problem, on a finer grid where that is needed, its system, and the diagnostics of both."""
        built, refined = build(problem, self), {}
        of_grid: dict[str, Any] = {}
        while check_grid:
            of_grid = refined | grid_diagnostics(problem, built.grid_model)
            finer = decisions.refined(self, problem, of_grid) if refine else None
            if finer is None:
                break
            refined = {"grid_refined": finer.reason}
            problem = problem._replace(grid=finer.choice)
            built = build(problem, self)
        return problem, built, dict(built.diagnostics) | of_grid

    def _solve(
        self,
        system: System,
        problem: Problem,
        columns: Float[np.ndarray, "N p"],
        report: Callable[[int, float], None],
        checkpoint: Checkpoint | None,
        start: Start | None,
    ) -> TrendSolution:
        """The certified solve for the mean and the trend's coefficients."""
        data, most = problem.data, self.max_iterations
        rows = right_hand_sides(data.y, columns, problem.noise_std)
        targets = row_tolerances(self.tolerance, columns.shape[1])
        z = on_device(rows.z, data.dtype)
        first, steps = (None, 0) if start is None else guess(system, problem, start, rows, z, targets)
        solved = solve(system, z, targets, most, report, checkpoint, first)
        solved = solved._replace(steps=solved.steps + steps)
        return combine(system, solved, rows, self.tolerance, most, data.dtype)

    def points_per_axis(self, data: Data) -> int:
        return interpolation.points_per_axis(self, data)

    def _posterior(
        self, problem: Problem, diagnostics: Json, solved: dict[str, Any], *built: Built
    ) -> BatchPosterior:
        """A posterior from the solution of the system, which is built when it is needed, unless it is given."""
        kernel, grid, data, noise, trend = problem
        model = kernel, grid, noise, self, diagnostics, data.dtype, data, trend
        return BatchPosterior(*model, lazy=lazy_parts(problem, self, *built), **solved)

    @float64_available
    def log_evidence_slope(self, problem: Problem, probes: int, key: Any) -> Slope:
        post = evidence.differentiable(self, problem.grid).fit(problem, progress=False)
        return evidence.slope(post, post.system.random_signs(probes, as_key(key)))

    def unpack(
        self, kernel: Kernel, grid: Grid, noise: float | None, arrays: Arrays, model: Json
    ) -> BatchPosterior:
        data, trend = unpack_observations(noise, grid.ndim, arrays, model)
        for block in data.blocks:
            self.check(kernel, grid, block.functional)
        n, p = len(data), trend.count(grid.ndim)
        shapes = {"alpha": (n,), "field": (grid.size,), "noise_variance": (n,), "order": (n,), "beta": (p,)}
        check_shapes(arrays, shapes | {"beta_covariance": (p, p), "alpha_of_columns": (p, n)})
        if not np.all(arrays["noise_variance"] > 0):
            raise ValueError("noise_variance: expected positive numbers, got some that are not")
        problem = Problem(kernel, grid, data, noise, trend)
        if not np.array_equal(np.sort(arrays["order"]), np.arange(n)):
            raise ValueError("order: expected every observation's number once, got a different list")
        solved: dict[str, Any] = {name: arrays[name] for name in SOLVED}
        solved["order"] = solved["order"].astype(int)  # a file holds floats
        return self._posterior(problem, model["diagnostics"], solved)


def _ordered(problem: Problem) -> tuple[Problem, Float[np.ndarray, "N p"], Int[np.ndarray, " N"]]:
    """Return the problem with its data sorted along a space-filling curve, the trend's columns, and the permutation."""
    kernel, grid, data, noise, trend = problem
    columns = trend.of_data(data, grid)  # raises a ValueError if their number is wrong
    data, order = in_order(data)
    return Problem(kernel, grid, data, noise, trend.in_order(order)), columns[order], order


def _recorded(
    report: Callable[[int, float], None], trace: list[tuple[int, float]]
) -> Callable[[int, float], None]:
    def both(steps: int, nats: float) -> None:
        trace.append((steps, nats))
        report(steps, nats)

    return both
