"""Importance weights of draws, and the shape of their tail."""

import warnings

import jax
import numpy as np
import pytest
import scipy.stats as st

import dense_nonlinear
import hipgp as hg
from hipgp.nonlinear.importance import importance_weights, pareto_shape
from hipgp.predictions import SampleOptions

GRID = hg.Grid.cover(0.0, 1.0, shape=32)
X = np.array([0.2, 0.5, 0.8])
KERNEL = hg.Matern52(1.0, 0.4)


@pytest.mark.parametrize("k", [0.2, 0.5, 0.9])
def test_the_shape_of_pareto_weights_comes_back(k):
    w = st.genpareto(k).rvs(20_000, random_state=0) + 1.0
    assert abs(pareto_shape(np.log(w)) - k) < 0.12


def posterior(data, link, **settings):
    method = hg.Linearised(hg.Exact(), **settings)
    return hg.GP(KERNEL, GRID, link=link).condition(data, method=method, progress=False)


def test_of_a_gaussian_posterior_all_weights_are_equal():
    post = posterior(hg.observe(hg.Points(X), [0.1, 0.5, 0.2], 0.2), None)
    log = importance_weights(post.engine.post, post.engine.blocks, post.engine.stand_ins, 50, 0)
    np.testing.assert_allclose(log, log[0], atol=1e-8)


def test_weights_bring_the_moments_of_the_true_posterior():
    """Of counts at points and an integral: the Gaussian posterior is off, its weighted draws are not."""
    places, shares = np.array([[[0.2], [0.5], [0.8]]]), np.array([[0.5, 0.6, 0.7]])
    y, total = np.array([0.0, 3.0, 1.0]), 2.2
    data = hg.observe(hg.Points(X), y, likelihood=hg.Poisson()) + hg.observe(
        hg.Functionals(places, shares), [total], 0.3
    )
    post = posterior(data, "exp").engine
    log = importance_weights(post.post, post.blocks, post.stand_ins, 20_000, 1)
    w = np.exp(log - log.max())
    w /= w.sum()
    draws = post.post.sample(SampleOptions(20_000, jax.random.key(1)), hg.Points(np.concatenate([X, X])))[
        :, :3
    ]
    prior = np.asarray(KERNEL(X[:, None], X[:, None]))

    def log_likelihood(f):
        counts = st.poisson.logpmf(y, np.exp(f)).sum(axis=1)
        return counts - 0.5 * ((total - np.exp(f) @ shares[0]) / 0.3) ** 2

    mean, std, _ = dense_nonlinear.moments(np.zeros(3), prior, log_likelihood, lambda f: f)
    found = w @ draws
    np.testing.assert_allclose(found, mean, atol=0.02)
    np.testing.assert_allclose(np.sqrt(w @ (draws - found) ** 2), std, rtol=0.06)


def test_the_shape_is_told_and_warned_of():
    data = hg.observe(hg.Points(X), [3.0, 4.0, 2.0], likelihood=hg.Poisson())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        post = posterior(data, "exp", importance=200)
    assert post.diagnostics["pareto_k"] < 0.7 and post.diagnostics["effective_draws"] > 100
    two = hg.observe(hg.Points([0.5, 0.5]), [-1.5, 1.5], 0.02, hg.StudentT(1.0))  # which of them is right?
    with pytest.warns(UserWarning, match="Pareto shape of .* above 0.7"):
        posterior(two, None, importance=200)
