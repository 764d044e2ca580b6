"""Blocks that tile any array, and the laws of the Gaussian families."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hipgp.variational.families import (
    MinibatchGradient,
    gaussian,
    natural_step,
    root_variances,
    standard,
    tiling,
)

TILINGS = [((7,), (3,)), ((6, 5), (4, 2)), ((5, 4, 3), (2, 2, 2)), ((6, 5), (1, 1)), ((6, 5), (9, 9))]
every_tiling = pytest.mark.parametrize(("shape", "block"), TILINGS)


def some_gaussian(shape, block, seed=0):
    rng = np.random.default_rng(seed)
    blocks = tiling(shape, block)
    count, n = blocks.index.shape
    k = jnp.asarray(rng.normal(size=(4, blocks.size)))
    precision = blocks.identity() + blocks.gram(k, jnp.asarray(rng.uniform(0.5, 2, 4)))
    assert precision.shape == (count, n, n)
    return gaussian(blocks, jnp.asarray(rng.normal(size=blocks.size)), precision)


def dense_covariance(q):
    s = np.zeros((q.blocks.size + 1,) * 2)
    for index, block in zip(np.asarray(q.blocks.index), np.asarray(q.covariance), strict=True):
        s[np.ix_(index, index)] = block
    return s[:-1, :-1]


@every_tiling
def test_every_point_is_in_one_block(shape, block):
    blocks = tiling(shape, block)
    x = jnp.arange(1.0, blocks.size + 1)
    inside = np.asarray(blocks.index).ravel()
    assert sorted(inside[inside < blocks.size]) == list(range(blocks.size))
    np.testing.assert_array_equal(blocks.scatter(blocks.gather(x)), x)
    assert np.all(np.asarray(blocks.gather(x)).ravel()[inside == blocks.size] == 0)


def test_blocks_hold_neighbours():
    index = np.asarray(tiling((4, 4), (2, 2)).index)
    np.testing.assert_array_equal(index[0], [0, 1, 4, 5])
    np.testing.assert_array_equal(index[3], [10, 11, 14, 15])


@every_tiling
def test_moments_and_divergence_are_the_dense_ones(shape, block):
    q = some_gaussian(shape, block)
    s, m = dense_covariance(q), np.asarray(q.mean)
    k = np.random.default_rng(1).normal(size=(3, len(m)))
    np.testing.assert_allclose(q.variances(jnp.asarray(k)), np.einsum("ni,ij,nj->n", k, s, k), rtol=1e-12)
    np.testing.assert_allclose(q.precondition(jnp.asarray(k[0])), s @ k[0], rtol=1e-10)
    kl = 0.5 * (np.trace(s) + m @ m - np.linalg.slogdet(s)[1] - len(m))
    assert float(q.divergence()) == pytest.approx(kl, rel=1e-12)
    assert float(standard(q.blocks).divergence()) == pytest.approx(0.0, abs=1e-12)


def test_draws_have_the_moments():
    q = some_gaussian((6, 5), (4, 2))
    draws = np.asarray(q.sample(jax.random.key(0), 40_000))
    np.testing.assert_allclose(draws.mean(axis=0), q.mean, atol=0.03)
    np.testing.assert_allclose(np.cov(draws.T), dense_covariance(q), atol=0.04)


@every_tiling
def test_variances_by_lags_are_the_dense_ones(shape, block):
    q = some_gaussian(shape, block)
    row = np.random.default_rng(2).normal(size=shape)
    root = np.stack([np.roll(row, i, axis=range(len(shape))).ravel() for i in np.ndindex(shape)], axis=1)
    expected = np.diag(root @ dense_covariance(q) @ root.T)
    np.testing.assert_allclose(np.asarray(root_variances(q, jnp.asarray(row))).ravel(), expected, rtol=1e-10)


def minibatch(q, rng, scale):
    k = jnp.asarray(rng.normal(size=(3, q.blocks.size)))
    s = jnp.asarray(scale * rng.uniform(0.5, 2, 3))
    y = jnp.asarray(rng.normal(size=3))
    return MinibatchGradient(k, s, (s * (y - k @ q.mean)) @ k - q.mean), y


def test_step_is_that_of_the_appendix():
    """In the canonical parameters theta_1 = P m and theta_2 = -P/2, word for word (appendix B.1.2)."""
    q, step = some_gaussian((6, 5), (4, 2)), 1e-3
    batch, y = minibatch(q, np.random.default_rng(3), scale=0.1)
    k, s, m = (np.asarray(a) for a in (batch.k, batch.scale, q.mean))
    big = np.eye(len(m)) + (k.T * s) @ k
    b = k.T @ (s * np.asarray(y))
    p = np.linalg.inv(dense_covariance(q))
    blocked = np.where(p != 0, big, 0.0)  # Lambda_i
    theta_1 = p @ m + step * (b - p @ m - (big @ m - blocked @ m))
    theta_2 = -p / 2 + step * (-blocked / 2 + p / 2)
    moved = natural_step(q, batch, jnp.asarray(step), jnp.asarray(step), implicit=False)
    np.testing.assert_allclose(np.linalg.inv(dense_covariance(moved)), -2 * theta_2, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(moved.mean, np.linalg.solve(-2 * theta_2, theta_1), rtol=1e-9)


@pytest.mark.parametrize("step", [1e-6, 0.05, 1.0])
def test_implicit_step_is_the_dense_one(step):
    q = some_gaussian((6, 5), (4, 2))
    batch, _ = minibatch(q, np.random.default_rng(3), scale=1e3)
    moved = natural_step(q, batch, jnp.asarray(step), jnp.asarray(0.0), implicit=True)
    k, s = np.asarray(batch.k), np.asarray(batch.scale)
    p = np.linalg.inv(dense_covariance(q))
    inner = p + step * (k.T * s) @ k
    expected = np.asarray(q.mean) + step * np.linalg.solve(inner, np.asarray(batch.gradient))
    np.testing.assert_allclose(moved.mean, expected, rtol=1e-7, atol=1e-9)
    np.testing.assert_array_equal(moved.precision, q.precision)


@pytest.mark.parametrize("implicit", [True, False])
def test_no_step_diverges_on_stiff_data(implicit):
    """Information a million times the prior's, blocks that hide most of it, the largest step allowed."""
    rng = np.random.default_rng(4)
    q = standard(tiling((6, 5), (1, 1)))
    k, y = jnp.asarray(rng.normal(size=(50, 30))), jnp.asarray(rng.normal(size=50))
    step = jax.jit(natural_step, static_argnames="implicit")
    sizes = []
    for _ in range(200):
        batch = MinibatchGradient(k, jnp.full(50, 1e6), 1e6 * (y - k @ q.mean) @ k - q.mean)
        q = step(q, batch, jnp.asarray(1.0), jnp.asarray(1.0), implicit=implicit)
        sizes.append(float(jnp.linalg.norm(q.mean)))
    best = np.linalg.solve(np.eye(30) + 1e6 * k.T @ k, 1e6 * k.T @ y)
    np.testing.assert_allclose(q.mean, best, atol=1e-4)
    assert max(sizes) < 2 * np.linalg.norm(best)
