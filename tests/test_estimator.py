"""HIPGPRegressor: scikit-learn's own checks, agreement with the exact GP, and what happens at the edges."""

import pickle

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="scikit-learn: pip install 'hipgp[sklearn]'")

from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import dense
import hipgp as hg

TOO_WIDE = "the check has more than 4 columns, and the inducing points lie on a grid of at most 4 axes"
# Every one of these passes with the columns cut to two: see FirstTwoColumns.
EXCEPTIONS = {
    "check_estimators_dtypes": TOO_WIDE,
    "check_dtype_object": TOO_WIDE,
    "check_regressors_train": TOO_WIDE,
    "check_regressor_data_not_an_array": TOO_WIDE,
    "check_regressors_int": TOO_WIDE,
    "check_sample_weight_equivalence_on_dense_data": TOO_WIDE,
}
FIXED = hg.HIPGPRegressor(hg.Matern32(), noise=0.1, learn=False, max_grid_points=300)


class FirstTwoColumns(hg.HIPGPRegressor):
    """For the checks with more than four columns: the same estimator of the first two."""

    def fit(self, X, y, sample_weight=None):
        return super().fit(_first_two(X), y, sample_weight)

    def predict(self, X, return_std=False):
        return super().predict(_first_two(X), return_std)


def _first_two(X):
    if hasattr(X, "iloc"):
        return X.iloc[:, :2]
    return X[:, :2] if getattr(X, "ndim", 1) == 2 else np.asarray(X)[:, :2]


def _wide_checks(estimator):
    for checked, check in parametrize_with_checks([estimator]).args[1]:
        if check.func.__name__ in EXCEPTIONS:
            yield pytest.param(checked, check, id=check.func.__name__)


@parametrize_with_checks([FIXED], expected_failed_checks=lambda _: EXCEPTIONS)
def test_scikit_learn_checks(estimator, check):
    check(estimator)


@pytest.mark.parametrize(
    ("estimator", "check"), list(_wide_checks(FirstTwoColumns(**FIXED.get_params(deep=False))))
)
def test_exceptions_are_only_for_the_columns(estimator, check):
    if check.func.__name__ == "check_regressors_train":
        pytest.skip("its score needs all ten columns")
    check(estimator)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*repeat another one exactly")
@pytest.mark.filterwarnings("ignore:the data do not determine")  # random targets, as they should not
@parametrize_with_checks([hg.HIPGPRegressor()], expected_failed_checks=lambda _: EXCEPTIONS)
def test_scikit_learn_checks_while_learning(estimator, check):
    check(estimator)


def _data(count=150, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(0.0, 1.0, (count, 2))
    return X, 3.0 + np.sin(5 * X[:, 0]) * np.cos(3 * X[:, 1]) + 0.1 * rng.standard_normal(count)


@pytest.fixture(scope="module")
def fitted():
    X, y = _data()
    kernel = hg.Matern32(variance=1.0, lengthscale=(0.5, 0.7))
    settings = {"points_per_lengthscale": 12, "method": hg.Batch(tolerance=1e-6)}
    return hg.HIPGPRegressor(kernel, noise=0.1, learn=False, **settings).fit(X, y)


def _exact(places):
    X, y = _data()
    kernel = dense.Matern32(1.0, (0.5, 0.7))
    ones = np.ones((len(X), 1)), np.ones((len(places), 1))
    return dense.exact_gp(kernel, dense.points(X), y, 0.1, dense.points(places), *ones)


def test_agrees_with_the_exact_gp_inside_the_grid(fitted):
    places = np.random.default_rng(1).uniform(0.0, 1.0, (40, 2))
    truth = _exact(places)
    mean, std = fitted.predict(places, return_std=True)
    assert np.max(np.abs(mean - truth.mean) / truth.std) < 0.1
    np.testing.assert_allclose(std, truth.std, rtol=0.03)


def test_beyond_the_grid_it_is_the_same_model(fitted):
    direction = np.array([[0.8, 0.6]])
    places = 0.5 + np.array([[0.8], [0.9], [1.5], [100.0]]) * direction
    assert np.all(fitted.grid_.outside(places) > 0)
    truth = _exact(places)
    mean, std = fitted.predict(places, return_std=True)
    assert np.max(np.abs(mean - truth.mean) / truth.std) < 0.1
    np.testing.assert_allclose(std, truth.std, rtol=0.03)
    np.testing.assert_allclose(mean[-1], truth.coefficients[0], atol=1e-2)  # far away: the trend


def test_no_jump_at_the_edge_of_the_grid(fitted):
    edge = np.array([fitted.grid_.upper[0], 0.5])
    mean, std = fitted.predict(edge + np.array([[-1e-6, 0.0], [1e-3 * fitted.grid_.spacing[0], 0.0]]), True)
    assert abs(mean[1] - mean[0]) < 0.02 * std[0]


@pytest.mark.slow
def test_samples_have_the_posterior_moments_inside_and_beyond(fitted):
    places = np.array([[0.5, 0.5], [0.52, 0.5], [1.2, 0.5]])
    truth = _exact(places)
    draws = fitted.sample_y(places, 400, random_state=3)
    assert draws.shape == (3, 400)
    error = truth.std / np.sqrt(400)
    assert np.all(np.abs(draws.mean(axis=1) - truth.mean) < 4 * error + 0.05 * truth.std)
    np.testing.assert_allclose(np.cov(draws), truth.covariance, atol=0.25 * np.max(truth.std) ** 2)
    np.testing.assert_array_equal(draws, fitted.sample_y(places, 400, random_state=3))


@pytest.mark.slow
def test_learns_in_a_pipeline_whatever_the_units():
    X, y = _data()
    plain = hg.HIPGPRegressor().fit(X, y)
    assert 0.07 < plain.noise_ < 0.14
    scaled = hg.HIPGPRegressor().fit(X * [1.0, 1e5], 1e3 * y)
    np.testing.assert_allclose(scaled.predict(X[:5] * [1.0, 1e5]), 1e3 * plain.predict(X[:5]), rtol=1e-2)
    pipeline = make_pipeline(StandardScaler(), hg.HIPGPRegressor()).fit(X, y)
    np.testing.assert_allclose(pipeline.predict(X[:5]), plain.predict(X[:5]), atol=0.02)


@pytest.mark.slow
def test_cross_validation_and_search(fitted):
    X, y = _data()
    model = clone(fitted)
    assert np.mean(cross_val_score(model, X, y, cv=2)) > 0.9
    search = GridSearchCV(model, {"noise": [0.1, 3.0]}, cv=2).fit(X, y)
    assert search.best_params_ == {"noise": 0.1}


def test_pickle_keeps_every_digit(fitted):
    again = pickle.loads(pickle.dumps(fitted))
    places = np.array([[0.3, 0.4], [1.6, 0.2]])
    for a, b in zip(again.predict(places, True), fitted.predict(places, True), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"learn": False}, "learn: expected True"),
        ({"trend": "cubic"}, "trend: expected"),
        ({"trend": np.ones((20, 1))}, "trend: expected"),
        ({"margin": -1.0}, "margin: expected"),
        ({"kernel": hg.Matern32(lengthscale=(1.0, 1.0, 1.0))}, "lengthscale: expected"),
    ],
)
def test_settings_that_make_no_sense(settings, words):
    X, y = _data(20)
    with pytest.raises(ValueError, match=words):
        hg.HIPGPRegressor(**settings).fit(X, y)


def test_too_many_columns_are_told():
    with pytest.raises(ValueError, match="expected 1 to 4 columns"):
        hg.HIPGPRegressor().fit(np.zeros((9, 5)), np.zeros(9))


def test_draws_much_too_far_out_are_told(fitted):
    with pytest.raises(
        ValueError, match="X: expected places near the data, got some so far out that a grid of"
    ):
        fitted.sample_y([[1e9, 0.0]])


def test_the_grid_stays_within_its_limit():
    X, y = _data(60)
    model = hg.HIPGPRegressor(hg.Matern32(lengthscale=0.01), noise=0.1, learn=False, max_grid_points=400)
    assert 200 < model.fit(X, y).grid_.size <= 400
