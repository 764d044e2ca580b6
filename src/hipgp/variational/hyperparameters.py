"""Kernel and noise learned together with q: Adam on the bound, minibatch by minibatch (paper, appendix B.2)."""

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

from hipgp.model.kernels import Kernel
from hipgp.variational.bound import Problem, Terms, epoch_bound, terms
from hipgp.variational.families import Blocks, Gaussian, standard
from hipgp.variational.fitting import EpochReport, minibatch_step
from hipgp.variational.minibatch_weights import Selection
from hipgp.variational.whitening import ToeplitzWhitening, Whitening

if TYPE_CHECKING:
    import optax

CLIPPED = 1e-4  # clipped mass at which learning moves to a new torus


class LogParameters(NamedTuple):
    """Logarithms of all that is learned: every parameter of the kernel, and the noise std if it is unknown."""

    kernel: Any
    noise: Array

    @staticmethod
    def of(kernel: Kernel, noise: float) -> "LogParameters":
        logs = jax.tree.map(lambda a: jnp.log(jnp.asarray(a, float)), kernel)
        return LogParameters(logs, jnp.log(noise))

    def as_kernel(self) -> Kernel:
        """The kernel itself, in plain NumPy."""
        return jax.tree.map(lambda a: np.asarray(jnp.exp(a)), self.kernel)


def expected_log_likelihood(
    logs: LogParameters, q: Gaussian, problem: Problem, known: Bool[Array, " N"], selection: Selection
) -> tuple[Array, Terms]:
    """The part of the bound that depends on `logs`, which the KL divergence of the whitened q does not.

    `known` says which observations have a noise of their own. The solve for the weights is differentiated by the
    implicit rule (paper, appendix B.2), and the Toeplitz root and product as they are, which is right in any dimension.
    """
    kernel = jax.tree.map(jnp.exp, logs.kernel)
    whitening = problem.whitening.rebuilt(kernel)
    variance = jnp.where(known, problem.variance, jnp.exp(2 * logs.noise))
    here = dataclasses.replace(problem, kernel=kernel, whitening=whitening, variance=variance)
    t, _ = terms(here, selection)
    return t.expected_log_likelihood(q), t


class _State(NamedTuple):
    """Parameters, Adam's moments and q, with the number of minibatches that q has seen."""

    logs: LogParameters
    moments: Any
    q: Gaussian
    seen: int


def learn(
    logs: LogParameters,
    problem: Problem,
    known: Bool[np.ndarray, " N"],
    blocks_of: Callable[[Whitening], Blocks],
    whiten: Callable[[Kernel], Whitening],
    epochs: int,
    rate: float,
    rng: np.random.Generator,
    report: EpochReport,
) -> tuple[LogParameters, list[float]]:
    """The parameters after `epochs` epochs and one for q alone, and the bound after each; on a new torus q begins anew."""
    now, trace = _begin(logs, blocks_of(problem.whitening)), []
    for number in range(epochs + 1):
        now, bound = _epoch(now, problem, jnp.asarray(known), rng, rate)
        trace.append(bound)
        report(number + 1, epochs + 1, bound)
        if _outgrown(now.logs, problem.whitening):
            larger = whiten(now.logs.as_kernel())
            if larger.shape != problem.whitening.shape:
                problem = dataclasses.replace(problem, whitening=larger)
                now = _begin(now.logs, blocks_of(larger))
    return now.logs, trace


def _begin(logs: LogParameters, blocks: Blocks) -> _State:
    return _State(logs, _adam().init(logs), standard(blocks), 0)  # pyright: ignore[reportArgumentType]


def _epoch(
    now: _State, problem: Problem, known: Array, rng: np.random.Generator, rate: float
) -> tuple[_State, float]:
    """Every minibatch once. While q is new the hyperparameters wait, or they would be fitted to the prior's errors.

    Covariances forget what is older than about an epoch, as the hyperparameters move; the mean takes shorter steps.
    """
    logs, moments, q, seen = now
    batches, waiting = problem.batches, seen == 0
    mean_step = max(0.1, batches / (batches + seen))
    expected = 0.0
    for selection in problem.minibatches(rng):
        seen += 1
        covariance_step = max(1 / seen, min(1.0, 2 / (batches + 1)))
        steps = jnp.asarray(mean_step), jnp.asarray(covariance_step), jnp.asarray(0.0 if waiting else rate)
        logs, moments, q, log = _update(logs, moments, q, problem, known, selection, *steps)
        expected += float(log)
    return _State(logs, moments, q, seen), epoch_bound(expected, q)


@eqx.filter_jit
def _update(
    logs: LogParameters,
    moments: Any,
    q: Gaussian,
    problem: Problem,
    known: Array,
    selection: Selection,
    mean_step: Array,
    covariance_step: Array,
    rate: Array,
) -> tuple[LogParameters, Any, Gaussian, Array]:
    """One minibatch: a natural-gradient step in q and one of Adam in the hyperparameters."""
    slope = jax.value_and_grad(expected_log_likelihood, has_aux=True)
    (log, t), gradient = slope(logs, q, problem, known, selection)
    q = minibatch_step(q, t, problem.batches, mean_step, covariance_step, implicit=True)
    uphill = jax.tree.map(lambda g: -problem.batches * g / len(problem.y), gradient)
    updates, moments = _adam().update(uphill, moments)
    logs = jax.tree.map(lambda a, u: a + rate * u, logs, updates)
    return logs, moments, q, log


def _adam() -> "optax.GradientTransformation":
    """Adam with a unit step: the rate is applied outside, so that it may change without compiling anew."""
    import optax

    return optax.chain(optax.scale_by_adam(), optax.scale(-1.0))


def _outgrown(logs: LogParameters, whitening: Whitening) -> bool:
    """Whether the kernel has become too long for its torus."""
    if not isinstance(whitening, ToeplitzWhitening):
        return False
    return float(whitening.rebuilt(logs.as_kernel()).toeplitz.clipped_mass) > CLIPPED
