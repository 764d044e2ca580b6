"""The system in grid space, for more observations than grid points.

In place of A = W K W' + N, conjugate gradients solve with the whitened Λ = I + R' G R, G = W' N^-1 W. For points G is a
fixed stencil, so that after one pass over the data the cost of a step does not depend on N. The unknowns are the Fourier
modes of the white noise on the torus, so that a step takes one pair of FFTs and the preconditioner none. With the residual
rho of the solve, KL = rho' Λ^-1 rho / 2 <= rho' rho / 2, and

    A^-1 z = N^-1 (z - W field),    field = R Λ^-1 R' W' N^-1 z.

**The preconditioner.** Λ is ill-conditioned because of the few modes with the largest eigenvalues of the prior. `_LowModes`
holds the block of Λ among these, densely inverted. For points that block replaces G by the diagonal matrix of its row
sums, so that each entry needs two Fourier coefficients of the row sums; for other functionals it uses the modes as seen by
a sample of the observations. For all other modes the preconditioner assumes data of uniform density on the torus.
"""

from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
from jaxtyping import Array, Float, Int

from hipgp.batch.ordering import by_number
from hipgp.batch.systems import System
from hipgp.linalg.band import Band
from hipgp.linalg.csr import CSR, contiguous_transpose
from hipgp.linalg.sparse import SlicedEllpack, sliced_ellpack
from hipgp.runtime.arrays import on_device
from hipgp.runtime.buckets import round_up
from hipgp.runtime.threads import map_in_threads, run_both
from hipgp.weights.stencils import LocalWeights, WeightRows
from hipgp.weights.toeplitz import Toeplitz, TorusToeplitz
from hipgp.weights.torus import Torus

POINT_MODES, LINE_MODES = (512, 2048), 1024  # pairs of modes in the dense block
# Modes on which the data have less information, relative to the prior, are not in the dense block.
LEAST_GAIN = 0.1
LINES = 20_000  # observations in the sample that the dense block of lines is computed from
MODES_AT_ONCE = 64
GROUP, AT_ONCE = 8, 2**15  # rows of W in one dense product; rows of products in memory at once


class _LowModes(eqx.Module):
    """The modes with the largest prior eigenvalues, and the inverse of the block of Λ among them.

    A mode's coefficient has two places among the unknowns, because rfftn keeps some modes together with their mirror
    images; for all others the second place has the share zero.
    """

    places: Int[Array, "2 r"]
    shares: Float[Array, "2 r"]
    inverse: Float[Array, "r r"]

    def take(self, x: Float[Array, "B n"]) -> Float[Array, "B r"]:
        return jnp.sum(self.shares * x[:, self.places], axis=1)

    def put(self, x: Float[Array, "B n"], coefficients: Float[Array, "B r"]) -> Float[Array, "B n"]:
        """Return x with these coefficients added to it."""
        for place, share in zip(self.places, self.shares, strict=True):
            x = x.at[:, place].add(share * coefficients)
        return x


class GridSystem(System):
    """Λ = I + R' G R, the precision of the white noise on the torus given the data."""

    space: ClassVar[str] = "grid"
    toeplitz: TorusToeplitz
    weights: LocalWeights
    noise: Float[Array, " N"]
    stencil: SlicedEllpack | Band | None  # G for points, None for other functionals
    density: Float[Array, ""]  # mean of G over the torus
    low: _LowModes

    residuals: None = None  # residuals count as independent noise

    @property
    def preconditioner_size(self) -> str:
        return f"{len(self.low.inverse)} modes"

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
        """Convert modes to real unknowns, scaled so that scalar products equal those on the torus."""
        torus = self.toeplitz.torus
        modes = modes * jnp.asarray(np.sqrt(torus.multiplicity() / torus.size), modes.real.dtype)
        return jnp.stack([modes.real, modes.imag], axis=1).reshape(len(modes), -1)

    def information(self, u: Float[Array, "B M"]) -> Float[Array, "B M"]:
        """Return G u."""
        if self.stencil is not None:
            return self.stencil.matmul(u)
        return self.weights.transpose_matmul(self.weights.matmul(u) / self.noise)

    def precondition(self, r: Float[Array, "B n"]) -> Float[Array, "B n"]:
        gain = 1 / (1 + self.density * self.toeplitz.eigenvalues)
        rest = (r.reshape(-1, *gain.shape) * gain).reshape(r.shape)
        low = self.low.take(r)
        return self.low.put(rest, low @ self.low.inverse - self.low.take(rest))

    def kl_bound(self, r: Float[Array, "B n"]) -> Float[Array, " B"]:
        return 0.5 * jnp.sum(r**2, axis=-1)

    def from_data(self, z: Float[Array, "B N"]) -> Float[Array, "B n"]:
        return self.root_transpose(self.weights.transpose_matmul(z / self.noise))

    def matvec_and_field(self, x: Float[Array, "B n"]) -> tuple[Array, Array]:
        field = self.root(x)
        return x + self.root_transpose(self.information(field)), field

    def alpha(self, z: Float[Array, "B N"], x: Float[Array, "B n"], field: Float[Array, "B M"]) -> Array:
        return (z - self.weights.matmul(field)) / self.noise

    def unknowns_of(self, alpha: Float[Array, "B N"]) -> Float[Array, "B n"]:
        return self.root_transpose(self.weights.transpose_matmul(alpha))

    def random_signs(self, probes: int, key: Array) -> Float[Array, "B k"]:
        """Random signs at every point of the torus, as unknowns."""
        torus = self.toeplitz.torus
        signs = jax.random.rademacher(key, (probes, torus.size), self.noise.dtype)
        return self.unknowns(self.modes(signs, torus.shape))

    def whitened_matmul(self, v: Float[Array, "B k"]) -> Float[Array, "B k"]:
        """Λ v, whose determinant is that of N^-1 A."""
        return self.matmul(v)

    @property
    def whitener_log_determinant(self) -> Float[Array, ""]:
        return jnp.sum(jnp.log(self.noise))


def grid_system(
    toeplitz: Toeplitz, weights: WeightRows, noise: Float[np.ndarray, " N"], points: bool
) -> GridSystem:
    """The grid-space form of W K W' + N; `noise` holds variances, `points` tells whether all data are point values."""
    toeplitz = toeplitz.whole()
    dtype = toeplitz.eigenvalues.dtype
    measured = _information_of_points if points else _information_of_lines
    (stencil, density, low), local = run_both(
        lambda: measured(toeplitz, weights.matrix, noise),
        lambda: LocalWeights.from_rows(weights, dtype, store_transpose=not points),
    )
    return GridSystem(
        toeplitz=toeplitz,
        weights=local,
        noise=on_device(noise, dtype),
        stencil=stencil,
        density=on_device(density, dtype),
        low=low,
    )


def _information_of_points(
    toeplitz: Toeplitz, matrix: Any, noise: Float[np.ndarray, " N"]
) -> tuple[SlicedEllpack, float, _LowModes]:
    """G, its mean over the torus, and the dense block of modes, for points."""
    product = _product(matrix, 1 / noise)
    row_sums = np.maximum(np.asarray(product.sum(axis=1)), 0.0)
    density, low = preconditioner_of_points(toeplitz, row_sums)
    return sliced_ellpack(CSR.from_scipy(product), toeplitz.eigenvalues.dtype), density, low


def preconditioner_of_points(
    toeplitz: Toeplitz, row_sums: Float[np.ndarray, " M"]
) -> tuple[float, _LowModes]:
    """The mean over the torus of G, given its row sums, and the dense block of modes."""
    torus = toeplitz.torus
    density = float(np.sum(row_sums)) / torus.size
    modes = _largest_modes(toeplitz, _point_modes(torus), LEAST_GAIN / max(density, 1e-300))
    return density, _low_modes(toeplitz, modes, _products_from_row_sums(torus, row_sums, modes))


def _information_of_lines(
    toeplitz: Toeplitz, matrix: Any, noise: Float[np.ndarray, " N"]
) -> tuple[None, float, _LowModes]:
    """None for G, which would be dense, its mean over the torus, and the dense block of modes, for lines and areas."""
    torus, modes = toeplitz.torus, _largest_modes(toeplitz, LINE_MODES, 0.0)
    products, count = _products_from_sample(torus, matrix, noise, modes), len(modes.q)
    density = float(np.mean(np.diagonal(products)[:count][count // 2 :])) * 2 / torus.size
    return None, density, _low_modes(toeplitz, modes, products)


def _point_modes(torus: Torus) -> int:
    """The number of pairs of modes in the dense block."""
    return int(np.clip(torus.size // 200, *POINT_MODES))


def largest_unresolved_gain(toeplitz: Toeplitz, noise: Float[np.ndarray, " N"]) -> float:
    """The information of points, relative to the prior, on the largest mode outside the preconditioner's dense block.

    The number of steps grows with its square root.
    """
    eigenvalues = np.sort(np.asarray(toeplitz.whole().eigenvalues, float), axis=None)[::-1]
    largest = eigenvalues[min(_point_modes(toeplitz.torus), len(eigenvalues) - 1)]
    return float(np.sum(1 / noise)) / toeplitz.torus.size * largest


def _product(matrix: Any, precision: Float[np.ndarray, " N"]) -> Any:
    """W' N^-1 W for points.

    The columns of all rows have the same offsets from the first. Rows with the same first column are collected in groups
    of GROUP, padded with zeros. Each group gives a product of small dense matrices, whose entries lie on fixed diagonals.
    """
    count, size = matrix.shape
    width = len(matrix.indices) // count
    columns, values = matrix.indices.reshape(-1, width), matrix.data.reshape(-1, width)
    order = by_number(columns[:, 0])
    firsts, begin, number = np.unique(columns[order, 0], return_index=True, return_counts=True)
    groups = -(-number // GROUP)  # of each first column
    place = np.arange(count) + np.repeat(GROUP * (np.cumsum(groups) - groups) - begin, number)
    owner = np.repeat(firsts, groups)

    def summed(low: int, high: int) -> tuple[np.ndarray, np.ndarray]:
        """The first columns of some of the groups, and the sums of their products, (P, P, first columns)."""
        some = slice(*np.searchsorted(place, (low * GROUP, high * GROUP)))
        rows = np.zeros((high - low, GROUP, width))
        scaled = np.sqrt(precision[order[some], None]) * values[order[some]]
        rows.reshape(-1, width)[place[some] - low * GROUP] = scaled
        products = np.matmul(rows.transpose(0, 2, 1), rows).reshape(high - low, -1)
        distinct, at = np.unique(owner[low:high], return_index=True)
        of_each = scipy.sparse.csr_array((np.ones(high - low), np.arange(high - low), [*at, high - low]))
        return distinct, contiguous_transpose(of_each @ products, float).reshape(width, width, -1)

    diagonals: dict[int, np.ndarray] = {}
    steps, at_once = (columns[0] - columns[0, 0]).tolist(), max(AT_ONCE // width, 1)
    pieces = ((low, min(low + at_once, len(owner))) for low in range(0, len(owner), at_once))
    for rows_of_piece, products in map_in_threads(summed, pieces):
        for a, step in enumerate(steps):
            for b, other in enumerate(steps[a:], a):
                diagonals.setdefault(other - step, np.zeros(size))[rows_of_piece + step] += products[a, b]
    offsets = [*diagonals, *(-o for o in diagonals if o)]
    entries = [diagonals[abs(o)][: size - abs(o)] for o in offsets]
    return scipy.sparse.csr_array(scipy.sparse.diags_array(entries, offsets=offsets, shape=(size, size)))  # type: ignore[arg-type]


class _Modes(NamedTuple):
    """Modes in rfftn's layout, one of each mirror pair: each has a cosine, and those with a distinct mirror also a sine."""

    q: Int[np.ndarray, "r D"]
    mirror: Int[np.ndarray, "r D"]

    @property
    def paired(self) -> np.ndarray:
        return np.any(self.q != self.mirror, axis=1)


def _largest_modes(toeplitz: Toeplitz, most: int, least: float) -> _Modes:
    """The modes with the largest eigenvalues, down to `least`; their number is rounded up, to limit recompilation."""
    eigenvalues, shape = np.asarray(toeplitz.eigenvalues, float), toeplitz.torus.shape
    order = np.argsort(-eigenvalues, axis=None, kind="stable")[:most]
    order = order[: round_up(int(np.count_nonzero(eigenvalues.ravel()[order] > least)), 8)]
    q = np.stack(np.unravel_index(order, eigenvalues.shape), axis=1)
    mirror = -q % np.asarray(shape)
    index, mirror_index = (np.ravel_multi_index(tuple(k.T), shape) for k in (q, mirror))
    first = (q[:, -1] != mirror[:, -1]) | (index <= mirror_index)
    return _Modes(q[first], mirror[first])


def _products_from_row_sums(
    torus: Torus, row_sums: Float[np.ndarray, " M"], modes: _Modes
) -> Float[np.ndarray, "k k"]:
    """Sums over the grid of G's row sums times products of two modes, which are cosines and sines themselves."""
    padded = np.zeros(torus.shape)
    padded[tuple(slice(n) for n in torus.grid.shape)] = row_sums.reshape(torus.grid.shape)
    table, q, paired = np.fft.fftn(padded), modes.q, modes.paired
    at = lambda k: table[tuple(np.moveaxis(k % np.asarray(torus.shape), -1, 0))]
    less, more = at(q[:, None] - q), at(q[:, None] + q)
    cosines, sines = (less + more).real / 2, (less - more).real / 2
    mixed = (less - more).imag / 2  # of a cosine and a sine
    return np.block([[cosines, mixed[:, paired]], [mixed[:, paired].T, sines[np.ix_(paired, paired)]]])


def _products_from_sample(
    torus: Torus, matrix: Any, noise: np.ndarray, modes: _Modes
) -> Float[np.ndarray, "k k"]:
    """Sums over a sample of the observations of products of two modes as the observations see them."""
    count = matrix.shape[0]
    sample = np.sort(np.random.default_rng(0).permutation(count)[:LINES])
    chosen = matrix[sample]
    scaled = scipy.sparse.csr_array(
        (
            chosen.data / np.repeat(np.sqrt(noise[sample]), np.diff(chosen.indptr)),
            chosen.indices,
            chosen.indptr,
        ),
        shape=chosen.shape,
    )
    values: Any = np.empty((len(sample), len(modes.q)), complex)
    for begin in range(0, len(modes.q), MODES_AT_ONCE):
        part = slice(begin, begin + MODES_AT_ONCE)
        waves = np.ascontiguousarray(_waves(torus, modes.q[part]).T)
        values[:, part] = (scaled @ waves.view(float)).view(complex)
    table = np.concatenate([values.real, values.imag[:, modes.paired]], axis=1)
    return (count / len(sample)) * (table.T @ table)


def _waves(torus: Torus, q: Int[np.ndarray, "r D"]) -> np.ndarray:
    """exp(i q x) on the grid, (r, M)."""
    out = np.ones((len(q), 1), complex)
    for axis, (n, m) in enumerate(zip(torus.grid.shape, torus.shape, strict=True)):
        along = np.exp(2j * np.pi / m * q[:, axis, None] * np.arange(n))
        out = (out[:, :, None] * along[:, None, :]).reshape(len(q), -1)
    return out


def _low_modes(toeplitz: Toeplitz, modes: _Modes, products: Float[np.ndarray, "k k"]) -> _LowModes:
    """The places of the modes' coefficients among the unknowns, and the inverse of the block of Λ there."""
    eigenvalues, paired = toeplitz.eigenvalues, modes.paired
    both = (modes.q[:, -1] == modes.mirror[:, -1]) & paired  # rfftn keeps both of the pair
    flat = lambda k: np.ravel_multi_index(tuple(k.T), eigenvalues.shape)
    places = np.stack([flat(modes.q), flat(np.where(both[:, None], modes.mirror, modes.q))])
    share, other = np.where(both, np.sqrt(0.5), 1.0), np.where(both, np.sqrt(0.5), 0.0)
    shares = np.concatenate([[share, other], np.stack([-share, other])[:, paired]], axis=1)
    prior = np.asarray(eigenvalues, float).ravel()[places[0]]
    scale = np.sqrt(prior * np.where(paired, 2.0, 1.0) / toeplitz.torus.size)
    scale = np.concatenate([scale, scale[paired]])
    matrix = np.eye(len(scale)) + scale[:, None] * products * scale
    inverse = _inverse(matrix) if len(scale) else matrix
    places = np.concatenate([places, places[:, paired] + eigenvalues.size], axis=1)
    as_dtype = lambda a: on_device(a, eigenvalues.dtype)
    return _LowModes(on_device(places, np.int32), as_dtype(shares), as_dtype(inverse))


def _inverse(matrix: Float[np.ndarray, "r r"]) -> Float[np.ndarray, "r r"]:
    """The inverse of a positive definite matrix from its Cholesky factor; LAPACK fills one triangle only."""
    potri: Any = scipy.linalg.get_lapack_funcs("potri", (matrix,))
    half = potri(scipy.linalg.cholesky(matrix, lower=True), lower=1)[0]
    return np.tril(half) + np.tril(half, -1).T
