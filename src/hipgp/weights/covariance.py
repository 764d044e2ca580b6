"""Covariances of functionals: k*(u, n) = Cov(f(u), L_n f), k**(n) = Var(L_n f), and Cov(L_n f, L_m f).

All are sums over nodes of the kernel or its derivatives, taken by automatic differentiation at one pair of points.
For the squared exponential along a straight line the sums have a closed form (paper, section 5.5, does them by Monte
Carlo); `closed_form` says when it applies.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import erf
from jaxtyping import Array, Float

from hipgp.model.functionals import Functional, LineIntegrals
from hipgp.model.kernels import Kernel, SquaredExponential, differences
from hipgp.model.nodes import Nodes
from hipgp.runtime.precision import AnyArray, float64_available


class TransposedNodes(NamedTuple):
    """Nodes with their components in front and the functionals' own axes behind, so that sums vectorise."""

    x: Float[AnyArray, "D Q ..."]
    weights: Float[AnyArray, "Q ..."]
    value: Float[AnyArray, "..."] | None
    direction: Float[AnyArray, "D ..."] | None


def transposed_nodes(nodes: Nodes) -> TransposedNodes:
    """`nodes` of N functionals with N behind."""
    direction = None if nodes.direction is None else jnp.moveaxis(jnp.asarray(nodes.direction), -1, 0)
    return TransposedNodes(
        jnp.transpose(jnp.asarray(nodes.x), (2, 1, 0)), jnp.asarray(nodes.weights).T, nodes.value, direction
    )


def kernel_between_nodes(kernel: Kernel, a: Any, b: Any) -> Callable[[Any], Array]:
    """difference -> (value_a + direction_a . grad_x)(value_b + direction_b . grad_y) k(x - y).

    `a` and `b` have `value` and `direction` that broadcast against the differences; None, or one without a direction,
    means the field's value itself.
    """
    k = kernel.evaluate
    if b is not None and b.direction is not None:
        k = _directional(k, b.value, -b.direction)
    if a is not None and a.direction is not None:
        k = _directional(k, a.value, a.direction)
    return k


def _directional(k: Callable[[Any], Array], value: Any, direction: Any) -> Callable[[Any], Array]:
    def combined(difference: AnyArray) -> Array:
        tail = direction.shape[1:]
        spread = direction.reshape(-1, *[1] * (difference.ndim - 1 - len(tail)), *tail)
        plain, slope = jax.jvp(k, (difference,), (jnp.broadcast_to(spread, difference.shape),))
        return value * plain + slope

    return combined


def _node_position(nodes: TransposedNodes, q: Array) -> list[Array]:
    """Where each functional's node q is, component by component."""
    return [x[q] for x in nodes.x]


def elementwise_covariance(kernel: Kernel, a: TransposedNodes, b: TransposedNodes) -> Float[Array, "..."]:
    """The covariance of each functional in `a` with the one at the same place in `b`; other axes broadcast."""
    k = kernel_between_nodes(kernel, a, b)
    one = lambda q, r: (
        k(differences(_node_position(a, q), _node_position(b, r))) * a.weights[q] * b.weights[r]
    )
    count, across = a.x.shape[1] * b.x.shape[1], b.x.shape[1]
    # Places are counted, not listed: a box may have a thousand nodes, and a million pairs.
    add = lambda i, total: total + one(i // across, i % across)
    first = one(jnp.array(0), jnp.array(0))
    return first if count == 1 else jax.lax.fori_loop(1, count, add, first)


@jax.custom_vjp
def gram(kernel: Kernel, group: TransposedNodes) -> Float[Array, "k k T"]:
    """The covariance matrices of T groups of k functionals each, `group` (..., k, T); uses the symmetry in nodes.

    Differentiable in the kernel alone. The gradient is a second loop over the pairs of nodes that keeps nothing:
    memory stays that of one pass.
    """
    term, same, other = _gram_terms(group)
    total = _sum_of(lambda q, r: term(kernel, q, r), same)
    if not other:
        return total
    below = _sum_of(lambda q, r: term(kernel, q, r), other)
    return total + below + jnp.swapaxes(below, 0, 1)


def _gram_terms(
    group: TransposedNodes,
) -> tuple[Callable[..., Array], list[tuple[int, int]], list[tuple[int, int]]]:
    """The contribution of one pair of nodes, and the pairs: each with itself, and each with those before it."""
    lift = lambda axis: jax.tree.map(lambda f: jnp.expand_dims(f, axis), group)
    a, b = lift(-2), lift(-3)

    def term(kernel: Kernel, q: Array, r: Array) -> Array:
        k = kernel_between_nodes(kernel, a, b)
        return k(differences(_node_position(a, q), _node_position(b, r))) * a.weights[q] * b.weights[r]

    count = group.x.shape[1]
    return term, [(q, q) for q in range(count)], [(q, r) for q in range(count) for r in range(q)]


def _gram_forward(kernel: Kernel, group: TransposedNodes) -> tuple[Array, tuple[Kernel, TransposedNodes]]:
    return gram(kernel, group), (jax.tree.map(jnp.asarray, kernel), group)


def _gram_backward(saved: tuple[Kernel, TransposedNodes], cotangent: Array) -> tuple[Kernel, TransposedNodes]:
    kernel, group = saved
    term, same, other = _gram_terms(group)

    def gradient(places: list[tuple[int, int]], weight: Array) -> Kernel:
        table = jnp.asarray(places)
        slope = lambda i: jax.grad(lambda k: jnp.sum(weight * term(k, table[i, 0], table[i, 1])))(kernel)
        add = lambda i, total: jax.tree.map(jnp.add, total, slope(i))
        return jax.lax.fori_loop(1, len(places), add, slope(0))

    total = gradient(same, cotangent)
    if other:
        total = jax.tree.map(jnp.add, total, gradient(other, cotangent + jnp.swapaxes(cotangent, 0, 1)))
    return total, jax.tree.map(jnp.zeros_like, group)


gram.defvjp(_gram_forward, _gram_backward)


def _sum_of(term: Callable[[Array, Array], Array], places: list[tuple[int, int]]) -> Array:
    """The sum of term(q, r), one after the other: a loop over fused passes beats one reduction 10 to 1 on a CPU."""
    if len(places) == 1:
        return term(*(jnp.array(i) for i in places[0]))
    table = jnp.asarray(places)
    first = term(table[0, 0], table[0, 1])
    return jax.lax.fori_loop(1, len(places), lambda i, total: total + term(table[i, 0], table[i, 1]), first)


def prior_variances(kernel: Kernel, nodes: Nodes) -> Float[Array, " N"]:
    """k** of every functional."""
    everything = transposed_nodes(nodes)
    return elementwise_covariance(kernel, everything, everything)


def covariance_with_points(kernel: Kernel, points: Float[Array, "M D"], nodes: Nodes) -> Float[Array, "N M"]:
    """k*: the covariance of every functional with the field's values at `points`; O(N M) memory."""
    across = jnp.asarray(points).T

    def one(n: Nodes) -> Array:
        k = kernel_between_nodes(kernel, None, n)
        add = lambda total, xc: (total + xc[1] * k(differences(across, xc[0][:, None])), None)
        return jax.lax.scan(add, jnp.zeros(across.shape[1], across.dtype), (n.x, n.weights))[0]

    return jax.vmap(one)(nodes)


def has_closed_form(kernel: Kernel, functional: Functional) -> bool:
    """Whether the covariances of `functional` under `kernel` need no quadrature."""
    gauss = (
        isinstance(functional, LineIntegrals)
        and functional.rule == "gauss"
        and functional.nodes_per_ray is None
    )
    return gauss and type(kernel) is SquaredExponential


def line_covariance_with_points(
    kernel: SquaredExponential, points: Float[Array, "M D"], start: Array, end: Array, average: bool
) -> Float[Array, "N M"]:
    """k* of line integrals under a squared exponential, in closed form."""

    def one(a: Array, b: Array) -> Array:
        step = (b - a) / kernel.lengthscale
        size = jnp.linalg.norm(step)
        offset = (points - a) / kernel.lengthscale
        along = offset @ step / size
        across = jnp.sum(offset**2, axis=-1) - along**2
        root2 = np.sqrt(2.0)
        inside = erf((size - along) / root2) + erf(along / root2)
        value = kernel.variance * jnp.exp(-across / 2) * np.sqrt(np.pi / 2) / size * inside
        return value if average else value * jnp.linalg.norm(b - a)

    return jax.vmap(one)(start, end)


def line_variances(kernel: SquaredExponential, start: Array, end: Array, average: bool) -> Float[Array, " N"]:
    """k** of line integrals under a squared exponential, in closed form."""
    size2 = jnp.sum(((end - start) / kernel.lengthscale) ** 2, axis=-1)
    safe = jnp.where(size2 > 1e-4, size2, 1.0)
    root = jnp.sqrt(safe)
    full = np.sqrt(2 * np.pi) / root * erf(root / np.sqrt(2.0)) - 2 * (-jnp.expm1(-safe / 2)) / safe
    value = kernel.variance * jnp.where(size2 > 1e-4, full, 1 - size2 / 12)
    return value if average else value * jnp.sum((end - start) ** 2, axis=-1)


@float64_available
def quadrature_error(kernel: Kernel, functional: Functional, spacing: Any, most: int = 64) -> float:
    """The root-mean-square error of the quadrature, as a fraction of the functional's prior std.

    The std, under the prior, of the difference between the functional with its own nodes and with those of half the
    spacing: to leading order, that of its difference from the true integral. The worst of `most` functionals is stated.
    """
    pick = np.unique(np.linspace(0, len(functional) - 1, most).astype(int))
    some = functional[pick]
    coarse, fine = some.nodes(spacing), some.finer().nodes(np.asarray(spacing) / 2)
    joined = Nodes(
        np.concatenate([coarse.x, fine.x], axis=1).astype(float),
        np.concatenate([coarse.weights, -fine.weights], axis=1).astype(float),
        coarse.value,
        coarse.direction,
    )
    gap = jnp.maximum(prior_variances(kernel, joined), 0.0)
    return float(jnp.sqrt(jnp.max(gap / prior_variances(kernel, fine))))
