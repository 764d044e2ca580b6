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
from hipgp.variational.bound import Problem, Terms, epoch_bound, full_pass, terms
from hipgp.variational.families import (
    Blocks,
    Gaussian,
    MinibatchGradient,
    gaussian,
    natural_step,
    standard,
    toward_precision,
)
from hipgp.variational.minibatch_weights import Selection, StoredWeights

SOLVE_ITERATIONS, GAP_ITERATIONS = np.asarray(2000), np.asarray(50)  # arrays: compiled once

EpochReport = Callable[[int, int, float], None]  # epochs done, of how many, and the bound


# --- in closed form ---------------------------------------------------------------------------------------------------


def closed_form(blocks: Blocks, problem: Problem) -> tuple[Gaussian, int]:
    """The optimum, and the conjugate-gradient steps that its mean took (none where there is one block)."""
    found = full_pass(standard(blocks), problem, blocks=True)
    assert found.precision is not None
    q = gaussian(blocks, jnp.zeros(blocks.size), found.precision)
    if len(blocks.index) == 1:
        return _with_mean(q, q.precondition(found.gradient)), 0
    solution = _solve_mean(q, problem, found.gradient, SOLVE_ITERATIONS)
    return _with_mean(q, solution.value[0]), int(solution.iterations[0])


def mean_gap(q: Gaussian, problem: Problem, gradient: Array) -> float:
    """What the bound would gain from the best mean, (b - Lambda m)' Lambda^-1 (b - Lambda m) / 2, estimated.

    By a few conjugate-gradient steps where the weights are stored; otherwise with the blocks of Lambda alone, which may
    give less than the true gap.
    """
    if isinstance(problem.source, StoredWeights) and len(q.blocks.index) > 1:
        return 0.5 * float(gradient @ _solve_mean(q, problem, gradient, GAP_ITERATIONS).value[0])
    return 0.5 * float(gradient @ q.precondition(gradient))


@eqx.filter_jit
def _solve_mean(q: Gaussian, problem: Problem, b: Array, iterations: Any) -> Solution:
    """Lambda^-1 b by conjugate gradients, with the blocks of Lambda as preconditioner."""
    assert isinstance(problem.source, StoredWeights)
    stored, whitening = problem.source.stored, problem.whitening
    variance = problem.variance + (stored.residual if problem.residual == "noise" else 0.0)

    def matmul(v: Array) -> Array:
        seen = stored.matmul(whitening.root(v)) / variance
        return v + whitening.root_transpose(stored.transpose_matmul(seen))

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


def natural_gradient(
    blocks: Blocks, problem: Problem, epochs: int, step: float, rng: np.random.Generator, report: EpochReport
) -> tuple[Gaussian, list[float]]:
    """Natural gradients with one step size for mean and covariance, and the bound after each epoch.

    Where an epoch lowers the bound by much, the fit goes back to its best and the step is halved.
    """
    q, trace = standard(blocks), []
    best = q
    for number in range(epochs):
        expected = 0.0
        for selection in problem.minibatches(rng):
            q, log = _natural_update(q, problem, selection, jnp.asarray(step))
            expected += float(log)
        highest = max(trace[1:], default=-np.inf)
        trace.append(epoch_bound(expected, q))
        report(number + 1, epochs, trace[-1])
        if trace[-1] >= highest:
            best = q
        elif trace[-1] < highest - abs(highest) - len(
            problem.y
        ):  # a smaller loss may be the minibatches' noise
            q, step = best, 0.5 * step
    return q, trace


@eqx.filter_jit
def _natural_update(
    q: Gaussian, problem: Problem, selection: Selection, step: Array
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


def dual_ascent(
    blocks: Blocks, problem: Problem, epochs: int, rng: np.random.Generator, report: EpochReport
) -> tuple[Gaussian, list[float]]:
    """The mean by ascent in the dual, the covariances by their average over the first epoch, which is exact."""
    now, trace, seen = _Dual(standard(blocks), jnp.zeros(len(problem.y))), [], 0
    for number in range(epochs):
        expected = 0.0
        for selection in problem.minibatches(rng):
            now, t, log = _dual_update(now, problem, selection)
            expected += float(log)
            if number == 0:
                seen += 1
                now = _Dual(_average(now.q, t, problem.batches, jnp.asarray(1.0 / seen)), now.alpha)
        trace.append(epoch_bound(expected, now.q))
        report(number + 1, epochs, trace[-1])
    return now.q, trace


@eqx.filter_jit
def _dual_update(now: _Dual, problem: Problem, selection: Selection) -> tuple[_Dual, Terms, Array]:
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
