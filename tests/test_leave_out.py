"""Leaving observations out without a refit, against fits of the dense reference without them; and the scores."""

import numpy as np
import pytest
import scipy.integrate
import scipy.stats

import dense
import hipgp as hg
from hipgp.scores import LeaveOut

KERNEL, DENSE_KERNEL, NOISE = hg.Matern32(1.5, (0.3, 0.4)), dense.Matern32(1.5, (0.3, 0.4)), 0.2


def points(count=90):
    rng = np.random.default_rng(0)
    x = rng.uniform(0.0, 1.0, (count, 2))
    f = dense.points(x)
    a = dense.covariance(DENSE_KERNEL, f, f) + NOISE**2 * np.eye(count)
    y = np.linalg.cholesky(a) @ rng.standard_normal(count) + 4.0
    return hg.observe(hg.Points(x), y, noise=NOISE), f, y


def rays(count=80):
    rng = np.random.default_rng(1)
    start, end = rng.uniform(0.0, 1.0, (2, count, 2))
    f = dense.line_integrals(start, end, average=True)
    a = dense.covariance(DENSE_KERNEL, f, f) + NOISE**2 * np.eye(count)
    y = np.linalg.cholesky(a) @ rng.standard_normal(count) + 4.0
    return hg.observe(hg.LineIntegrals(start, end, average=True), y, noise=NOISE), f, y


def refitted(f, y, groups, trend):
    """Mean and std of each value, its noise included, from fits without its group."""
    mean, std = np.empty(len(y)), np.empty(len(y))
    column, k = np.ones((len(y), 1)), dense.covariance(DENSE_KERNEL, f, f)
    a = k + NOISE**2 * np.eye(len(y))
    for label in np.unique(groups):
        own, rest = np.flatnonzero(groups == label), np.flatnonzero(groups != label)
        columns = (column[rest], column[own]) if trend else (None, None)
        blocks = a[np.ix_(rest, rest)], k[np.ix_(own, rest)], k[np.ix_(own, own)]
        truth = dense._condition(*blocks, y[rest], *columns)
        mean[own], std[own] = truth.mean, np.hypot(truth.std, NOISE)
    return mean, std


@pytest.mark.parametrize("trend", [None, "constant"])
def test_the_exact_engine_leaves_groups_out_exactly(trend):
    data, f, y = points(40)
    groups = np.repeat(["a", "b", "c", "d", "e"], 8)[np.random.default_rng(0).permutation(40)]
    found = hg.GP(KERNEL, trend=trend).condition(data, method=hg.Exact(), progress=False).leave_out(groups)
    mean, std = refitted(f, y, groups, trend)
    np.testing.assert_allclose(found.mean, mean, atol=1e-8)
    np.testing.assert_allclose(found.std, std, atol=1e-8)
    np.testing.assert_array_equal(found.observed, y)
    assert found.std_error == 0.0


@pytest.mark.parametrize(("make", "bound"), [(points, 0.02), (rays, 0.05)])
@pytest.mark.parametrize("trend", [None, "constant"])
def test_the_batch_engine_leaves_out_within_the_error_it_states(make, bound, trend):
    data, f, y = make()
    grid = hg.Grid.cover((0.0, 0.0), (1.0, 1.0), shape=40, margin=0.05)
    post = hg.GP(KERNEL, grid, trend=trend).condition(data, method=hg.Batch(tolerance=1e-8), progress=False)
    for groups in (None, np.arange(len(y)) % 20):
        found = post.leave_out(groups)
        mean, std = refitted(f, y, np.arange(len(y)) if groups is None else groups, trend)
        np.testing.assert_array_equal(found.observed, y)  # in the user's order
        off, wide = np.abs(found.mean - mean) / std, np.abs(found.std / std - 1)
        assert found.std_error < bound  # 0 for rays, which are few
        assert np.max(wide) < bound
        assert np.max(off) < 3 * bound  # a relative error of C, in units of errors of up to three of them


def test_a_loaded_map_leaves_out_as_the_saved_one(tmp_path):
    data, _, _ = points(30)
    grid = hg.Grid.cover((0.0, 0.0), (1.0, 1.0), shape=16, margin=0.05)
    post = hg.GP(KERNEL, grid, trend="constant").condition(data, progress=False)
    post.save(tmp_path / "map")
    for was, now in zip(post.leave_out()[:3], hg.load(tmp_path / "map").leave_out()[:3], strict=True):
        np.testing.assert_allclose(now, was, rtol=1e-6)


def test_scores_are_what_they_are_called():
    rng = np.random.default_rng(0)
    observed, mean, std = rng.normal(size=5), rng.normal(size=5), rng.uniform(0.5, 2.0, 5)
    found = LeaveOut(observed, mean, std, np.arange(5), 0.0)
    normal = [scipy.stats.norm(m, s) for m, s in zip(mean, std, strict=True)]
    crps = [
        scipy.integrate.quad(lambda t, p=p, v=v: (p.cdf(t) - (t >= v)) ** 2, -30, 30, points=[v], limit=200)[
            0
        ]
        for p, v in zip(normal, observed, strict=True)
    ]
    np.testing.assert_allclose(found.crps(), crps, rtol=1e-6)
    np.testing.assert_allclose(found.pit(), [p.cdf(v) for p, v in zip(normal, observed, strict=True)])
    np.testing.assert_allclose(
        found.log_density(), [p.logpdf(v) for p, v in zip(normal, observed, strict=True)]
    )
    assert LeaveOut(
        np.array([0.0, 1.9, 2.1]), np.zeros(3), np.ones(3), np.arange(3), 0.0
    ).coverage() == pytest.approx(2 / 3)
    assert set(found.scores()) == {"rmse", "crps", "log_density", "coverage"}


@pytest.mark.parametrize(
    ("groups", "words"),
    [
        (np.zeros(7), r"groups: expected one label per observation, shape \(20,\), got \(7,\)"),
        (np.zeros(20), "groups: expected at least two groups"),
        (np.full(20, np.nan), "groups: expected a label for every observation"),
    ],
)
def test_groups_that_make_no_sense(groups, words):
    data, _, _ = points(20)
    with pytest.raises(ValueError, match=words):
        hg.GP(KERNEL).condition(data, progress=False).leave_out(groups)


def test_a_group_that_alone_decides_on_the_trend_is_named():
    data, _, _ = points(20)
    columns = np.column_stack([np.ones(20), np.arange(20) == 13])
    post = hg.GP(KERNEL, trend=columns).condition(data, method=hg.Exact(), progress=False)
    with pytest.raises(ValueError, match=r"groups: expected groups without which .* \(first: number 13\)"):
        post.leave_out()


def test_levels_that_are_no_probabilities():
    with pytest.raises(ValueError, match="level: expected a probability"):
        LeaveOut(np.zeros(2), np.zeros(2), np.ones(2), np.arange(2), 0.0).coverage(95)


def test_crossing_lines_with_little_noise_are_left_out_exactly():
    """The 128 nearest lines of coarse nodes, as for more lines than fit into a matrix, are a third off here."""
    rng = np.random.default_rng(5)
    start, end = rng.uniform(0.0, 1.0, (2, 200, 2))
    f = dense.line_integrals(start, end, average=True, panels=4)
    k = dense.covariance(DENSE_KERNEL, f, f)
    noise = 0.03 * np.sqrt(np.median(np.diag(k)))
    inverse = np.linalg.inv(k + noise**2 * np.eye(200))
    grid = hg.Grid.cover((0.0, 0.0), (1.0, 1.0), shape=60, margin=0.05)
    data = hg.observe(hg.LineIntegrals(start, end, average=True), rng.standard_normal(200), noise=noise)
    found = hg.GP(KERNEL, grid).condition(data, method=hg.Batch(), progress=False).leave_out()
    np.testing.assert_allclose(found.std, 1 / np.sqrt(np.diag(inverse)), rtol=0.02)
    assert found.std_error == 0.0
