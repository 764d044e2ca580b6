"""What scikit-learn's users expect of the regressor beyond its checks: weights, noise of each, covariances, parameters."""

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="scikit-learn: pip install 'hipgp[sklearn]'")

from scipy.optimize import minimize_scalar
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

import dense
import hipgp as hg

RNG = np.random.default_rng(0)
X = RNG.uniform(0, 1, (40, 1))
Y = np.sin(5 * X[:, 0]) + 0.1 * RNG.standard_normal(40)
AT = np.linspace(-0.1, 1.1, 7)[:, None]
NOISE = RNG.uniform(0.05, 0.3, 40)
SETTINGS = {"learn": False, "method": hg.Exact()}


def model(**settings):
    return hg.HIPGPRegressor(hg.Matern32(1.0, 0.4), **(SETTINGS | settings))


def exact(x, y, noise):
    ones = np.ones((len(x), 1)), np.ones((len(AT), 1))
    return dense.exact_gp(dense.Matern32(1.0, 0.4), dense.points(x), y, noise, dense.points(AT), *ones)


def test_noise_of_each_and_joint_covariances():
    """Beyond the data, too; of both engines."""
    truth = exact(X, Y, NOISE)
    mean, covariance = model(alpha=NOISE**2).fit(X, Y).predict(AT, return_cov=True)
    np.testing.assert_allclose(mean, truth.mean, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(covariance, truth.covariance, rtol=1e-5, atol=1e-9)
    fitted = model(alpha=NOISE**2, method=None, points_per_lengthscale=12).fit(X, Y)
    np.testing.assert_allclose(fitted.predict(AT, return_cov=True)[1], truth.covariance, rtol=1e-5, atol=1e-9)
    with pytest.raises(RuntimeError, match="return_std=False"):
        fitted.predict(AT, return_std=True, return_cov=True)


def test_weights_count_observations():
    weight = np.arange(40) % 4  # a quarter is left out
    found = model(noise=0.1).fit(X, Y, sample_weight=weight).predict(AT, return_std=True)
    repeated = np.repeat(np.arange(40), weight)
    truth = exact(X[repeated], Y[repeated], 0.1)
    np.testing.assert_allclose(found[0], truth.mean, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(found[1], truth.std, rtol=1e-6)


def test_learned_noise_goes_with_the_weights():
    """The learned noise is the likeliest by the dense marginal likelihood with noise^2 / w, and does not depend on the unit."""
    weight = np.where(np.arange(40) % 2, 1.0, 50.0)
    y = np.sin(5 * X[:, 0]) + 0.5 * np.random.default_rng(1).standard_normal(40) / np.sqrt(weight)
    fitted = hg.HIPGPRegressor(trend=None).fit(X, y, sample_weight=weight)
    kernel = dense.Matern32(fitted.kernel_.variance, float(fitted.kernel_.lengthscale[0]))
    k = dense.covariance(kernel, dense.points(X), dense.points(X))

    def misfit(log_noise):
        covariance = k + np.diag(np.exp(2 * log_noise) / weight)
        return np.linalg.slogdet(covariance)[1] + y @ np.linalg.solve(covariance, y)

    best = minimize_scalar(misfit, bracket=np.log([0.1, 1.0])).x
    np.testing.assert_allclose(fitted.noise_, np.exp(best), rtol=0.01)
    given = hg.HIPGPRegressor(fitted.kernel_, alpha=fitted.noise_**2 / weight, learn=False, trend=None)
    np.testing.assert_allclose(fitted.predict(AT), given.fit(X, y).predict(AT), atol=1e-6)
    other = hg.HIPGPRegressor(trend=None).fit(X, y, sample_weight=1e4 * weight)
    np.testing.assert_allclose(other.noise_, 100 * fitted.noise_, rtol=1e-2)
    np.testing.assert_allclose(other.predict(AT), fitted.predict(AT), atol=1e-2)


def test_parameters_of_kernels_can_be_searched():
    kernel = hg.Matern32(1.0, 0.4) + hg.Periodic(period=(0.5, 2.0)) * hg.Matern12()
    assert kernel.set_params(left__lengthscale=2.0).left.lengthscale == 2.0
    assert repr(kernel.set_params(right__left__period=0.7)) == repr(
        hg.Matern32(1.0, 0.4) + hg.Periodic(period=0.7) * hg.Matern12()
    )
    assert repr(kernel.set_params(**kernel.get_params())) == repr(kernel) and kernel.left.lengthscale == 0.4
    with pytest.raises(ValueError, match="expected parameters among variance, lengthscale, got 'nu'"):
        hg.Matern32().set_params(nu=2)
    searched = model(noise=0.1)
    assert clone(searched).get_params()["kernel__lengthscale"] == 0.4
    search = GridSearchCV(searched, {"kernel__lengthscale": [1e-3, 0.4], "noise": [0.1]}, cv=2).fit(X, Y)
    assert search.best_params_ == {"kernel__lengthscale": 0.4, "noise": 0.1}
    assert searched.kernel.lengthscale == 0.4
    classifier = hg.HIPGPClassifier(hg.Matern32(1.0, 0.4)).set_params(kernel__lengthscale=2.0, learn=False)
    assert classifier.kernel.lengthscale == 2.0 and not classifier.learn
    with pytest.raises(ValueError, match="expected a kernel with kernel__lengthscale, got None"):
        hg.HIPGPRegressor().set_params(kernel__lengthscale=2.0)


@pytest.mark.parametrize(
    ("settings", "weight", "told"),
    [
        ({"noise": 0.1, "alpha": 0.01}, None, "alpha: expected None with a noise"),
        ({"alpha": np.ones(3)}, None, "one for each of 40 observations, got shape \\(3,\\)"),
        ({"alpha": -1.0}, None, "expected a positive variance"),
        (
            {"learn": True, "likelihood": hg.StudentT()},
            np.arange(40),
            "sample_weight: expected none with StudentT",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(settings, weight, told):
    with pytest.raises(ValueError, match=told):
        model(**settings).fit(X, Y, sample_weight=weight)
