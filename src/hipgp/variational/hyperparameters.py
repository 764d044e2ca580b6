"""Kernel and noise learned together with q: Adam on the bound, minibatch by minibatch (paper, appendix B.2)."""

from typing import TYPE_CHECKING, Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from hipgp.model.kernels import Kernel
from hipgp.variational.families import Blocks, Gaussian, standard
from hipgp.variational.minibatch_weights import Selection, parts
from hipgp.variational.natural import Problem, Terms, advance, divergence, terms
from hipgp.variational.reporting import check_finite
from hipgp.variational.whitening import ToeplitzWhitening, Whitening

if TYPE_CHECKING:
    import optax

CLIPPED = 1e-4  # clipped mass at which learning moves to a new torus


class Logs(NamedTuple):
    """Logarithms of all that is learned: every parameter of the kernel, and the noise if it is unknown."""

    kernel: Any
    noise: Array

    @staticmethod
    def of(kernel: Kernel, noise: float) -> "Logs":
        return Logs(jax.tree.map(lambda a: jnp.log(jnp.asarray(a, float)), kernel), jnp.log(noise))


def expected_log(
    logs: Logs, q: Gaussian, problem: Problem, whitening: Whitening, selection: Selection
) -> tuple[Array, Terms]:
    """The data's part of the bound, to be differentiated in `logs`: the KL of the whitened q does not depend on them.

    The solve for the weights is differentiated by the implicit rule (paper, appendix B.2), and the Toeplitz root and
    product as they are, which is right in any dimension.
    """
    kernel = jax.tree.map(jnp.exp, logs.kernel)
    t, _ = terms(problem, kernel, whitening.rebuilt(kernel), logs.noise, selection)
    return t.expected(q), t


@eqx.filter_jit
def learning_update(
    logs: Logs,
    optimiser_state: Any,
    q: Gaussian,
    problem: Problem,
    whitening: Whitening,
    selection: Selection,
    batches: Array,
    pace: tuple[Array, Array],  # steps in mean and covariance
    rate: Array,
) -> tuple[Logs, Any, Gaussian, Array]:
    """One minibatch: a natural-gradient step in q and one of Adam in the hyperparameters."""
    slope = jax.value_and_grad(expected_log, has_aux=True)
    (log, t), gradient = slope(logs, q, problem, whitening, selection)
    q = advance(q, t, batches, *pace, implicit=True)
    uphill = jax.tree.map(lambda g: -batches * g / len(problem.y), gradient)
    updates, optimiser_state = adam().update(uphill, optimiser_state)
    logs = jax.tree.map(lambda a, u: a + rate * u, logs, updates)
    return logs, optimiser_state, q, log


def adam() -> "optax.GradientTransformation":
    """Adam with a unit step: the rate is applied outside, so that it may change without compiling anew."""
    import optax

    return optax.chain(optax.scale_by_adam(), optax.scale(-1.0))


class Learning(NamedTuple):
    """What an epoch of learning begins with and leaves behind."""

    logs: Logs
    memory: Any  # Adam's
    q: Gaussian
    seen: int  # minibatches that q has seen


def begin(logs: Logs, blocks: Blocks) -> Learning:
    return Learning(logs, adam().init(logs), standard(blocks), 0)  # pyright: ignore[reportArgumentType]


def epoch(
    now: Learning, problem: Problem, whitening: Whitening, batches: int, rng: np.random.Generator, rate: float
) -> tuple[Learning, float]:
    """Every minibatch once. While q is new the hyperparameters wait, or they would be fitted to the prior's errors.

    Covariances forget what is older than about an epoch, for the hyperparameters move; the mean takes shorter steps.
    """
    logs, memory, q, seen = now
    pace, waiting = max(0.1, batches / (batches + seen)), seen == 0
    expected = 0.0
    for selection in parts(problem.counts, batches, rng):
        seen += 1
        forget = max(1 / seen, min(1.0, 2 / (batches + 1)))
        logs, memory, q, log = learning_update(
            *(logs, memory, q, problem, whitening, selection, jnp.asarray(batches)),
            *((jnp.asarray(pace), jnp.asarray(forget)), jnp.asarray(0.0 if waiting else rate)),
        )
        expected += float(log)
    bound = expected - float(divergence(q))
    check_finite(bound)
    return Learning(logs, memory, q, seen), bound


def current(logs: Logs) -> Kernel:
    return jax.tree.map(lambda a: np.asarray(jnp.exp(a)), logs.kernel)


def outgrown(logs: Logs, whitening: Whitening) -> bool:
    """Whether the kernel has become too long for its torus."""
    if not isinstance(whitening, ToeplitzWhitening):
        return False
    return float(whitening.rebuilt(current(logs)).toeplitz.clipped_mass) > CLIPPED
