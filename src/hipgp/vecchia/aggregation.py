"""Aggregated observations: clusters of points within which the field varies far less than the noise.

A single noisy neighbour carries little information, and twenty neighbours in a crowd of points cover a small region. So
points between which the field varies far less than the noise are aggregated: their weighted mean becomes one observation
at one point. Let H be the membership of N points in n clusters, N_c = (H' N^-1 H)^-1 the noise of the means and
S_c'S_c ~ (K_c + N_c)^-1 their Vecchia factor. The factor of the data is then, exactly,

    (H K_c H' + N)^-1 = S'S,   S = (I - J J' + J S_c N_c^(1/2) J') N^(-1/2),   J = N^(-1/2) H N_c^(1/2):

differences within a cluster are noise, and means pass through the clusters' factor.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import scipy.sparse
from jaxtyping import Array, Float, Int

from hipgp.linalg.csr import CSR, ranges
from hipgp.linalg.sparse import SlicedEllpack, SparseMatrix, sliced_ellpack
from hipgp.model.differences import kernel_at_differences
from hipgp.model.kernels import Kernel
from hipgp.model.nodes import Nodes
from hipgp.runtime.buckets import round_up

# Largest variation of the field across a cluster, times its number of points, in noise variances: for kernels that are
# not differentiable, whose errors stay within the cluster, and for others, whose errors extend over a lengthscale.
ROUGH, SMOOTH = 1.0, 0.05
LARGEST_RATIO = 0.8  # clusters per point above which aggregation does not pay
LARGEST_CLUSTER = 32  # points in a cluster


class AggregatedFactor(eqx.Module):
    """The Vecchia factor S of the data, from the factor S_c of the clusters."""

    inner: SparseMatrix  # S_c N_c^(1/2)
    cluster: Int[Array, " N"]
    j: Float[Array, " N"]  # the one entry in each row of J
    j_transpose: SlicedEllpack  # J'
    scale: Float[Array, " N"]  # N^(-1/2)

    def matmul(self, x: Float[Array, "... N"]) -> Float[Array, "... N"]:
        w = x * self.scale
        mean = self.j_transpose.matmul(w)
        return w + self.j * jnp.take(self.inner.matmul(mean) - mean, self.cluster, axis=-1)

    def transpose_matmul(self, y: Float[Array, "... N"]) -> Float[Array, "... N"]:
        mean = self.j_transpose.matmul(y)
        return (
            y + self.j * jnp.take(self.inner.transpose_matmul(mean) - mean, self.cluster, axis=-1)
        ) * self.scale

    @staticmethod
    def of(
        inner: Any, clusters: Int[np.ndarray, " N"], noise: Float[np.ndarray, " N"], dtype: Any
    ) -> "AggregatedFactor":
        """Build S from S_c, a CSR matrix, the cluster of each point, and the points' noise variances."""
        noise_of_means = _cluster_noise(clusters, noise)
        j = np.sqrt(noise_of_means[clusters] / noise)
        count = round_up(len(noise_of_means), 8)  # padded with empty clusters, for few different sizes
        table = scipy.sparse.csr_array(
            (j, (clusters, np.arange(len(clusters)))), shape=(count, len(clusters))
        )
        starts = np.pad(inner.indptr, (0, count - len(noise_of_means)), mode="edge")
        entries = inner.data * np.sqrt(noise_of_means)[inner.indices], inner.indices, starts
        scaled = SparseMatrix.from_scipy(scipy.sparse.csr_array(entries, shape=(count, count)), dtype)
        as_dtype = lambda v: jnp.asarray(v, dtype)
        scale = as_dtype(1 / np.sqrt(noise))
        j_transpose = sliced_ellpack(CSR.from_scipy(table), dtype)
        return AggregatedFactor(scaled, jnp.asarray(clusters, jnp.int32), as_dtype(j), j_transpose, scale)


def _cluster_noise(
    clusters: Int[np.ndarray, " N"], noise: Float[np.ndarray, " N"]
) -> Float[np.ndarray, " n"]:
    """Return the noise variance of each cluster's mean, N_c."""
    return 1 / np.bincount(clusters, 1 / noise)


def cluster_means(
    y: Float[np.ndarray, "... N"], clusters: Int[np.ndarray, " N"], noise: Float[np.ndarray, " N"]
) -> Float[np.ndarray, "... n"]:
    """Return the mean of each cluster, weighted by inverse noise variances."""
    noise_of_means = _cluster_noise(clusters, noise)
    out = np.empty((*np.shape(y)[:-1], len(noise_of_means)))
    for row in np.ndindex(out.shape[:-1]):
        out[row] = np.bincount(clusters, y[row] / noise) * noise_of_means
    return out


def clusters_as_points(
    x: Float[np.ndarray, "N D"], clusters: Int[np.ndarray, " N"], noise: Float[np.ndarray, " N"]
) -> tuple[Nodes, Float[np.ndarray, " n"]]:
    """Return a point for each cluster, at the weighted mean of its places, and its noise variance."""
    places = cluster_means(x.T, clusters, noise).T
    return Nodes(places[:, None], np.ones((len(places), 1))), _cluster_noise(clusters, noise)


def cluster_points(
    kernel: Kernel,
    x: Float[np.ndarray, "N D"],
    noise: Float[np.ndarray, " N"],
    lengthscale: np.ndarray,
    share: float | None = None,
    most: int = LARGEST_CLUSTER,
) -> Int[np.ndarray, " N"] | None:
    """Assign each point to a cluster; None if there would be nearly as many clusters as points.

    Clusters are bisected along their widest axis (in lengthscales) until the field's variation across each, times its
    number of points, is at most `share` of the noise variance, and each holds at most `most` points.
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
    clusters = np.empty(len(x), int)
    clusters[order] = np.searchsorted(begins, np.arange(len(x)), side="right") - 1
    return clusters


def _variation(kernel: Kernel, lengthscale: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """Return the variogram, E (f(x) - f(x'))^2, as a function of the distance in lengthscales."""
    reach = np.concatenate([[0.0], np.geomspace(1e-6, 1e2, 400)])
    along = reach[:, None] * (lengthscale / np.sqrt(len(lengthscale)))
    covariance = np.asarray(kernel_at_differences(kernel, along))
    variogram = np.maximum.accumulate(2 * (covariance[0] - covariance))  # a whole period apart is not near
    return lambda width: np.interp(width, reach, variogram)


def _bisect(
    order: np.ndarray,
    starts: np.ndarray,
    ends: np.ndarray,
    places: np.ndarray,
    allowed: np.ndarray,
    most: int,
    variation: Callable[[np.ndarray], np.ndarray],
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Bisect all ranges of `order` that are too wide, at the middle of their widest axis.

    Return the new order, the starts and ends of the halves, and the starts of the ranges that need no bisection.
    """
    count = ends - starts
    owner, rows = ranges(starts, count)
    first = np.concatenate([[0], np.cumsum(count)[:-1]])
    part = places[order[rows]]
    low, high = (f.reduceat(part, first, axis=0) for f in (np.minimum, np.maximum))
    width = np.linalg.norm(high - low, axis=1)
    least = np.minimum.reduceat(allowed[order[rows]], first)
    fine = (variation(width) * count <= least) & (count <= most) | (count == 1)
    wide = ~fine
    axis = np.argmax(high - low, axis=1)[owner, None]
    along, middle = (np.take_along_axis(v, axis, axis=1)[:, 0] for v in (part, ((low + high) / 2)[owner]))
    late = np.arange(len(rows)) - first[owner] >= (count // 2)[owner]
    # if a place has more points than a cluster may hold, the later half of them is split off
    above = np.where((width == 0)[owner], late, along > middle) & wide[owner]
    order = order.copy()
    order[rows] = order[rows][np.lexsort((above, owner))]
    cut = ends - np.add.reduceat(above.astype(int), first)
    new_starts = np.concatenate([starts[wide], cut[wide]])
    new_ends = np.concatenate([cut[wide], ends[wide]])
    return order, new_starts, new_ends, starts[fine]
