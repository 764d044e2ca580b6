"""Estimators with links and likelihoods: probabilities of classes, counts and outliers in scikit-learn's conventions."""

import pickle

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="scikit-learn: pip install 'hipgp[sklearn]'")

from sklearn.utils.estimator_checks import parametrize_with_checks

import hipgp as hg

TOO_WIDE = "the check has more than 4 columns, and the inducing points lie on a grid of at most 4 axes"
EXCEPTIONS = dict.fromkeys(("check_estimators_dtypes", "check_dtype_object"), TOO_WIDE)
FIXED = hg.HIPGPClassifier(hg.Matern32(), learn=False, max_grid_points=300, method=hg.Batch(neighbours=4))
X = np.random.default_rng(0).uniform(0, 1, (150, 1))


@pytest.mark.slow
@parametrize_with_checks([FIXED], expected_failed_checks=lambda _: EXCEPTIONS)
def test_scikit_learn_checks(estimator, check):
    check(estimator)


def test_probabilities_are_found_and_kept():
    truth = lambda x: 1 / (1 + np.exp(-3 * np.sin(6 * x[:, 0])))
    y = np.where(np.random.default_rng(1).uniform(size=150) < truth(X), "b", "a")
    kernel = hg.Matern52(3.0, 0.25)
    model = hg.HIPGPClassifier(kernel, learn=False).fit(X, y)
    at = np.linspace(0.1, 0.9, 9)[:, None]
    found = model.predict_proba(at)
    np.testing.assert_allclose(found.sum(axis=1), 1.0)
    np.testing.assert_allclose(found[:, 1], truth(at), atol=0.2)
    assert model.score(X, y) > 0.75 and set(model.predict(at)) == {"a", "b"}
    data = hg.observe(hg.Points(X), (y == "b") * 1.0, likelihood=hg.Bernoulli())
    gp = hg.GP(kernel, model.regressor_.grid_, trend="constant", link="logistic")
    own = gp.condition(data, progress=False).predict(hg.Points(at))
    np.testing.assert_allclose(found[:, 1], own.mean, rtol=1e-6)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).predict_proba(at), found)


def test_more_than_two_classes_are_refused():
    with pytest.raises(ValueError, match=r"y: expected labels of two classes, got 3.*OneVsRest"):
        FIXED.fit(X[:9], np.arange(9) % 3)


def test_a_rate_is_learned_from_counts():
    rate = lambda x: np.exp(1.5 + np.sin(6 * x[:, 0]))
    y = np.random.default_rng(2).poisson(rate(X))
    model = hg.HIPGPRegressor(link="exp", likelihood=hg.Poisson()).fit(X, y)
    at = np.linspace(0.05, 0.95, 10)[:, None]
    mean, std = model.predict(at, return_std=True)
    np.testing.assert_allclose(mean, rate(at), atol=4 * std.max())
    assert model.noise_ is None and np.all(model.sample_y(at, 3) > 0)
    beyond = model.predict([[3.0]])
    assert np.all(beyond > 0)


@pytest.mark.slow
def test_outliers_do_not_move_a_curve():
    y = np.sin(6 * X[:, 0]) + 0.05 * np.random.default_rng(3).standard_t(1.5, 150)
    model = hg.HIPGPRegressor(likelihood=hg.StudentT()).fit(X, y)
    at = np.linspace(0.1, 0.9, 9)[:, None]
    np.testing.assert_allclose(model.predict(at), np.sin(6 * at[:, 0]), atol=0.12)
    assert model.noise_ < 0.1 and model.parameters_["StudentT.df"] < 4
