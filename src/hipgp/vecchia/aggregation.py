"""Points that their noise cannot tell apart, taken together: what makes a preconditioner of crowded, noisy data good.

A neighbour says little through its noise, and where points crowd twenty of them do not reach far. So points so close
that the field between them varies far less than the noise hides count as one, seen with the noise of their mean. With B
saying who is in which bin, N_b = (B' N^-1 B)^-1 and S_b'S_b ~ (K_b + N_b)^-1 from the bins alone,

    P = B K_b B' + N,   P^-1 = S'S,   S = (I - Q Q' + Q S_b N_b^(1/2) Q') N^(-1/2),   Q = N^(-1/2) B N_b^(1/2),

exactly: differences within a bin are noise, and means go through the bins' factor.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import scipy.sparse
from jaxtyping import Array, Float, Int

from hipgp.linalg.csr import CSR
from hipgp.linalg.sparse import SlicedEllpack, SparseMatrix, sliced_ellpack
from hipgp.model.kernels import Kernel
from hipgp.model.nodes import Nodes
from hipgp.runtime.buckets import round_up
from hipgp.weights.toeplitz import kernel_at_differences

# How far the field may vary across a bin, times its points, in noise variances. A field with slopes errs alike over a
# whole lengthscale, one without only within the bin.
ROUGH, SMOOTH = 1.0, 0.05
LARGEST_RATIO = 0.8  # bins per point from which they are not worth it
LARGEST_CLUSTER = 32  # points in a bin


class AggregatedFactor(eqx.Module):
    """The factor S of the data from that of the bins."""

    inner: SparseMatrix  # S_b N_b^(1/2)
    cluster: Int[Array, " N"]
    q: Float[Array, " N"]  # the one entry in each row of Q
    q_transpose: SlicedEllpack  # Q'
    scale: Float[Array, " N"]  # N^(-1/2)

    def matmul(self, x: Float[Array, "... N"]) -> Float[Array, "... N"]:
        w = x * self.scale
        mean = self.q_transpose.matmul(w)
        return w + self.q * jnp.take(self.inner.matmul(mean) - mean, self.cluster, axis=-1)

    def transpose_matmul(self, y: Float[Array, "... N"]) -> Float[Array, "... N"]:
        mean = self.q_transpose.matmul(y)
        return (
            y + self.q * jnp.take(self.inner.transpose_matmul(mean) - mean, self.cluster, axis=-1)
        ) * self.scale

    @staticmethod
    def of(
        inner: Any, bins: Int[np.ndarray, " N"], noise: Float[np.ndarray, " N"], dtype: Any
    ) -> "AggregatedFactor":
        """From S_b, a CSR matrix, and the variances `noise` of the points."""
        spread = cluster_noise(bins, noise)
        q = np.sqrt(spread[bins] / noise)
        count = round_up(len(spread), 8)  # some bins more, that nobody is in
        table = scipy.sparse.csr_array((q, (bins, np.arange(len(bins)))), shape=(count, len(bins)))
        starts = np.pad(inner.indptr, (0, count - len(spread)), mode="edge")
        entries = inner.data * np.sqrt(spread)[inner.indices], inner.indices, starts
        scaled = SparseMatrix.from_scipy(scipy.sparse.csr_array(entries, shape=(count, count)), dtype)
        as_dtype = lambda v: jnp.asarray(v, dtype)
        scale = as_dtype(1 / np.sqrt(noise))
        sums = sliced_ellpack(CSR.from_scipy(table), dtype)
        return AggregatedFactor(scaled, jnp.asarray(bins, jnp.int32), as_dtype(q), sums, scale)


def cluster_noise(bins: Int[np.ndarray, " N"], noise: Float[np.ndarray, " N"]) -> Float[np.ndarray, " n"]:
    """The variance of each bin's mean about the field."""
    return 1 / np.bincount(bins, 1 / noise)


def cluster_means(
    y: Float[np.ndarray, "... N"], bins: Int[np.ndarray, " N"], noise: Float[np.ndarray, " N"]
) -> Float[np.ndarray, "... n"]:
    """The mean of each bin, each member weighted by what its noise leaves of it."""
    spread = cluster_noise(bins, noise)
    out = np.empty((*np.shape(y)[:-1], len(spread)))
    for row in np.ndindex(out.shape[:-1]):
        out[row] = np.bincount(bins, y[row] / noise) * spread
    return out


def clusters_as_points(
    x: Float[np.ndarray, "N D"], bins: Int[np.ndarray, " N"], noise: Float[np.ndarray, " N"]
) -> tuple[Nodes, Float[np.ndarray, " n"]]:
    """One point for each bin, at the place of its mean, and the noise it is seen with."""
    places = cluster_means(x.T, bins, noise).T
    return Nodes(places[:, None], np.ones((len(places), 1))), cluster_noise(bins, noise)


def cluster_points(
    kernel: Kernel,
    x: Float[np.ndarray, "N D"],
    noise: Float[np.ndarray, " N"],
    lengthscale: np.ndarray,
    share: float | None = None,
    most: int = LARGEST_CLUSTER,
) -> Int[np.ndarray, " N"] | None:
    """The bin of each point; None where too few can be taken together to be worth it.

    Bins are cut in two along their widest axis (in lengthscales) until the field's variation across each, times its
    points, is at most `share` of the noise, and they hold at most `most`.
    """
    places = x / lengthscale
    allowed = ((SMOOTH if kernel.differentiable else ROUGH) if share is None else share) * noise
    variation = _variation(kernel, lengthscale)
    order, starts, ends = np.arange(len(x)), np.array([0]), np.array([len(x)])
    done: list[np.ndarray] = []
    while len(starts):
        order, starts, ends, whole = _bisect(order, starts, ends, places, allowed, most, variation)
        done.append(whole)
    begins = np.sort(np.concatenate(done))
    if len(begins) > LARGEST_RATIO * len(x):
        return None
    bins = np.empty(len(x), int)
    bins[order] = np.searchsorted(begins, np.arange(len(x)), side="right") - 1
    return bins


def _variation(kernel: Kernel, lengthscale: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """E (f(x) - f(x'))^2 at distances in lengthscales."""
    reach = np.concatenate([[0.0], np.geomspace(1e-6, 1e2, 400)])
    along = reach[:, None] * (lengthscale / np.sqrt(len(lengthscale)))
    covariance = np.asarray(kernel_at_differences(kernel, along))
    return lambda width: np.interp(width, reach, 2 * (covariance[0] - covariance))


def _bisect(
    order: np.ndarray,
    starts: np.ndarray,
    ends: np.ndarray,
    places: np.ndarray,
    allowed: np.ndarray,
    most: int,
    variation: Callable[[np.ndarray], np.ndarray],
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """All stretches of `order` that are too wide cut in two at their middle; also, where those begin that are not."""
    count = ends - starts
    rows = _ranges(starts, count)
    owner = np.repeat(np.arange(len(starts)), count)
    first = np.concatenate([[0], np.cumsum(count)[:-1]])
    here = places[order[rows]]
    low, high = (f.reduceat(here, first, axis=0) for f in (np.minimum, np.maximum))
    width = np.linalg.norm(high - low, axis=1)
    least = np.minimum.reduceat(allowed[order[rows]], first)
    fine = (variation(width) * count <= least) & (count <= most) | (count == 1)
    wide = ~fine
    axis = np.argmax(high - low, axis=1)[owner, None]
    along, middle = (np.take_along_axis(v, axis, axis=1)[:, 0] for v in (here, ((low + high) / 2)[owner]))
    late = np.arange(len(rows)) - first[owner] >= (count // 2)[owner]
    # where all are at one place, more than a bin takes, the later half
    above = np.where((width == 0)[owner], late, along > middle) & wide[owner]
    order = order.copy()
    order[rows] = order[rows][np.lexsort((above, owner))]
    cut = ends - np.add.reduceat(above.astype(int), first)
    new_starts = np.concatenate([starts[wide], cut[wide]])
    new_ends = np.concatenate([cut[wide], ends[wide]])
    return order, new_starts, new_ends, starts[fine]


def _ranges(starts: np.ndarray, count: np.ndarray) -> np.ndarray:
    """All places in the stretches, one after the other."""
    return np.repeat(starts - np.concatenate([[0], np.cumsum(count)[:-1]]), count) + np.arange(count.sum())
