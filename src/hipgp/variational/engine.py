"""The paper's engine: a whitened variational posterior q(e) = N(m, S), by minibatches (paper, section 3, appendix B).

    method = Variational(family="block", block_shape=(10, 10), batch_size=200, epochs=10)

The bound and its natural gradient are the paper's, with a step that cannot diverge. If the problem is small, the optimum is
computed in closed form instead (`direct`). Kernel and noise can be learned at the same time (`learn`).
"""

import math
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import equinox as eqx
import numpy as np

from hipgp.engines import Method
from hipgp.linalg.rates import Rates
from hipgp.model.grid import Grid
from hipgp.model.kernels import Kernel
from hipgp.model.problem import Problem
from hipgp.planning import Part
from hipgp.runtime.checkpoints import fingerprint
from hipgp.runtime.plain import Arrays, Json
from hipgp.runtime.precision import float64_available
from hipgp.runtime.progress import Progress
from hipgp.runtime.threads import one_blas_thread
from hipgp.variational import plan
from hipgp.variational.bound import WhitenedProblem
from hipgp.variational.data_space import Held, data_preconditioner
from hipgp.variational.families import Blocks, Gaussian, standard, tiling
from hipgp.variational.fitting import EpochReport, Steps, closed_form, dual_ascent, mean_gap, natural_gradient
from hipgp.variational.full_pass import full_pass
from hipgp.variational.hyperparameters import LogParameters, learn
from hipgp.variational.minibatch_weights import (
    NO_SOLVES,
    SolveSummary,
    StoredWeights,
    WeightSource,
    are_stored,
    exact_source,
    local_source,
    stored_exact,
    stored_local,
)
from hipgp.variational.posterior import VariationalPosterior, restored
from hipgp.variational.reporting import (
    between,
    one_of,
    per_axis,
    sizes,
    solve_facts,
    step_sizes,
    verdict,
    whole,
)
from hipgp.variational.resuming import Keeper
from hipgp.variational.whitening import Whitening, check_cholesky, whiten
from hipgp.vecchia.grid_check import grid_diagnostics, warn_if_coarse
from hipgp.vecchia.grid_error import GridModel
from hipgp.weights.stencil_geometry import STENCIL, wide_stencil
from hipgp.weights.stencils import check_stencil
from hipgp.weights.torus import check_torus, smallest_torus

# Whitened points up to which the closed form's mean is solved for on the torus, else in data space.
SMALL = 2**14
# Limits above which a fit is reported as not converged: the nats that the bound would gain from the optimal mean, and the
# relative error of a solve for the weights.
LARGEST_GAP, LARGEST_PCG_ERROR = 1.0, 1e-3

Family = Literal["mean-field", "block", "full"]


class Variational(Method):
    """How to fit the variational posterior; give it to `gp.condition(data, method=...)`.

    - `family`: "mean-field", "block" (blocks of `block_shape` tile the torus, whatever its size) or "full".
    - `weights`: "exact" (a PCG solve for each observation) or "local" (from `stencil` grid points per axis around a node).
    - `whitening`: "toeplitz" (the paper's) or "cholesky" (the standard SVGP).
    - `direct`: the closed form instead of natural gradients; None: where the weights fit into memory.
    - `step`: step size of the natural gradient, in (0, 1], or its first and last value, between which it falls; a minibatch
      for which it would be unstable takes a damped step. None: precisions are averaged over minibatches, and the mean is found by dual coordinate ascent over minibatches,
      without a step size.
    - `learn`: learn kernel and noise by Adam with `learning_rate`, together with q, for `epochs` further epochs.
    - `max_iterations`, `predict_max_iterations`, `tolerance`: of PCG in training and in prediction.
    - `start`: where PCG begins: at zero ("zero", the paper's), or at the local weights of `stencil` points an axis ("local"),
      from which far fewer iterations lead to the same error where the kernel is rough.
    - `residual`: the residual variance given the grid values is a penalty in the bound ("bound", the paper's), or it is
      added to the noise ("noise", FITC).
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
    step: Steps | None = eqx.field(static=True)
    direct: bool | None = eqx.field(static=True)
    max_iterations: int = eqx.field(static=True)
    predict_max_iterations: int = eqx.field(static=True)
    tolerance: float = eqx.field(static=True)
    stencil: int = eqx.field(static=True)
    residual: str = eqx.field(static=True)
    seed: int = eqx.field(static=True)
    start: str = eqx.field(static=True)

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
        step: Steps | None = None,
        direct: bool | None = None,
        max_iterations: int = 200,
        predict_max_iterations: int = 500,
        tolerance: float = 1e-10,
        stencil: int = STENCIL,
        residual: Literal["bound", "noise"] = "bound",
        seed: int = 0,
        start: Literal["zero", "local"] = "zero",
    ):
        self.family = one_of("family", family, ("mean-field", "block", "full"))
        self.weights = one_of("weights", weights, ("exact", "local"))
        self.whitening = one_of("whitening", whitening, ("toeplitz", "cholesky"))
        self.residual = one_of("residual", residual, ("bound", "noise"))
        self.start = one_of("start", start, ("zero", "local"))
        self.block_shape = per_axis("block_shape", block_shape)
        self.batch_size, self.epochs = whole("batch_size", batch_size), whole("epochs", epochs)
        self.max_iterations = whole("max_iterations", max_iterations)
        self.predict_max_iterations = whole("predict_max_iterations", predict_max_iterations)
        self.stencil = whole("stencil", stencil, least=2)
        check_stencil(self.stencil)
        self.tolerance = between("tolerance", tolerance, 1.0)
        self.learning_rate = between("learning_rate", learning_rate, 1.0)
        self.step = None if step is None else step_sizes(step)
        self.learn, self.direct, self.seed = bool(learn), direct, whole("seed", seed, least=0)

    def check_memory(self, problem: Problem) -> None:
        check_torus(problem.kernel, problem.grid)
        if self.whitening == "cholesky":
            check_cholesky(problem.grid)
        if self.family == "full":
            dense = self.whitening == "cholesky"
            size = problem.grid.size if dense else math.prod(smallest_torus(problem.kernel, problem.grid))
            plan.check_full(size)

    @float64_available
    def parts(self, problem: Problem, rates: Rates) -> list[Part]:
        return plan.parts(self, problem, rates)

    def condition(
        self, problem: Problem, progress: bool = True, checkpoint: Any = None
    ) -> VariationalPosterior:
        """The posterior of a problem without a trend. `checkpoint` names a file that mini-batch fits go on from."""
        if problem.trend.kind is not None:
            raise ValueError(
                "trend: expected None with the variational engine; use method=Batch() for trends"
            )
        self.check_memory(problem)
        found = self.fit(problem, progress, checkpoint, check_grid=True)
        warn_if_coarse(found.diagnostics, problem.grid, problem.data, self.residual, self.stencil)
        return found

    def unpack(
        self, kernel: Kernel, grid: Grid, noise: float | None, arrays: Arrays, model: Json
    ) -> VariationalPosterior:
        return restored(self, kernel, grid, noise, arrays, model)

    @property
    def first_stencil(self) -> int | None:
        """The width of the stencils of the weights that PCG begins at; None where it begins at zero."""
        return self.stencil if self.start == "local" else None

    @property
    def learns(self) -> bool:
        return self.learn

    @one_blas_thread
    @float64_available
    def fit(
        self,
        model: Problem,
        progress: bool = True,
        checkpoint: Any = None,
        held: Held | None = None,
        check_grid: bool = False,
    ) -> VariationalPosterior:
        """The posterior of a problem without a trend. `check_grid` adds its errors due to the grid to the diagnostics.

        `held` is what was found before for this kernel, grid and data, to serve several families or ways to fit.
        """
        self._check(model)
        keeper = Keeper(checkpoint, "" if checkpoint is None else fingerprint(self, *model[:4]))
        with Progress("variational", progress) as bar:
            trace = None
            if self.learn:
                model, trace = self._learned(model, bar, keeper)
            kernel, grid, data, noise, _ = model
            whitening = whiten(kernel, grid, self.whitening)
            held = held or Held(*self._source(model, whitening))
            problem = self._problem(model, held.weights, whitening)
            q, facts = self._optimum(self.blocks(whitening, grid), model, problem, held, bar, keeper)
            last = full_pass(q, problem, keeper=keeper)
        keeper.remove()
        facts |= solve_facts(held.solves if isinstance(held.weights, StoredWeights) else last.solves)
        gap = facts.pop("mean_gap_nats", None)
        facts |= {
            "elbo": last.bound,
            "mean_gap_nats": mean_gap(q, problem, last.gradient, held.best_mean) if gap is None else gap,
            "mean_gap_nats_bound": 0.5 * float(last.gradient @ last.gradient),  # rigorous, since Lambda >= I
        }
        facts |= self._grid_facts(model) if check_grid else {}
        facts |= {"engine": "variational", "family": self.family, "blocks": tuple(q.blocks.index.shape)}
        facts |= {} if trace is None else {"learning_trace": trace}
        facts |= sizes(len(data), grid.shape, whitening)
        facts |= verdict(facts, LARGEST_GAP, LARGEST_PCG_ERROR) | {"seconds": keeper.seconds}
        return VariationalPosterior(kernel, grid, noise, self, facts, data.dtype, whitening, q, problem)

    def _check(self, model: Problem) -> None:
        kernel, grid, data, _, _ = model
        kernel.check_dimension(grid.ndim)
        for block in data.blocks:
            self.check(kernel, grid, block.functional)
        if self.block_shape is not None and len(self.block_shape) not in (1, grid.ndim):
            raise ValueError(
                f"block_shape: expected {grid.ndim} whole numbers, one per axis of the grid, got {self.block_shape}"
            )

    def blocks(self, whitening: Whitening, grid: Grid) -> Blocks:
        """The tiling of the whitened points by the family's blocks."""
        if self.family == "mean-field":
            return tiling(whitening.shape, (1,) * grid.ndim)
        if self.family == "full":
            plan.check_full(whitening.size)
            return tiling(whitening.shape, whitening.shape)
        shape = self.block_shape or (max(1, round(100 ** (1 / grid.ndim))),)
        return tiling(whitening.shape, shape if len(shape) == grid.ndim else shape * grid.ndim)

    def _problem(self, model: Problem, source: WeightSource, whitening: Whitening) -> WhitenedProblem:
        """The problem as the engine solves it, whitened and in minibatches."""
        kernel, data = model.kernel, model.data
        return WhitenedProblem.of(
            source, kernel, whitening, data, model.noise_std, self.residual, self.batch_size
        )

    def _source(self, model: Problem, whitening: Whitening) -> tuple[WeightSource, SolveSummary]:
        """All weights where they fit into memory, otherwise an object that computes them batch by batch."""
        kernel, grid, data, _, _ = model
        if self.weights == "local":
            return stored_local(kernel, grid, data, self.stencil, data.dtype), NO_SOLVES
        source = self._on_demand(model)
        if not are_stored(len(data), grid.size, self.solve_dtype(data.dtype)):
            return source, NO_SOLVES
        counts = tuple(len(b.y) for b in data.blocks)
        return stored_exact(source, kernel, whitening, counts, max(1, -(-len(data) // self.batch_size)))

    def _on_demand(self, model: Problem) -> WeightSource:
        grid, functionals = model.grid, model.data.functionals
        if self.weights == "local":
            return local_source(grid, functionals, self.stencil)
        dtype = self.solve_dtype(model.data.dtype)
        limits = self.tolerance, self.max_iterations
        return exact_source(model.kernel, grid, functionals, *limits, dtype, self.first_stencil)

    def solve_dtype(self, dtype: Any) -> Any:
        """The dtype of the solves for exact weights, given the data's: a dense K is too ill-conditioned for float32."""
        return np.dtype(dtype if self.whitening == "toeplitz" else np.float64)

    def _grid_facts(self, model: Problem) -> dict[str, Any]:
        stencil = self.stencil if self.weights == "local" else wide_stencil(model.grid)
        approximation = GridModel(
            None, None, stencil, residual_as_noise=self.residual == "noise", vecchia_std=False
        )
        return grid_diagnostics(model, approximation)

    def _is_direct(self, problem: WhitenedProblem) -> bool:
        stored = isinstance(problem.source, StoredWeights)
        if self.direct and not stored and self.family != "full":
            raise ValueError(
                'direct: expected weights that fit into memory for the closed form, got more; use weights="local" or '
                "direct=False"
            )
        return (stored or self.family == "full") if self.direct is None else self.direct

    def _optimum(
        self,
        blocks: Blocks,
        model: Problem,
        problem: WhitenedProblem,
        held: Held,
        bar: Progress,
        keeper: Keeper,
    ) -> tuple[Gaussian, dict[str, Any]]:
        """q for fixed hyperparameters, and how it was found."""
        if self._is_direct(problem):
            root = held.preconditioner
            if root is None and len(blocks.index) > 1 and blocks.size > SMALL:
                root = data_preconditioner(model, self.solve_dtype(model.data.dtype))
            found = closed_form(blocks, problem, keeper, root)
            facts = {"direct": True, "epochs": 0, "elbo_trace": [], "mean_iterations": found.steps}
            return found.q, facts | ({} if found.nats is None else {"mean_gap_nats": found.nats})
        facts = {"direct": False, "epochs": self.epochs}
        if (found := keeper.left("q", (standard(blocks), np.zeros(self.epochs)))) is not None:
            return found[0], facts | {"elbo_trace": found[1].tolist()}
        settings = np.random.default_rng(self.seed), _reporter(bar, "variational"), keeper
        if self.step is None:
            q, trace = dual_ascent(blocks, problem, self.epochs, *settings)
        else:
            q, trace = natural_gradient(blocks, problem, self.epochs, self.step, *settings)
        keeper.leave("q", (q, np.asarray(trace)))
        return q, facts | {"elbo_trace": trace}

    def _learned(self, model: Problem, bar: Progress, keeper: Keeper) -> tuple[Problem, list[float]]:
        """The problem with kernel and noise as learned, and the bound after each epoch of learning them."""
        kernel, grid, data, noise, _ = model
        first = noise if noise is not None else 0.3 * float(np.std(data.y)) or 1.0
        rewhiten = lambda kernel: whiten(kernel, grid, self.whitening)
        problem = self._problem(model._replace(noise=first), self._on_demand(model), rewhiten(kernel))
        logs, trace = learn(
            LogParameters.of(kernel, first),
            problem,
            data.noise_known,
            lambda whitening: self.blocks(whitening, grid),
            rewhiten,
            self.epochs,
            self.learning_rate,
            np.random.default_rng(self.seed),
            _reporter(bar, "learning"),
            keeper,
        )
        learned = noise if np.all(data.noise_known) else float(np.exp(logs.noise))
        return model._replace(kernel=logs.as_kernel(), noise=learned), trace


def _reporter(bar: Progress, description: str) -> EpochReport:
    """Shows the epochs done and the bound."""
    bar.describe(description)
    return lambda done, total, elbo: bar.update(f"epoch {done} of {total}, ELBO {elbo:,.2f}", done / total)
