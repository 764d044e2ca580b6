"""What a transformed field says of itself: predictions, quantiles, draws, files, and what it refuses."""

import itertools
import warnings

import jax.numpy as jnp
import numpy as np
import pytest

import hipgp as hg

X = np.linspace(0.1, 0.9, 8)
GRID = hg.Grid.cover(0.0, 1.0, shape=40)
KERNEL = hg.Matern52(1.0, 0.3)
COUNTS = np.array([0.0, 1.0, 3.0, 5.0, 6.0, 2.0, 1.0, 0.0])
GP = hg.GP(KERNEL, GRID, trend="constant", link="exp")
LINES = hg.LineIntegrals([[0.0], [0.2]], [[0.6], [1.0]])
DATA = hg.observe(hg.Points(X), COUNTS, likelihood=hg.Poisson(2.0)) + hg.observe(LINES, [0.8, 1.1], 0.1)


@pytest.fixture(scope="module")
def post():
    return GP.condition(DATA, method=hg.Exact(), progress=False)


def test_it_says_how_it_went(post):
    told = post.diagnostics
    assert told["converged"] and told["change_nats"] < told["tolerance_nats"] == 0.01
    assert told["rounds"] == len(told["trace"]) < 20 and told["link"] == "exp"


def test_the_bound_never_falls_along_a_step(post):
    """Between refreshed standard deviations F is one function, and from a constant start it only rises."""
    trace = post.diagnostics["trace"]
    for before, after in itertools.pairwise(trace):
        if not after["fresh"] and before["nats"] >= 1:
            assert after["bound"] >= before["bound"] - 1e-6


def test_draws_have_the_moments_of_the_prediction_and_nothing_is_below_zero(post):
    at = hg.Points(X)
    found, draws = post.predict(at), post.sample(4000, key=3, at=at)
    np.testing.assert_allclose(draws.mean(axis=0), found.mean, atol=5 * np.max(found.std) / np.sqrt(4000))
    np.testing.assert_allclose(draws.std(axis=0), found.std, rtol=5 / np.sqrt(2 * 4000))
    for q in (0.05, 0.5, 0.95):
        np.testing.assert_allclose(np.mean(draws < found.quantile(q), axis=0), q, atol=0.02)
    assert draws.min() > 0 and found.quantile(1e-6).min() > 0 and post.sample(4).min() > 0


def test_intervals_are_two_quantiles(post):
    found = post.predict(LINES)
    lower, upper = found.interval(0.9)
    both = found.quantile([0.05, 0.95])
    assert both.shape == (2, 2)
    np.testing.assert_array_equal(lower, both[0])
    np.testing.assert_array_equal(upper, both[1])
    assert np.all(lower < found.mean) and np.all(found.mean < upper)


def test_a_gaussian_prediction_has_quantiles_too():
    gp = hg.GP(KERNEL, GRID)
    found = gp.condition(hg.observe(hg.Points(X), COUNTS, 0.1), hg.Exact(), progress=False).predict(
        hg.Points(X)
    )
    np.testing.assert_allclose(found.quantile(0.975), found.mean + 1.959964 * found.std, rtol=1e-6)
    np.testing.assert_allclose(found.interval(0.5)[0], found.mean - 0.67449 * found.std, rtol=1e-4)
    for bad in (0.0, 1.0, [0.1, 1.2]):
        with pytest.raises(ValueError, match="q: expected probabilities between 0 and 1"):
            found.quantile(bad)


def test_a_value_and_the_average_over_a_short_line_agree(post):
    at = np.array([[0.31], [0.72]])
    short = hg.LineIntegrals(at - 1e-4, at + 1e-4, average=True)
    a, b = post.predict(hg.Points(at)), post.predict(short)
    np.testing.assert_allclose(a.mean, b.mean, rtol=1e-4)
    np.testing.assert_allclose(a.std, b.std, rtol=1e-3)
    np.testing.assert_allclose(a.quantile(0.9), b.quantile(0.9), rtol=1e-3)


def test_the_map_is_that_of_its_points(post):
    found = post.predict(hg.Points(GRID.coordinates()))
    np.testing.assert_allclose(post.mean.ravel(), found.mean, rtol=1e-6)
    np.testing.assert_allclose(post.std().ravel(), found.std, rtol=1e-6)
    assert float(post.to_xarray()["mean"].min()) > 0


def test_a_contrast_of_a_positive_field_may_be_negative(post):
    contrast = hg.Functionals(np.array([[[0.2], [0.6]]]), np.array([[1.0, -1.0]]))
    found, ends = post.predict(contrast), post.predict(hg.Points([0.2, 0.6]))
    np.testing.assert_allclose(found.mean, ends.mean[0] - ends.mean[1], rtol=1e-6)
    assert found.mean[0] < 0


@pytest.mark.parametrize("method", [hg.Exact(), hg.Batch()], ids=lambda m: m.name)
def test_a_saved_map_answers_as_before(tmp_path, method):
    limits = hg.Censored(upper=[3.0, 3.0], base=hg.LogNormal(0.3))
    more = hg.observe(hg.Points([0.3, 0.5]), [2.0, 3.0], likelihood=limits)
    post = GP.condition(DATA + more, method=method, progress=False)
    post.save(tmp_path / "map")
    again = hg.load(tmp_path / "map")
    for f in (hg.Points(X), LINES):
        a, b = (p.predict(f, progress=False) for p in (post, again))
        np.testing.assert_allclose(b.mean, a.mean, rtol=1e-5)
        np.testing.assert_allclose(b.quantile(0.9), a.quantile(0.9), rtol=1e-4)
    assert again.diagnostics["rounds"] == post.diagnostics["rounds"]


def test_functions_are_not_saved(tmp_path):
    own = hg.observe(hg.Points(X), COUNTS, likelihood=hg.Likelihood(lambda y, eta: -0.5 * (y - eta) ** 2))
    post = hg.GP(KERNEL, GRID).condition(own, method=hg.Exact(), progress=False)
    with pytest.raises(ValueError, match="likelihood: expected one that hipgp provides, which can be saved"):
        post.save(tmp_path / "map")


def test_all_kinds_of_blocks_go_into_one_fit():
    boxes = hg.BoxAverages([[0.1], [0.5]], [[0.4], [0.9]])
    data = (
        DATA
        + hg.observe(boxes, [4.0, 3.0], likelihood=hg.Poisson(3.0))
        + hg.observe(hg.Points(X), COUNTS + 0.5, likelihood=hg.Gamma(3.0))
        + hg.observe(hg.Points([0.5]), [40.0], noise=0.2, likelihood=hg.StudentT(3.0))
    )
    post = GP.condition(data, method=hg.Exact(), progress=False)
    assert post.diagnostics["converged"]
    assert post.predict(hg.Points([0.5])).mean[0] < 10  # the outlier is not followed


def test_few_rounds_are_a_warning_with_the_last_change():
    with pytest.warns(UserWarning, match=r"still moved by .* nats in round 2.*max_rounds"):
        GP.condition(DATA, method=hg.Linearised(hg.Exact(), max_rounds=2), progress=False)


def test_what_the_warning_says_is_above_the_tolerance(post):
    """A round takes a share of new standard deviations; a step that is short for that reason alone is not the end."""
    rounds = next(n for n, r in enumerate(post.diagnostics["trace"]) if r["fresh"] and r["nats"] < 0.5) + 1
    tolerance = 1.2 * post.diagnostics["trace"][rounds - 1]["nats"]
    method = hg.Linearised(hg.Exact(), tolerance=tolerance, max_rounds=rounds)
    with pytest.warns(UserWarning, match=f"nats in round {rounds}"):
        found = GP.condition(DATA, method=method, progress=False)
    assert not found.diagnostics["converged"] and found.diagnostics["change_nats"] > tolerance


@pytest.mark.parametrize("far", [1e-3, 1e3])
def test_a_far_start_does_not_diverge(far):
    """No trend: the prior's mean is a thousand times too low, or too high."""
    y = far * (1 + X)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gp = hg.GP(hg.Matern52(20.0, 0.3), GRID, link="exp")
        post = gp.condition(hg.observe(hg.Points(X), y, 0.05 * far), method=hg.Exact(), progress=False)
    np.testing.assert_allclose(post.predict(hg.Points(X)).mean, y, atol=0.1 * far)


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda: GP.condition(hg.observe(hg.Derivatives(X), COUNTS, 0.1)), 'functional: expected no derivatives of a field with link="exp"'),
        (lambda: GP.condition(DATA, method=hg.Variational("full")), r"method: expected Batch\(...\) or Exact\(...\) with a link.*got Variational"),
        (lambda: GP.condition(hg.observe(hg.Points(X), COUNTS, likelihood=hg.NegativeBinomial())), r"dispersion: expected a number in NegativeBinomial\(dispersion=...\), got None.*learn"),
        (lambda: GP.condition(hg.observe(hg.Points(X), COUNTS, likelihood=hg.StudentT(4.0))), "noise: expected the noise of every observation"),
        (lambda: hg.Linearised(max_rounds=0), "max_rounds: expected a whole number of at least 1"),
        (lambda: hg.Linearised(tolerance=0), "tolerance: expected a positive number"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(ask, message):
    with pytest.raises(ValueError, match=message):
        ask()


def test_derivatives_of_a_transformed_field_are_not_predicted(post):
    with pytest.raises(ValueError, match="expected no derivatives"):
        post.predict(hg.Derivatives(X))


@pytest.mark.parametrize(
    ("logpdf", "message"),
    [
        (
            lambda y, eta: jnp.where(eta > 1.0, jnp.nan, -((y - eta) ** 2)),
            "finite for every eta .* got others for .* of 8",
        ),
        (lambda y, eta: jnp.sum(y - eta), r"one number per observation, shape \(8,\), got \(\)"),
        (lambda y, eta: y * jnp.nan, "got NaN at y = 0"),
        (lambda y: y, "got one that raises TypeError"),
    ],
)
def test_a_log_density_that_is_none_is_refused(logpdf, message):
    with pytest.raises(ValueError, match="likelihood: expected .*" + message):
        data = hg.observe(hg.Points(X), COUNTS, likelihood=hg.Likelihood(logpdf))
        hg.GP(KERNEL, GRID, link="exp", trend="constant").condition(data, hg.Exact(), progress=False)
