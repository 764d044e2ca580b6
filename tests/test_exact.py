"""The exact engine against the dense reference, which shares no code with it."""

import warnings

import numpy as np
import pytest

import dense
import hipgp as hg
from batch_problem import DENSE_KERNEL, GRID, KERNEL, KINDS, linear_columns, mixture, pair

TIGHT = 1e-8  # of the posterior's numbers, which are of order one
METHOD = hg.Exact(accuracy=1e-11)
GAUSS, DENSE_GAUSS = hg.SquaredExponential(1.3, (0.5, 0.6)), dense.SquaredExponential(1.3, (0.5, 0.6))
NODES = {"order": 16, "panels": 16}  # of the reference, fine enough for kernels of finite smoothness


def condition(names, kernel=GAUSS, trend=None, noise=0.3, method=METHOD, **more):
    data, f, y, std = mixture(names, noise=noise, **more)
    return hg.GP(kernel, GRID, trend=trend).condition(data, method=method, progress=False), f, y, std


@pytest.mark.parametrize(
    "names", [*[(name,) for name in KINDS], ("points", "derivatives", "rays", "boxes", "own")]
)
def test_it_is_the_dense_gp(names):
    post, f, y, std = condition(names)
    for name in KINDS:
        target, f_star = pair(name, 90, 7)
        truth = dense.exact_gp(DENSE_GAUSS, f, y, std, f_star)
        found = post.predict(target)
        np.testing.assert_allclose(found.mean, truth.mean, atol=TIGHT)
        np.testing.assert_allclose(found.std, truth.std, atol=TIGHT)
        assert found.std_error is None
    assert post.log_evidence().value == pytest.approx(truth.objective, abs=1e-6)
    assert post.log_evidence().error == 0.0


def test_rough_kernels_are_integrated_to_the_accuracy_stated():
    start, end = (
        np.array([[0.0, 0.1], [0.2, 0.9], [0.1, 0.5]]),
        np.array([[0.9, 0.8], [0.9, 0.1], [0.8, 0.4]]),
    )
    truth = dense.exact_gp(
        DENSE_KERNEL, dense.line_integrals(start, end, **NODES), np.ones(3), 0.5, dense.points(start)
    )
    data = hg.observe(hg.LineIntegrals(start, end), np.ones(3), noise=0.5)
    for accuracy in (1e-3, 1e-5, 1e-8):
        post = hg.GP(KERNEL, GRID).condition(data, method=hg.Exact(accuracy), progress=False)
        assert post.diagnostics["quadrature_error"] <= accuracy
        found = post.predict(hg.Points(start))
        np.testing.assert_allclose(found.mean, truth.mean, atol=5 * accuracy)
        np.testing.assert_allclose(found.std, truth.std, atol=5 * accuracy)


@pytest.mark.parametrize("noise, told", [(1e-3, "of a noise variance"), (0.1, None)])
def test_what_quadrature_misses_is_said_where_the_noise_does_not_hide_it(noise, told):
    data = hg.observe(hg.LineIntegrals([[0.0, 0.0]], [[1.0, 1.0]]), [1.0], noise=noise)
    gp = hg.GP(hg.Matern12(1.0, 0.1), GRID)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        post = gp.condition(data, method=hg.Exact(1e-12), progress=False)
    said = [str(w.message) for w in caught]
    assert len(said) == (told is not None) and all("(accuracy 1e-12)" in w and told in w for w in said)
    assert post.diagnostics["quadrature_error"] > 1e-12


@pytest.mark.parametrize("names", [("points",), ("points", "derivatives", "rays")])
def test_a_trend_has_a_flat_prior(names):
    post, f, y, std = condition(names, trend="linear")
    target, f_star = pair("boxes", 90, 7)
    x, x_star = linear_columns(f), linear_columns(f_star)
    truth = dense.exact_gp(DENSE_GAUSS, f, y, std, f_star, x, x_star)
    found = post.predict(target)
    np.testing.assert_allclose(found.mean, truth.mean, atol=TIGHT)
    np.testing.assert_allclose(found.std, truth.std, atol=TIGHT)
    np.testing.assert_allclose(post.engine.beta, truth.coefficients, atol=TIGHT)
    rest = dense.exact_gp(DENSE_GAUSS, f, y - x @ truth.coefficients, std, f_star)
    assert post.log_evidence().value == pytest.approx(rest.objective, abs=1e-6)


def test_the_users_own_columns():
    data, f, y, std = mixture(("points",), noise=0.3)
    x, x_star = np.random.default_rng(0).normal(size=(len(y), 2)), np.ones((7, 2))
    post = hg.GP(GAUSS, GRID, trend=x).condition(data, method=METHOD, progress=False)
    target, f_star = pair("points", 90, 7)
    truth = dense.exact_gp(DENSE_GAUSS, f, y, std, f_star, x, x_star)
    np.testing.assert_allclose(post.predict(target, columns=x_star).mean, truth.mean, atol=TIGHT)
    with pytest.raises(ValueError, match="columns: expected the trend's columns"):
        post.predict(target)


def test_the_map_is_the_prediction_at_the_grid_points():
    post = condition(("points", "rays"), trend="constant")[0]
    at = post.predict(hg.Points(GRID.coordinates()))
    np.testing.assert_allclose(post.mean.ravel(), at.mean, atol=1e-12)
    np.testing.assert_allclose(post.std().ravel(), at.std, atol=1e-12)
    assert post.std(return_error=True)[1] is None


def test_nothing_needs_to_lie_within_the_grid():
    x = np.array([[3.0, 3.0], [-4.0, 0.5]])
    data = hg.observe(hg.Points(x), [1.0, -1.0], noise=0.1)
    post = hg.GP(GAUSS, GRID).condition(data, method=METHOD, progress=False)
    np.testing.assert_allclose(post.predict(hg.Points(x)).mean, [1.3 / 1.31, -1.3 / 1.31], atol=1e-8)
    with pytest.raises(ValueError, match="grid: expected 1 dimension like"):
        post.predict(hg.Points([0.5]))


@pytest.mark.parametrize(
    "kernel", [GAUSS, hg.Matern32(1.1, 0.5) + hg.Matern52(0.4, (0.7, 0.3)) * hg.Matern12(1.0, 2.0)]
)
@pytest.mark.parametrize("trend", [None, "linear"])
def test_the_gradient_of_the_evidence_is_its_slope(kernel, trend):
    from hipgp.learning.parameters import Layout

    rng = np.random.default_rng(3)
    points, rays = pair("points", 0, 15)[0], pair("own", 7, 15)[0]
    data = hg.observe(points, rng.normal(size=15)) + hg.observe(rays, rng.normal(size=15), noise=0.4)
    layout = Layout.of(kernel, noise_free=True)
    vector, step = layout.pack(kernel, 0.3), 1e-4

    def evidence(v):
        changed, noise = layout.unpack(v)
        gp = hg.GP(changed, GRID, float(noise), trend)
        return gp.condition(data, method=METHOD, progress=False).log_evidence().value

    found = (
        hg.GP(kernel, GRID, 0.3, trend).condition(data, method=METHOD, progress=False).log_evidence_gradient()
    )
    slopes = [(evidence(vector + e) - evidence(vector - e)) / (2 * step) for e in step * np.eye(len(vector))]
    assert found.names == tuple(layout.names())
    np.testing.assert_allclose(found.values, slopes, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("trend", [None, "linear"])
def test_leave_one_out_is_a_fit_without_each(trend):
    data, _, y, std = mixture(("rays",), noise=0.3, count=8)
    gp, rays = hg.GP(GAUSS, GRID, trend=trend), data.blocks[0].functional
    found = gp.condition(data, method=METHOD, progress=False).leave_out()
    assert found.std_error == 0.0
    for n in range(8):
        others = np.delete(np.arange(8), n)
        rest = hg.observe(rays[others], y[others], noise=std[others])
        one = gp.condition(rest, method=METHOD, progress=False).predict(rays[n])
        assert found.mean[n] == pytest.approx(one.mean[0], abs=1e-8)
        assert found.std[n] == pytest.approx(np.hypot(one.std[0], std[n]), abs=1e-8)


def test_draws_have_the_posteriors_moments():
    post, f, y, std = condition(("points", "derivatives"), trend="constant")
    target, f_star = pair("rays", 90, 4)
    x, x_star = linear_columns(f)[:, :1], linear_columns(f_star)[:, :1]
    truth = dense.exact_gp(DENSE_GAUSS, f, y, std, f_star, x, x_star)
    draws = post.sample(40_000, key=1, at=target)
    scale = np.sqrt(np.outer(np.diag(truth.covariance), np.diag(truth.covariance)))
    assert np.all(np.abs(draws.mean(axis=0) - truth.mean) < 5 * truth.std / np.sqrt(40_000))
    assert np.all(np.abs(np.cov(draws.T) - truth.covariance) < 5 * np.sqrt(2 / 40_000) * scale)
    on_grid = post.sample(3, key=1)
    assert on_grid.shape == (3, *GRID.shape)
    assert np.array_equal(on_grid, post.sample(3, key=1)) and not np.array_equal(
        on_grid, post.sample(3, key=2)
    )


def test_float32_data_are_fitted_in_float64():
    (points, _), rng = pair("points", 0), np.random.default_rng(0)
    x, y = points.x.astype(np.float32), rng.normal(size=24).astype(np.float32)
    found = [
        hg.GP(GAUSS, GRID).condition(hg.observe(hg.Points(a), b, noise=0.1), method=METHOD, progress=False)
        for a, b in ((x, y), (x.astype(float), y.astype(float)))
    ]
    narrow, wide = (post.predict(hg.Points(x[:5] + np.float32(0.01))) for post in found)
    np.testing.assert_allclose(narrow.mean, wide.mean, atol=1e-6)
    np.testing.assert_allclose(narrow.std, wide.std, atol=1e-6)
    assert found[0].mean.dtype == found[0].std().dtype == found[0].sample(1).dtype == np.float32


def test_too_many_observations_are_refused_with_the_bytes():
    x = np.random.default_rng(0).uniform(0, 1, (300_000, 2))
    data = hg.observe(hg.Points(x), np.zeros(len(x)), noise=0.1)
    with pytest.raises(
        ValueError, match=r"data: expected .* 300,000 observations .*2\.88e\+12 bytes.*Batch\(\)"
    ):
        hg.GP(GAUSS, GRID).condition(data, method=hg.Exact())
    post = condition(("points",))[0]
    with pytest.raises(ValueError, match=r"at: expected .* 300,000 values.*bytes.*Batch\(\)"):
        post.sample(1, at=hg.Points(x))
    with pytest.raises(ValueError, match=r"functional: expected .* 300,000 values.*bytes.*Batch\(\)"):
        post.engine.covariance(hg.Points(x))


def test_too_little_noise_is_refused():
    x = np.full((2, 2), 0.5)
    data = hg.observe(hg.Points(x), [1.0, 1.0], noise=1e-12)
    with pytest.raises(ValueError, match="noise: expected noise that makes"):
        hg.GP(GAUSS, GRID).condition(data, method=METHOD)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"std": "vecchia"}, r'std: expected "auto" or "exact".*Batch\(\)'),
        ({"samples": 8}, r"samples: expected none.*got 8"),
        ({"columns": np.ones((7, 1))}, r"columns: expected None"),
    ],
)
def test_what_it_has_no_use_for_is_refused(given, message):
    with pytest.raises(ValueError, match=message):
        condition(("points",))[0].predict(pair("points", 90, 7)[0], **given)


def test_there_are_no_checkpoints_and_no_other_accuracies(tmp_path):
    data = mixture(("points",))[0]
    with pytest.raises(ValueError, match="checkpoint: expected None"):
        hg.GP(GAUSS, GRID).condition(data, method=METHOD, checkpoint=tmp_path / "c")
    with pytest.raises(ValueError, match="accuracy: expected a number between 0 and 1, got 2"):
        hg.Exact(accuracy=2)


@pytest.mark.parametrize("trend", [None, "linear", "columns"])
def test_a_loaded_map_answers_as_the_saved_one(tmp_path, trend):
    data = mixture(("points", "rays"), noise=0.3)[0]
    own = np.ones((len(data), 1)) if trend == "columns" else trend
    post = hg.GP(GAUSS, GRID, trend=own).condition(data, method=METHOD, progress=False)
    post.save(tmp_path / "map", std=post.std())
    back, target = hg.load(tmp_path / "map"), pair("boxes", 90, 7)[0]
    columns = {"columns": np.ones((7, 1))} if trend == "columns" else {}
    for was, now in zip(
        post.predict(target, **columns)[:2], back.predict(target, **columns)[:2], strict=True
    ):
        np.testing.assert_array_equal(now, was)
    np.testing.assert_array_equal(back.sample(2), post.sample(2))
    assert back.engine.method == METHOD
    assert back.diagnostics["quadrature_error"] == post.diagnostics["quadrature_error"]


def test_extreme_units_change_nothing():
    x, y, found = mixture(("points",))[0].blocks[0].functional, np.linspace(-1, 1, 24), []
    for size in (1.0, 2.0**300):
        data = hg.observe(x, size * y, noise=size * 0.1)
        kernel = hg.SquaredExponential(size**2, 0.5)
        found.append(hg.GP(kernel, GRID).condition(data, method=METHOD, progress=False).leave_out())
    for one, other in zip(found[0][:3], found[1][:3], strict=True):
        np.testing.assert_allclose(one, other / 2.0**300, rtol=1e-9)


def test_the_report_works_with_it(tmp_path):
    from hipgp.apps import report

    post = condition(("points", "rays"), trend="constant")[0]
    post.save(tmp_path / "map")
    page = report.page(tmp_path / "map")
    assert (
        "24 values at points and 24 line integrals" in page
        and "Each observation predicted from all the others" in page
    )


def test_the_estimator_works_with_it():
    pytest.importorskip("sklearn", reason="scikit-learn: pip install 'hipgp[sklearn]'")
    x = np.random.default_rng(0).uniform(size=(40, 1))
    settings = {"kernel": hg.Matern52(1.0, 0.3), "noise": 0.1, "learn": False, "trend": None}
    y = np.sin(6 * x[:, 0])
    exact, batch = (hg.HIPGPRegressor(**settings, method=m).fit(x, y) for m in (hg.Exact(), None))
    beyond = np.array([[0.5], [1.7]])
    for a, b in zip(
        exact.predict(beyond, return_std=True), batch.predict(beyond, return_std=True), strict=True
    ):
        np.testing.assert_allclose(a, b, atol=2e-2)
    assert exact.sample_y(beyond, 3).shape == (2, 3)
