"""Updates: the posterior of all data, or without some, is that of a fit anew, and of a dense Gaussian process."""

import numpy as np
import pytest

import dense
import hipgp as hg
from batch_problem import DENSE_KERNEL, GRID, KERNEL, pair

# grids here are coarse, so that the dense reference is small; `test_coarse_grid.py` tests the warning
pytestmark = pytest.mark.filterwarnings("ignore::hipgp.GridTooCoarse")
METHOD = hg.Batch(tolerance=1e-10)
NOISE = 0.3


def observed(name, seed, count):
    f, twin = pair(name, seed, count)
    y = np.random.default_rng(seed + 5).normal(size=count)
    return hg.observe(f, y, noise=NOISE), twin, y


def gp(trend=None):
    return hg.GP(KERNEL, GRID, trend=trend)


def same(one, other, data):
    np.testing.assert_allclose(one.mean, other.mean, rtol=0, atol=1e-4)
    np.testing.assert_allclose(one.std(), other.std(), rtol=1e-6)
    np.testing.assert_allclose(one.engine.beta, other.engine.beta, rtol=0, atol=1e-4)
    np.testing.assert_allclose(one.engine.beta_covariance, other.engine.beta_covariance, rtol=1e-4)
    a, b = one.leave_out(), other.leave_out()
    np.testing.assert_allclose(a.observed, data.y)  # in the user's order
    np.testing.assert_allclose(a.mean, b.mean, rtol=0, atol=1e-3)
    assert one.diagnostics["kl_nats"] <= METHOD.tolerance and one.diagnostics["converged"]


@pytest.mark.parametrize(
    ("first", "second", "trend"),
    [
        ("points", "points", "linear"),
        pytest.param("rays", "boxes", None, marks=pytest.mark.slow),
    ],  # compiles as long
)
def test_an_update_and_its_undoing_are_fits_anew(first, second, trend):
    (old, _, _), (more, _, _) = observed(first, 1, 40), observed(second, 2, 7)
    before, after = (gp(trend).condition(d, METHOD, progress=False) for d in (old, old + more))
    updated = before.update(more, progress=False)
    same(updated, after, old + more)
    same(updated.without(np.arange(40, 47), progress=False), before, old)
    mask = np.isin(np.arange(47), (3, 41))
    same(
        updated.without(mask, progress=False),
        gp(trend).condition((old + more).kept(~mask), METHOD, progress=False),
        (old + more).kept(~mask),
    )


def test_an_update_is_the_exact_posterior_of_all_data():
    """Against a dense Gaussian process without a grid: the grid is fine enough for three digits."""
    old, twin, y = observed("points", 1, 40)
    more, other, z = observed("points", 2, 7)
    at, at_twin = pair("points", 9, 20)
    fine = hg.GP(KERNEL, hg.Grid.cover((-0.1, -0.1), (1.1, 1.1), shape=40))
    post = fine.condition(old, METHOD, progress=False).update(more, progress=False)
    twins, values = dense.concatenate(twin, other), np.concatenate([y, z])
    exact = dense.exact_gp(DENSE_KERNEL, twins, values, NOISE, at_twin)
    found = post.predict(at, std="exact")
    np.testing.assert_allclose(found.mean, exact.mean, rtol=0, atol=2e-3)
    np.testing.assert_allclose(found.std, np.sqrt(np.diag(exact.covariance)), rtol=2e-3)


def test_a_warm_start_takes_a_fraction_of_the_steps():
    """Counts of steps: 19 and 4 on this problem; without what is known locally, by conjugate gradients, 15."""
    rng = np.random.default_rng(0)
    x = rng.uniform(size=(5_000, 2))
    y = np.sin(9 * x[:, 0]) * np.cos(7 * x[:, 1]) + 0.1 * rng.standard_normal(len(x))
    data = hg.observe(hg.Points(x), y, noise=0.1)
    model = hg.GP(hg.Matern32(lengthscale=0.2), hg.Grid.cover((0.0, 0.0), (1.0, 1.0), shape=100))
    old = np.arange(len(x)) < 4_950
    whole = model.condition(data, hg.Batch(), progress=False)
    before = model.condition(data.kept(old), hg.Batch(), progress=False)
    after = before.update(data.kept(~old), progress=False)
    assert after.diagnostics["iterations"] <= 0.4 * whole.diagnostics["iterations"]
    assert after.diagnostics["kl_nats"] <= 0.01 and "4,950" in after.diagnostics["started"]
    less = whole.without(~old, progress=False)
    assert less.diagnostics["iterations"] <= 0.5 * before.diagnostics["iterations"]
    np.testing.assert_allclose(less.mean, before.mean, rtol=0, atol=0.02)  # both within 0.01 nats


def test_grid_space_starts_from_what_is_known():
    rng = np.random.default_rng(0)
    x = rng.uniform(size=(400, 2))
    data = hg.observe(hg.Points(x), np.sin(9 * x[:, 0]) + 0.1 * rng.standard_normal(400), noise=0.1)
    method = hg.Batch(space="grid", tolerance=1e-8)
    post = gp("constant").condition(data.kept(np.arange(400) < 396), method, progress=False)
    whole = gp("constant").condition(data, method, progress=False)
    after = post.update(data.kept(np.arange(400) >= 396), progress=False)
    np.testing.assert_allclose(after.mean, whole.mean, rtol=0, atol=1e-4)
    assert after.diagnostics["iterations"] < whole.diagnostics["iterations"]


def test_a_map_from_a_file_is_updated(tmp_path):
    (old, _, _), (more, _, _) = observed("points", 1, 40), observed("points", 2, 7)
    gp("constant").condition(old, METHOD, progress=False).save(tmp_path / "map.hipgp")
    updated = hg.load(tmp_path / "map.hipgp").update(more, progress=False)
    whole = gp("constant").condition(old + more, METHOD, progress=False)
    np.testing.assert_allclose(updated.mean, whole.mean, rtol=0, atol=1e-4)


def test_other_engines_condition_again_or_refuse():
    (old, _, _), (more, _, _) = observed("points", 1, 40), observed("points", 2, 7)
    exact = gp().condition(old, hg.Exact(), progress=False)
    whole = gp().condition(old + more, hg.Exact(), progress=False)
    np.testing.assert_allclose(exact.update(more).mean, whole.mean, rtol=0, atol=1e-10)
    np.testing.assert_allclose(whole.without(np.arange(40, 47)).mean, exact.mean, rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([40], r"^index: expected numbers from 0 to 39, got 40"),
        ([-1], r"^index: expected numbers from 0 to 39, got -1"),
        ([0.5], r"^index: expected numbers of observations or a mask, got \[0.5\]"),
        ([], r"^index: expected some of 40 observations, but not all, got 0"),
        (np.ones(40, bool), r"^index: expected some of 40 observations, but not all, got 40"),
        (np.ones(7, bool), r"^index: expected a mask of 40 observations, got shape \(7,\)"),
    ],
)
def test_what_is_no_choice_of_observations_is_refused(given, said):
    post = gp().condition(observed("points", 1, 40)[0], hg.Exact(), progress=False)
    with pytest.raises(ValueError, match=said):
        post.without(given)


def test_what_is_no_data_is_refused():
    post = gp().condition(observed("points", 1, 40)[0], hg.Exact(), progress=False)
    with pytest.raises(ValueError, match=r"^more: expected something made by observe\(...\), got ndarray"):
        post.update(np.ones(3))
    with pytest.raises(ValueError, match=r"^columns: expected None unless the trend"):
        post.update(observed("points", 2, 7)[0], columns=np.ones((7, 1)))
