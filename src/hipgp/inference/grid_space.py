"""The system of the grid's unknowns: for data far more numerous than the grid, or far smoother.

In place of A = W K W' + N, conjugate gradients on the whitened L = I + R' G R with G = W' N^-1 W, a fixed stencil: after
one pass over the data a step does not depend on N. Its unknowns are the Fourier modes of the white noise on the torus, so
that a step takes one pair of FFTs and the preconditioner none. There KL = rho' L^-1 rho / 2 <= rho' rho / 2, and

    A^-1 z = N^-1 (z - W field),    field = R L^-1 R' W' N^-1 z.

**The preconditioner.** Data lie on the grid, the modes on a torus of several times its size, and most of the eigenvalues
of L above 1 belong to few modes. For these `LowModes` has the very matrix that L is among them, but that G stands for its
row sums: two Fourier coefficients of these for each entry, one dense factorisation. The rest counts as if the grid were
all of the torus.
"""

from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
import scipy.sparse
from jaxtyping import Array, Float, Int

from hipgp.inference.systems import System
from hipgp.sparse import Rows, Sparse
from hipgp.toeplitz import Toeplitz, Torus
from hipgp.weights import LocalWeights

MOST_MODES = 512  # pairs of them, solved for densely
LEAST_GAIN = (
    0.1  # a mode of which the data tell less than this, in units of the prior's precision, needs no help
)
ROWS_AT_ONCE = 2**19  # of W, in its product with itself


class LowModes(eqx.Module):
    """The modes that the data tell most of, and the inverse of L among them.

    A mode's coefficient is read off, and written to, two places of the unknowns, for where rfftn keeps a mode and its
    mirror image both; elsewhere the second counts for nothing.
    """

    places: Int[Array, "2 r"]
    shares: Float[Array, "2 r"]
    inverse: Float[Array, "r r"]

    def take(self, x: Float[Array, "B n"]) -> Float[Array, "B r"]:
        return jnp.sum(self.shares * x[:, self.places], axis=1)

    def put(self, x: Float[Array, "B n"], own: Float[Array, "B r"]) -> Float[Array, "B n"]:
        """x with these coefficients added."""
        for place, share in zip(self.places, self.shares, strict=True):
            x = x.at[:, place].add(share * own)
        return x


class GridSystem(System):
    """L = I + R' G R."""

    toeplitz: Toeplitz
    weights: LocalWeights
    noise: Float[Array, " N"]
    stencil: Sparse  # G
    density: Float[Array, ""]  # mean of G's row sums
    low: LowModes

    def root(self, x: Float[Array, "B n"]) -> Float[Array, "B M"]:
        torus = self.toeplitz.torus
        parts = x.reshape(-1, 2, *self.toeplitz.eigenvalues.shape)
        scale = self.toeplitz.amplitudes() * jnp.asarray(np.sqrt(torus.size / torus.multiplicity()), x.dtype)
        return self.toeplitz.from_modes(scale * jax.lax.complex(parts[:, 0], parts[:, 1])).reshape(len(x), -1)

    def root_transpose(self, u: Float[Array, "B M"]) -> Float[Array, "B n"]:
        return self.unknowns(self.toeplitz.amplitudes() * self.modes(u, self.toeplitz.shape))

    def modes(self, v: Float[Array, "B k"], shape: tuple[int, ...]) -> Array:
        return self.toeplitz.modes(v.reshape(-1, *shape))

    def unknowns(self, modes: Array) -> Float[Array, "B n"]:
        """Modes as real numbers with the torus' own scalar product."""
        torus = self.toeplitz.torus
        modes = modes * jnp.asarray(np.sqrt(torus.multiplicity() / torus.size), modes.real.dtype)
        return jnp.stack([modes.real, modes.imag], axis=1).reshape(len(modes), -1)

    def matmul(self, v: Float[Array, "B n"]) -> Float[Array, "B n"]:
        return v + self.root_transpose(self.stencil.matmul(self.root(v)))

    def precondition(self, r: Float[Array, "B n"]) -> Float[Array, "B n"]:
        gain = 1 / (1 + self.density * self.toeplitz.eigenvalues)
        rest = (r.reshape(-1, *gain.shape) * gain).reshape(r.shape)
        low = self.low.take(r)
        return self.low.put(rest, low @ self.low.inverse - self.low.take(rest))

    def nats(self, r: Float[Array, "B n"]) -> Float[Array, " B"]:
        return 0.5 * jnp.sum(r**2, axis=-1)

    def from_data(self, z: Float[Array, "B N"]) -> Float[Array, "B n"]:
        return self.root_transpose(self.weights.transpose_matmul(z / self.noise))

    def to_data(self, z: Float[Array, "B N"], x: Float[Array, "B n"]) -> tuple[Array, Array]:
        field = self.root(x)
        return (z - self.weights.matmul(field)) / self.noise, field


def grid_system(toeplitz: Toeplitz, weights: LocalWeights, noise: Float[np.ndarray, " N"]) -> GridSystem:
    """The grid-space form of W K W' + N; `noise` are variances."""
    dtype, torus = toeplitz.eigenvalues.dtype, toeplitz.torus
    stencil: Any = sum(
        part.T @ part for part in _scaled(weights.sparse.forward, 1 / np.sqrt(noise), torus.grid.size)
    )
    row_sums = np.asarray(stencil.sum(axis=1))
    density = np.mean(row_sums)
    return GridSystem(
        toeplitz,
        weights,
        jnp.asarray(noise, dtype),
        Sparse.from_scipy(stencil, dtype),
        jnp.asarray(density, dtype),
        low_modes(torus, np.asarray(toeplitz.eigenvalues, float), np.maximum(row_sums, 0.0), dtype),
    )


def _scaled(rows: Rows, scale: Float[np.ndarray, " N"], size: int) -> Iterator[Any]:
    """Some rows of the matrix at a time, each times its scale."""
    width, every = rows.columns.shape[1], np.arange(rows.count + 1)
    starts = every if rows.rows is None else np.searchsorted(np.asarray(rows.rows), every)
    for begin in range(0, rows.count, ROWS_AT_ONCE):
        own = starts[begin : begin + ROWS_AT_ONCE + 1]
        chunks = slice(own[0], own[-1])
        scales = np.repeat(scale[begin : begin + ROWS_AT_ONCE], np.diff(own))
        values = np.asarray(rows.values[chunks], float) * scales[:, None]
        entries = values.ravel(), np.asarray(rows.columns[chunks]).ravel(), (own - own[0]) * width
        yield scipy.sparse.csr_array(entries, shape=(len(own) - 1, size))


def low_modes(
    torus: Torus,
    eigenvalues: Float[np.ndarray, "..."],
    row_sums: Float[np.ndarray, " M"],
    dtype: Any,
) -> LowModes:
    """Those with the largest eigenvalues, as cosines and sines of one of each pair of mirror images."""
    q, mirror = _largest(torus, eigenvalues, float(np.mean(row_sums)))
    alone = np.all(q == mirror, axis=1)  # its own mirror image: a cosine and no sine
    both = (q[:, -1] == mirror[:, -1]) & ~alone  # rfftn keeps the two of them
    flat = lambda k: np.ravel_multi_index(tuple(k.T), eigenvalues.shape)
    places = np.stack([flat(q), flat(np.where(both[:, None], mirror, q))])
    share, other = np.where(both, np.sqrt(0.5), 1.0), np.where(both, np.sqrt(0.5), 0.0)
    shares = np.concatenate([[share, other], np.stack([-share, other])[:, ~alone]], axis=1)
    scale = np.sqrt(eigenvalues.ravel()[places[0]] * np.where(alone, 1.0, 2.0) / torus.size)
    scale = np.concatenate([scale, scale[~alone]])
    matrix = np.eye(len(scale)) + scale[:, None] * _products(torus, row_sums, q, ~alone) * scale
    inverse = scipy.linalg.inv(matrix, assume_a="pos") if len(scale) else matrix
    places = np.concatenate([places, places[:, ~alone] + eigenvalues.size], axis=1)
    return LowModes(jnp.asarray(places, jnp.int32), jnp.asarray(shares, dtype), jnp.asarray(inverse, dtype))


def _largest(
    torus: Torus, eigenvalues: np.ndarray, density: float
) -> tuple[Int[np.ndarray, "r D"], Int[np.ndarray, "r D"]]:
    """The modes that the data tell most of, in rfftn's layout, without those whose mirror image comes first."""
    order = np.argsort(-eigenvalues, axis=None, kind="stable")[:MOST_MODES]
    order = order[density * eigenvalues.ravel()[order] > LEAST_GAIN]
    q = np.stack(np.unravel_index(order, eigenvalues.shape), axis=1)
    mirror = -q % np.asarray(torus.shape)
    there = np.ravel_multi_index(tuple(mirror.T), torus.shape)
    here = np.ravel_multi_index(tuple(q.T), torus.shape)
    first = (q[:, -1] != mirror[:, -1]) | (here <= there)
    return q[first], mirror[first]


def _products(
    torus: Torus, row_sums: Float[np.ndarray, " M"], q: Int[np.ndarray, "r D"], paired: np.ndarray
) -> Float[np.ndarray, "k k"]:
    """Sums over the grid of its row sums times two of the cosines (first) and sines of the modes q."""
    padded = np.zeros(torus.shape)
    padded[tuple(slice(n) for n in torus.grid.shape)] = row_sums.reshape(torus.grid.shape)
    table = np.fft.fftn(padded).ravel()
    at = lambda lag: table[
        np.ravel_multi_index(tuple(np.moveaxis(lag % np.asarray(torus.shape), -1, 0)), torus.shape)
    ]
    less, more = at(q[:, None] - q[None]), at(q[:, None] + q[None])
    cosines, sines = (less + more).real / 2, (less - more).real / 2
    mixed = (less - more).imag / 2  # of a cosine and a sine
    return np.block([[cosines, mixed[:, paired]], [mixed[:, paired].T, sines[np.ix_(paired, paired)]]])
