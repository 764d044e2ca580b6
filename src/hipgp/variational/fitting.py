"""The optimum of the bound: in closed form (appendix B.1.1), by natural gradients (B.1.2), or by ascent in the dual.

The optimal mean is m = Lambda^-1 b and the optimal covariance has the blocks S_i = Lambda_i^-1, where
Lambda = I + R' W' N^-1 W R and b = R' W' N^-1 y.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from hipgp.linalg.krylov import Solution, conjugate_gradients
from hipgp.linalg.preconditioner import Preconditioner
from hipgp.variational.bound import Terms, WhitenedProblem, epoch_bound, terms
from hipgp.variational.data_space import best_mean
from hipgp.variational.families import (
    Blocks,
    Gaussian,
    MinibatchGradient,
    combination,
    gaussian,
    inner_products,
    natural_step,
    product,
    standard,
    toward_precision,
)
from hipgp.variational.full_pass import full_pass
from hipgp.variational.minibatch_weights import TOGETHER, Selection, Selections, StoredWeights
from hipgp.variational.resuming import Keeper, noted, run

SOLVE_ITERATIONS, GAP_ITERATIONS = np.asarray(2000), np.asarray(50)  # arrays: compiled once

Steps = float | tuple[float, float]
EpochReport = Callable[[int, int, float], None]  # epochs done, of how many, and the bound


# --- in closed form ---------------------------------------------------------------------------------------------------


class ClosedForm(NamedTuple):
    """The optimum, the steps that its mean took (none where there is one block), and the nats that it may lack, if known."""

    q: Gaussian
    steps: int
    nats: float | None = None


def closed_form(
    blocks: Blocks, problem: WhitenedProblem, keeper: Keeper, preconditioner: Preconditioner | None = None
) -> ClosedForm:
    """The optimum. The mean is solved for in data space with a `preconditioner` of the data, and else on the torus."""
    found = full_pass(standard(blocks), problem, blocks=True, keeper=keeper)
    assert found.precision is not None
    q = gaussian(blocks, jnp.zeros(blocks.size), found.precision)
    if len(blocks.index) == 1:
        return ClosedForm(_with_mean(q, q.precondition(found.gradient)), 0)
    if preconditioner is not None:
        best = best_mean(problem, preconditioner)
        return ClosedForm(_with_mean(q, best.mean), int(best.steps), float(best.nats))
    solution = _solve_mean(q, problem, found.gradient, SOLVE_ITERATIONS)
    return ClosedForm(_with_mean(q, solution.value[0]), int(solution.iterations[0]))


def mean_gap(q: Gaussian, problem: WhitenedProblem, gradient: Array, best: Array | None = None) -> float:
    """The gain of the bound from the best mean, (b - Lambda m)' Lambda^-1 (b - Lambda m) / 2, estimated.

    From the best mean itself, where it is known. By a few conjugate-gradient steps where the weights are stored; otherwise with the blocks of Lambda alone, which may
    give less than the true gap.
    """
    if best is not None:
        return 0.5 * float(gradient @ (best - q.mean))
    if isinstance(problem.source, StoredWeights) and len(q.blocks.index) > 1:
        return 0.5 * float(gradient @ _solve_mean(q, problem, gradient, GAP_ITERATIONS).value[0])
    return 0.5 * float(gradient @ q.precondition(gradient))


@eqx.filter_jit
def _solve_mean(q: Gaussian, problem: WhitenedProblem, b: Array, iterations: Any) -> Solution:
    """Lambda^-1 b by conjugate gradients, with the blocks of Lambda as preconditioner."""
    assert isinstance(problem.source, StoredWeights)
    stored, whitening = problem.source.stored, problem.whitening
    variance = problem.variance + (stored.residual if problem.residual == "noise" else 0.0)

    def matmul(v: Array) -> Array:
        values = stored.matmul(whitening.root(v)) / variance
        return v + whitening.root_transpose(stored.transpose_matmul(values))

    return conjugate_gradients(
        matmul,
        b[None],
        precondition=lambda r: q.precondition(r[0])[None],
        tolerance=1e-10,
        max_iterations=iterations,
    )


def _with_mean(q: Gaussian, mean: Array) -> Gaussian:
    return eqx.tree_at(lambda g: g.mean, q, mean)


# --- by natural gradients ---------------------------------------------------------------------------------------------


class _Natural(NamedTuple):
    """q on its way, the best so far, a factor of the step, and the expected log-likelihood that this epoch has summed."""

    q: Gaussian
    best: Gaussian
    factor: np.ndarray
    expected: np.ndarray
    trace: np.ndarray  # the bound after each epoch


def natural_gradient(
    blocks: Blocks,
    problem: WhitenedProblem,
    epochs: int,
    steps: Steps,
    rng: np.random.Generator,
    report: EpochReport,
    keeper: Keeper,
) -> tuple[Gaussian, list[float]]:
    """Natural gradients with one step size for mean and covariance, and the bound after each epoch.

    With two step sizes it falls from the first to the second, by the same factor at each minibatch of all epochs. Where an epoch lowers the bound by much, the fit goes back to its best and the step is halved.
    """

    def update(now: _Natural, some: list[Selection], epoch: int, number: int) -> _Natural:
        state, done = (now.q, jnp.asarray(now.expected)), epoch * problem.batches + number
        steps = jnp.asarray(now.factor * first_step), jnp.asarray(fall), jnp.asarray(done)
        q, expected = _natural_updates(state, problem, Selections.of(some, TOGETHER), *steps)
        return now._replace(q=q, expected=np.asarray(expected))

    def end(now: _Natural, epoch: int) -> _Natural:
        bound, highest = epoch_bound(float(now.expected), now.q), max(now.trace[1:epoch], default=-np.inf)
        now = now._replace(expected=np.zeros(()), trace=noted(now.trace, epoch, bound))
        report(epoch + 1, epochs, bound)
        if bound >= highest:
            return now._replace(best=now.q)
        if bound < highest - abs(highest) - len(problem.y):  # a smaller loss may be the minibatches' noise
            return now._replace(q=now.best, factor=0.5 * now.factor)
        return now

    q = standard(blocks)
    first_step, last_step = steps if isinstance(steps, tuple) else (steps, steps)
    fall = (last_step / first_step) ** (1 / max(1, epochs * problem.batches - 1))
    first = _Natural(q, q, np.ones(()), np.zeros(()), np.zeros(epochs))
    shuffled = lambda: problem.minibatches(rng)
    last = run(keeper, "natural gradients", first, shuffled, epochs, update, end, TOGETHER)
    return last.q, last.trace.tolist()


@eqx.filter_jit
def _natural_updates(
    state: tuple[Gaussian, Array],
    problem: WhitenedProblem,
    some: Selections,
    step: Array,
    fall: Array,
    done: Array,
) -> tuple[Gaussian, Array]:
    """The paper's step by each of some minibatches, after `done` others, falling from one to the next.

    With q goes the sum of the expected log-likelihoods, each before its step.
    """

    def update(now: tuple[Gaussian, Array], selection: Selection, number: Array) -> tuple[Gaussian, Array]:
        q, expected = now
        t, _ = terms(problem, selection)
        here = step * fall ** (done + number)
        moved = minibatch_step(q, t, problem.batches, here, here, implicit=False)
        return moved, expected + t.expected_log_likelihood(q)

    return some.fold(update, state)


def minibatch_step(
    q: Gaussian, t: Terms, batches: int, mean_step: Array, covariance_step: Array, implicit: bool
) -> Gaussian:
    """A natural-gradient step by one minibatch of an epoch of `batches`."""
    gradient = batches * t.likelihood_gradient(q.mean) - q.mean
    estimate = MinibatchGradient(t.k, batches * t.precision, gradient)
    return natural_step(q, estimate, mean_step, covariance_step, implicit)


# --- by ascent in the dual --------------------------------------------------------------------------------------------


class _Dual(NamedTuple):
    """q with its mean as a sum over the observations, m = sum_n alpha_n k_n; at the optimum alpha_n = (y_n - k_n'm) / s_n^2.

    Each minibatch sets its own alpha_n so that the bound is the highest in them: block-coordinate ascent in the dual,
    with no step size to choose, that never lowers the dual bound and converges geometrically.
    """

    q: Gaussian
    alpha: Float[Array, " N"]


class _Ascent(NamedTuple):
    """The dual on its way, with the expected log-likelihood that this epoch has summed."""

    dual: _Dual
    expected: np.ndarray
    trace: np.ndarray  # the bound after each epoch


def dual_ascent(
    blocks: Blocks,
    problem: WhitenedProblem,
    epochs: int,
    rng: np.random.Generator,
    report: EpochReport,
    keeper: Keeper,
) -> tuple[Gaussian, list[float]]:
    """The mean by ascent in the dual, the covariances by their average over the first epoch, which is exact."""

    def update(now: _Ascent, some: list[Selection], epoch: int, number: int) -> _Ascent:
        done = jnp.asarray(number if epoch == 0 else -1)
        state = now.dual, jnp.asarray(now.expected)
        dual, expected = _dual_updates(state, problem, Selections.of(some, TOGETHER), done)
        return _Ascent(dual, np.asarray(expected), now.trace)

    def end(now: _Ascent, epoch: int) -> _Ascent:
        bound = epoch_bound(float(now.expected), now.dual.q)
        report(epoch + 1, epochs, bound)
        return _Ascent(now.dual, np.zeros(()), noted(now.trace, epoch, bound))

    first = _Ascent(_Dual(standard(blocks), jnp.zeros(len(problem.y))), np.zeros(()), np.zeros(epochs))
    shuffled = lambda: problem.minibatches(rng)
    last = run(keeper, "dual ascent", first, shuffled, epochs, update, end, TOGETHER)
    return last.dual.q, last.trace.tolist()


@eqx.filter_jit
def _dual_updates(
    state: tuple[_Dual, Array], problem: WhitenedProblem, some: Selections, done: Array
) -> tuple[_Dual, Array]:
    """The best mean in each minibatch's alpha_n in turn; with it goes the sum of their expected log-likelihoods before the steps.

    In the first epoch, of which `done` minibatches were taken before, the covariances are averaged too; later it is -1.
    """

    def update(now: tuple[_Dual, Array], selection: Selection, number: Array) -> tuple[_Dual, Array]:
        dual, expected = now
        t, _ = terms(problem, selection)
        moved = _dual_step(dual, t, problem.numbers(selection))
        q = jax.lax.cond(done >= 0, _average, lambda q, *_: q, moved.q, t, problem.batches, done + number)
        return _Dual(q, moved.alpha), expected + t.expected_log_likelihood(dual.q)

    return some.fold(update, state)


def _dual_step(now: _Dual, t: Terms, where: Array) -> _Dual:
    """The best mean in the alpha_n of one minibatch, whose observations are those numbered `where`."""
    k = jnp.where(t.mask[:, None], t.k, 0)
    short = t.mask * (t.y - product(k, now.q.mean) - t.variance * now.alpha[where])
    gram = inner_products(k) + jnp.diag(t.variance)
    change = jax.scipy.linalg.solve(gram, short, assume_a="pos")
    moved = _with_mean(now.q, now.q.mean + combination(change, k))
    return _Dual(moved, now.alpha.at[where].add(t.mask * change))


def _average(q: Gaussian, t: Terms, batches: Any, number: Array) -> Gaussian:
    """P moved towards a minibatch's estimate by a share of 1, 1/2, 1/3, ...: the average of them all."""
    return toward_precision(q, MinibatchGradient(t.k, batches * t.precision, q.mean), 1 / (number + 1.0))
