"""Dense covariance matrices between functionals, by quadrature that is refined to a stated accuracy."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from hipgp.model.functional import Functional
from hipgp.model.kernel_scales import shortest_lengthscale
from hipgp.model.kernels import Kernel
from hipgp.model.nodes import Nodes
from hipgp.runtime.buckets import round_up
from hipgp.runtime.callers import warn_caller
from hipgp.runtime.programs import bounded_jit
from hipgp.runtime.progress import Report, silent
from hipgp.weights.covariance import elementwise_covariance, prior_variances, transposed_nodes

ENTRIES_AT_ONCE = 2**20  # covariances computed together
BUCKETS = 4  # sizes of blocks from one power of two to the next
TESTED = 12  # number of functionals on which the accuracy of the quadrature is measured
MOST_NODES = 2**10  # nodes of one functional
FINEST = 64  # refinement that shows whether the number of nodes depends on the resolution at all


def refine_quadrature(
    kernel: Kernel, functional: Functional, accuracy: float
) -> tuple[Functional, np.ndarray, float]:
    """Return the functional in float64, a node spacing for `accuracy`, and the remaining error measured on a sample.

    Nodes given by the user, random ones included, define the functional and have no quadrature error.
    """
    exact: Functional = jax.tree.map(lambda a: np.asarray(a, float), functional)
    longest = int(np.argmax(np.linalg.norm(np.ptp(exact.places(), axis=1), axis=1)))  # sets the rule of all
    some = exact.take(np.unique([longest, *np.linspace(0, len(exact) - 1, TESTED).astype(int)]))
    spacing, one = shortest_lengthscale(kernel, functional.ndim), exact.take(np.array([longest]))
    counts = [one.nodes_each(np.arange(1), spacing / finer) for finer in (1, FINEST)]
    if counts[0] == counts[1] or getattr(functional, "rule", "gauss") == "monte-carlo":
        return exact, spacing, 0.0
    coarse = some.nodes(spacing)
    while True:
        fine = some.nodes(spacing / 2)
        error = (
            _difference(kernel, coarse, fine) if fine.rule_size > coarse.rule_size else np.inf
        )  # if the numbers of nodes are equal, both are the smallest rule
        if error <= accuracy or 2 * fine.rule_size > MOST_NODES:
            break
        coarse, spacing = fine, spacing / 2
    if error > accuracy:
        warn_caller(
            f"quadrature with {coarse.rule_size} nodes leaves errors of {error:.2g} in the covariances of "
            f"{type(functional).__name__} (accuracy {accuracy:g}): the kernel is rough, or its lengthscale short for them",
        )
    return exact, spacing, error


def _matrix(block: Any, a: list[Nodes], b: list[Nodes], report: Report) -> Float[np.ndarray, "Na Nb"]:
    """Fill a matrix with `block(rows, columns)` for all pairs of functionals, in chunks of rows."""
    count, out = sum(map(len, a)), []
    size = max(1, ENTRIES_AT_ONCE // sum(map(len, b)))
    for part in a:
        for begin in range(0, len(part), size):
            some = part[begin : begin + size]
            rows = _padded(some)
            blocks = [np.asarray(block(rows, _padded(other)))[: len(some), : len(other)] for other in b]
            out.append(np.concatenate(blocks, axis=1))
            report(sum(map(len, out)), count)
    return np.concatenate(out)


def _padded(nodes: Nodes) -> Nodes:
    """The functionals with the last one repeated, so that programs serve for similar numbers of them."""
    return nodes[np.minimum(np.arange(round_up(len(nodes), BUCKETS)), len(nodes) - 1)]


def covariance_matrix(kernel: Kernel, a: list[Nodes], b: list[Nodes], report: Report = silent) -> np.ndarray:
    """Return the covariances between all functionals of `a` and all of `b`, computed in blocks."""
    return _matrix(lambda some, other: _covariance_block(kernel, some, other), a, b, report)


@bounded_jit(most=64)
def _covariance_block(kernel: Kernel, a: Nodes, b: Nodes) -> Float[Array, "Na Nb"]:
    lift = lambda nodes, axis: jax.tree.map(lambda f: jnp.expand_dims(f, axis), transposed_nodes(nodes))
    return elementwise_covariance(kernel, lift(a, -1), lift(b, -2))


def covariance_derivative(
    kernel_of: Callable[[Any], Kernel], vector: Array, direction: Array, nodes: list[Nodes]
) -> Float[np.ndarray, "N N"]:
    """Return the derivative of the covariances along `direction` of the vector of parameters that determines the kernel."""
    return _matrix(
        lambda a, b: _covariance_block_derivative(kernel_of, vector, direction, a, b), nodes, nodes, silent
    )


@bounded_jit(most=64)
def _covariance_block_derivative(
    kernel_of: Callable[[Any], Kernel], vector: Array, direction: Array, a: Nodes, b: Nodes
) -> Float[Array, "Na Nb"]:
    return jax.jvp(lambda v: _covariance_block(kernel_of(v), a, b), (vector,), (direction,))[1]


def compiled_prior_variances(kernel: Kernel, nodes: Nodes) -> Float[np.ndarray, " N"]:
    """Return the variance of every functional under the prior, by a compiled program."""
    return np.asarray(_prior_variances(kernel, _padded(nodes)))[: len(nodes)]


@bounded_jit(most=64)
def _prior_variances(kernel: Kernel, nodes: Nodes) -> Float[Array, " N"]:
    return prior_variances(kernel, nodes)


def _difference(kernel: Kernel, a: Nodes, b: Nodes) -> float:
    """Return the largest difference between the covariances of two quadratures, relative to the standard deviations."""
    one, other = (np.asarray(_covariance_block(kernel, nodes, nodes)) for nodes in (a, b))
    std = np.sqrt(np.diag(other))
    return float(np.max(np.abs(one - other) / np.outer(std, std)))
