"""A full pass over the data at fixed q: the bound, its gradient, and the diagonal blocks of Lambda."""

from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from hipgp.variational.bound import WhitenedProblem, divergence, terms
from hipgp.variational.families import Gaussian
from hipgp.variational.minibatch_weights import NO_SOLVES, TOGETHER, Selection, Selections, SolveSummary
from hipgp.variational.resuming import Keeper, run

NOWHERE = Keeper(None, "")


class _FullPass(NamedTuple):
    """The bound at some q, its gradient b - Lambda m, and the diagonal blocks of Lambda if asked for."""

    bound: float
    gradient: Float[Array, " T"]
    precision: Float[Array, "B n n"] | None
    solves: SolveSummary


class _Sums(NamedTuple):
    """The sums over the batches of a pass so far."""

    expected: Float[Array, ""]
    gradient: Float[Array, " T"]
    precision: Float[Array, "B n n"] | None
    solves: SolveSummary


def full_pass(
    q: Gaussian, problem: WhitenedProblem, blocks: bool = False, keeper: Keeper = NOWHERE
) -> _FullPass:
    """The bound and its gradient exactly, minibatch by minibatch; with `blocks` also those of Lambda."""

    def add(now: _Sums, some: list[Selection], epoch: int, number: int) -> _Sums:
        return _summed(now, q, problem, Selections.of(some, TOGETHER), np.asarray(number))

    precision = q.blocks.identity() if blocks else None
    first = _Sums(jnp.zeros(()), -q.mean, precision, _plain(NO_SOLVES))
    name = "pass with blocks" if blocks else "pass"
    found = run(keeper, name, first, problem.minibatches, 1, add, most=TOGETHER)
    bound = float(found.expected) - float(divergence(q))
    return _FullPass(bound, found.gradient, found.precision, found.solves)


def _plain(solves: SolveSummary) -> SolveSummary:
    """The numbers as arrays of fixed dtypes."""
    most, mean, error, unconverged = (jnp.asarray(a, float) for a in solves)
    return SolveSummary(most.astype(int), mean, error, unconverged.astype(int))


@eqx.filter_jit
def _summed(sums: _Sums, q: Gaussian, problem: WhitenedProblem, some: Selections, done: Any) -> _Sums:
    """The sums with those of some more minibatches; `done` of the pass were summed before."""

    def add(now: _Sums, selection: Selection, number: Array) -> _Sums:
        t, solved = terms(problem, selection)
        gram = lambda before: before + q.blocks.gram(t.k, t.precision)
        precision = None if now.precision is None else gram(now.precision)
        solves = _plain(now.solves.merged(solved, 1 / (done + number + 1)))
        expected = now.expected + t.expected_log_likelihood(q)
        return _Sums(expected, now.gradient + t.likelihood_gradient(q.mean), precision, solves)

    return some.fold(add, sums)
