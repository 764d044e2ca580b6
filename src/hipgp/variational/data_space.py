"""The optimal mean from a solve in data space, where the weights of all observations are stored.

The optimum m = Lambda^-1 b is m = Phi' a, where Phi has the rows k_n' and (N + Phi Phi') a = y. A Vecchia factor of the data's
covariance preconditions this system as well as it does that of the batch engine, where blocks of Lambda precondition Lambda
badly: each of them sees a few points of the torus.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from hipgp.linalg import krylov
from hipgp.linalg.preconditioner import Preconditioner
from hipgp.model.problem import Problem
from hipgp.variational.bound import WhitenedProblem
from hipgp.variational.minibatch_weights import SolveSummary, StoredWeights, WeightSource
from hipgp.vecchia.factor import choose_conditioning_sets, vecchia_factor

ITERATIONS = np.asarray(500)  # an array: compiled once
NATS = 1e-3  # of the certificate, at which a solve ends


class Held(NamedTuple):
    """What several fits of one kernel, grid and data share: the weights, how their solves ended, and what follows."""

    weights: WeightSource
    solves: SolveSummary
    preconditioner: Preconditioner | None = None
    best_mean: Float[Array, " T"] | None = None  # the optimal one, to which others are compared


class BestMean(NamedTuple):
    """The optimal mean, the steps of its solve, and how many nats it may lack at most."""

    mean: Float[Array, " T"]
    steps: Array
    nats: Array


def data_preconditioner(
    model: Problem, dtype: Any, added: Float[np.ndarray, " N"] | float = 0.0
) -> Preconditioner:
    """The Vecchia factor of the data's covariance, with the noise and `added` variances; its entries are in `dtype`."""
    sets = choose_conditioning_sets(model.kernel, model.data)
    return vecchia_factor(model.kernel, sets, model.noise_std**2 + added, dtype)


@eqx.filter_jit
def best_mean(problem: WhitenedProblem, preconditioner: Preconditioner) -> BestMean:
    """The optimal mean by conjugate gradients in data space, to NATS or as near as rounding allows.

    What the bound lacks is at most r' N^-1 r / 2, with r the residual (docs/certificate.md), which is that of the last step.
    """
    assert isinstance(problem.source, StoredWeights)
    stored, whitening = problem.source.stored, problem.whitening
    variance = problem.variance + (stored.residual if problem.residual == "noise" else 0.0)
    dtype = preconditioner.log_determinant.dtype

    def whitened(a: Array) -> Array:
        return whitening.root_transpose(stored.transpose_matmul(a))

    def matmul(a: Array) -> Array:
        return stored.matmul(whitening.root(whitened(a))) + variance * a

    def nats(r: Array) -> Array:
        return 0.5 * jnp.sum(r**2 / variance, axis=-1)

    precondition = lambda r: preconditioner.precondition(r.astype(dtype)).astype(r.dtype)
    y = problem.y[None]
    begin = krylov.cg_start(y, nats)
    found = krylov.cg_advance(matmul, precondition, nats, jnp.full(1, NATS), begin, jnp.asarray(ITERATIONS))
    return BestMean(whitened(found.value)[0], found.iterations[0], nats(y - matmul(found.value))[0])
