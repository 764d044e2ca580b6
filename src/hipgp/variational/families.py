"""Gaussian families for the whitened field: mean-field, block-independent and full rank (paper, section 3.3).

q(e) = prod_b N(m_b, S_b), where the blocks tile the array of e (the torus of the Toeplitz whitening). The three families
are blocks of one point, of a given shape, and of all points. A block shape need not divide the array: blocks across its
edge are padded with independent standard normals, which are never read and cancel in the KL divergence.

The precisions P_b = S_b^-1 are stored, since the natural gradient updates theta_2 = -P/2 (appendix B.1.2).
"""

import itertools
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from hipgp.linalg.matrices import map_matrices, solve_lower, solve_lower_transposed

FEW_POINTS = 8  # of a block that is factored row by row, for all blocks at once
SMALL_BLOCK = 32  # points of a block whose inverse root is applied as a product
MOST_PARTS = 64  # of a long sum of products, so that a GPU works on all of them at once


class Blocks(eqx.Module):
    """A tiling of an array of T points by B blocks of n points; the permutation of section 3.3 and its inverse."""

    index: Int[Array, "B n"]  # the flat place of each block's points; T for padding
    slot: Int[Array, " T"]  # where each place is found in the flattened (B, n)
    shape: tuple[int, ...] = eqx.field(static=True)
    block_shape: tuple[int, ...] = eqx.field(static=True)

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    def gather(self, x: Float[Array, "... T"]) -> Float[Array, "... B n"]:
        """The values at each block's points; zero in the padding."""
        return jnp.take(x, self.index, axis=-1, mode="fill", fill_value=0)

    def scatter(self, blocks: Float[Array, "... B n"]) -> Float[Array, "... T"]:
        """The inverse of `gather`: values by blocks, put back in the array's order."""
        return jnp.take(blocks.reshape(*blocks.shape[:-2], -1), self.slot, axis=-1)

    def identity(self) -> Float[Array, "B n n"]:
        count, n = self.index.shape
        return jnp.broadcast_to(jnp.eye(n), (count, n, n))

    def gram(self, k: Float[Array, "N T"], scale: Float[Array, " N"]) -> Float[Array, "B n n"]:
        """The diagonal blocks of sum_n scale_n k_n k_n', by products in the dtype of k."""
        parts, scale = self.gather(k), scale.astype(k.dtype)
        if parts.shape[-1] == 1:
            return jnp.sum(scale[:, None, None] * parts**2, axis=0)[..., None].astype(float)
        return jnp.einsum("nbi,n,nbj->bij", parts, scale, parts, precision="highest").astype(float)


def tiling(shape: tuple[int, ...], block_shape: tuple[int, ...]) -> Blocks:
    """Blocks of `block_shape`, cut off at the array's edge."""
    block = tuple(min(b, m) for b, m in zip(block_shape, shape, strict=True))
    counts = [-(-m // b) for m, b in zip(shape, block, strict=True)]
    padded = [c * b for c, b in zip(counts, block, strict=True)]
    size = int(np.prod(shape))
    flat = np.pad(np.arange(size).reshape(shape), [(0, p - m) for p, m in zip(padded, shape, strict=True)],
                  constant_values=size)  # fmt: skip
    split = flat.reshape([n for c, b in zip(counts, block, strict=True) for n in (c, b)])
    axes = [*range(0, 2 * len(shape), 2), *range(1, 2 * len(shape), 2)]
    index = split.transpose(axes).reshape(int(np.prod(counts)), int(np.prod(block)))
    slot = np.empty(size + 1, np.int64)
    slot[index.ravel()] = np.arange(index.size)
    return Blocks(jnp.asarray(index), jnp.asarray(slot[:-1]), tuple(shape), block)


class Gaussian(eqx.Module):
    """q(e) = prod_b N(m_b, P_b^-1); `factor` is the Cholesky factor of each precision."""

    blocks: Blocks
    mean: Float[Array, " T"]
    precision: Float[Array, "B n n"]
    factor: Float[Array, "B n n"]

    @property
    def covariance(self) -> Float[Array, "B n n"]:
        """S_b, by blocks."""
        half = self.inverse_root()
        return jnp.swapaxes(half, -1, -2) @ half

    def variances(self, k: Float[Array, "N T"]) -> Float[Array, " N"]:
        """The variance of each k_n'e, k_n' S k_n."""
        return jnp.sum(self.root_solve(k).astype(float) ** 2, axis=(0, 1))

    def root_solve(self, k: Float[Array, "N T"]) -> Float[Array, "B n N"]:
        """P^-1/2 k_n, by blocks, in the dtype of k."""
        parts = jnp.moveaxis(self.blocks.gather(k), 0, -1)
        if not 1 < parts.shape[1] <= min(SMALL_BLOCK, parts.shape[2]):
            return _lower_solve(self.factor.astype(k.dtype), parts)
        return jnp.einsum("bij,bjn->bin", self.inverse_root().astype(k.dtype), parts, precision="highest")

    def inverse_root(self) -> Float[Array, "B n n"]:
        """P^-1/2, the inverse of each factor."""
        return _lower_solve(self.factor, self.blocks.identity())

    def precondition(self, g: Float[Array, " T"]) -> Float[Array, " T"]:
        """Return S g."""
        if 1 < self.factor.shape[-1] <= SMALL_BLOCK:
            root = self.inverse_root()
            half = jnp.einsum("bij,bj->bi", root, self.blocks.gather(g))
            return self.blocks.scatter(jnp.einsum("bij,bi->bj", root, half))
        half = _lower_solve(self.factor, self.blocks.gather(g)[..., None])
        return self.blocks.scatter(_upper_solve(self.factor, half)[..., 0])

    def divergence(self) -> Float[Array, ""]:
        """KL(q || N(0, I)) (paper, eq. kl-term)."""
        trace = jnp.sum(self.inverse_root() ** 2)
        log_precision = 2 * jnp.sum(jnp.log(jnp.diagonal(self.factor, axis1=-2, axis2=-1)))
        return 0.5 * (trace + jnp.sum(self.mean**2) + log_precision - self.blocks.index.size)

    def sample(self, key: Array, count: int) -> Float[Array, "count T"]:
        white = jax.random.normal(key, (*self.blocks.index.shape, count), self.mean.dtype)
        return self.mean + self.blocks.scatter(jnp.moveaxis(_upper_solve(self.factor, white), -1, 0))


def gaussian(blocks: Blocks, mean: Float[Array, " T"], precision: Float[Array, "B n n"]) -> Gaussian:
    """q with this mean and these precisions; factors the precisions."""
    return Gaussian(blocks, mean, precision, _cholesky(precision))


def standard(blocks: Blocks) -> Gaussian:
    """The prior, N(0, I)."""
    return Gaussian(blocks, jnp.zeros(blocks.size), blocks.identity(), blocks.identity())


class MinibatchGradient(NamedTuple):
    """The terms of the natural gradient from a minibatch: k_n, the weight of each in the sum, and the gradient in m."""

    k: Float[Array, "n T"]
    scale: Float[Array, " n"]  # (number of minibatches) / s_n^2; zero for padding
    gradient: Float[Array, " T"]  # an unbiased estimate of b - Lambda m


def natural_step(
    q: Gaussian, batch: MinibatchGradient, mean_step: Array, covariance_step: Array, implicit: bool
) -> Gaussian:
    """One natural-gradient step (paper, appendix B.1.2) that cannot diverge.

    In theta_2 the step is P <- (1 - l) P + l Lambda_i: between two positive matrices for every l in (0, 1]. With that
    new P, the step in theta_1 says m <- m + l P^-1 (b - Lambda m), which is stable only while l times the largest
    eigenvalue of P^-1 Lambda stays below 2. For the minibatch at hand, Lambda = I + A A', that eigenvalue is at most 1
    plus the largest row sum of |A' P^-1 A|. Where l times this is at most 1 the paper's step is taken as it stands;
    elsewhere, or where `implicit`, the data's part of its right-hand side is taken at the new point,

        m <- m + l (P + l A A')^-1 (b - Lambda m),

    which shrinks every error for every l in (0, 1], since P >= I, and costs one n x n factorisation (Woodbury). For small
    l the two agree.
    """
    q = jax.lax.cond(covariance_step > 0, toward_precision, lambda q, *_: q, q, batch, covariance_step)
    a = batch.k * jnp.sqrt(batch.scale).astype(batch.k.dtype)[:, None]
    overlaps = inner_products(jnp.moveaxis(q.root_solve(a), -1, 0))  # A' P^-1 A
    move = mean_step * q.precondition(batch.gradient)
    damped = lambda: _damped(q, a, overlaps, move, mean_step)
    if implicit:
        return _moved(q, damped())
    bound = 1 + jnp.max(jnp.sum(jnp.abs(overlaps), axis=-1))
    return _moved(q, jax.lax.cond(mean_step * bound <= 1, lambda: move, damped))


def _damped(
    q: Gaussian, a: Float[Array, "n T"], overlaps: Float[Array, "n n"], move: Float[Array, " T"], step: Array
) -> Float[Array, " T"]:
    """(P + l A A')^-1 P times the paper's move, l P^-1 g."""
    inner = jnp.eye(len(a)) + step * overlaps
    gain = jax.scipy.linalg.solve(inner, product(a, move), assume_a="pos")
    return move - step * q.precondition(combination(gain, a))


def inner_products(k: Float[Array, "N *T"]) -> Float[Array, "N N"]:
    """k_n'k_m, with the sum in parts."""
    rows = k.reshape(len(k), -1)
    split = max(d for d in range(1, MOST_PARTS + 1) if rows.shape[1] % d == 0)
    parts = rows.reshape(len(k), split, -1)
    return jnp.sum(jnp.einsum("nst,mst->snm", parts, parts, precision="highest").astype(float), axis=0)


def product(k: Float[Array, "N T"], v: Float[Array, " T"]) -> Float[Array, " N"]:
    """Each k_n'v; k of lower precision is converted as it is read."""
    return k @ v if k.dtype == v.dtype else jnp.sum(k * v, axis=-1)


def combination(c: Float[Array, " N"], k: Float[Array, "N T"]) -> Float[Array, " T"]:
    """The sum of c_n k_n; k of lower precision is converted as it is read."""
    return c @ k if k.dtype == c.dtype else jnp.sum(c[:, None] * k, axis=0)


def toward_precision(q: Gaussian, batch: MinibatchGradient, step: Array) -> Gaussian:
    """P moved by `step` towards what the minibatch says of Lambda's blocks."""
    estimate = q.blocks.identity() + q.blocks.gram(batch.k, batch.scale)
    return gaussian(q.blocks, q.mean, (1 - step) * q.precision + step * estimate)


def _moved(q: Gaussian, move: Float[Array, " T"]) -> Gaussian:
    return Gaussian(q.blocks, q.mean + move, q.precision, q.factor)


def root_variances(q: Gaussian, root_row: Float[Array, "..."]) -> Float[Array, "..."]:
    """diag(C^1/2 S C^1/2) on the torus, given the first row of the circulant C^1/2.

    Entry i is the sum over pairs (p, q) within a block of S_pq r(i - p) r(i - q); for each lag d = q - p that is a
    convolution of S_p,p+d with r(x) r(x - d): one FFT pair a lag instead of one a grid point.
    """
    shape, block = q.blocks.shape, q.blocks.block_shape
    axes = tuple(range(-len(shape), 0))
    covariance = q.covariance
    local = np.stack(np.meshgrid(*[np.arange(b) for b in block], indexing="ij"), axis=-1).reshape(
        -1, len(block)
    )
    lags = np.array(list(itertools.product(*[range(1 - b, b) for b in block])))
    strides = np.array([int(np.prod(block[a + 1 :])) for a in range(len(block))])
    other = local + lags[:, None, :]
    inside = np.all((other >= 0) & (other < np.array(block)), axis=-1)
    partner = np.where(inside, other @ strides, 0)

    def add(total: Array, lag: tuple[Array, Array, Array]) -> tuple[Array, None]:
        d, where, valid = lag
        entries = jnp.where(valid, covariance[:, jnp.arange(len(local)), where], 0.0)
        field = q.blocks.scatter(entries).reshape(shape)
        pair = root_row * jnp.roll(root_row, d, axis=axes)
        return total + jnp.fft.rfftn(field) * jnp.fft.rfftn(pair), None

    modes = jnp.zeros((*shape[:-1], shape[-1] // 2 + 1), jnp.result_type(covariance, complex))
    total, _ = jax.lax.scan(add, modes, (jnp.asarray(lags), jnp.asarray(partner), jnp.asarray(inside)))
    return jnp.fft.irfftn(total, s=shape)


# One-point blocks are common (mean-field), and a LAPACK call for each would be slow; so it would for blocks of a few points,
# whose rows are taken in turn for all blocks at once.


def _cholesky(matrix: Float[Array, "B n n"]) -> Float[Array, "B n n"]:
    n = matrix.shape[-1]
    if n > FEW_POINTS:
        return map_matrices(jnp.linalg.cholesky, matrix)
    if n == 1:
        return jnp.sqrt(matrix)
    left, columns = jnp.moveaxis(matrix, 0, -1), []
    for i in range(n):
        column = left[:, 0] / jnp.sqrt(left[0, 0])
        left = left[1:, 1:] - column[1:, None] * column[None, 1:]
        columns.append(jnp.pad(column, ((i, 0), (0, 0))))
    return jnp.moveaxis(jnp.stack(columns, axis=1), -1, 0)


def _lower_solve(factor: Float[Array, "B n n"], rhs: Float[Array, "B n m"]) -> Float[Array, "B n m"]:
    n = factor.shape[-1]
    if n == 1:
        return rhs / factor
    if n > FEW_POINTS or rhs.shape[-1] > n:
        return map_matrices(solve_lower, factor, rhs)
    rows, lower = [], jnp.moveaxis(factor, 0, -1)
    right = jnp.moveaxis(rhs, 0, -1)
    for i in range(n):
        known = sum((lower[i, j] * rows[j] for j in range(i)), jnp.zeros_like(right[i]))
        rows.append((right[i] - known) / lower[i, i])
    return jnp.moveaxis(jnp.stack(rows), -1, 0)


def _upper_solve(factor: Float[Array, "B n n"], rhs: Float[Array, "B n m"]) -> Float[Array, "B n m"]:
    """factor'^-1 rhs, by blocks."""
    return rhs / factor if factor.shape[-1] == 1 else map_matrices(solve_lower_transposed, factor, rhs)
