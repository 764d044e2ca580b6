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
from hipgp.variational.bound import Terms, WhitenedProblem, epoch_bound, terms
from hipgp.variational.families import Blocks, Gaussian, standard
from hipgp.variational.fitting import EpochReport, minibatch_step
from hipgp.variational.minibatch_weights import Selection
from hipgp.variational.resuming import Keeper, noted, run
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
        """The kernel with NumPy parameters."""
        return jax.tree.map(lambda a: np.asarray(jnp.exp(a)), self.kernel)


def expected_log_likelihood(
    logs: LogParameters, q: Gaussian, problem: WhitenedProblem, known: Bool[Array, " N"], selection: Selection
) -> tuple[Array, Terms]:
    """The part of the bound that depends on `logs`, which the KL divergence of the whitened q does not.

    `known` marks the observations that were given a noise. The solve for the weights is differentiated by the
    implicit rule (paper, appendix B.2), and the Toeplitz root and product as they are, which is right in any dimension.
    """
    kernel = jax.tree.map(jnp.exp, logs.kernel)
    whitening = problem.whitening.rebuilt(kernel)
    variance = jnp.where(known, problem.variance, jnp.exp(2 * logs.noise))
    changed = dataclasses.replace(problem, kernel=kernel, whitening=whitening, variance=variance)
    t, _ = terms(changed, selection)
    return t.expected_log_likelihood(q), t


class _State(NamedTuple):
    """Parameters, Adam's moments and q, the number of minibatches that q was updated with, and what this epoch has summed."""

    logs: LogParameters
    moments: Any
    q: Gaussian
    minibatches: np.ndarray
    waiting: np.ndarray  # whether q is new in this epoch
    expected: np.ndarray
    trace: np.ndarray  # the bound after each epoch


def learn(
    logs: LogParameters,
    problem: WhitenedProblem,
    known: Bool[np.ndarray, " N"],
    blocks_of: Callable[[Whitening], Blocks],
    whiten: Callable[[Kernel], Whitening],
    epochs: int,
    rate: float,
    rng: np.random.Generator,
    report: EpochReport,
    keeper: Keeper,
) -> tuple[LogParameters, list[float]]:
    """The parameters after `epochs` epochs and one for q alone, and the bound after each; on a new torus q begins anew."""
    found = keeper.left("parameters", (logs, np.zeros(epochs + 1)))
    if found is not None:
        return found[0], found[1].tolist()
    chosen, where = keeper.left("torus", logs), jnp.asarray(known)
    moved = None if chosen is None else whiten(chosen.as_kernel())
    on_torus = problem if moved is None else dataclasses.replace(problem, whitening=moved)

    def update(now: _State, some: list[Selection], epoch: int, number: int) -> _State:
        return _minibatch(now, on_torus, where, some[0], number, rate)

    def end(now: _State, epoch: int) -> _State:
        nonlocal on_torus
        bound = epoch_bound(float(now.expected), now.q)
        report(epoch + 1, epochs + 1, bound)
        trace = noted(now.trace, epoch, bound)
        if _outgrown(now.logs, on_torus.whitening):
            larger = whiten(now.logs.as_kernel())
            if larger.shape != on_torus.whitening.shape:
                on_torus = dataclasses.replace(on_torus, whitening=larger)
                keeper.leave("torus", now.logs)
                return _begin(now.logs, blocks_of(larger), trace)
        return now._replace(expected=np.zeros(()), waiting=np.asarray(False), trace=trace)

    first = _begin(logs, blocks_of(on_torus.whitening), np.zeros(epochs + 1))
    last = run(keeper, "learning", first, lambda: problem.minibatches(rng), epochs + 1, update, end)
    keeper.leave("parameters", (last.logs, last.trace))
    return last.logs, last.trace.tolist()


def _begin(logs: LogParameters, blocks: Blocks, trace: np.ndarray) -> _State:
    moments: Any = _adam().init(logs)  # pyright: ignore[reportArgumentType]
    return _State(logs, moments, standard(blocks), np.asarray(0), np.asarray(True), np.zeros(()), trace)


def _minibatch(
    now: _State, problem: WhitenedProblem, known: Array, selection: Selection, number: int, rate: float
) -> _State:
    """One minibatch. While q is new the hyperparameters wait, or they would be fitted to the prior's errors.

    Covariances forget what is older than about an epoch, as the hyperparameters move; the mean takes shorter steps.
    """
    batches, count = problem.batches, int(now.minibatches) + 1
    mean_step = max(0.1, batches / (batches + count - number - 1))
    covariance_step = max(1 / count, min(1.0, 2 / (batches + 1)))
    steps = jnp.asarray(mean_step), jnp.asarray(covariance_step), jnp.asarray(0.0 if now.waiting else rate)
    logs, moments, q, log = _update(now.logs, now.moments, now.q, problem, known, selection, *steps)
    expected = now.expected + float(log)
    return now._replace(logs=logs, moments=moments, q=q, minibatches=np.asarray(count), expected=expected)


@eqx.filter_jit
def _update(
    logs: LogParameters,
    moments: Any,
    q: Gaussian,
    problem: WhitenedProblem,
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
    """Whether the kernel's lengthscale has become too long for its torus."""
    if not isinstance(whitening, ToeplitzWhitening):
        return False
    return float(whitening.rebuilt(logs.as_kernel()).toeplitz.clipped_mass) > CLIPPED
