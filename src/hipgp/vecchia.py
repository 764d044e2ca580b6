"""Nearest-neighbour (Vecchia) conditionals of the data: one idea, three uses.

Order the observations; given a few nearest predecessors each observation is Gaussian with mean b'y_neighbours and
variance d, both from one small dense system with the noise included. Then

- A^-1 ~ S'S with S = D^(-1/2) (I - B), sparse: the preconditioner of the batch engine, two products and no triangular
  solve;
- sum_n log N(y_n | b_n'y, d_n): a likelihood without a single large solve, to learn from;
- the same conditional for a functional not observed: its variance, deterministic and nearly exact for points.

Covariances between functionals are double sums over a few nodes each (`coarse_nodes`), exact for points.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
from jaxtyping import Array, Float, Int
from scipy.spatial import KDTree

from hipgp.covariance import Columns, gram
from hipgp.data import Data
from hipgp.functionals import Functional, Nodes
from hipgp.kernels import Kernel
from hipgp.precision import float64_available
from hipgp.sparse import Sparse

NEIGHBOURS = 20
MOST_NODES = 12  # per functional in a covariance of two functionals
AT_ONCE = 512  # targets in one chunk: its matrices stay in cache


class Neighbours(NamedTuple):
    """For each target, the observations it is conditioned on; `used` marks the real ones."""

    index: Int[np.ndarray, "N k"]
    used: np.ndarray


class Conditionals(NamedTuple):
    """target | neighbours ~ N(coefficients . y_neighbours, variance)."""

    coefficients: Float[Array, "N k"]
    variance: Float[Array, " N"]


class Vecchia(eqx.Module):
    """The sparse factor S with A^-1 ~ S'S, and log|A| ~ log_determinant."""

    factor: Sparse
    log_determinant: Float[Array, ""]

    def precondition(self, r: Float[Array, "... N"]) -> Float[Array, "... N"]:
        return self.factor.transpose_matmul(self.factor.matmul(r))


def typical_lengthscale(kernel: Kernel, ndim: int) -> Float[np.ndarray, " D"]:
    """A lengthscale per axis for measuring who is near: the geometric mean over the kernel's parts."""
    logs = [np.log(np.broadcast_to(np.asarray(part.lengthscale, float), (ndim,))) for part in kernel.parts]
    return np.exp(np.mean(logs, axis=0))


def shortest_lengthscale(kernel: Kernel, ndim: int) -> Float[np.ndarray, " D"]:
    """The shortest lengthscale among the kernel's parts, per axis."""
    return np.min([np.broadcast_to(np.asarray(p.lengthscale, float), (ndim,)) for p in kernel.parts], axis=0)


def coarse_nodes(functional: Functional, kernel: Kernel) -> Nodes:
    """Few nodes per functional: about two per lengthscale, at most MOST_NODES a side."""
    scale = shortest_lengthscale(kernel, functional.ndim)
    nodes = functional.nodes(scale)
    while nodes.x.shape[1] > MOST_NODES:
        scale = scale * max(nodes.x.shape[1] / MOST_NODES, 1.2)
        fewer = functional.nodes(scale)
        if fewer.x.shape == nodes.x.shape:  # the user's own nodes, or a fixed number
            nodes = _grouped(fewer)
            break
        nodes = fewer
    return jax.tree.map(lambda a: np.asarray(a, float), nodes)


def _grouped(nodes: Nodes) -> Nodes:
    """MOST_NODES groups of consecutive nodes, each at its centroid with its weight: a preconditioner's accuracy."""
    x, c = np.asarray(nodes.x, float), np.asarray(nodes.weights, float)
    begin = np.linspace(0, x.shape[1], MOST_NODES, endpoint=False).astype(int)
    share = np.abs(c) + 1e-12 * np.max(np.abs(c), axis=1, keepdims=True)
    places = (
        np.add.reduceat(x * share[..., None], begin, axis=1)
        / np.add.reduceat(share, begin, axis=1)[..., None]
    )
    return Nodes(places, np.add.reduceat(c, begin, axis=1), nodes.value, nodes.direction)


def features(nodes: Nodes, scale: Float[np.ndarray, " D"]) -> Float[np.ndarray, "N F"]:
    """Where each functional is, in lengthscales: its place, or both its ends in a fixed order."""
    x = np.asarray(nodes.x)
    first, last = x[:, 0] / scale, x[:, -1] / scale
    if x.shape[1] == 1:
        return first
    swap = (first[:, 0] > last[:, 0])[:, None]
    together = np.concatenate([np.where(swap, last, first), np.where(swap, first, last)], axis=1)
    shared = (
        np.ptp(first, axis=0).max() < 0.1 * np.ptp(last, axis=0).max()
    )  # rays from one place: ends tell all
    return last if shared else together


def ordering(nodes: Nodes, seed: int = 0) -> Int[np.ndarray, " N"]:
    """Short functionals before long ones, at random among equals."""
    length = np.linalg.norm(nodes.x[:, -1] - nodes.x[:, 0], axis=-1)
    return np.lexsort((np.random.default_rng(seed).permutation(len(length)), length))


def predecessors(places: Float[np.ndarray, "N F"], order: Int[np.ndarray, " N"], k: int) -> Neighbours:
    """The k nearest among those earlier in `order`; rows in the observations' own numbering."""
    n, k = len(places), min(k, len(places) - 1)
    x = places[order]
    index = np.zeros((n, k), int)
    used = np.zeros((n, k), bool)
    begin = min(n, max(2 * k, 1))
    for i in range(1, begin):
        near = np.argsort(np.sum((x[:i] - x[i]) ** 2, axis=1), kind="stable")[:k]
        index[i, : len(near)], used[i, : len(near)] = near, True
    while begin < n:
        end = min(2 * begin, n)
        index[begin:end] = _earlier(x, begin, end, k)
        used[begin:end] = True
        begin = end
    out = Neighbours(np.zeros_like(index), np.zeros_like(used))
    out.index[order], out.used[order] = order[index], used
    return out


def _earlier(x: np.ndarray, begin: int, end: int, k: int) -> np.ndarray:
    """For observations begin..end of x, their k nearest earlier ones.

    Looked for among the 3k nearest of all up to `end`, and for those with too few earlier ones among ever more. To
    settle for less there is a false economy: a few badly conditioned observations double the solver's steps.
    """
    tree = KDTree(x[:end])
    found = np.empty((end - begin, k), int)
    open_rows, count = np.arange(begin, end), 3 * k
    while len(open_rows):
        count = min(count, end)
        near = np.asarray(tree.query(x[open_rows], k=count, workers=-1)[1])
        late = near >= open_rows[:, None]
        enough = np.sum(~late, axis=1) >= k
        first = np.argsort(late[enough], axis=1, kind="stable")[:, :k]
        found[open_rows[enough] - begin] = np.take_along_axis(near[enough], first, axis=1)
        open_rows, count = open_rows[~enough], 3 * count
    return found


def nearest(places: Float[np.ndarray, "N F"], targets: Float[np.ndarray, "T F"], k: int) -> Neighbours:
    """The k observations nearest to each target."""
    k = min(k, len(places))
    index = KDTree(places).query(targets, k=k, workers=-1)[1].reshape(len(targets), k)
    return Neighbours(index, np.ones_like(index, bool))


def small_systems(kernel: Kernel, group: Columns, noise: Float[Array, "k1 T"], used: Array) -> Conditionals:
    """T targets' conditionals: `group` holds the k neighbours of each and, last, itself, (..., k + 1, T)."""
    # Neighbours not used become independent of everything.
    both = jnp.concatenate([used, jnp.ones((1, used.shape[1]), bool)])
    matrix = jnp.where(both[:, None] & both[None, :], gram(kernel, group), 0.0)
    matrix = jnp.moveaxis(matrix, -1, 0) + jax.vmap(jnp.diag, in_axes=1)(jnp.where(both, noise, 1.0))
    return Conditionals(*last_given_others(matrix))


@jax.custom_vjp
def last_given_others(matrix: Float[Array, "T n n"]) -> tuple[Float[Array, "T k"], Float[Array, " T"]]:
    """Of a Gaussian with this covariance, the last variable given the others: coefficients b and variance d.

    The gradient is written out: with z = (-b, 1), dd = z' dC z and db = (C_others)^-1 (dC z)_others. It costs one
    triangular solve; differentiating through the factorisation costs six times the whole evaluation.
    """
    return _factored(matrix)[:2]


def _factored(matrix: Array) -> tuple[Array, Array, Array]:
    k = matrix.shape[-1] - 1
    factor = jnp.linalg.cholesky(matrix, symmetrize_input=False)
    solve = lambda f: jax.scipy.linalg.solve_triangular(f[:k, :k], f[k, :k], trans=1, lower=True)
    return jax.vmap(solve)(factor), factor[:, k, k] ** 2, factor[:, :k, :k]


def _forward(matrix: Array) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    b, d, factor = _factored(matrix)
    return (b, d), (b, factor)


def _backward(saved: tuple[Array, Array], cotangent: tuple[Array, Array]) -> tuple[Array]:
    b, factor = saved
    of_b, of_d = cotangent
    solved = jax.vmap(lambda f, v: jax.scipy.linalg.cho_solve((f, True), v))(factor, of_b)
    z = jnp.concatenate([-b, jnp.ones_like(b[:, :1])], axis=1)
    left = of_d[:, None] * z + jnp.pad(solved, ((0, 0), (0, 1)))
    return (left[:, :, None] * z[:, None, :],)


last_given_others.defvjp(_forward, _backward)


@eqx.filter_jit
def _chunk(
    kernel: Kernel, nodes: Nodes, noise: Array, targets: Nodes, target_noise: Array, index: Array, used: Array
) -> Conditionals:
    return small_systems(kernel, *gathered(nodes, noise, targets, target_noise, index), used.T)


def gathered(
    nodes: Nodes, noise: Array, targets: Nodes, target_noise: Array, index: Array
) -> tuple[Columns, Float[Array, "k1 T"]]:
    """Each target's neighbours and, last, itself, ready for `small_systems`."""
    group = jax.tree.map(lambda a, b: jnp.concatenate([a[index], b[:, None]], axis=1), nodes, targets)
    behind = lambda a: None if a is None else jnp.moveaxis(a, (0, 1), (-1, -2))
    value, direction = (
        behind(group.value),
        None if group.direction is None else jnp.transpose(group.direction, (2, 1, 0)),
    )
    stacked = Columns(
        jnp.transpose(group.x, (3, 2, 1, 0)), jnp.transpose(group.weights, (2, 1, 0)), value, direction
    )
    return stacked, jnp.concatenate([noise[index], target_noise[:, None]], axis=1).T


@float64_available
def conditionals(
    kernel: Kernel,
    nodes: Nodes,
    noise: Float[np.ndarray, " N"],
    targets: Nodes,
    target_noise: Float[np.ndarray, " T"],
    neighbours: Neighbours,
) -> Conditionals:
    """Every target given its neighbours, in float64, some thousands at a time. `noise` are variances."""
    both = Nodes.concatenate([nodes, targets])
    nodes, targets = both[: len(nodes)], both[len(nodes) :]
    count, k = neighbours.index.shape
    most = AT_ONCE if jax.default_backend() == "cpu" else 16 * AT_ONCE
    size = min(most, 1 << (count - 1).bit_length())  # few sizes: few compilations
    nodes = jax.tree.map(jnp.asarray, nodes)
    variances = jnp.asarray(noise, jnp.float64)
    out_b, out_d = np.empty((count, k)), np.empty(count)
    for begin in range(0, count, size):
        at = np.minimum(np.arange(begin, begin + size), count - 1)  # the last chunk repeats its end
        found = _chunk(
            kernel,
            nodes,
            variances,
            targets[at],
            jnp.broadcast_to(jnp.asarray(target_noise, jnp.float64), (count,))[at],
            jnp.asarray(neighbours.index[at]),
            jnp.asarray(neighbours.used[at]),
        )
        keep = min(size, count - begin)
        out_b[begin : begin + keep] = found.coefficients[:keep]
        out_d[begin : begin + keep] = found.variance[:keep]
    return Conditionals(out_b, out_d)  # type: ignore[arg-type]


def data_nodes(data: Data, kernel: Kernel) -> Nodes:
    """All observations' functionals with few nodes each."""
    return Nodes.concatenate([coarse_nodes(block.functional, kernel) for block in data.blocks])


def preconditioner(
    kernel: Kernel, data: Data, noise: Float[np.ndarray, " N"], k: int = NEIGHBOURS, dtype: Any = np.float64
) -> Vecchia:
    """The factor S of the data's covariance plus `noise` (variances)."""
    nodes = data_nodes(data, kernel)
    places = features(nodes, typical_lengthscale(kernel, data.ndim))
    neighbours = predecessors(places, ordering(nodes), k)
    found = conditionals(kernel, nodes, noise, nodes, noise, neighbours)
    return assemble(found, neighbours, dtype)


def assemble(found: Conditionals, neighbours: Neighbours, dtype: Any = np.float64) -> Vecchia:
    """S = D^(-1/2) (I - B) as a sparse matrix."""
    b, d = np.asarray(found.coefficients), np.asarray(found.variance)
    n, k = b.shape
    scale = 1 / np.sqrt(d)
    columns = np.concatenate([np.arange(n)[:, None], neighbours.index], axis=1)
    values = np.concatenate([np.ones((n, 1)), np.where(neighbours.used, -b, 0.0)], axis=1) * scale[:, None]
    matrix = scipy.sparse.csr_array(
        (values.ravel(), columns.ravel(), np.arange(n + 1) * (k + 1)), shape=(n, n)
    )
    return Vecchia(Sparse.from_scipy(matrix, dtype), jnp.asarray(np.sum(np.log(d)), dtype))
