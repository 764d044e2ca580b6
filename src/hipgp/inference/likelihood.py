"""The Vecchia likelihood of the data in the kernel's parameters, and its gradient.

-log p(y) ~ sum_n [log d_n + (y_n - b_n'y)^2 / d_n] / 2 + const, each term one small dense system: no FFT, no solve, any
functional. The trend's coefficients are at their best (generalised least squares) at every evaluation, so that the
gradient at fixed coefficients is the whole gradient. Terms are evaluated some hundreds at a time, each chunk's gradient
right after its value: nothing is kept, and no two factorisations can wait for one another (batched LAPACK calls that
run side by side in one program can block every thread of a small CPU).
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from hipgp import neighbours, vecchia
from hipgp.data import Data
from hipgp.functionals import Nodes
from hipgp.inference.parameters import Layout
from hipgp.kernels import Kernel

CHUNK = 512


class Terms(eqx.Module):
    """The data of one stage: chosen observations with their neighbours."""

    nodes: Nodes
    y: Float[Array, " N"]
    columns: Float[Array, "N p"]
    noise: Float[Array, " N"]  # variances, zero where unknown
    unknown: Array  # 1 where the noise is to be learned
    chosen: Array
    index: Array
    used: Array
    counted: Array  # 1 for each chosen one, 0 for repetitions


def prepare(kernel: Kernel, data: Data, trend: np.ndarray, count: int, k: int, seed: int) -> Terms:
    """`count` observations at random, each with its nearest predecessors among all."""
    nodes = vecchia.data_nodes(data, kernel)
    places = neighbours.features(nodes, vecchia.typical_lengthscale(kernel, data.ndim))
    near = neighbours.predecessors(places, neighbours.ordering(nodes, seed), k)
    n = len(data)
    chosen = np.random.default_rng(seed).permutation(n)[: min(count, n)]
    counted = len(chosen)
    size = min(CHUNK, counted)
    chosen = np.resize(chosen, -(-counted // size) * size)  # whole chunks: those repeated do not count
    known = data.noise_known
    std = data.noise_std(1.0)
    return Terms(
        jax.tree.map(jnp.asarray, nodes),
        jnp.asarray(data.y, jnp.float64),
        jnp.asarray(trend, jnp.float64),
        jnp.asarray(np.where(known, np.asarray(std, float) ** 2, 0.0)),
        jnp.asarray(~known, jnp.float64),
        jnp.asarray(chosen),
        jnp.asarray(near.index[chosen]),
        jnp.asarray(near.used[chosen]),
        jnp.asarray(np.arange(len(chosen)) < counted, jnp.float64),
    )


def _chunks(terms: Terms) -> tuple[Array, ...]:
    size = min(CHUNK, len(terms.chosen))
    parts = terms.chosen, terms.index, terms.used, terms.counted
    return tuple(a.reshape(-1, size, *a.shape[1:]) for a in parts)


def _whitened(
    kernel: Kernel, noise: Array | None, terms: Terms, chunk: tuple[Array, ...]
) -> tuple[Array, ...]:
    """(y - b'y) / sqrt(d), the same for the trend's columns, and log d; zero for those that do not count."""
    own, index, used, counted = chunk
    variance = terms.noise + (0.0 if noise is None else terms.unknown * noise**2)
    everyone = (
        jnp.concatenate([index, own[:, None]], axis=1),
        jnp.pad(used, ((0, 0), (0, 1)), constant_values=True),
    )
    matrix = vecchia.covariances(kernel, terms.nodes, variance, *everyone)
    found = vecchia.Conditionals(*vecchia.last_given_others(matrix))
    b = jnp.where(used, found.coefficients, 0.0)
    scale = counted / jnp.sqrt(found.variance)
    y = (terms.y[own] - jnp.sum(b * terms.y[index], axis=1)) * scale
    x = (terms.columns[own] - jnp.einsum("tk,tkp->tp", b, terms.columns[index])) * scale[:, None]
    return y, x, counted * (jnp.log(found.variance) + jnp.log(2 * jnp.pi))


def _best_trend(vector: Array, layout: Layout, terms: Terms) -> tuple[Float[Array, " p"], Float[Array, ""]]:
    """The trend's coefficients by generalised least squares, and the objective with them."""

    def sums(chunk: tuple[Array, ...]) -> tuple[Array, ...]:
        y, x, logs = _whitened(*layout.unpack(vector), terms, chunk)
        return x.T @ x, x.T @ y, jnp.sum(y**2 + logs)

    gram, projection, rest = (a.sum(axis=0) for a in jax.lax.map(sums, _chunks(terms)))
    if gram.shape[0] == 0:
        return projection, 0.5 * rest / jnp.sum(terms.counted)
    beta = jnp.linalg.solve(gram + 1e-12 * jnp.trace(gram) * jnp.eye(len(gram)), projection)
    total = rest - 2 * beta @ projection + beta @ gram @ beta
    return beta, 0.5 * total / jnp.sum(terms.counted)


@eqx.filter_jit
def negative_log_likelihood(vector: Float[Array, " p"], layout: Layout, terms: Terms) -> Float[Array, ""]:
    """Per observation, the trend's coefficients at their best."""
    return _best_trend(vector, layout, terms)[1]


@eqx.filter_jit
def value_and_gradient(
    vector: Float[Array, " p"], layout: Layout, terms: Terms
) -> tuple[Float[Array, ""], Float[Array, " p"]]:
    """The same with its gradient in the log-parameters."""
    beta = _best_trend(vector, layout, terms)[0] if terms.columns.shape[1] else jnp.zeros(0)

    def value(v: Array, chunk: tuple[Array, ...]) -> Array:
        y, x, logs = _whitened(*layout.unpack(v), terms, chunk)
        return 0.5 * jnp.sum((y - x @ beta) ** 2 + logs) / jnp.sum(terms.counted)

    def add(total: tuple[Array, Array], chunk: tuple[Array, ...]) -> tuple[tuple[Array, Array], None]:
        return jax.tree.map(jnp.add, total, jax.value_and_grad(value)(vector, chunk)), None

    zero = jnp.zeros(()), jnp.zeros_like(vector)
    return jax.lax.scan(add, zero, _chunks(terms))[0]
