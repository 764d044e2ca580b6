"""Correlation profiles g(s) as functions of the squared distance s, with their derivatives given explicitly.

Automatic differentiation of the square root fails at distance zero; these derivatives are correct there.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array

Profile = Callable[[Array], Array]


def _profile(*derivatives: Profile) -> Profile:
    """g(s) with its successive derivatives in s given explicitly; JAX differentiates the last one."""
    if len(derivatives) == 1:
        return derivatives[0]
    g = jax.custom_jvp(derivatives[0])
    slope = _profile(*derivatives[1:])

    @g.defjvp
    def _jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
        return g(primals[0]), slope(primals[0]) * tangents[0]

    return g


def _root(s: Array) -> Array:
    """sqrt(s) with derivative zero, not infinity, at s = 0."""
    return jnp.where(s > 0, jnp.sqrt(jnp.where(s > 0, s, 1.0)), 0.0)


def _over_root(value: Array, s: Array) -> Array:
    """value / sqrt(s), set to zero at s = 0, because such terms are multiplied by a distance that vanishes there."""
    return jnp.where(s > 0, value / jnp.sqrt(jnp.where(s > 0, s, 1.0)), 0.0)


def _decay(rate: float) -> Profile:
    return lambda s: jnp.exp(-rate * _root(s))


_A3, _A5 = math.sqrt(3.0), math.sqrt(5.0)
matern12 = _profile(_decay(1.0), lambda s: -0.5 * _over_root(_decay(1.0)(s), s))
matern32 = _profile(
    lambda s: (1 + _A3 * _root(s)) * _decay(_A3)(s),
    lambda s: -1.5 * _decay(_A3)(s),
    lambda s: 0.75 * _A3 * _over_root(_decay(_A3)(s), s),
)
matern52 = _profile(
    lambda s: (1 + _A5 * _root(s) + 5 / 3 * s) * _decay(_A5)(s),
    lambda s: -5 / 6 * (1 + _A5 * _root(s)) * _decay(_A5)(s),
    lambda s: 25 / 12 * _decay(_A5)(s),
    lambda s: -25 / 24 * _A5 * _over_root(_decay(_A5)(s), s),
)
bump = _profile(  # (1 - t) cos(pi t) + sin(pi t) / pi up to t = sqrt(s) = 1, zero beyond
    lambda s: jnp.where(
        s < 1, (1 - _root(s)) * jnp.cos(jnp.pi * _root(s)) + jnp.sin(jnp.pi * _root(s)) / jnp.pi, 0.0
    ),
    lambda s: jnp.where(s < 1, -(jnp.pi**2) / 2 * (1 - _root(s)) * jnp.sinc(_root(s)), 0.0),
)


def power(s: Array, exponent: float) -> Array:
    """s to a positive power, with derivative zero, not infinity, at s = 0."""
    return jnp.where(s > 0, jnp.where(s > 0, s, 1.0) ** exponent, 0.0)
