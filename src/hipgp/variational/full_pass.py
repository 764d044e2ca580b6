"""A full pass over the data at fixed q: the bound, its gradient, and the diagonal blocks of Lambda."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from hipgp.variational.bound import WhitenedProblem, divergence, terms
from hipgp.variational.families import Gaussian
from hipgp.variational.minibatch_weights import NO_SOLVES, Selection, SolveSummary
from hipgp.variational.resuming import Keeper, run

NOWHERE = Keeper(None, "")


class _FullPass(NamedTuple):
    """The bound at some q, its gradient b - Lambda m, and the diagonal blocks of Lambda if asked for."""

    bound: float
    gradient: Float[Array, " T"]
    precision: Float[Array, "B n n"] | None
    solves: SolveSummary


class _Sums(NamedTuple):
    """What a pass has summed so far."""

    expected: np.ndarray
    gradient: Float[Array, " T"]
    precision: Float[Array, "B n n"] | None
    solves: SolveSummary


def full_pass(
    q: Gaussian, problem: WhitenedProblem, blocks: bool = False, keeper: Keeper = NOWHERE
) -> _FullPass:
    """The bound and its gradient exactly, minibatch by minibatch; with `blocks` also those of Lambda."""

    def add(now: _Sums, selection: Selection, epoch: int, number: int) -> _Sums:
        log, g, gram, solved = _sums(q, problem, selection, jnp.asarray(blocks))
        precision = None if now.precision is None else now.precision + gram
        solves = _plain(now.solves.merged(solved, 1 / (number + 1)))
        return _Sums(now.expected + float(log), now.gradient + g, precision, solves)

    precision = q.blocks.identity() if blocks else None
    first = _Sums(np.zeros(()), -q.mean, precision, _plain(NO_SOLVES))
    found = run(keeper, "pass with blocks" if blocks else "pass", first, problem.minibatches, 1, add)
    bound = float(found.expected) - float(divergence(q))
    return _FullPass(bound, found.gradient, found.precision, found.solves)


def _plain(solves: SolveSummary) -> SolveSummary:
    """The numbers as arrays of fixed dtypes, for a checkpoint."""
    most, mean, error, unconverged = solves
    return SolveSummary(np.asarray(most, int), np.asarray(mean, float), np.asarray(error, float), np.asarray(unconverged, int))  # fmt: skip


@eqx.filter_jit
def _sums(
    q: Gaussian, problem: WhitenedProblem, selection: Selection, blocks: Array
) -> tuple[Array, Array, Array, SolveSummary]:
    t, solves = terms(problem, selection)
    gram = jax.lax.cond(blocks, lambda: q.blocks.gram(t.k, t.precision), lambda: jnp.zeros_like(q.precision))
    return t.expected_log_likelihood(q), t.likelihood_gradient(q.mean), gram, solves
