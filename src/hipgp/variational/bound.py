"""The paper's bound on the log evidence, and its terms by minibatches.

With k_n = R' w_n, s_n^2 the noise and v_n the residual variance (paper, eq. whitened-elbo),

    bound = sum_n [ log N(y_n | k_n'm, s_n^2) - (v_n + k_n' S k_n) / (2 s_n^2) ] - KL(N(m, S) || N(0, I)).

Observations are numbered within the blocks of the data; a minibatch takes its share of every block, so that an epoch
sees each observation once and (number of minibatches) x (sum over one of them) is unbiased.
"""

from collections.abc import Iterator
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from hipgp.model.data import Data
from hipgp.model.kernels import Kernel
from hipgp.variational.families import Gaussian, combination, product
from hipgp.variational.minibatch_weights import (
    Selection,
    SolveSummary,
    WeightSource,
    minibatches,
    starts_of,
)
from hipgp.variational.whitening import Whitening

LOG_2PI = float(np.log(2 * np.pi))


class WhitenedProblem(eqx.Module):
    """A whitened prior, observations, and the source of their weights; `variance` is the noise variance."""

    source: WeightSource
    kernel: Kernel
    whitening: Whitening
    y: Float[Array, " N"]
    variance: Float[Array, " N"]
    counts: tuple[int, ...] = eqx.field(static=True)  # observations in each block of the data
    batches: int = eqx.field(static=True)  # minibatches in an epoch
    residual: str = eqx.field(static=True)

    @staticmethod
    def of(
        source: WeightSource,
        kernel: Kernel,
        whitening: Whitening,
        data: Data,
        noise_std: Float[np.ndarray, " N"],
        residual: str,
        batch_size: int,
    ) -> "WhitenedProblem":
        y, variance = jnp.asarray(data.y, float), jnp.asarray(noise_std, float) ** 2
        counts = tuple(len(b.y) for b in data.blocks)
        batches = max(1, -(-len(data) // batch_size))
        return WhitenedProblem(source, kernel, whitening, y, variance, counts, batches, residual)

    def minibatches(self, rng: np.random.Generator | None = None) -> Iterator[Selection]:
        """Minibatches of all observations, in order, or shuffled by `rng`."""
        return minibatches(self.counts, self.batches, rng)

    def numbers(self, selection: Selection) -> Array:
        """The places of the selected observations in `y`."""
        return selection.flat(starts_of(self.counts))


class Terms(NamedTuple):
    """The quantities of some observations that enter the bound."""

    k: Float[Array, "n T"]
    y: Float[Array, " n"]
    variance: Float[Array, " n"]  # s_n^2
    penalty: Float[Array, " n"]  # v_n where it is not part of the noise
    mask: Bool[Array, " n"]  # False for padding

    @property
    def precision(self) -> Float[Array, " n"]:
        """1 / s_n^2, and zero for padding."""
        return self.mask / self.variance

    def expected_log_likelihood(self, q: Gaussian) -> Float[Array, ""]:
        """The sum over n of E_q log p(y_n | e) (paper, a'_n)."""
        error = (self.y - product(self.k, q.mean)) ** 2 + q.variances(self.k) + self.penalty
        return -0.5 * jnp.sum(self.mask * (LOG_2PI + jnp.log(self.variance) + error / self.variance))

    def likelihood_gradient(self, mean: Float[Array, " T"]) -> Float[Array, " T"]:
        """The gradient of the expected log-likelihood in m, sum_n k_n (y_n - k_n'm) / s_n^2."""
        return combination(self.precision * (self.y - product(self.k, mean)), self.k)


def terms(problem: WhitenedProblem, selection: Selection) -> tuple[Terms, SolveSummary]:
    """The terms of the selected observations, and a summary of the solves for their weights."""
    rows = problem.source.weights(problem.kernel, problem.whitening, selection.index)
    where = problem.numbers(selection)
    noise = problem.variance[where]
    added, penalty = (rows.v, jnp.zeros_like(rows.v)) if problem.residual == "noise" else (0.0, rows.v)
    k = problem.whitening.root_transpose(rows.w)  # in the dtype of the weights; all else is in float64
    found = Terms(k, problem.y[where], noise + added, penalty, selection.mask)
    return found, SolveSummary.of(rows, selection.mask)


@eqx.filter_jit
def divergence(q: Gaussian) -> Array:
    """KL(q || N(0, I))."""
    return q.divergence()


def epoch_bound(expected: float, q: Gaussian) -> float:
    """The bound at the end of an epoch, from the expected log-likelihoods that its minibatches saw on the way."""
    bound = expected - float(divergence(q))
    if not np.isfinite(bound):
        raise FloatingPointError(
            "the bound is not finite: the weights or the kernel's parameters have overflowed; rescale the data, or use "
            "float64"
        )
    return bound
