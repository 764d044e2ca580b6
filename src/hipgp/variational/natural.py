"""The bound and its optimum: the closed form of appendix B.1.1 and the natural gradient of B.1.2.

With k_n = R' w_n, s_n^2 the noise and v_n the residual variance (paper, eq. whitened-elbo),

    bound = sum_n [ log N(y_n | k_n'm, s_n^2) - (v_n + k_n' S k_n) / (2 s_n^2) ] - KL(N(m, S) || N(0, I)).

Observations are numbered within the blocks of the data; a minibatch takes its share of every block, so that an epoch
sees each observation once and (number of minibatches) x (sum over one of them) is unbiased.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from hipgp.linalg.krylov import Solution, conjugate_gradients
from hipgp.model.kernels import Kernel
from hipgp.variational.families import (
    Blocks,
    Gaussian,
    Minibatch,
    gaussian,
    natural_step,
    standard,
    toward_precision,
)
from hipgp.variational.minibatch_weights import NO_SOLVES, Selection, Solves, Source, Table, parts, starts_of
from hipgp.variational.whitening import Whitening

SOLVE_ITERATIONS, GAP_ITERATIONS = np.asarray(2000), np.asarray(50)  # arrays: compiled once
LOG_2PI = float(np.log(2 * np.pi))


class Problem(eqx.Module):
    """What was observed, and how to get at its weights."""

    source: Source
    y: Float[Array, " N"]
    variance: Float[Array, " N"]  # of the noise, where it is known
    known: Bool[Array, " N"]
    counts: tuple[int, ...] = eqx.field(static=True)
    residual: str = eqx.field(static=True)

    @property
    def starts(self) -> tuple[int, ...]:
        return starts_of(self.counts)

    def noise_variance(self, log_noise: Array) -> Float[Array, " N"]:
        return jnp.where(self.known, self.variance, jnp.exp(2 * log_noise))


class Terms(NamedTuple):
    """All that the bound needs of some observations."""

    k: Float[Array, "n T"]
    y: Float[Array, " n"]
    variance: Float[Array, " n"]  # s_n^2
    penalty: Float[Array, " n"]  # v_n where it is not part of the noise
    mask: Bool[Array, " n"]

    def expected(self, q: Gaussian) -> Float[Array, ""]:
        """The sum over n of E_q log p(y_n | e) (paper, a'_n)."""
        error = (self.y - self.k @ q.mean) ** 2 + q.spread(self.k) + self.penalty
        return -0.5 * jnp.sum(self.mask * (LOG_2PI + jnp.log(self.variance) + error / self.variance))


def terms(
    problem: Problem, kernel: Kernel, whitening: Whitening, log_noise: Array, selection: Selection
) -> tuple[Terms, Solves]:
    rows = problem.source.rows(kernel, whitening, selection.index)
    where = selection.flat(problem.starts)
    noise = problem.noise_variance(log_noise)[where]
    added, penalty = (rows.v, jnp.zeros_like(rows.v)) if problem.residual == "noise" else (0.0, rows.v)
    found = Terms(whitening.root_transpose(rows.w), problem.y[where], noise + added, penalty, selection.mask)
    return found, Solves.of(rows, selection.mask)


# --- a pass over all data ---------------------------------------------------------------------------------------------


class Survey(NamedTuple):
    """The bound at some q, its gradient b - Lambda m, and the diagonal blocks of Lambda if asked for."""

    bound: float
    gradient: Float[Array, " T"]
    precision: Float[Array, "B n n"] | None
    solves: Solves


def survey(
    q: Gaussian, problem: Problem, kernel: Kernel, whitening: Whitening, batches: int, blocks: bool = False
) -> Survey:
    """Everything about q that takes one pass over the data."""
    expected, gradient, solves = 0.0, -q.mean, NO_SOLVES
    precision = q.blocks.identity() if blocks else None
    for number, selection in enumerate(parts(problem.counts, batches)):
        log, g, gram, solved = _survey(q, problem, kernel, whitening, selection, jnp.asarray(blocks))
        expected, gradient = expected + float(log), gradient + g
        precision = None if precision is None else precision + gram
        solves = solves.merged(solved, 1 / (number + 1))
    return Survey(expected - float(divergence(q)), gradient, precision, solves)


@eqx.filter_jit
def _survey(
    q: Gaussian, problem: Problem, kernel: Kernel, whitening: Whitening, selection: Selection, blocks: Array
) -> tuple[Array, Array, Array, Solves]:
    t, solves = terms(problem, kernel, whitening, jnp.zeros(()), selection)
    scale = t.mask / t.variance
    gram = jax.lax.cond(blocks, lambda: q.blocks.gram(t.k, scale), lambda: jnp.zeros_like(q.precision))
    return t.expected(q), (scale * (t.y - t.k @ q.mean)) @ t.k, gram, solves


@eqx.filter_jit
def divergence(q: Gaussian) -> Array:
    return q.divergence()


def mean_gap(q: Gaussian, problem: Problem, whitening: Whitening, gradient: Array) -> float:
    """What the bound has to gain from a better mean, (b - Lambda m)' Lambda^-1 (b - Lambda m) / 2, estimated.

    By some conjugate gradients where the weights are held; else with the blocks of Lambda alone, which may tell less.
    """
    if isinstance(problem.source, Table) and len(q.blocks.index) > 1:
        return 0.5 * float(gradient @ _solve_mean(q, problem, whitening, gradient, GAP_ITERATIONS).value[0])
    return 0.5 * float(gradient @ q.precondition(gradient))


def closed_form(
    blocks: Blocks, problem: Problem, kernel: Kernel, whitening: Whitening, batches: int
) -> tuple[Gaussian, Solution | None]:
    """The optimum itself: S_i = Lambda_i^-1 and m = Lambda^-1 b (paper, appendix B.1.1).

    Lambda is applied as I + R' W' N^-1 W R, and solved by conjugate gradients with its own blocks as preconditioner.
    """
    found = survey(standard(blocks), problem, kernel, whitening, batches, blocks=True)
    assert found.precision is not None
    q = gaussian(blocks, jnp.zeros(blocks.size), found.precision)
    if len(blocks.index) == 1:
        return eqx.tree_at(lambda g: g.mean, q, q.precondition(found.gradient)), None
    solution = _solve_mean(q, problem, whitening, found.gradient, SOLVE_ITERATIONS)
    return eqx.tree_at(lambda g: g.mean, q, solution.value[0]), solution


@eqx.filter_jit
def _solve_mean(q: Gaussian, problem: Problem, whitening: Whitening, b: Array, iterations: Any) -> Solution:
    assert isinstance(problem.source, Table)
    weights = problem.source.weights
    variance = problem.noise_variance(jnp.zeros(()))
    variance = variance + (weights.residual if problem.residual == "noise" else 0.0)

    def matmul(v: Array) -> Array:
        seen = weights.matmul(whitening.root(v)) / variance
        return v + whitening.root_transpose(weights.transpose_matmul(seen))

    return conjugate_gradients(
        matmul,
        b[None],
        precondition=lambda r: q.precondition(r[0])[None],
        tolerance=1e-10,
        max_iterations=iterations,
    )


# --- natural gradients ------------------------------------------------------------------------------------------------


@eqx.filter_jit
def natural_update(
    q: Gaussian,
    problem: Problem,
    kernel: Kernel,
    whitening: Whitening,
    selection: Selection,
    batches: Array,
    step: Array,
) -> tuple[Gaussian, Array]:
    """The paper's step by one minibatch; also its part of the data's term in the bound, at the q it began with."""
    t, _ = terms(problem, kernel, whitening, jnp.zeros(()), selection)
    return advance(q, t, batches, step, step, implicit=False), t.expected(q)


def advance(
    q: Gaussian, t: Terms, batches: Array, mean_step: Array, covariance_step: Array, implicit: bool
) -> Gaussian:
    """A natural-gradient step, given the minibatch's terms."""
    scale = t.mask / t.variance
    gradient = batches * ((scale * (t.y - t.k @ q.mean)) @ t.k) - q.mean
    return natural_step(q, Minibatch(t.k, batches * scale, gradient), mean_step, covariance_step, implicit)


class Dual(NamedTuple):
    """q with its mean as a sum over the observations, m = sum_n a_n k_n: as the optimum is, a_n = (y_n - k_n'm) / s_n^2.

    Each minibatch sets its own a_n so that the bound is the highest in them: ascent in blocks of the dual, with no step
    size to choose, that never lowers the dual bound and goes to the optimum geometrically.
    """

    q: Gaussian
    shares: Float[Array, " N"]  # a_n


@eqx.filter_jit
def dual_update(
    now: Dual, problem: Problem, kernel: Kernel, whitening: Whitening, selection: Selection
) -> tuple[Dual, Terms, Array]:
    """The best mean in one minibatch's shares; also its terms, and its part of the data's term in the bound before."""
    t, _ = terms(problem, kernel, whitening, jnp.zeros(()), selection)
    where = selection.flat(problem.starts)
    k = t.mask[:, None] * t.k
    short = t.mask * (t.y - k @ now.q.mean - t.variance * now.shares[where])
    change = jax.scipy.linalg.solve(k @ k.T + jnp.diag(t.variance), short, assume_a="pos")
    moved = eqx.tree_at(lambda q: q.mean, now.q, now.q.mean + change @ k)
    return Dual(moved, now.shares.at[where].add(t.mask * change)), t, t.expected(now.q)


@eqx.filter_jit
def average_precision(q: Gaussian, t: Terms, batches: Array, share: Array) -> Gaussian:
    """P moved by `share` towards this minibatch's estimate; with shares 1, 1/2, 1/3, ... the average of them all."""
    return toward_precision(q, Minibatch(t.k, batches * t.mask / t.variance, q.mean), share)
