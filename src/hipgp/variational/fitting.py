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
from hipgp.variational.bound import Terms, WhitenedProblem, epoch_bound, terms
from hipgp.variational.families import (
    Blocks,
    Gaussian,
    MinibatchGradient,
    gaussian,
    natural_step,
    standard,
    toward_precision,
)
from hipgp.variational.full_pass import full_pass
from hipgp.variational.minibatch_weights import Selection, StoredWeights
from hipgp.variational.resuming import Keeper, noted, run

SOLVE_ITERATIONS, GAP_ITERATIONS = np.asarray(2000), np.asarray(50)  # arrays: compiled once

EpochReport = Callable[[int, int, float], None]  # epochs done, of how many, and the bound


# --- in closed form ---------------------------------------------------------------------------------------------------


def closed_form(blocks: Blocks, problem: WhitenedProblem, keeper: Keeper) -> tuple[Gaussian, int]:
    """The optimum, and the conjugate-gradient steps that its mean took (none where there is one block)."""
    found = full_pass(standard(blocks), problem, blocks=True, keeper=keeper)
    assert found.precision is not None
    q = gaussian(blocks, jnp.zeros(blocks.size), found.precision)
    if len(blocks.index) == 1:
        return _with_mean(q, q.precondition(found.gradient)), 0
    solution = _solve_mean(q, problem, found.gradient, SOLVE_ITERATIONS)
    return _with_mean(q, solution.value[0]), int(solution.iterations[0])


def mean_gap(q: Gaussian, problem: WhitenedProblem, gradient: Array) -> float:
    """What the bound would gain from the best mean, (b - Lambda m)' Lambda^-1 (b - Lambda m) / 2, estimated.

    By a few conjugate-gradient steps where the weights are stored; otherwise with the blocks of Lambda alone, which may
    give less than the true gap.
    """
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
    """q on its way, the best so far, the step, and the expected log-likelihood that this epoch has summed."""

    q: Gaussian
    best: Gaussian
    step: np.ndarray
    expected: np.ndarray
    trace: np.ndarray  # the bound after each epoch


def natural_gradient(
    blocks: Blocks,
    problem: WhitenedProblem,
    epochs: int,
    step: float,
    rng: np.random.Generator,
    report: EpochReport,
    keeper: Keeper,
) -> tuple[Gaussian, list[float]]:
    """Natural gradients with one step size for mean and covariance, and the bound after each epoch.

    Where an epoch lowers the bound by much, the fit goes back to its best and the step is halved.
    """

    def update(now: _Natural, selection: Selection, epoch: int, number: int) -> _Natural:
        q, log = _natural_update(now.q, problem, selection, jnp.asarray(now.step))
        return now._replace(q=q, expected=now.expected + float(log))

    def end(now: _Natural, epoch: int) -> _Natural:
        bound, highest = epoch_bound(float(now.expected), now.q), max(now.trace[1:epoch], default=-np.inf)
        now = now._replace(expected=np.zeros(()), trace=noted(now.trace, epoch, bound))
        report(epoch + 1, epochs, bound)
        if bound >= highest:
            return now._replace(best=now.q)
        if bound < highest - abs(highest) - len(problem.y):  # a smaller loss may be the minibatches' noise
            return now._replace(q=now.best, step=0.5 * now.step)
        return now

    q = standard(blocks)
    first = _Natural(q, q, np.asarray(step), np.zeros(()), np.zeros(epochs))
    shuffled = lambda: problem.minibatches(rng)
    last = run(keeper, "natural gradients", first, shuffled, epochs, update, end)
    return last.q, last.trace.tolist()


@eqx.filter_jit
def _natural_update(
    q: Gaussian, problem: WhitenedProblem, selection: Selection, step: Array
) -> tuple[Gaussian, Array]:
    """The paper's step by one minibatch; also its expected log-likelihood at the q it began with."""
    t, _ = terms(problem, selection)
    return minibatch_step(q, t, problem.batches, step, step, implicit=False), t.expected_log_likelihood(q)


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

    def update(now: _Ascent, selection: Selection, epoch: int, number: int) -> _Ascent:
        dual, t, log = _dual_update(now.dual, problem, selection)
        if epoch == 0:
            dual = _Dual(_average(dual.q, t, problem.batches, jnp.asarray(1.0 / (number + 1))), dual.alpha)
        return _Ascent(dual, now.expected + float(log), now.trace)

    def end(now: _Ascent, epoch: int) -> _Ascent:
        bound = epoch_bound(float(now.expected), now.dual.q)
        report(epoch + 1, epochs, bound)
        return _Ascent(now.dual, np.zeros(()), noted(now.trace, epoch, bound))

    first = _Ascent(_Dual(standard(blocks), jnp.zeros(len(problem.y))), np.zeros(()), np.zeros(epochs))
    shuffled = lambda: problem.minibatches(rng)
    last = run(keeper, "dual ascent", first, shuffled, epochs, update, end)
    return last.dual.q, last.trace.tolist()


@eqx.filter_jit
def _dual_update(now: _Dual, problem: WhitenedProblem, selection: Selection) -> tuple[_Dual, Terms, Array]:
    """The best mean in one minibatch's alpha_n; also its terms and its expected log-likelihood before the step."""
    t, _ = terms(problem, selection)
    where = problem.numbers(selection)
    k = t.mask[:, None] * t.k
    short = t.mask * (t.y - k @ now.q.mean - t.variance * now.alpha[where])
    change = jax.scipy.linalg.solve(k @ k.T + jnp.diag(t.variance), short, assume_a="pos")
    moved = _with_mean(now.q, now.q.mean + change @ k)
    return _Dual(moved, now.alpha.at[where].add(t.mask * change)), t, t.expected_log_likelihood(now.q)


@eqx.filter_jit
def _average(q: Gaussian, t: Terms, batches: int, share: Array) -> Gaussian:
    """P moved by `share` towards a minibatch's estimate; with shares 1, 1/2, 1/3, ... it is the average of them all."""
    return toward_precision(q, MinibatchGradient(t.k, batches * t.precision, q.mean), share)
