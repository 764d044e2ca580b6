"""Covariance matrices of functionals tile by tile, against the dense reference."""

import jax.numpy as jnp
import numpy as np
import pytest

import dense
import hipgp as hg
from hipgp.weights import dense as ours

KERNEL, DENSE_KERNEL = hg.Matern32(1.3, (0.3, 0.5)), dense.Matern32(1.3, (0.3, 0.5))
RNG = np.random.default_rng(0)
SUMS = RNG.uniform(0, 1, (11, 5, 2)), RNG.normal(size=(11, 5))
PLACES = RNG.uniform(0, 1, (19, 2))
FUNCTIONALS = [hg.Functionals(*SUMS), hg.Points(PLACES), hg.Derivatives(PLACES[:9], axis=1)]
REFERENCES = [dense.functionals(*SUMS), dense.points(PLACES), dense.derivatives(PLACES[:9], axis=1)]


@pytest.fixture(params=[8, 512], ids=["many tiles", "one tile"])
def nodes(request, monkeypatch):
    """Tiles of 8 nodes end within sums of five, and leave a rest."""
    monkeypatch.setattr(ours, "TILE", request.param)
    return [f.nodes(0.1) for f in FUNCTIONALS]


def test_all_pairs_once_or_twice_are_the_covariances(nodes):
    truth = dense.covariance(DENSE_KERNEL, *[dense.concatenate(*REFERENCES)] * 2)
    np.testing.assert_allclose(ours.covariance_matrix(KERNEL, nodes, nodes), truth, atol=1e-12)
    np.testing.assert_allclose(ours.covariance_matrix(KERNEL, nodes, list(nodes)), truth, atol=1e-12)


def test_prior_variances_are_the_diagonal(nodes):
    for part, f in zip(nodes, REFERENCES, strict=True):
        found = ours.compiled_prior_variances(KERNEL, part)
        np.testing.assert_allclose(found, dense.variance(DENSE_KERNEL, f), rtol=1e-12)


def test_derivatives_by_the_kernel_are_finite_differences(nodes):
    kernel = lambda v: hg.Matern32(v[0], jnp.stack([v[1], jnp.asarray(0.5)]))
    at, along, step = np.array([1.3, 0.3]), np.array([0.2, 1.0]), 1e-5
    found = ours.covariance_derivative(kernel, jnp.asarray(at), jnp.asarray(along), nodes)
    of = lambda v: dense.covariance(dense.Matern32(v[0], (v[1], 0.5)), *[dense.concatenate(*REFERENCES)] * 2)
    truth = (of(at + step * along) - of(at - step * along)) / (2 * step)
    np.testing.assert_allclose(found, truth, atol=1e-6)
