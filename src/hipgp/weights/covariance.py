"""Covariances of functionals: k*(u, n) = Cov(f(u), L_n f), k**(n) = Var(L_n f), and Cov(L_n f, L_m f).

All are sums over nodes of the kernel or its derivatives, which come from automatic differentiation at one pair of
points. For the squared exponential along a straight line the sums have a closed form (the paper, section 5.5, uses Monte
Carlo); `has_closed_form` in `weights/exact.py` tells where it applies.
"""

import math
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import erf
from jaxtyping import Array, Float

from hipgp.model.differences import differences
from hipgp.runtime.arrays import AnyArray

if TYPE_CHECKING:
    from hipgp.model.kernel_slopes import WithSlopes
    from hipgp.model.kernels import Kernel, SquaredExponential
    from hipgp.model.nodes import Nodes


class TransposedNodes(NamedTuple):
    """The nodes of `model.nodes.Nodes` with axes reversed: functionals are last, so that loops over nodes vectorise."""

    x: Float[AnyArray, "D Q ..."]
    weights: Float[AnyArray, "Q ..."]
    value: Float[AnyArray, "..."] | None
    direction: Float[AnyArray, "D ..."] | None


def transposed_nodes(nodes: "Nodes") -> TransposedNodes:
    """Reverse the axes of the nodes of N functionals, so that N is the last axis."""
    direction = None if nodes.direction is None else jnp.moveaxis(jnp.asarray(nodes.direction), -1, 0)
    return TransposedNodes(
        jnp.transpose(jnp.asarray(nodes.x), (2, 1, 0)), jnp.asarray(nodes.weights).T, nodes.value, direction
    )


def kernel_between_nodes(kernel: "Kernel | WithSlopes", a: Any, b: Any) -> Callable[[Any], Any]:
    """Return the covariance of a node of `a` and a node of `b` as a function of the difference x - y of their places.

    It is (value_a + direction_a . grad_x)(value_b + direction_b . grad_y) k(x - y). `value` and `direction` broadcast
    against the differences; None, or nodes without a direction, stand for the field's value itself.
    """
    k: Callable[[Any], Any] = kernel.evaluate
    if b is not None and b.direction is not None:
        k = _directional(k, b.value, -b.direction)
    if a is not None and a.direction is not None:
        k = _directional(k, a.value, a.direction)
    return k


def _directional(k: Callable[[Any], Any], value: Any, direction: Any) -> Callable[[Any], Any]:
    def combined(difference: AnyArray) -> Any:
        tail = direction.shape[1:]
        reshaped = direction.reshape(-1, *[1] * (difference.ndim - 1 - len(tail)), *tail)
        plain, slope = jax.jvp(k, (difference,), (jnp.broadcast_to(reshaped, difference.shape),))
        return jax.tree.map(lambda a, b: value * a + b, plain, slope)

    return combined


def _node_position(nodes: TransposedNodes, q: Array) -> list[Array]:
    """Return the place of each functional's node q, component by component."""
    return [x[q] for x in nodes.x]


def gram(kernel: "Kernel | WithSlopes", group: TransposedNodes) -> Any:
    """Return the covariance matrices of T groups of k functionals each, (k, k, T); the arrays of `group` end in (k, T).

    Each pair of nodes is evaluated once, by symmetry. A kernel with its derivatives gives a list of such arrays.
    """
    lift = lambda axis: jax.tree.map(lambda f: jnp.expand_dims(f, axis), group)
    a, b = lift(-2), lift(-3)
    k = kernel_between_nodes(kernel, a, b)

    def term(q: Array, r: Array) -> Any:
        found = k(differences(_node_position(a, q), _node_position(b, r)))
        return jax.tree.map(lambda one: one * a.weights[q] * b.weights[r], found)

    count = group.x.shape[1]
    total = _sum_of(term, [(q, q) for q in range(count)])
    if count == 1:
        return total
    below = _sum_of(term, [(q, r) for q in range(count) for r in range(q)])
    return jax.tree.map(lambda one, low: one + low + jnp.swapaxes(low, 0, 1), total, below)


def _sum_of(term: Callable[[Array, Array], Any], places: list[tuple[int, int]]) -> Any:
    """Sum term(q, r) over the pairs in a loop of fused passes, on a CPU ten times as fast as one reduction."""
    if len(places) == 1:
        return term(*(jnp.array(i) for i in places[0]))
    table = jnp.asarray(places)
    first = term(table[0, 0], table[0, 1])
    add = lambda i, total: jax.tree.map(operator.add, total, term(table[i, 0], table[i, 1]))
    return jax.lax.fori_loop(1, len(places), add, first)


def prior_variances(kernel: "Kernel", nodes: "Nodes") -> Float[Array, " N"]:
    """Return k**, the variance of every functional under the prior.

    One pass takes a node of every functional with all its nodes, so that passes are few and long, as a GPU needs.
    """
    f = transposed_nodes(nodes)
    k = kernel_between_nodes(kernel, f, f)

    def with_all(q: Array) -> Array:
        difference = differences([x[q][None] for x in f.x], f.x)
        return f.weights[q] * jnp.sum(f.weights * k(difference), axis=0)

    first, count = with_all(jnp.array(0)), f.x.shape[1]
    return first if count == 1 else jax.lax.fori_loop(1, count, lambda q, total: total + with_all(q), first)


def residual_variance(prior: Array, explained: Array, quadratic: Array) -> Array:
    """Return v = k** - 2 w'k* + w'K w, the variance of L f - w'u, from its three terms, for any weights w.

    It is least for the weights K^-1 k*. Negative rounding errors are set to zero.
    """
    return jnp.maximum(prior - 2 * explained + quadratic, 0.0)


def covariance_with_points(
    kernel: "Kernel", points: Float[Array, "M D"], nodes: "Nodes"
) -> Float[Array, "N M"]:
    """Return k*, the covariance of every functional with the field's values at `points`; takes O(N M) memory."""
    across = jnp.asarray(points).T

    def one(n: "Nodes") -> Array:
        k = kernel_between_nodes(kernel, None, n)
        add = lambda total, xc: (total + xc[1] * k(differences(across, xc[0][:, None])), None)
        return jax.lax.scan(add, jnp.zeros(across.shape[1], across.dtype), (n.x, n.weights))[0]

    return jax.vmap(one)(nodes)


def line_covariance_with_points(
    kernel: "SquaredExponential", points: Float[Array, "M D"], start: Array, end: Array, average: bool
) -> Float[Array, "N M"]:
    """Return k* of line integrals under a squared exponential, in closed form and in the dtype of `points`."""
    lengthscale, variance = (jnp.asarray(a, points.dtype) for a in (kernel.lengthscale, kernel.variance))

    def one(a: Array, b: Array) -> Array:
        step = (b - a) / lengthscale
        size = jnp.linalg.norm(step)
        offset = (points - a) / lengthscale
        along = offset @ step / size
        across = jnp.sum(offset**2, axis=-1) - along**2
        root2 = math.sqrt(2.0)
        inside = erf((size - along) / root2) + erf(along / root2)
        value = variance * jnp.exp(-across / 2) * math.sqrt(math.pi / 2) / size * inside
        return value if average else value * jnp.linalg.norm(b - a)

    return jax.vmap(one)(start, end)


def line_variances(
    kernel: "SquaredExponential", start: Array, end: Array, average: bool
) -> Float[Array, " N"]:
    """Return k** of line integrals under a squared exponential, in closed form."""
    size2 = jnp.sum(((end - start) / kernel.lengthscale) ** 2, axis=-1)
    safe = jnp.where(size2 > 1e-4, size2, 1.0)
    root = jnp.sqrt(safe)
    full = np.sqrt(2 * np.pi) / root * erf(root / np.sqrt(2.0)) - 2 * (-jnp.expm1(-safe / 2)) / safe
    value = kernel.variance * jnp.where(size2 > 1e-4, full, 1 - size2 / 12)
    return value if average else value * jnp.sum((end - start) ** 2, axis=-1)
