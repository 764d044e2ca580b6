"""Likelihoods against SciPy's distributions, and the information against the mean square of the score."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats as st

import hipgp as hg

X = hg.Points(np.linspace(0.0, 1.0, 4))
ETA = np.array([0.2, 0.5, 0.8, 0.35])
NOISE = np.array([0.1, 0.3, 0.2, 0.5])
E = np.array([2.0, 10.0, 5.0, 40.0])

# likelihood, SciPy's distribution at eta, observed values
CASES = {
    "gaussian": (hg.Gaussian(), st.norm(ETA, NOISE), np.array([0.1, 0.6, 1.5, -0.2])),
    "student": (hg.StudentT(df=5.0), st.t(5.0, ETA, NOISE), np.array([0.1, 0.6, 3.5, -0.2])),
    "poisson": (hg.Poisson(E), st.poisson(E * ETA), np.array([0.0, 3.0, 7.0, 12.0])),
    "negative binomial": (
        hg.NegativeBinomial(3.0, E),
        st.nbinom(3.0, 3.0 / (3.0 + E * ETA)),
        np.array([0.0, 3.0, 7.0, 12.0]),
    ),
    "binomial": (hg.Binomial(E), st.binom(E.astype(int), ETA), np.array([0.0, 3.0, 5.0, 12.0])),
    "bernoulli": (hg.Bernoulli(), st.bernoulli(ETA), np.array([0.0, 1.0, 1.0, 0.0])),
    "gamma": (hg.Gamma(4.0), st.gamma(4.0, scale=ETA / 4.0), np.array([0.1, 0.6, 1.5, 0.2])),
    "beta": (hg.Beta(8.0), st.beta(8 * ETA, 8 * (1 - ETA)), np.array([0.1, 0.6, 0.95, 0.2])),
    "log-normal": (hg.LogNormal(0.4), st.lognorm(0.4, scale=ETA), np.array([0.1, 0.6, 1.5, 0.2])),
}


@pytest.fixture(params=CASES)
def case(request):
    return CASES[request.param]


def test_the_log_density_is_scipys(case):
    likelihood, truth, y = case
    density = truth.logpmf if hasattr(truth.dist, "logpmf") else truth.logpdf
    found = likelihood.log_density(jnp.asarray(y), jnp.asarray(ETA), NOISE)
    np.testing.assert_allclose(found, density(y), rtol=1e-10)


def test_mean_variance_and_distribution_are_scipys(case):
    likelihood, truth, y = case
    eta = jnp.asarray(ETA)
    np.testing.assert_allclose(likelihood.mean(eta), truth.mean(), rtol=1e-12)
    np.testing.assert_allclose(likelihood.variance(eta, NOISE), truth.var(), rtol=1e-10)
    np.testing.assert_allclose(likelihood.cdf(jnp.asarray(y), eta, NOISE), truth.cdf(y), rtol=1e-8)


def test_the_information_is_the_mean_square_of_the_score(case):
    """Fisher's; of Student's t, whose weight is not that, the weight times the residual is the score."""
    likelihood, truth, y = case
    score = jax.vmap(
        lambda y: jax.grad(lambda e: jnp.sum(likelihood.log_density(y, e, NOISE)))(jnp.asarray(ETA))
    )
    if isinstance(likelihood, hg.StudentT):
        weight = likelihood.information(jnp.asarray(y), jnp.asarray(ETA), NOISE)
        np.testing.assert_allclose(weight * (y - ETA), score(jnp.asarray(y)[None])[0], rtol=1e-10)
        return
    draws = truth.rvs((100_000, 4), random_state=0).astype(float)
    square = np.mean(np.asarray(score(jnp.asarray(draws))) ** 2, axis=0)
    found = likelihood.information(jnp.asarray(y), jnp.asarray(ETA), NOISE)
    np.testing.assert_allclose(found, square, rtol=0.05)


def test_limits_take_the_probability_beyond_them():
    base = st.norm(ETA, NOISE)
    like = hg.Censored(lower=0.15, upper=np.array([1.0, 1.0, 0.9, 1.0]))
    y = np.array([0.15, 0.5, 0.9, 0.1])
    expected = [base.logcdf(0.15)[0], base.logpdf(0.5)[1], base.logsf(0.9)[2], base.logcdf(0.15)[3]]
    np.testing.assert_allclose(
        like.log_density(jnp.asarray(y), jnp.asarray(ETA), NOISE), expected, rtol=1e-10
    )
    far = hg.Censored(lower=-100.0).log_density(jnp.asarray([-100.0]), jnp.asarray([0.0]), 1.0)
    np.testing.assert_allclose(far, st.norm.logcdf(-100.0), rtol=1e-10)


@pytest.mark.parametrize("base", [hg.LogNormal(0.4), hg.Gamma(4.0), hg.StudentT(5.0)], ids=str)
def test_limits_on_other_distributions(base):
    dist = {"LogNormal": st.lognorm(0.4, scale=ETA), "Gamma": st.gamma(4.0, scale=ETA / 4.0)}
    truth = dist.get(type(base).__name__, st.t(5.0, ETA, NOISE))
    like = hg.Censored(lower=0.15, upper=0.4, base=base)
    low = like.log_density(jnp.full(4, 0.15), jnp.asarray(ETA), NOISE)
    high = like.log_density(jnp.full(4, 0.4), jnp.asarray(ETA), NOISE)
    np.testing.assert_allclose(low, truth.logcdf(0.15), rtol=1e-6)
    np.testing.assert_allclose(high, truth.logsf(0.4), rtol=1e-6)
    assert np.all(np.asarray(like.information(jnp.full(4, 0.15), jnp.asarray(ETA), NOISE)) > 0)


def test_one_of_your_own_is_differentiated():
    own = hg.Likelihood(lambda y, eta: -0.5 * ((y - eta) / 0.3) ** 2)
    found = own.information(jnp.zeros(4), jnp.asarray(ETA))
    np.testing.assert_allclose(found, 1 / 0.09, rtol=1e-12)


def test_parameters_go_with_their_observations():
    taken = hg.Poisson(E).take(np.array([2, 0]))
    np.testing.assert_array_equal(taken.exposure, E[[2, 0]])
    limits = hg.Censored(upper=E, base=hg.LogNormal(NOISE)).take(np.array([1]))
    assert limits.upper.tolist() == [10.0] and limits.base.scale.tolist() == [0.3]
    assert hg.Censored(upper=1.0, base=hg.StudentT()).unknown() == ["df"]


def test_the_gaussian_one_is_what_there_is_without():
    assert hg.observe(X, ETA, 0.1, hg.Gaussian()).gaussian
    assert not hg.observe(X, ETA, 0.1, hg.StudentT(4.0)).gaussian


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: hg.observe(X, [1, 2, -1, 0], likelihood=hg.Poisson()), "y: expected counts, no negative ones, got -1 at index 2"),
        (lambda: hg.observe(X, [1, 2, 0.5, 0], likelihood=hg.NegativeBinomial(2.0)), "y: expected counts, whole ones, got 0.5 at index 2"),
        (lambda: hg.observe(X, [1, 2, 6, 0], likelihood=hg.Binomial([4, 4, 4, 4])), "at most as many successes as trials, got 6"),
        (lambda: hg.observe(X, [1, 2, 0, 0], likelihood=hg.Bernoulli()), "at most as many successes as trials, got 2"),
        (lambda: hg.Binomial(2.5), "trials: expected whole numbers"),
        (lambda: hg.Poisson(exposure=[1.0, 0.0]), "exposure: expected positive numbers, got 0"),
        (lambda: hg.Censored(lower=2.0, upper=1.0), "whether they are swapped"),
        (lambda: hg.Censored(), "lower, upper: expected at least one limit"),
        (lambda: hg.Censored(lower=1.0, base=hg.Poisson()), "base: expected Gaussian"),
        (lambda: hg.observe(X, [1, 2, 0, 1.0], likelihood=hg.Gamma(2.0)), "y: expected positive values, got 0 at index 2"),
        (lambda: hg.observe(X, [0.1, 0.2, 1.0, 0.3], likelihood=hg.Beta(2.0)), "y: expected values between 0 and 1, got 1"),
        (lambda: hg.observe(X, ETA, likelihood=hg.Poisson), "likelihood: expected Poisson.*got Poisson, a class"),
        (lambda: hg.observe(X, ETA, likelihood="poisson"), "likelihood: expected .*got str"),
        (lambda: hg.observe(X, [1, 2, 3, 4], noise=1.0, likelihood=hg.Poisson()), "noise: expected None with Poisson"),
        (lambda: hg.observe(X, [1, 2, 3, 4], likelihood=hg.Poisson([1.0, 2.0])), r"exposure: expected a number or one per observation, shape \(4,\), got \(2,\)"),
        (lambda: hg.observe(X, ETA, likelihood=hg.Likelihood(lambda y, eta: jnp.log(-eta))), "got NaN at y"),
        (lambda: hg.observe(X, ETA, likelihood=hg.Likelihood(lambda y, eta: jnp.sum(eta))), r"shape \(4,\), got \(\)"),
        (lambda: hg.observe(X, ETA, likelihood=hg.Likelihood(lambda y: y)), "got one that raises TypeError"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_in_words(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_data_name_their_likelihood():
    assert "noise Poisson" in repr(hg.observe(hg.Points([0.1]), [2.0], likelihood=hg.Poisson()))
