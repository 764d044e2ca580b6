"""The exact engine: the inter-domain Gaussian process itself, with no grid in its algebra.

With the covariance Cov(L f, L f) of the observed functionals and the noise, A = Cov(L f, L f) + N is factored by
Cholesky. A trend X beta has a flat prior: beta is the generalised least-squares estimate, and alpha = A^-1 (y - X beta).
A functional l has mean k_l' alpha + x_l' beta and variance k_ll - k_l' A^-1 k_l + g' (X' A^-1 X)^-1 g with
g = x_l - X' A^-1 k_l. The cost is N^3 / 3 and the memory N^2, so this is for a few thousand observations. The grid is
used only to evaluate the map.

Covariances are sums over quadrature nodes; the nodes are refined until the covariances change by no more than
`accuracy`, relative to the prior standard deviations.
"""

import dataclasses
import time
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jaxtyping import Float

from hipgp.engines import DataPosterior, Estimate, Gradient, Method
from hipgp.learning.parameters import Layout
from hipgp.linalg.rates import Rates
from hipgp.model.data import Data, check_differentiable, check_dimension
from hipgp.model.functionals import Functional, Points
from hipgp.model.grid import Grid
from hipgp.model.kernels import Kernel
from hipgp.model.nodes import Nodes
from hipgp.model.packing import pack_observations, unpack_observations
from hipgp.model.problem import Problem
from hipgp.planning import Part, compilation
from hipgp.predictions import DEFAULT_STD, Prediction, SampleOptions, StdOptions, check_std
from hipgp.runtime import memory
from hipgp.runtime.plain import Arrays, Json
from hipgp.runtime.precision import float64_available
from hipgp.runtime.progress import Progress, Report, silent
from hipgp.scores import LeaveOut, group_numbers, members, without_group
from hipgp.weights import dense

MATRICES_AT_PEAK = 4  # N x N arrays in memory at the same time
QUICK_PAIRS, QUICK_PRODUCTS = 10**9, 10**11  # covariances and multiplications that take a few seconds
PROGRAMS = 6  # that a first fit compiles
LOG_2PI = float(np.log(2 * np.pi))


class Exact(Method):
    """Settings of the exact engine, for up to a few thousand observations.

    - `accuracy`: the largest quadrature error of a covariance between two functionals, relative to the product of their
      prior standard deviations. The error reached is `diagnostics["quadrature_error"]`.
    """

    name: ClassVar[str] = "exact"
    exact_evidence: ClassVar[bool] = True
    accuracy: float = eqx.field(static=True, default=1e-6)

    def __check_init__(self) -> None:
        if not 0 < self.accuracy < 1:
            raise ValueError(f"accuracy: expected a number between 0 and 1, got {self.accuracy!r}")

    @property
    def on_grid(self) -> bool:
        return False

    def check(self, kernel: Kernel, grid: Grid, functional: Functional) -> None:
        """Raise a ValueError if dimensions differ or derivatives do not exist; the grid need not cover the data."""
        check_dimension(functional, grid)
        check_differentiable(kernel.differentiable, functional)

    def check_memory(self, problem: Problem) -> None:
        n = len(problem.data)
        what = f"{n:,} observations with covariance matrices of {n:,} x {n:,}"
        needed = memory.dense_bytes(n, MATRICES_AT_PEAK)
        memory.check("data", what, needed, "use method=Batch(), which holds no such matrix")

    @float64_available
    def parts(self, problem: Problem, rates: Rates) -> list[Part]:
        n, m = len(problem.data), problem.grid.size
        ((nodes, _),) = dense.quadrature_sizes(problem.kernel, problem.data, [self.accuracy])
        matrix, product = 8.0 * n**2, 2 / rates.multiplied
        of_draw = m**2 * (1 / rates.kernel + n * product) + m**3 / 3 * product
        return [
            compilation(PROGRAMS, rates),
            Part("covariance", 2 * matrix, matrix, nodes**2 / rates.kernel, f"of {n:,} observations with {nodes:,.0f} nodes"),
            Part("factor", (MATRICES_AT_PEAK - 1) * matrix, 0.0, n**3 / 3 * product, f"the Cholesky factor of {n:,} rows"),
            Part("mean and std on the grid", 16.0 * min(n * m, dense.ENTRIES_AT_ONCE), 16.0 * m,
                 m * (nodes / rates.kernel + n**2 / 2 * product), f"{m:,} points given all observations", True),
            Part("a draw", MATRICES_AT_PEAK * 8.0 * m**2, 8.0 * m, of_draw, f"with the covariance of {m:,} points", True),
        ]  # fmt: skip

    @float64_available
    def condition(self, problem: Problem, progress: bool = True, checkpoint: Any = None) -> "ExactPosterior":
        if checkpoint is not None:
            raise ValueError(
                "checkpoint: expected None with the exact engine; use method=Batch() for long fits"
            )
        kernel, grid, data, noise, trend = problem
        n, began = len(data), time.perf_counter()
        self.check_memory(problem)
        x, std = trend.of_data(data, grid), problem.noise_std
        with Progress("factoring", progress) as bar:
            found = [dense.refine_quadrature(kernel, f, self.accuracy) for f in data.functionals]
            nodes = [functional.nodes(spacing) for functional, spacing, _ in found]
            matrix = dense.covariance_matrix(kernel, nodes, nodes, bar.done)
            self._warn_of_quadrature(data, found, np.diag(matrix), std**2)
            matrix[np.diag_indices(n)] += std**2
            factor = dense.factor(matrix)
        solve = lambda b: scipy.linalg.cho_solve((factor, True), b, check_finite=False)
        solved_columns, y = solve(x), np.asarray(data.y, float)
        beta_covariance = np.linalg.inv(x.T @ solved_columns)
        beta = beta_covariance @ (solved_columns.T @ y)
        info = {
            "engine": "exact",
            "observations": n,
            "grid": grid.shape,
            "dtype": str(data.dtype),
            "quadrature_error": max(error for _, _, error in found),
            "nodes_per_functional": max(part.rule_size for part in nodes),
            "seconds": time.perf_counter() - began,
        }
        model = kernel, grid, noise, self, info, data.dtype, data, trend
        alpha = solve(y - x @ beta)
        return ExactPosterior(*model, beta, beta_covariance, nodes, factor, alpha, solved_columns, std)

    def _warn_of_quadrature(
        self, data: Data, found: list[Any], prior: Float[np.ndarray, " N"], noise: Float[np.ndarray, " N"]
    ) -> None:
        """Warn where quadrature misses more of an observation than its noise hides; `found` are the blocks' quadratures."""
        ends = np.cumsum([len(block.y) for block in data.blocks])[:-1]
        parts = zip(data.functionals, found, np.split(prior, ends), np.split(noise, ends), strict=True)
        for functional, (_, _, error), of_prior, of_noise in parts:
            what = "of a noise variance"
            dense.warn_of_quadrature(functional, error, self.accuracy, of_prior, of_noise, what)

    def unpack(
        self, kernel: Kernel, grid: Grid, noise: float | None, arrays: Arrays, model: Json
    ) -> "ExactPosterior":
        data, trend = unpack_observations(noise, grid.ndim, arrays, model)
        for block in data.blocks:
            self.check(kernel, grid, block.functional)
        found = self.condition(Problem(kernel, grid, data, noise, trend), progress=False)
        return dataclasses.replace(found, diagnostics=model["diagnostics"])


class ExactPosterior(DataPosterior):
    """The exact posterior, with the Cholesky factor of the data's covariance."""

    method: Exact
    nodes: list[Nodes]  # of each block of data
    factor: Float[np.ndarray, "N N"]
    alpha: Float[np.ndarray, " N"]
    solved_columns: Float[np.ndarray, "N p"]  # A^-1 X
    noise_std: Float[np.ndarray, " N"]

    def grid_mean(self) -> Float[np.ndarray, "..."]:
        return self._moments(*self._grid_points(), False)[0].reshape(self.grid.shape).astype(self.dtype)

    def grid_std(self, how: StdOptions = DEFAULT_STD) -> tuple[np.ndarray, None]:
        check_std(how, "exact", ("auto", "exact"))
        std = self._moments(*self._grid_points(), True, how.report)[1]
        return std.reshape(self.grid.shape).astype(self.dtype), None

    def predict(self, functional: Functional, how: StdOptions = DEFAULT_STD) -> Prediction:
        check_std(how, "exact", ("auto", "exact"))
        x = self.trend.of(functional, self.grid, how.columns)
        return Prediction(*self._moments(functional, x, True, how.report))

    @float64_available
    def covariance(self, functional: Functional) -> Float[np.ndarray, "T T"]:
        return self._joint(functional, self.trend.of(functional, self.grid), "functional")[1]

    def _joint(
        self, functional: Functional, x: Float[np.ndarray, "T p"], argument: str, report: Report = silent
    ) -> tuple[np.ndarray, np.ndarray, float]:
        """The joint mean and covariance of functionals with trend columns x, and their largest prior variance."""
        what = f"the covariance of {len(functional):,} values"
        needed = memory.dense_bytes(len(functional), MATRICES_AT_PEAK)
        memory.check(argument, what, needed, "take fewer places, or use method=Batch()")
        exact, spacing, _ = dense.refine_quadrature(self.kernel, functional, self.method.accuracy)
        nodes = exact.nodes(spacing)
        prior = dense.covariance_matrix(self.kernel, [nodes], [nodes], report)
        mean, half, gap = self._conditional(nodes, x)
        posterior = prior - half.T @ half + gap @ self.beta_covariance @ gap.T
        return mean, posterior, float(np.max(np.diag(prior)))

    def _grid_points(self) -> tuple[Points, Float[np.ndarray, "M p"]]:
        """The grid points, and the trend's columns there."""
        return Points(self.grid.coordinates()), self.trend.on_grid(self.grid)

    def at_points(self, x: Float[np.ndarray, "N D"], std: bool) -> tuple[np.ndarray, np.ndarray | None]:
        mean, deviation = self._moments(Points(x), self.trend.of(Points(x), self.grid), std)
        return mean, deviation if std else None

    def quick_points(self) -> tuple[int, int]:
        n, nodes = len(self.alpha), sum(len(part) * part.rule_size for part in self.nodes)
        return (0, 0) if self.trend.kind == "columns" else (QUICK_PAIRS // nodes, QUICK_PRODUCTS // n**2)

    @float64_available
    def sample(self, how: SampleOptions, functional: Functional | None = None) -> np.ndarray:
        count, key, columns, report = how
        if functional is None:
            at, x = self._grid_points()
        else:
            at, x = functional, self.trend.of(functional, self.grid, columns)
        mean, posterior, largest = self._joint(at, x, "at", report)
        root = dense.factor(posterior, largest)
        draws = mean + np.asarray(jax.random.normal(key, (count, len(at)), float)) @ root.T
        return draws.astype(self.dtype).reshape(count, *(self.grid.shape if functional is None else (-1,)))

    def log_evidence(self, probes: int = 0, key: Any = None) -> Estimate:
        """The log evidence with the trend's coefficients at their best, exactly: `probes` and `key` are not used."""
        rest = np.asarray(self.data.y, float) - self.trend.of_data(self.data, self.grid) @ self.beta
        log_determinant = 2 * np.sum(np.log(np.diag(self.factor)))
        return Estimate(-0.5 * float(rest @ self.alpha + log_determinant + len(rest) * LOG_2PI), 0.0)

    @float64_available
    def log_evidence_gradient(self, probes: int = 0, key: Any = None) -> Gradient:
        """(alpha' dA alpha - tr(A^-1 dA)) / 2 for each parameter; beta is at its best, so that it adds nothing."""
        known = np.all(self.data.noise_known)
        layout = Layout.of(self.kernel, noise_free=not known)
        vector, inverse = jnp.asarray(layout.pack(self.kernel, self.noise)), self._inverse()
        weight = np.outer(self.alpha, self.alpha) - inverse
        values = np.zeros(len(vector))
        for parameter in range(len(vector) - layout.noise_free):
            direction = jnp.zeros_like(vector).at[parameter].set(1.0)
            slope = dense.covariance_derivative(layout.kernel, vector, direction, self.nodes)
            values[parameter] = 0.5 * np.sum(weight * slope)
        if layout.noise_free:
            values[-1] = np.sum((np.diag(weight) * self.noise_std**2)[~self.data.noise_known])
        return Gradient(tuple(layout.names()), values)

    def leave_out(self, groups: Any = None) -> LeaveOut:
        numbers, inverse = group_numbers(groups, len(self.alpha)), self._inverse()
        y, mean, std = np.asarray(self.data.y, float), np.empty(len(self.alpha)), np.empty(len(self.alpha))
        for rows in members(numbers):
            columns = self.solved_columns[rows]
            of_trend = columns @ self.beta_covariance @ columns.T
            error, std[rows] = without_group(inverse[np.ix_(rows, rows)], of_trend, self.alpha[rows], rows)
            mean[rows] = y[rows] - error
        return LeaveOut(y, mean, std, numbers, 0.0)

    def residuals(self) -> tuple[np.ndarray, np.ndarray]:
        return self.noise_std**2 * self.alpha, self.noise_std  # y minus the fitted mean is N alpha

    def pack(self) -> tuple[Arrays, Json]:
        """Data and trend; the Cholesky factor is computed again when the map is loaded."""
        return pack_observations(self.data, self.trend)

    @float64_available
    def _moments(
        self, functional: Functional, x: Float[np.ndarray, "T p"], with_std: bool, report: Report = silent
    ) -> tuple[np.ndarray, np.ndarray]:
        """Mean and std (empty without `with_std`) of functionals with trend columns `x`, computed in chunks."""
        exact, spacing, error = dense.refine_quadrature(self.kernel, functional, self.method.accuracy)
        all_nodes = exact.nodes(spacing)
        means, deviations, size = [], [], max(1, dense.ENTRIES_AT_ONCE // len(self.alpha))
        for begin in range(0, len(functional), size):
            rows = np.arange(begin, min(begin + size, len(functional)))
            nodes = all_nodes[rows]
            mean, half, gap = self._conditional(nodes, x[rows])
            means.append(mean)
            if with_std:
                known = np.sum(half**2, axis=0) - np.sum((gap @ self.beta_covariance) * gap, axis=1)
                prior = np.asarray(dense.compiled_prior_variances(self.kernel, nodes))
                variance = np.maximum(prior - known, 0.0)
                what = self.method.accuracy, prior, variance, "of a posterior variance"
                dense.warn_of_quadrature(functional, error, *what)
                deviations.append(np.sqrt(variance))
            report(int(rows[-1]) + 1, len(functional))
        return np.concatenate(means), np.concatenate(deviations) if with_std else np.empty(0)

    def _conditional(
        self, nodes: Nodes, x: Float[np.ndarray, "T p"]
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """For functionals with trend columns x: mean, chol^-1 k (A = chol chol', k = Cov(data, l)), and x - k' A^-1 X."""
        cross = dense.covariance_matrix(self.kernel, [nodes], self.nodes)
        half = scipy.linalg.solve_triangular(self.factor, cross.T, lower=True, check_finite=False)
        return cross @ self.alpha + x @ self.beta, half, x - cross @ self.solved_columns

    def _inverse(self) -> Float[np.ndarray, "N N"]:
        return scipy.linalg.cho_solve((self.factor, True), np.eye(len(self.alpha)), check_finite=False)
