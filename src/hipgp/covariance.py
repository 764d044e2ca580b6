"""Covariances of functionals: k*(u, n) = Cov(f(u), L_n f), k**(n) = Var(L_n f), and Cov(L_n f, L_m f).

All are sums over nodes of the kernel or its derivatives, taken by automatic differentiation at one pair of points.
For the squared exponential along a straight line the sums have a closed form (paper, section 5.5, does them by Monte
Carlo); `closed_form` says when it applies.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import erf
from jaxtyping import Array, Float

from hipgp.functionals import Functional, LineIntegrals, Nodes
from hipgp.kernels import Kernel, SquaredExponential
from hipgp.precision import float64_available


def differentiated(kernel: Kernel, a: Nodes | None, b: Nodes | None) -> Callable[[Array], Array]:
    """difference -> (value_a + direction_a . grad_x)(value_b + direction_b . grad_y) k(x - y), for one a and one b.

    `a` and `b` are single functionals (unbatched fields); None, or one without a direction, means the value itself.
    """
    k = kernel.evaluate
    if b is not None and b.direction is not None:
        k = _along(k, b.value, -b.direction)
    if a is not None and a.direction is not None:
        k = _along(k, a.value, a.direction)
    return k


def _along(k: Callable[[Array], Array], value: Any, direction: Any) -> Callable[[Array], Array]:
    def combined(difference: Array) -> Array:
        plain, slope = jax.jvp(k, (difference,), (direction,))
        return value * plain + slope

    return combined


def pair(kernel: Kernel, a: Nodes, b: Nodes) -> Float[Array, ""]:
    """The covariance of one functional with another (unbatched fields)."""
    k = differentiated(kernel, a, b)
    table = jax.vmap(lambda x: jax.vmap(lambda y: k(x - y))(b.x))(a.x)
    return a.weights @ table @ b.weights


def variances(kernel: Kernel, nodes: Nodes) -> Float[Array, " N"]:
    """k** of every functional."""
    return jax.lax.map(lambda n: pair(kernel, n, n), nodes, batch_size=64)


def with_points(kernel: Kernel, points: Float[Array, "M D"], nodes: Nodes) -> Float[Array, "N M"]:
    """k*: the covariance of every functional with the field's values at `points`; O(N M) memory."""

    def one(n: Nodes) -> Array:
        k = differentiated(kernel, None, n)
        add = lambda total, xc: (total + xc[1] * jax.vmap(lambda u: k(u - xc[0]))(points), None)
        return jax.lax.scan(add, jnp.zeros(len(points), points.dtype), (n.x, n.weights))[0]

    return jax.vmap(one)(nodes)


def closed_form(kernel: Kernel, functional: Functional) -> bool:
    """Whether the covariances of `functional` under `kernel` need no quadrature."""
    gauss = isinstance(functional, LineIntegrals) and functional.rule == "gauss" and functional.nodes_per_ray is None
    return gauss and type(kernel) is SquaredExponential


def line_with_points(
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

    The variance, under the prior, of the difference between the functional at this resolution and at half of it:
    no field drawn from the kernel is off by more, in the root-mean-square sense, to leading order. The worst of
    `most` functionals is stated.
    """
    pick = np.unique(np.linspace(0, len(functional) - 1, most).astype(int))
    some = functional[pick]
    coarse, fine = (some.nodes(np.asarray(spacing) / f) for f in (1.0, 2.0))
    joined = Nodes(
        np.concatenate([coarse.x, fine.x], axis=1).astype(float),
        np.concatenate([coarse.weights, -fine.weights], axis=1).astype(float),
        coarse.value,
        coarse.direction,
    )
    gap = jnp.maximum(variances(kernel, joined), 0.0)
    return float(jnp.sqrt(jnp.max(gap / variances(kernel, fine))))
