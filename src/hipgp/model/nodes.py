"""Nodes and weights, the discrete form shared by all functionals, and their Gauss-Legendre quadrature."""

import functools
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Float

from hipgp.runtime.arrays import AnyArray
from hipgp.runtime.threads import map_in_threads

PANEL = 16  # largest number of Gauss-Legendre nodes in one panel of a composite rule
LINES_AT_ONCE = 2**13


class Nodes(eqx.Module):
    """The discrete form shared by all functionals: L_n f = sum_q weights_nq (value_n f + direction_n . grad f)(x_nq).

    `value` and `direction` are both None if no functional takes a derivative.
    """

    x: Float[AnyArray, "N Q D"]
    weights: Float[AnyArray, "N Q"]
    value: Float[AnyArray, " N"] | None = None
    direction: Float[AnyArray, "N D"] | None = None

    def __len__(self) -> int:
        return self.x.shape[0]

    @property
    def rule_size(self) -> int:
        """The number of nodes of each functional."""
        return self.x.shape[1]

    def ends(self) -> tuple[Float[AnyArray, "N D"], Float[AnyArray, "N D"]]:
        """The first and the last node of each functional."""
        return self.x[:, 0], self.x[:, -1]

    def heaviest(self) -> "Nodes":
        """The functional with the largest sum of absolute weights."""
        return self[np.argmax(np.sum(np.abs(self.weights), axis=1), keepdims=True)]

    def filled_up(self, count: int) -> "Nodes":
        """These nodes padded to `count` functionals with functionals of weight zero."""
        return jax.tree.map(lambda a: with_zeros(a, count), self)

    def __getitem__(self, index: Any) -> "Nodes":
        pick = lambda a: None if a is None else a[index]
        return Nodes(self.x[index], self.weights[index], pick(self.value), pick(self.direction))

    def with_derivative_fields(self) -> "Nodes":
        """These nodes with `value` and `direction` as arrays, of ones and of zeros if they are None."""
        if self.direction is not None:
            return self
        n, _, d = self.x.shape
        dtype = self.x.dtype
        return Nodes(self.x, self.weights, np.ones(n, dtype), np.zeros((n, d), dtype))

    @staticmethod
    def concatenate(sets: list["Nodes"]) -> "Nodes":
        """Join sets of nodes; a set with fewer nodes than another repeats its last node with weight zero."""
        if any(s.direction is not None for s in sets):
            sets = [s.with_derivative_fields() for s in sets]
        if len(sets) == 1:
            return sets[0]
        most = max(s.x.shape[1] for s in sets)
        xs, cs = [], []
        for s in sets:
            missing = most - s.x.shape[1]
            xs.append(np.concatenate([s.x, np.repeat(s.x[:, -1:], missing, axis=1)], axis=1))
            cs.append(np.pad(s.weights, ((0, 0), (0, missing))))
        together = lambda name: np.concatenate([getattr(s, name) for s in sets])
        if sets[0].direction is None:
            return Nodes(np.concatenate(xs), np.concatenate(cs))
        return Nodes(np.concatenate(xs), np.concatenate(cs), together("value"), together("direction"))


def with_zeros(a: np.ndarray, count: int) -> np.ndarray:
    """The array padded with zeros to length `count`."""
    return np.pad(a, [(0, count - len(a))] + [(0, 0)] * (a.ndim - 1))


class Segments(eqx.Module):
    """Straight lines with a shared rule: node q of line n is start_n + t_q delta_n, with weight c_q size_n.

    They have the interface of `Nodes` without storing every node.
    """

    start: Float[AnyArray, "N D"]
    delta: Float[AnyArray, "N D"]
    size: Float[AnyArray, " N"]
    t: Float[AnyArray, " Q"]
    c: Float[AnyArray, " Q"]

    def __len__(self) -> int:
        return len(self.start)

    @property
    def rule_size(self) -> int:
        """The number of nodes of each line."""
        return len(self.t)

    def ends(self) -> tuple[Float[AnyArray, "N D"], Float[AnyArray, "N D"]]:
        return self.start + self.t[0] * self.delta, self.start + self.t[-1] * self.delta

    def heaviest(self) -> Nodes:
        return self[np.argmax(np.abs(self.size), keepdims=True)]

    def filled_up(self, count: int) -> "Segments":
        start, delta, size = (with_zeros(np.asarray(a), count) for a in (self.start, self.delta, self.size))
        return Segments(start, delta, size, self.t, self.c)

    def __getitem__(self, index: Any) -> Nodes:
        """The nodes of the lines at `index`."""
        start, delta = self.start[index][..., None, :], self.delta[index][..., None, :]
        return Nodes(start + self.t[:, None] * delta, self.c * self.size[index][..., None])

    def nodes(self) -> Nodes:
        """The nodes of all lines, computed in several threads."""
        (n, ndim), each, dtype = self.start.shape, len(self.t), self.start.dtype
        x, t = np.empty((n, each, ndim), dtype), self.t.astype(dtype)[:, None]

        def fill(begin: int) -> None:
            some = slice(begin, begin + LINES_AT_ONCE)
            np.multiply(t, self.delta[some, None], out=x[some])
            x[some] += self.start[some, None]

        begins = [(begin,) for begin in range(0, n, LINES_AT_ONCE)]
        for _ in map_in_threads(fill, iter(begins)) if len(begins) > 1 else map(fill, *begins):
            pass
        return Nodes(x, (self.c * self.size[:, None]).astype(dtype, copy=False))


@functools.lru_cache(256)
def gauss(count: int) -> tuple[np.ndarray, np.ndarray]:
    """At least `count` Gauss-Legendre nodes and weights on [0, 1], in equal panels of at most PANEL nodes."""
    panels = max(1, -(-count // PANEL))
    t, c = np.polynomial.legendre.leggauss(max(-(-count // panels), 3))
    starts = np.arange(panels)[:, None]
    return ((starts + (t + 1) / 2) / panels).ravel(), np.tile(c / 2 / panels, panels)
