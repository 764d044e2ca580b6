"""Kernel parameters and noise as one vector of logarithms for optimisers, with names and bounds; values at one vector."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from hipgp.model.kernels import Kernel, Product, Stationary
from hipgp.model.periodic import Periodic
from hipgp.runtime.arrays import AnyArray

SHORTEST = 0.3  # the shortest lengthscale that is tried, in units of the grid's spacing
WIDE = 100.0  # bounds of other kinds of parameters, as a factor of their starting values


class Evaluation(NamedTuple):
    """The negative log-likelihood per observation in the log-parameters: value, gradient, Fisher information."""

    value: float
    gradient: Float[np.ndarray, " q"]
    information: Float[np.ndarray, "q q"]

    @property
    def finite(self) -> bool:
        return all(bool(np.all(np.isfinite(part))) for part in self)


class Layout(eqx.Module):
    """The layout of the vector of free parameters: kernel parameters in tree order, then the noise if it is free.

    In a product of kernels only the first factor's variance is free, since the likelihood depends on the product alone. A
    period is free only if it was given as a range.
    """

    template: Kernel
    noise_free: bool = eqx.field(static=True)
    free: tuple[bool, ...] = eqx.field(static=True)  # per kernel leaf

    @staticmethod
    def of(kernel: Kernel, noise_free: bool) -> "Layout":
        plain = jax.tree.map(
            lambda a: np.array(a, float), kernel
        )  # copies, so that an object used twice becomes two leaves
        fixed = {id(part.variance) for part in _fixed_factors(plain)}
        fixed |= {id(p.period) for p in plain.parts if isinstance(p, Periodic) and p.between is None}
        return Layout(plain, noise_free, tuple(id(leaf) not in fixed for leaf in jax.tree.leaves(plain)))

    def names(self) -> list[str]:
        """A readable name for each entry of the vector."""
        names = []
        for path, leaf in jax.tree_util.tree_flatten_with_path(self.template)[0]:
            part = self.template
            for step in path[:-1]:
                part = getattr(part, step.name)
            label = f"{type(part).__name__}.{path[-1].name}"
            names += [label] if leaf.ndim == 0 else [f"{label}[{i}]" for i in range(leaf.size)]
        names = [n for n, keep in zip(names, self.mask(), strict=True) if keep]
        return names + ["noise"] * self.noise_free

    def periods(self) -> list[tuple[float, float] | None]:
        """For each entry of the vector the range in which a period is looked for, and None for all others."""
        ranges = {id(p.period): p.between for p in self.template.parts if isinstance(p, Periodic)}
        sizes = zip(jax.tree.leaves(self.template), self.free, strict=True)
        found = [ranges.get(id(leaf)) for leaf, free in sizes if free for _ in range(leaf.size)]
        return found + [None] * self.noise_free

    def pack(self, kernel: Kernel, noise: float | None) -> Float[np.ndarray, " p"]:
        logs = np.concatenate([np.log(np.ravel(np.asarray(leaf, float))) for leaf in jax.tree.leaves(kernel)])
        logs = logs[self.mask()]
        return np.append(logs, np.log(noise)) if self.noise_free and noise is not None else logs

    def unpack(self, vector: Float[AnyArray, " p"]) -> tuple[Kernel, Any]:
        """The kernel and the noise std (None if it is not free), differentiable if `vector` is a JAX array."""
        xp: Any = np if isinstance(vector, np.ndarray) else jnp
        leaves, structure = jax.tree.flatten(self.template)
        out, at = [], 0
        for leaf, free in zip(leaves, self.free, strict=True):
            size = np.size(leaf)
            out.append(xp.exp(vector[at : at + size]).reshape(np.shape(leaf)) if free else xp.asarray(leaf))
            at += size if free else 0
        noise = xp.exp(vector[at]) if self.noise_free else None
        return jax.tree.unflatten(structure, out), noise

    def kernel(self, vector: Float[AnyArray, " p"]) -> Kernel:
        """The kernel alone."""
        return self.unpack(vector)[0]

    def mask(self) -> np.ndarray:
        """A mask of the free ones among all entries of the kernel's leaves."""
        leaves = jax.tree.leaves(self.template)
        return np.concatenate([np.full(np.size(a), f) for a, f in zip(leaves, self.free, strict=True)])


def _fixed_factors(kernel: Kernel) -> list[Stationary]:
    """The factors of products whose variance is not free."""
    if isinstance(kernel, Stationary):
        return []
    left, right = kernel.left, kernel.right  # type: ignore[attr-defined]
    below = _fixed_factors(left) + _fixed_factors(right)
    return below + ([_first(right)] if isinstance(kernel, Product) else [])


def _first(kernel: Kernel) -> Stationary:
    """The factor whose variance scales a product."""
    return kernel if isinstance(kernel, Stationary) else _first(kernel.left)  # type: ignore[attr-defined]


class Bounds(NamedTuple):
    """Lower and upper logarithms per entry of the vector."""

    lower: Float[np.ndarray, " p"]
    upper: Float[np.ndarray, " p"]

    def clip(self, vector: np.ndarray) -> np.ndarray:
        return np.clip(vector, self.lower, self.upper)

    def touching(self, vector: np.ndarray) -> np.ndarray:
        """A mask of the entries that lie on a bound."""
        return (vector <= self.lower + 1e-3) | (vector >= self.upper - 1e-3)


def bounds(
    layout: Layout,
    field_std: float,
    spacing: np.ndarray,
    extent: np.ndarray,
    user: dict[str, Any],
    data_std: float,
) -> Bounds:
    """Wide bounds, unless `user` gives (low, high) by name, e.g. "Matern32.lengthscale".

    They follow from the standard deviations of the field, `field_std`, and of the data, `data_std`, which are equal for points, and
    from the grid. Other parameters stay within a factor of WIDE of the values given.
    """
    wide = {
        "variance": (1e-8 * field_std**2, 1e4 * field_std**2),
        "lengthscale": (SHORTEST * float(np.min(spacing)), 10 * float(np.max(extent))),
        "alpha": (1e-2, 1e2),
        "noise": (1e-4 * data_std, 3 * data_std),
    }
    for axis, (h, e) in enumerate(zip(spacing, extent, strict=True)):
        wide[f"lengthscale[{axis}]"] = (SHORTEST * float(h), 10 * float(e))
    rows, known = [], set()
    values = np.exp(layout.pack(layout.template, 1.0))
    for name, value, between in zip(layout.names(), values, layout.periods(), strict=True):
        parameter = name.split(".")[-1]
        keys = (name, name.split("[")[0], parameter, parameter.split("[")[0])
        known |= set(keys)
        by_user = next((user[key] for key in keys if key in user), None)
        usual = between or wide.get(
            parameter, wide.get(parameter.split("[")[0], (value / WIDE, value * WIDE))
        )
        rows.append(usual if by_user is None else by_user)
    if unknown := set(user) - known:
        raise ValueError(f"bounds: expected names among {sorted(known)}, got {sorted(unknown)}")
    for row in rows:
        if np.shape(row) != (2,) or not 0 < row[0] < row[1]:
            raise ValueError(f"bounds: expected (low, high) with 0 < low < high, got {row!r}")
    table = np.log(np.asarray(rows, float))
    return Bounds(table[:, 0], table[:, 1])
