"""Draws of the true posterior by Hamiltonian steps, against brute force, and against a long NUTS run."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats as st

import dense_nonlinear
import hipgp as hg
from hipgp.nonlinear.hamiltonian import Ratio, _trajectory, spread_of_chains

GRID = hg.Grid.cover(0.0, 1.0, shape=32)
KERNEL = hg.Matern52(1.0, 0.4)
X = np.array([0.2, 0.5, 0.8])
COUNTS, TOTAL = np.array([0.0, 3.0, 1.0]), 2.2
SHARES = np.array([[0.5, 0.6, 0.7]])
DRAWS = 256


def counts_and_an_integral():
    counts = hg.observe(hg.Points(X), COUNTS, likelihood=hg.Poisson())
    return counts + hg.observe(hg.Functionals(X[None, :, None], SHARES), [TOTAL], 0.3)


def log_likelihood(f):
    counts = st.poisson.logpmf(COUNTS, np.exp(f)).sum(axis=1)
    return counts - 0.5 * ((TOTAL - np.exp(f) @ SHARES[0]) / 0.3) ** 2


@pytest.fixture(scope="module")
def post():
    method = hg.Linearised(corrected=DRAWS)
    return hg.GP(KERNEL, GRID, link="exp").condition(counts_and_an_integral(), method, progress=False)


def test_draws_have_the_moments_of_the_true_posterior(post):
    prior = np.asarray(KERNEL(X[:, None], X[:, None]))
    mean, std, _ = dense_nonlinear.moments(np.zeros(3), prior, log_likelihood, lambda f: f)
    latent = np.log(post.sample(DRAWS, at=hg.Points(X)))
    error = std / np.sqrt(DRAWS)
    assert np.all(np.abs(latent.mean(axis=0) - mean) < 4 * error)
    np.testing.assert_allclose(latent.std(axis=0), std, rtol=4 / np.sqrt(2 * DRAWS))
    assert post.diagnostics["acceptance"] > 0.6 and post.diagnostics["chains_spread"] < 1.1


def test_predictions_are_those_of_the_draws(post):
    line = hg.LineIntegrals([[0.1]], [[0.9]])
    for functional in (hg.Points(X), line):
        drawn, found = post.sample(DRAWS, at=functional), post.predict(functional)
        np.testing.assert_allclose(found.mean, drawn.mean(axis=0), rtol=0.05)
        assert np.all(np.abs(found.quantile(0.5) / np.median(drawn, axis=0) - 1) < 0.15)
    np.testing.assert_allclose(post.mean, post.sample(DRAWS).mean(axis=0))
    assert post.interval(0.95)[0].min() > 0
    assert np.all(post.predict(hg.Points(X), noisy=hg.Poisson()).std > post.predict(hg.Points(X)).std)


def test_a_saved_map_has_the_same_draws(post, tmp_path):
    post.save(tmp_path / "map")
    again = hg.load(tmp_path / "map")
    np.testing.assert_array_equal(again.sample(5, key=3), post.sample(5, key=3))
    np.testing.assert_allclose(again.std(), post.std())


def test_of_a_gaussian_posterior_every_step_is_accepted():
    """Whatever its length, and with a trend: the energy is then conserved to the last digit."""
    rng = np.random.default_rng(0)
    data = hg.observe(
        hg.LineIntegrals(rng.uniform(size=(6, 1)), rng.uniform(size=(6, 1))), rng.normal(size=6), 0.2
    )
    gp = hg.GP(KERNEL, GRID, trend="linear")
    # a solve to 2e-4 nats, as rounds have it by themselves, would leave phi a slope of the root of twice that
    found = gp.condition(data, hg.Linearised(hg.Batch(tolerance=1e-10)), progress=False).engine
    with jax.enable_x64(True):
        ratio = Ratio(found.post, found.trend, found.blocks)
        now = ratio.at(ratio.draws(4, jax.random.key(0)))
        moved, chance = _trajectory(ratio, now, ratio.draws(4, jax.random.key(1)), 0.7, rng)
    assert np.all(chance > 1 - 1e-3)
    assert np.all(np.abs(moved.d - now.d).max(axis=1) > 0.1)
    assert np.ptp(moved.phi) < 1e-3


def test_chains_that_disagree_are_told():
    rng = np.random.default_rng(1)
    same = rng.standard_normal((40, 8))
    assert spread_of_chains(same) < 1.1 < 2 < spread_of_chains(same + 5 * np.arange(8))


def test_what_cannot_be_is_refused(post):
    with pytest.raises(ValueError, match="corrected: expected 0, or at least 16 draws, got 3"):
        hg.Linearised(corrected=3)
    with pytest.raises(ValueError, match=r"method: expected Batch\(...\) with corrected draws, got Exact"):
        hg.Linearised(hg.Exact(), corrected=64)
    with pytest.raises(ValueError, match="count: expected at most the 256 draws that were made, got 300"):
        post.sample(300)
    expected = r'std: expected "auto" or "samples" with Linearised\(corrected=256\), .* got \'exact\''
    for asked in (post.std, lambda method: post.predict(hg.Points(X), std=method)):
        with pytest.raises(ValueError, match=expected):
            asked("exact")
    with pytest.raises(ValueError, match="samples: expected the 256 draws that were made, got 100"):
        post.std(samples=100)
    assert np.all(post.std("samples", samples=256) == post.std())


@pytest.mark.slow  # NUTS compiles and runs for half a minute
def test_outliers_and_a_line_as_a_long_nuts_run_has_them():
    blackjax = pytest.importorskip("blackjax")
    x, y = np.linspace(0.05, 0.95, 8), np.array([0.3, 0.5, 0.9, 3.0, 1.6, 1.2, 0.8, 0.9])
    data = hg.observe(hg.Points(x), y, 0.15, hg.StudentT(2.0))
    method = hg.Linearised(corrected=512)
    post = hg.GP(KERNEL, GRID, link="exp").condition(data, method, progress=False)
    with jax.enable_x64(True):
        root = np.linalg.cholesky(np.asarray(KERNEL(x[:, None], x[:, None])) + 1e-9 * np.eye(8))

        def log_density(e):
            t = (y - jnp.exp(root @ e)) / 0.15
            return -1.5 * jnp.sum(jnp.log1p(t**2 / 2)) - 0.5 * e @ e

        nuts = blackjax.window_adaptation(blackjax.nuts, log_density)
        (state, found), _ = nuts.run(jax.random.key(0), jnp.zeros(8), 1000)
        step = blackjax.nuts(log_density, **found).step
        _, chain = jax.lax.scan(
            lambda s, k: (step(k, s)[0],) * 2, state, jax.random.split(jax.random.key(1), 20_000)
        )
        latent = np.asarray(chain.position) @ root.T
    ours = np.log(post.sample(512, at=hg.Points(x)))
    np.testing.assert_allclose(ours.mean(axis=0), latent.mean(axis=0), atol=0.2 * latent.std(axis=0).max())
    np.testing.assert_allclose(ours.std(axis=0), latent.std(axis=0), rtol=0.15)
