"""Links: the measured field is g(f), where f is a Gaussian process.

With `exp` the field is positive and its logarithm Gaussian; with `softplus` it is positive and close to f where f is
large; with `logistic` it lies between zero and one. `Link(g)` takes any other increasing function that JAX can
differentiate.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

CHECKED_AT = np.linspace(-6.0, 6.0, 49)  # values of f at which a user's link is checked
BISECTIONS = 80
FARTHEST = 1e3  # the inverse of a link is searched for in |f| up to this


class Link(eqx.Module):
    """A link: the field is g(f), where `g` is an increasing elementwise function in jax.numpy.

    >>> Link(lambda f: f + jnp.exp(f)).name
    'own'
    """

    g: Callable[[Array], Array] = eqx.field(static=True)
    name: str = eqx.field(static=True)

    def __init__(self, g: Callable[[Array], Array], name: str = "own"):
        self.g, self.name = g, name
        if name == "own":
            _check_increasing(g)

    def __call__(self, f: Any) -> Float[Array, "..."]:
        return self.g(jnp.asarray(f))

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        """Pickled by name, as XLA's functions cannot be."""
        return (as_link, (self.name,)) if self.name in LINKS else (Link, (self.g,))

    @property
    def identity(self) -> bool:
        """Whether the field is f itself."""
        return self.name == "identity"

    def slope(self, f: Array) -> Float[Array, "..."]:
        """g'(f), element by element."""
        return jax.jvp(self.g, (f,), (jnp.ones_like(f),))[1]

    def inverse(self, values: Any) -> Float[Array, "..."]:
        """f with g(f) = value, by bisection where g has no inverse in closed form."""
        values = jnp.asarray(values)
        if self.name in INVERSES:
            return INVERSES[self.name](values)
        low, high = (jnp.full_like(values, end) for end in (-FARTHEST, FARTHEST))

        def halve(_: int, ends: tuple[Array, Array]) -> tuple[Array, Array]:
            low, high = ends
            middle = 0.5 * (low + high)
            below = self.g(middle) < values
            return jnp.where(below, middle, low), jnp.where(below, high, middle)

        low, high = jax.lax.fori_loop(0, BISECTIONS, halve, (low, high))
        return 0.5 * (low + high)


INVERSES: dict[str, Callable[[Array], Array]] = {
    "identity": lambda v: v,
    "exp": jnp.log,
    "softplus": lambda v: v + jnp.log(-jnp.expm1(-v)),
    "logistic": lambda v: jnp.log(v) - jnp.log1p(-v),
}
LINKS = {
    "identity": Link(lambda f: f, "identity"),
    "exp": Link(jnp.exp, "exp"),
    "softplus": Link(jax.nn.softplus, "softplus"),
    "logistic": Link(jax.nn.sigmoid, "logistic"),
}


def as_link(link: Any) -> Link:
    """A link from its name; a Link is returned unchanged, and None gives the identity."""
    if isinstance(link, Link):
        return link
    if link is None:
        return LINKS["identity"]
    if not isinstance(link, str) or link not in LINKS:
        names = ", ".join(f'"{name}"' for name in LINKS)
        raise ValueError(f"link: expected one of {names}, or Link(g), got {link!r}")
    return LINKS[link]


def _check_increasing(g: Callable[[Array], Array]) -> None:
    """Raise a ValueError unless g is elementwise, increasing and differentiable by JAX."""
    f = jnp.asarray(CHECKED_AT)
    try:
        values, slopes = (np.asarray(a) for a in jax.jvp(g, (f,), (jnp.ones_like(f),)))
    except Exception as error:
        raise ValueError(
            f"link: expected a function of an array, made of jax.numpy, got one that raises {type(error).__name__}: {error}"
        ) from error
    if values.shape != CHECKED_AT.shape:
        raise ValueError(
            f"link: expected one value for each element, shape {CHECKED_AT.shape}, got {values.shape}"
        )
    bad = ~np.isfinite(values) | ~np.isfinite(slopes) | (slopes <= 0)
    if np.any(bad):
        raise ValueError(
            f"link: expected an increasing function, finite with a positive derivative, got g = {values[bad][0]:.4g} with "
            f"derivative {slopes[bad][0]:.4g} at f = {CHECKED_AT[bad][0]:g}"
        )
