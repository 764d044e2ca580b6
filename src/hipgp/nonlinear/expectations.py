"""Expectations under a normal distribution: of a link, and of a likelihood with its first two derivatives.

All are Gauss-Hermite sums, except those of the exponential link, which have a closed form.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from hipgp.model.likelihood import Likelihood
from hipgp.model.links import Link
from hipgp.runtime.arrays import AnyArray
from hipgp.runtime.programs import bounded_jit

OF_LINKS, OF_LIKELIHOODS = 20, 32  # nodes of the rule
BISECTIONS = 60
EDGE = 2.0**-50  # least distance of a probability from 0 and 1, so that its logarithm exists


def rule(count: int) -> tuple[Float[np.ndarray, " K"], Float[np.ndarray, " K"]]:
    """Gauss-Hermite nodes and weights for the standard normal distribution."""
    z, c = np.polynomial.hermite_e.hermegauss(count)
    return z, c / c.sum()


def averaged(link: Link, mean: AnyArray, std: AnyArray) -> tuple[Array, Array]:
    """E g(f) and E g'(f) for f ~ N(mean, std^2), element by element."""
    mean, std = jnp.asarray(mean), jnp.asarray(std)
    if link.identity:
        return jnp.asarray(mean), jnp.ones_like(mean)
    if link.name == "exp":
        value = jnp.exp(mean + 0.5 * std**2)
        return value, value
    z, c = rule(OF_LINKS)

    def add(k: int, sums: tuple[Array, Array]) -> tuple[Array, Array]:
        f, share = mean + jnp.asarray(z)[k] * std, jnp.asarray(c)[k]
        return sums[0] + share * link(f), sums[1] + share * link.slope(f)

    return jax.lax.fori_loop(0, OF_LINKS, add, (jnp.zeros_like(mean), jnp.zeros_like(mean)))


def spread(link: Link, mean: AnyArray, std: AnyArray) -> Array:
    """The standard deviation of g(f) for f ~ N(mean, std^2)."""
    mean, std = jnp.asarray(mean), jnp.asarray(std)
    if link.identity:
        return jnp.asarray(std)
    value = averaged(link, mean, std)[0]
    if link.name == "exp":
        return value * jnp.sqrt(jnp.expm1(std**2))
    squares = sum(c * (link(mean + z * std) - value) ** 2 for z, c in zip(*rule(OF_LINKS), strict=True))
    return jnp.sqrt(squares)


def matched(link: Link, value: AnyArray, std: AnyArray) -> Array:
    """The mean mu for which E g(f) = value where f ~ N(mu, std^2)."""
    value, std = jnp.asarray(value), jnp.asarray(std)
    if link.identity:
        return jnp.asarray(value)
    if link.name == "exp":
        return jnp.log(value) - 0.5 * std**2
    middle = link.inverse(value)
    reach = jnp.abs(middle) * (1 + std) + 8 * std * (1 + std)

    def halve(_: int, ends: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = ends
        mu = 0.5 * (low + high)
        below = averaged(link, mu, std)[0] < value
        return jnp.where(below, mu, low), jnp.where(below, high, mu)

    low, high = jax.lax.fori_loop(0, BISECTIONS, halve, (middle - reach, middle + reach))
    return 0.5 * (low + high)


class Terms(NamedTuple):
    """E log p(y | eta) of each observation, its derivative in the mean, and two curvatures: the true and a positive one."""

    value: Float[Array, " N"]
    gradient: Float[Array, " N"]
    curvature: Float[Array, " N"]
    information: Float[Array, " N"]


@bounded_jit()
def likelihood_terms(
    likelihood: Likelihood,
    link: Link,
    y: AnyArray,
    noise: AnyArray,
    scale: AnyArray,
    mean: AnyArray,
    std: AnyArray,
) -> Terms:
    """The expected log density over zeta ~ N(mean, std^2), with eta = scale g(zeta), and its derivatives."""

    observed, sigma, times = jnp.asarray(y), jnp.asarray(noise), jnp.asarray(scale)

    def eta_of(zeta: Array) -> Array:
        field = link(zeta)
        return times * (jnp.clip(field, EDGE, 1 - EDGE) if link.name == "logistic" else field)

    def log_density(zeta: Array) -> Array:
        return likelihood.log_density(observed, eta_of(zeta), sigma)

    def slope(zeta: Array) -> Array:
        return jax.jvp(log_density, (zeta,), (jnp.ones_like(zeta),))[1]

    z, c = (jnp.asarray(a) for a in rule(OF_LIKELIHOODS))
    zeta = jnp.asarray(mean) + z[:, None] * jnp.asarray(std)
    observed = jnp.broadcast_to(observed, zeta.shape)
    first, second = jax.jvp(slope, (zeta,), (jnp.ones_like(zeta),))
    eta, change = jax.jvp(eta_of, (zeta,), (jnp.ones_like(zeta),))
    known = change**2 * likelihood.information(observed, eta, sigma)
    return Terms(*(c @ a for a in (log_density(zeta), first, -second, known)))


averaged_jit = bounded_jit()(averaged)
spread_jit = bounded_jit()(spread)
matched_jit = bounded_jit()(matched)
