"""A kernel and a noise as one vector of logarithms, for optimisers; with bounds and names."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from hipgp.kernels import Kernel, Product, Stationary


class Layout(eqx.Module):
    """How the free parameters sit in the vector: every kernel parameter in tree order, then the noise if it is free.

    In a product of kernels only the first factor's variance is free: the data see only the product of the variances.
    """

    template: Kernel
    noise_free: bool = eqx.field(static=True)
    free: tuple[bool, ...] = eqx.field(static=True)  # per kernel leaf

    @staticmethod
    def of(kernel: Kernel, noise_free: bool) -> "Layout":
        plain = jax.tree.map(lambda a: np.asarray(a, float), kernel)
        fixed = {id(part.variance) for part in _fixed_factors(plain)}
        return Layout(plain, noise_free, tuple(id(leaf) not in fixed for leaf in jax.tree.leaves(plain)))

    def names(self) -> list[str]:
        """A readable name per entry of the vector."""
        names = []
        for path, leaf in jax.tree_util.tree_flatten_with_path(self.template)[0]:
            part = self.template
            for step in path[:-1]:
                part = getattr(part, step.name)
            label = f"{type(part).__name__}.{path[-1].name}"
            names += [label] if leaf.ndim == 0 else [f"{label}[{i}]" for i in range(leaf.size)]
        names = [n for n, keep in zip(names, self._mask(), strict=True) if keep]
        return names + ["noise"] * self.noise_free

    def pack(self, kernel: Kernel, noise: float | None) -> Float[np.ndarray, " p"]:
        logs = np.concatenate([np.log(np.ravel(np.asarray(leaf, float))) for leaf in jax.tree.leaves(kernel)])
        logs = logs[self._mask()]
        return np.append(logs, np.log(noise)) if self.noise_free and noise is not None else logs

    def unpack(self, vector: Float[Array, " p"]) -> tuple[Kernel, Array | None]:
        """The kernel and the noise std (None where it is not free); differentiable."""
        leaves, structure = jax.tree.flatten(self.template)
        out, at = [], 0
        for leaf, free in zip(leaves, self.free, strict=True):
            size = np.size(leaf)
            out.append(jnp.exp(vector[at : at + size]).reshape(np.shape(leaf)) if free else jnp.asarray(leaf))
            at += size if free else 0
        noise = jnp.exp(vector[at]) if self.noise_free else None
        return jax.tree.unflatten(structure, out), noise

    def _mask(self) -> np.ndarray:
        leaves = jax.tree.leaves(self.template)
        return np.concatenate([np.full(np.size(a), f) for a, f in zip(leaves, self.free, strict=True)])


def _fixed_factors(kernel: Kernel) -> list[Stationary]:
    """The factors of products whose variance is not free."""
    if isinstance(kernel, Stationary):
        return []
    left, right = kernel.left, kernel.right  # type: ignore[attr-defined]
    below = _fixed_factors(left) + _fixed_factors(right)
    return below + (list(right.parts) if isinstance(kernel, Product) else [])


class Bounds(NamedTuple):
    """Lower and upper logarithms per entry of the vector."""

    lower: Float[np.ndarray, " p"]
    upper: Float[np.ndarray, " p"]

    def clip(self, vector: np.ndarray) -> np.ndarray:
        return np.clip(vector, self.lower, self.upper)

    def touching(self, vector: np.ndarray) -> np.ndarray:
        """Which entries lie on a bound."""
        return (vector <= self.lower + 1e-3) | (vector >= self.upper - 1e-3)


def bounds(layout: Layout, spread: float, spacing: np.ndarray, extent: np.ndarray, user: dict[str, Any]) -> Bounds:
    """Wide bounds from the data's spread and the grid; `user` gives (low, high) by name, e.g. "Matern32.lengthscale"."""
    shortest, longest = 0.3 * float(np.min(spacing)), 10 * float(np.max(extent))
    wide = {
        "variance": (1e-8 * spread**2, 1e4 * spread**2),
        "lengthscale": (shortest, longest),
        "alpha": (1e-2, 1e2),
        "noise": (1e-4 * spread, 3 * spread),
    }
    rows = []
    known = set()
    for name in layout.names():
        kind = name.split(".")[-1].split("[")[0]
        chosen = next((user[key] for key in (name, name.split("[")[0], kind) if key in user), wide[kind])
        known |= {name, name.split("[")[0], kind}
        rows.append(chosen)
    if unknown := set(user) - known:
        raise ValueError(f"bounds: expected names among {sorted(known)}, got {sorted(unknown)}")
    for low, high in rows:
        if not 0 < low < high:
            raise ValueError(f"bounds: expected 0 < low < high, got {(low, high)}")
    table = np.log(np.asarray(rows, float))
    return Bounds(table[:, 0], table[:, 1])
