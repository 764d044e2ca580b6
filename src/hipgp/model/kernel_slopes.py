"""Kernels together with their derivatives in the logarithms of their parameters.

What is common to a value and its derivatives, the distance and the profile with its slope, is computed once. XLA does not
find that by itself: derivatives taken one by one through the whole of a covariance take four times as long.
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from hipgp.model.kernels import Kernel, Product, Stationary, Sum


class WithSlopes(eqx.Module):
    """A covariance like a kernel, evaluated together with its derivatives in the logarithms of the parameters."""

    kernel: Kernel

    def evaluate(self, difference: Float[Array, "D ..."]) -> list[Float[Array, "..."]]:
        """The covariance and then its derivatives, in the order of the kernel's leaves and of the entries of each."""
        value, slopes = _with_slopes(self.kernel, difference)
        return [value, *slopes]


def _with_slopes(kernel: Kernel, difference: Array) -> tuple[Array, list[Array]]:
    if isinstance(kernel, Sum | Product):
        (left, of_left), (right, of_right) = (
            _with_slopes(k, difference) for k in (kernel.left, kernel.right)
        )
        if isinstance(kernel, Sum):
            return left + right, of_left + of_right
        return left * right, [s * right for s in of_left] + [left * s for s in of_right]
    if isinstance(kernel, Stationary) and type(kernel).evaluate is Stationary.evaluate:
        return _of_stationary(kernel, difference)
    slopes = _leaf_by_leaf(kernel, lambda k: k.evaluate(difference), without=())
    return kernel.evaluate(difference), [slope for of_field in slopes.values() for slope in of_field]


def _of_stationary(kernel: Stationary, difference: Array) -> tuple[Array, list[Array]]:
    """The derivatives through the profile's slope in the squared distance s, of which each axis has a share."""
    scale = jnp.broadcast_to(1 / jnp.asarray(kernel.lengthscale, difference.dtype), difference.shape[:1])
    shares = [(d * one) ** 2 for d, one in zip(difference, scale, strict=True)]
    s, variance = sum(shares[1:], start=shares[0]), jnp.asarray(kernel.variance, difference.dtype)
    profile, slope = jax.jvp(kernel.profile, (s,), (jnp.ones_like(s),))
    value, slope = variance * profile, -2 * variance * slope
    lengths = [slope * share for share in shares] if jnp.ndim(kernel.lengthscale) else [slope * s]
    known = {"variance": [value], "lengthscale": lengths}
    slopes = known | _leaf_by_leaf(kernel, lambda k: variance * k.profile(s), without=tuple(known))
    return value, [slope for name in dict.fromkeys(_names(kernel)) for slope in slopes[name]]


def _leaf_by_leaf(
    kernel: Kernel, function: Callable[..., Array], without: tuple[str, ...]
) -> dict[str, list[Array]]:
    """The derivatives of function(kernel) by field, one pass for each entry, but for the fields in `without`."""
    leaves, structure = jax.tree.flatten(kernel)
    out: dict[str, list[Array]] = {}
    for number, (leaf, name) in enumerate(zip(leaves, _names(kernel), strict=True)):
        if name in without:
            continue
        at = lambda one, n=number: function(
            jax.tree.unflatten(structure, [*leaves[:n], one, *leaves[n + 1 :]])
        )
        for entry in jnp.ravel(leaf)[:, None] * jnp.eye(jnp.size(leaf)):
            slope = jax.jvp(at, (leaf,), (entry.reshape(jnp.shape(leaf)),))[1]
            out.setdefault(name, []).append(slope)
    return out


def _names(kernel: Kernel) -> list[str]:
    """The field of each leaf."""
    return [
        str(getattr(path[0], "name", path[0])) for path, _ in jax.tree_util.tree_flatten_with_path(kernel)[0]
    ]
