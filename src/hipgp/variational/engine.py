"""The paper's engine: a whitened variational posterior q(e) = N(m, S), by minibatches (paper, section 3, appendix B).

    method = Variational(family="block", block_shape=(10, 10), batch_size=200, epochs=10)

The bound is the paper's; so is its natural gradient, with a step that cannot diverge. Where the problem is small the
optimum is computed in closed form instead (`direct`). Kernel and noise can be learned on the way (`learn`).
"""

import time
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from hipgp.engines import Method
from hipgp.engines import Problem as GPProblem
from hipgp.model.data import Data
from hipgp.model.grid import Grid
from hipgp.model.kernels import Kernel
from hipgp.model.packing import Arrays, Json
from hipgp.runtime.precision import float64_available
from hipgp.runtime.threads import one_blas_thread
from hipgp.variational.families import Blocks, Gaussian, standard, tiling
from hipgp.variational.hyperparameters import Logs, begin, current, epoch, outgrown
from hipgp.variational.minibatch_weights import (
    NO_SOLVES,
    Solves,
    Source,
    Table,
    exact_source,
    local_source,
    local_table,
    parts,
    table_limit,
    tabulated,
)
from hipgp.variational.natural import (
    Dual,
    Problem,
    average_precision,
    closed_form,
    divergence,
    dual_update,
    mean_gap,
    natural_update,
    survey,
)
from hipgp.variational.posterior import VariationalPosterior, restored
from hipgp.variational.reporting import (
    Reporter,
    between,
    check_finite,
    one_of,
    per_axis,
    sizes,
    solve_facts,
    verdict,
    whole,
)
from hipgp.variational.whitening import Whitening, whiten
from hipgp.vecchia.grid_check import GridModel, grid_diagnostics, warn_if_coarse, wide_stencil
from hipgp.weights.stencils import STENCIL, check_stencil
from hipgp.weights.toeplitz import check_torus

SMALL = 2**14  # whitened points up to which the closed form is taken unasked
LARGEST_FULL = 2**14  # whitened points of a full-rank S: 2 GiB in float64
SHORT_NATS = 1.0  # estimated shortfall of the mean that is worth a word
SHORT_PCG = 1e-3  # likewise the relative error of a solve for the weights

Family = Literal["mean-field", "block", "full"]


class Variational(Method):
    """How to fit the variational posterior; give it to `gp.condition(data, method=...)`.

    - `family`: "mean-field", "block" (blocks of `block_shape` tile the torus, whatever its size) or "full".
    - `weights`: "exact" (a PCG solve for each observation) or "local" (`stencil` points an axis around each node).
    - `whitening`: "toeplitz" (the paper's) or "cholesky" (the standard SVGP).
    - `direct`: the closed form instead of natural gradients; None: where the problem is small enough.
    - `step`: of the natural gradient, in (0, 1]; a minibatch for which it would be unstable takes a damped step. None:
      each covariance is the average of what the minibatches say, and the mean is found by ascent in the dual, minibatch
      by minibatch, without a step size.
    - `learn`: kernel and noise by Adam with `learning_rate`, together with q, for as many epochs again.
    - `max_iterations`, `predict_max_iterations`, `tolerance`: of PCG in training and in prediction.
    - `residual`: the variance that the grid does not carry is a penalty ("bound", the paper's) or "noise" (FITC).
    """

    name: ClassVar[str] = "variational"
    family: Family = eqx.field(static=True)
    block_shape: tuple[int, ...] | None = eqx.field(static=True)
    batch_size: int = eqx.field(static=True)
    epochs: int = eqx.field(static=True)
    weights: str = eqx.field(static=True)
    whitening: str = eqx.field(static=True)
    learn: bool = eqx.field(static=True)
    learning_rate: float = eqx.field(static=True)
    step: float | None = eqx.field(static=True)
    direct: bool | None = eqx.field(static=True)
    max_iterations: int = eqx.field(static=True)
    predict_max_iterations: int = eqx.field(static=True)
    tolerance: float = eqx.field(static=True)
    stencil: int = eqx.field(static=True)
    residual: str = eqx.field(static=True)
    seed: int = eqx.field(static=True)

    def __init__(
        self,
        family: Family = "block",
        block_shape: Sequence[int] | int | None = None,
        batch_size: int = 200,
        epochs: int = 10,
        *,
        weights: Literal["exact", "local"] = "exact",
        whitening: Literal["toeplitz", "cholesky"] = "toeplitz",
        learn: bool = False,
        learning_rate: float = 0.02,
        step: float | None = None,
        direct: bool | None = None,
        max_iterations: int = 200,
        predict_max_iterations: int = 500,
        tolerance: float = 1e-10,
        stencil: int = STENCIL,
        residual: Literal["bound", "noise"] = "bound",
        seed: int = 0,
    ):
        self.family = one_of("family", family, ("mean-field", "block", "full"))
        self.weights = one_of("weights", weights, ("exact", "local"))
        self.whitening = one_of("whitening", whitening, ("toeplitz", "cholesky"))
        self.residual = one_of("residual", residual, ("bound", "noise"))
        self.block_shape = per_axis("block_shape", block_shape)
        self.batch_size, self.epochs = whole("batch_size", batch_size), whole("epochs", epochs)
        self.max_iterations = whole("max_iterations", max_iterations)
        self.predict_max_iterations = whole("predict_max_iterations", predict_max_iterations)
        self.stencil = whole("stencil", stencil, least=2)
        check_stencil(self.stencil)
        self.tolerance = between("tolerance", tolerance, 1.0)
        self.learning_rate = between("learning_rate", learning_rate, 1.0)
        self.step = None if step is None else between("step", step, 1.0)
        self.learn, self.direct, self.seed = bool(learn), direct, whole("seed", seed, least=0)

    def condition(
        self, problem: GPProblem, progress: bool = True, checkpoint: Any = None
    ) -> VariationalPosterior:
        """The posterior of a problem without a trend; there are no checkpoints."""
        kernel, grid, data, noise, trend = problem
        if trend.kind is not None:
            raise ValueError(
                "trend: expected None with the variational engine; use method=Batch() for trends"
            )
        if checkpoint is not None:
            raise ValueError("checkpoint: expected None with the variational engine")
        check_torus(kernel, grid)
        found = self.fit(kernel, grid, data, noise, progress)
        warn_if_coarse(found.diagnostics, grid, data, self.residual, self.stencil)
        return found

    def unpack(
        self, kernel: Kernel, grid: Grid, noise: float | None, arrays: Arrays, model: Json
    ) -> VariationalPosterior:
        return restored(self, kernel, grid, noise, arrays, model)

    @one_blas_thread
    @float64_available
    def fit(
        self, kernel: Kernel, grid: Grid, data: Data, noise: float | None, progress: bool = True
    ) -> VariationalPosterior:
        """q for `data` under `kernel` on `grid`; `noise` is the std of observations that came without one."""
        began = time.perf_counter()
        self._check(kernel, grid, data)
        with Reporter(progress) as reporter:
            learning = None
            if self.learn:
                kernel, noise, learning = self._learned(kernel, grid, data, noise, reporter)
            whitening = whiten(kernel, grid, self.whitening)
            source, solves = self._source(kernel, grid, data, whitening)
            problem = _problem(source, data, data.noise_std(noise), self.residual)
            q, facts = self._optimum(self.blocks(whitening, grid), problem, kernel, whitening, reporter)
        last = survey(q, problem, kernel, whitening, self._batches(len(data)))
        facts |= solve_facts(solves if isinstance(source, Table) else last.solves)
        facts |= {
            "elbo": last.bound,
            "mean_gap_nats": mean_gap(q, problem, whitening, last.gradient),
            "mean_gap_nats_bound": 0.5 * float(last.gradient @ last.gradient),  # rigorous, since Lambda >= I
        }
        facts |= self._grid_facts(kernel, grid, data, noise)
        facts |= {"engine": "variational", "family": self.family, "blocks": tuple(q.blocks.index.shape)}
        facts |= {} if learning is None else {"learning_trace": learning}
        facts |= sizes(len(data), grid.shape, whitening)
        facts |= verdict(facts, SHORT_NATS, SHORT_PCG) | {"seconds": time.perf_counter() - began}
        return VariationalPosterior(kernel, grid, noise, self, facts, data.dtype, whitening, q, problem)

    # --- set-up -------------------------------------------------------------------------------------------------------

    def _check(self, kernel: Kernel, grid: Grid, data: Data) -> None:
        kernel.check_dimension(grid.ndim)
        for block in data.blocks:
            self.check(kernel, grid, block.functional)
        if self.block_shape is not None and len(self.block_shape) not in (1, grid.ndim):
            raise ValueError(
                f"block_shape: expected {grid.ndim} whole numbers, one per axis of the grid, got {self.block_shape}"
            )

    def blocks(self, whitening: Whitening, grid: Grid) -> Blocks:
        """How the whitened points are tiled."""
        if self.family == "mean-field":
            return tiling(whitening.shape, (1,) * grid.ndim)
        if self.family == "full":
            if whitening.size > LARGEST_FULL:
                raise ValueError(
                    f'family: "full" needs a covariance of {whitening.size} whitened points a side; expected '
                    f'at most {LARGEST_FULL}: use family="block" or method=Batch()'
                )
            return tiling(whitening.shape, whitening.shape)
        shape = self.block_shape or (max(1, round(100 ** (1 / grid.ndim))),)
        return tiling(whitening.shape, shape if len(shape) == grid.ndim else shape * grid.ndim)

    def _source(self, kernel: Kernel, grid: Grid, data: Data, whitening: Whitening) -> tuple[Source, Solves]:
        """A table of all weights where it fits, else what computes them batch by batch."""
        if self.weights == "local":
            return local_table(kernel, grid, data, self.stencil, data.dtype), NO_SOLVES
        functionals = [b.functional for b in data.blocks]
        source = exact_source(kernel, grid, functionals, self.tolerance, self.max_iterations)
        if len(data) * grid.size > table_limit():
            return source, NO_SOLVES
        counts = tuple(len(b.y) for b in data.blocks)
        return tabulated(source, kernel, whitening, counts, self._batches(len(data)))

    def _grid_facts(self, kernel: Kernel, grid: Grid, data: Data, noise: float | None) -> dict[str, Any]:
        stencil = self.stencil if self.weights == "local" else wide_stencil(grid)
        seen = GridModel(None, None, stencil, residual_as_noise=self.residual == "noise", vecchia_std=False)
        return grid_diagnostics(kernel, grid, data, data.noise_std(noise), seen)

    def _is_direct(self, whitening: Whitening, source: Source) -> bool:
        held = isinstance(source, Table)
        if self.direct and not held and self.family != "full":
            raise ValueError(
                'direct: expected weights that fit into memory for the closed form, got more; use weights="local" or '
                "direct=False"
            )
        small = self.family == "full" or (held and whitening.size <= SMALL)
        return small if self.direct is None else self.direct

    def _batches(self, count: int) -> int:
        return max(1, -(-count // self.batch_size))

    # --- fitting ------------------------------------------------------------------------------------------------------

    def _optimum(
        self, blocks: Blocks, problem: Problem, kernel: Kernel, whitening: Whitening, reporter: Reporter
    ) -> tuple[Gaussian, dict[str, Any]]:
        """q for fixed hyperparameters, and how it was found."""
        if not self._is_direct(whitening, problem.source):
            q, trace = self._natural(blocks, problem, kernel, whitening, reporter)
            return q, {"direct": False, "epochs": self.epochs, "elbo_trace": trace}
        q, solution = closed_form(blocks, problem, kernel, whitening, self._batches(len(problem.y)))
        iterations = 0 if solution is None else int(solution.iterations[0])
        return q, {"direct": True, "epochs": 0, "elbo_trace": [], "mean_iterations": iterations}

    def _natural(
        self, blocks: Blocks, problem: Problem, kernel: Kernel, whitening: Whitening, reporter: Reporter
    ) -> tuple[Gaussian, list[float]]:
        """Natural gradients by minibatches (appendix B.1.2)."""
        how = self._by_shares if self.step is None else self._by_steps
        return how(blocks, problem, kernel, whitening, reporter)

    def _by_steps(
        self, blocks: Blocks, problem: Problem, kernel: Kernel, whitening: Whitening, reporter: Reporter
    ) -> tuple[Gaussian, list[float]]:
        """The user's step in mean and covariance. Where an epoch lowers the bound by much, the fit goes back to its
        best and the step is halved."""
        batches = self._batches(len(problem.y))
        rng = np.random.default_rng(self.seed)
        q, trace, step = standard(blocks), [], self.step or 1.0
        best = q
        for number in range(self.epochs):
            expected = 0.0
            for selection in parts(problem.counts, batches, rng):
                update = problem, kernel, whitening, selection, jnp.asarray(batches), jnp.asarray(step)
                q, log = natural_update(q, *update)
                expected += float(log)
            highest = max(trace[1:], default=-np.inf)
            self._ended(number, expected, q, trace, reporter)
            if trace[-1] >= highest:
                best = q
            elif trace[-1] < highest - abs(highest) - len(problem.y):  # less is noise, and passes
                q, step = best, 0.5 * step
        return q, trace

    def _by_shares(
        self, blocks: Blocks, problem: Problem, kernel: Kernel, whitening: Whitening, reporter: Reporter
    ) -> tuple[Gaussian, list[float]]:
        """The mean by the shares of its observations; covariances are the average over the first epoch, which is exact."""
        batches = self._batches(len(problem.y))
        rng = np.random.default_rng(self.seed)
        now, trace, seen = Dual(standard(blocks), jnp.zeros(len(problem.y))), [], 0
        for number in range(self.epochs):
            expected = 0.0
            for selection in parts(problem.counts, batches, rng):
                now, t, log = dual_update(now, problem, kernel, whitening, selection)
                expected += float(log)
                if number == 0:
                    seen += 1
                    q = average_precision(now.q, t, jnp.asarray(batches), jnp.asarray(1.0 / seen))
                    now = Dual(q, now.shares)
            self._ended(number, expected, now.q, trace, reporter)
        return now.q, trace

    def _ended(
        self, number: int, expected: float, q: Gaussian, trace: list[float], reporter: Reporter
    ) -> None:
        """An epoch's bound, from what its minibatches saw on the way."""
        trace.append(expected - float(divergence(q)))
        check_finite(trace[-1])
        reporter.epoch("variational", number, self.epochs, trace[-1])

    def _learned(
        self, kernel: Kernel, grid: Grid, data: Data, noise: float | None, reporter: Reporter
    ) -> tuple[Kernel, float | None, list[float]]:
        """Kernel and noise by gradient. The torus stays while it fits; on a new one q begins anew."""
        first_noise = noise if noise is not None else 0.3 * float(np.std(data.y)) or 1.0
        functionals = [b.functional for b in data.blocks]
        source = (
            local_source(grid, functionals, self.stencil)
            if self.weights == "local"
            else exact_source(kernel, grid, functionals, self.tolerance, self.max_iterations)
        )
        problem = _problem(source, data, data.noise_std(first_noise), self.residual, known=data.noise_known)
        whitening = whiten(kernel, grid, self.whitening)
        now = begin(Logs.of(kernel, first_noise), self.blocks(whitening, grid))
        rng, trace = np.random.default_rng(self.seed), []
        for number in range(self.epochs + 1):
            now, bound = epoch(now, problem, whitening, self._batches(len(data)), rng, self.learning_rate)
            trace.append(bound)
            reporter.epoch("learning", number, self.epochs + 1, bound)
            if outgrown(now.logs, whitening):
                larger = whiten(current(now.logs), grid, self.whitening)
                if larger.shape != whitening.shape:
                    whitening = larger
                    now = begin(now.logs, self.blocks(whitening, grid))
        learned = noise if np.all(data.noise_known) else float(jnp.exp(now.logs.noise))
        return current(now.logs), learned, trace


def _problem(
    source: Source, data: Data, std: np.ndarray, residual: str, known: np.ndarray | None = None
) -> Problem:
    everything = np.ones(len(data), bool) if known is None else known
    variance = jnp.asarray(std, float) ** 2
    counts = tuple(len(b.y) for b in data.blocks)
    return Problem(source, jnp.asarray(data.y, float), variance, jnp.asarray(everything), counts, residual)
