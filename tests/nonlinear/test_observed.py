"""New observations under each likelihood, and observations predicted from all others."""

import numpy as np
import pytest
import scipy.stats as st

import hipgp as hg
from hipgp.nonlinear.observed import Observed, new_observations
from hipgp.nonlinear.posterior import Transformed
from hipgp.predictions import Prediction

RNG = np.random.default_rng(0)
MEAN, STD = np.array([-0.5, 0.3, 1.2]), np.array([0.3, 0.6, 1.0])
F = MEAN[:, None] + STD[:, None] * RNG.standard_normal((3, 40_000))
EXP, SHARE = np.exp(F), 1 / (1 + np.exp(-F))
draw = np.random.default_rng(1)
E = np.array([2.0, 1.0, 5.0])

# link, likelihood, noise, draws of y, its density given the field
CASES = {
    "gaussian": ("exp", hg.Gaussian(), 0.2, lambda: EXP + 0.2 * draw.standard_normal(F.shape), lambda y: st.norm.pdf(y, EXP, 0.2)),
    "narrow": ("exp", hg.Gaussian(), 1e-3, lambda: EXP + 1e-3 * draw.standard_normal(F.shape), None),
    "student": (None, hg.StudentT(3.0), 0.3, lambda: F + 0.3 * draw.standard_t(3.0, F.shape), lambda y: st.t.pdf(y, 3.0, F, 0.3)),
    "poisson": ("exp", hg.Poisson(E), 1.0, lambda: draw.poisson(E[:, None] * EXP), lambda y: st.poisson.pmf(y, E[:, None] * EXP)),
    "negative binomial": ("exp", hg.NegativeBinomial(3.0), 1.0, lambda: draw.negative_binomial(3, 3 / (3 + EXP)), lambda y: st.nbinom.pmf(y, 3, 3 / (3 + EXP))),
    "binomial": ("logistic", hg.Binomial(7), 1.0, lambda: draw.binomial(7, SHARE), lambda y: st.binom.pmf(y, 7, SHARE)),
    "gamma": ("exp", hg.Gamma(4.0), 1.0, lambda: draw.gamma(4.0, EXP / 4), lambda y: st.gamma.pdf(y, 4.0, scale=EXP / 4)),
    "log-normal": ("exp", hg.LogNormal(0.4), 1.0, lambda: EXP * np.exp(0.4 * draw.standard_normal(F.shape)), lambda y: st.lognorm.pdf(y, 0.4, scale=EXP)),
    "beta": ("logistic", hg.Beta(9.0), 1.0, lambda: draw.beta(9 * SHARE, 9 * (1 - SHARE)), lambda y: st.beta.pdf(y, 9 * SHARE, 9 * (1 - SHARE))),
}  # fmt: skip


def of_field(link):
    return (
        Prediction(MEAN, STD)
        if link is None
        else Transformed.of(hg.GP(hg.Matern32(), link=link).link, np.ones(3), MEAN, STD)
    )


@pytest.mark.parametrize("name", CASES)
def test_new_observations_are_distributed_as_draws_of_them(name):
    link, likelihood, noise, drawn, density = CASES[name]
    found, y = Observed.of(of_field(link), likelihood, noise), drawn().astype(float)
    np.testing.assert_allclose(
        found.mean, y.mean(axis=1), atol=6 * np.max(y.std(axis=1)) / np.sqrt(F.shape[1])
    )
    np.testing.assert_allclose(found.std, y.std(axis=1), rtol=0.08)
    for q in (0.025, 0.3, 0.5, 0.975):
        at = found.quantile(q)
        below, strictly = np.mean(y <= at[:, None], axis=1), np.mean(y < at[:, None], axis=1)
        assert np.all(below > q - 0.01) and np.all(strictly < q + 0.01)
        np.testing.assert_allclose(found.cdf(at), below, atol=0.01)
    middle = np.array([np.median(row) for row in y])
    if density is not None:
        truth = density(middle[:, None]).mean(axis=1)
        np.testing.assert_allclose(np.exp(found.log_density(middle)), truth, rtol=0.04)


@pytest.mark.parametrize("name", ["poisson", "student", "narrow"])
def test_the_probability_integral_transform_is_uniform(name):
    link, likelihood, noise, drawn, _ = CASES[name]
    found = Observed.of(of_field(link), likelihood, noise)
    y = drawn()[:, :300].astype(float)
    shares = np.array([found.pit(y[:, i], key=i) for i in range(300)]).ravel()
    assert st.kstest(shares, "uniform").pvalue > 0.01


def test_crps_is_that_of_draws():
    link, likelihood, noise, drawn, _ = CASES["poisson"]
    found, y = Observed.of(of_field(link), likelihood, noise), drawn()[:, :4000].astype(float)
    at = np.array([1.0, 4.0, 30.0])
    spread = np.abs(y[:, ::2] - y[:, 1::2]).mean(axis=1)
    truth = np.abs(y - at[:, None]).mean(axis=1) - 0.5 * spread
    np.testing.assert_allclose(found.crps(at), truth, rtol=0.06)


X = np.linspace(0.05, 0.95, 14)
GRID = hg.Grid.cover(0.0, 1.0, shape=48)
KERNEL = hg.Matern52(1.0, 0.3)
COUNTS = np.array([0, 2, 1, 4, 3, 7, 9, 5, 6, 2, 1, 0, 1, 3.0])
LINES = hg.LineIntegrals(np.zeros((5, 1)), np.array([0.3, 0.5, 0.7, 0.9, 1.0])[:, None])
LENGTHS = np.array([0.25, 0.85, 1.4, 1.6, 1.75])


def problem(rows=slice(None), lines=slice(None)):
    points = hg.observe(hg.Points(X[rows]), COUNTS[rows], likelihood=hg.Poisson(2.0))
    return points + hg.observe(LINES[np.arange(5)[lines]], LENGTHS[lines], 0.15)


GP = hg.GP(KERNEL, GRID, trend="constant", link="exp")


@pytest.fixture(scope="module")
def post():
    return GP.condition(problem(), hg.Exact(), progress=False)


def test_leaving_out_is_as_conditioning_on_the_others(post):
    left = post.leave_out()
    np.testing.assert_array_equal(left.observed, np.concatenate([COUNTS, LENGTHS]))
    densities, sure = left.log_density(), left.std
    for i in (3, 6):
        rest = GP.condition(problem(np.arange(14) != i), hg.Exact(), progress=False)
        alone = rest.predict(hg.Points(X[[i]]), noisy=hg.Poisson(2.0))
        np.testing.assert_allclose(densities[i], alone.log_density(COUNTS[i])[0], atol=0.15)
        np.testing.assert_allclose(left.mean[i], alone.mean[0], rtol=0.1)
        np.testing.assert_allclose(sure[i], alone.std[0], rtol=0.12)
    for i in (1, 3):
        rest = GP.condition(problem(lines=np.arange(5) != i), hg.Exact(), progress=False)
        alone = rest.predict(LINES[[i]], noisy=hg.Gaussian(), noise=0.15)
        np.testing.assert_allclose(densities[14 + i], alone.log_density(LENGTHS[i])[0], atol=0.15)
        np.testing.assert_allclose(left.mean[14 + i], alone.mean[0], rtol=0.1)


def test_groups_are_left_out_together_and_scored(post):
    groups = np.r_[np.arange(14) // 7, np.full(5, 2)]
    left = post.leave_out(groups)
    rest = GP.condition(problem(np.arange(14) >= 7), hg.Exact(), progress=False)
    alone = rest.predict(hg.Points(X[:7]), noisy=hg.Poisson(2.0))
    np.testing.assert_allclose(left.log_density()[:7].sum(), alone.log_density(COUNTS[:7]).sum(), atol=1.0)
    scores = left.scores()
    assert set(scores) == {"rmse", "crps", "log_density", "coverage"} and scores["coverage"] > 0.8
    assert np.all((left.pit() > 0) & (left.pit() < 1)) and 0.5 < np.std(left.pull) < 1.5


def test_a_saved_map_leaves_out_as_before(tmp_path):
    rng = np.random.default_rng(3)
    x = rng.permutation(np.linspace(0.05, 0.95, 40))  # not in the order that the engine takes them
    y = rng.poisson(3 * np.exp(np.sin(6 * x))).astype(float)
    post = GP.condition(hg.observe(hg.Points(x), y, likelihood=hg.Poisson(3.0)), progress=False)
    left = post.leave_out()
    np.testing.assert_array_equal(left.observed, y)
    post.save(tmp_path / "map")
    again = hg.load(tmp_path / "map").leave_out()
    np.testing.assert_array_equal(again.observed, y)
    np.testing.assert_allclose(again.log_density(), left.log_density(), atol=1e-4)


def test_a_new_observation_scatters_as_the_data(post):
    noisy = GP.condition(
        hg.observe(hg.Points(X), COUNTS, likelihood=hg.Poisson(2.0)), hg.Exact(), progress=False
    )
    field, new = (noisy.predict(hg.Points(X), noisy=how) for how in (False, True))
    np.testing.assert_allclose(new.mean, 2 * field.mean, rtol=1e-6)
    np.testing.assert_allclose(new.std**2, 2 * field.mean + 4 * field.std**2, rtol=1e-5)
    np.testing.assert_array_equal(new.quantile(0.9), np.round(new.quantile(0.9)))
    other = noisy.predict(hg.Points(X), noisy=hg.Poisson(4.0))
    np.testing.assert_allclose(other.mean, 4 * field.mean, rtol=1e-6)
    plain = hg.GP(KERNEL, GRID).condition(hg.observe(hg.Points(X), COUNTS, 0.3), progress=False)
    one, both = plain.predict(hg.Points(X)), plain.predict(hg.Points(X), noisy=True)
    np.testing.assert_allclose(both.std, np.hypot(one.std, 0.3), rtol=1e-9)
    measured = post.predict(LINES).with_noise(0.1)
    np.testing.assert_allclose(measured.std, np.hypot(post.predict(LINES).std, 0.1), rtol=1e-4)
    assert measured.quantile(0.5).shape == (5,) and measured.interval()[0].shape == (5,)


def test_what_a_new_observation_needs_is_asked_for(post):
    places = hg.Points(X)
    for ask, message in (
        (
            lambda: post.predict(places, noisy=True),
            r"noisy: expected the likelihood of new .*several \(Gaussian, Poisson\)",
        ),
        (lambda: post.predict(places, noisy="yes"), "noisy: expected False, True or a likelihood"),
        (lambda: post.predict(places, noisy=hg.NegativeBinomial()), "dispersion: expected a number"),
        (lambda: post.predict(places, noisy=hg.Poisson(2.0), noise=0.1), "noise: expected None with Poisson"),
        (
            lambda: post.predict(places, noisy=hg.Poisson(np.ones(3))),
            "exposure: expected a number or one per",
        ),
        (lambda: post.predict(places).with_noise(-1.0), "noise: expected a positive standard deviation"),
    ):
        with pytest.raises(ValueError, match=message):
            ask()
    each = GP.condition(
        hg.observe(places, COUNTS, likelihood=hg.Poisson(np.linspace(1, 2, 14))), hg.Exact(), progress=False
    )
    with pytest.raises(ValueError, match=r"noisy: expected the exposure of new .*Poisson\(exposure=...\)"):
        each.predict(places, noisy=True)
    mixed = hg.GP(KERNEL, GRID).condition(
        hg.observe(places, COUNTS, np.linspace(0.1, 0.2, 14)), progress=False
    )
    with pytest.raises(ValueError, match="noise: expected the noise of new observations"):
        mixed.predict(places, noisy=True)
    with pytest.raises(ValueError, match="noisy: expected False"):
        new_observations(Prediction(MEAN, STD), mixed.engine, 0.3, None, None)
