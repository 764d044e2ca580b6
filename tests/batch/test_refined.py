"""A grid that is given and too coarse is refined within, where no engine was asked for; the map is shown at its points."""

import numpy as np
import pytest

import dense
import hipgp as hg

RNG = np.random.default_rng(3)
ENDS = np.sort(RNG.uniform(0, 1, (40, 2)), axis=1)
PLACES = RNG.uniform(0, 1, (20, 1))
GRID = hg.Grid.cover(0, 1, shape=12)


def problem(name, length):
    """Points and lines, the kernel's posterior at places between them, and a model on GRID."""
    kernel, own = getattr(dense, name)(1.0, (length,)), getattr(hg, name)(1.0, length)
    lines = dense.line_integrals(ENDS[:, :1], ENDS[:, 1:], order=12, panels=24, average=True)
    f = dense.concatenate(dense.points(PLACES), lines)
    noise = np.repeat(0.03, 60)
    a = dense.covariance(kernel, f, f) + np.diag(noise**2)
    y = np.linalg.cholesky(a) @ np.random.default_rng(4).standard_normal(60)
    at = np.linspace(0.02, 0.98, 25)[:, None]
    exact = dense.exact_gp(kernel, f, y, noise, dense.points(at))
    data = hg.observe(hg.Points(PLACES), y[:20], noise=0.03)
    data += hg.observe(hg.LineIntegrals(ENDS[:, :1], ENDS[:, 1:], average=True), y[20:], noise=0.03)
    return hg.GP(own, GRID), data, at, exact


@pytest.mark.parametrize("name, length", [("Matern12", 0.5), ("Matern32", 0.15)])
def test_a_grid_too_coarse_is_refined_within(name, length):
    gp, data, at, exact = problem(name, length)
    with pytest.warns(hg.GridTooCoarse):
        kept = gp.condition(data, hg.Batch(), progress=False)
    assert np.max(np.abs(kept.predict(at).mean - exact.mean) / exact.std) > 0.3
    post = gp.condition(data, progress=False)
    found = post.predict(at, std="exact")
    np.testing.assert_array_less(np.abs(found.mean - exact.mean), 0.1 * exact.std)
    np.testing.assert_allclose(found.std, exact.std, rtol=0.1)
    assert f"within the grid of {GRID.shape[0]}" in post.diagnostics["grid_refined"]


def test_the_map_is_shown_at_the_points_that_were_given(tmp_path):
    gp, data, *_ = problem("Matern32", 0.15)
    post = gp.condition(data, progress=False)
    assert post.grid.shape == GRID.shape and post.engine.grid.size > GRID.size
    np.testing.assert_allclose(post.grid.coordinates(), GRID.coordinates(), atol=1e-12)
    found = post.predict(GRID.coordinates(), std="exact")
    np.testing.assert_allclose(post.mean, found.mean, atol=1e-10)
    np.testing.assert_allclose(post.std("exact"), found.std, rtol=1e-8)
    draws = post.sample(3, key=1)
    assert draws.shape == (3, *GRID.shape)
    lower, upper = post.interval(0.5)
    assert np.all(lower < post.mean) and np.all(post.mean < upper) and lower.shape == GRID.shape
    post.save(tmp_path / "map.zip", std=True)
    again = hg.load(tmp_path / "map.zip")
    assert again.grid.shape == GRID.shape
    np.testing.assert_allclose(again.mean, post.mean)
    np.testing.assert_allclose(again.sample(3, key=1), draws, rtol=1e-6, atol=1e-8)


def test_a_grid_fine_enough_stays_as_it_is():
    gp, data, *_ = problem("Matern52", 0.5)
    post = hg.GP(gp.kernel, hg.Grid.cover(0, 1, shape=101)).condition(data, progress=False)
    assert post.engine.grid.shape == (101,) and "grid_refined" not in post.diagnostics


def test_a_grid_that_would_need_too_many_points_is_kept_and_told(monkeypatch):
    gp, data, *_ = problem("Matern32", 0.15)
    monkeypatch.setattr("hipgp.batch.decisions.REFINED_TO", 20)
    with pytest.warns(hg.GridTooCoarse, match="would do"):
        post = gp.condition(data, progress=False)
    assert post.engine.grid.shape == GRID.shape


def test_posteriors_of_several_kernels_share_the_finer_grid():
    gp, data, *_ = problem("Matern32", 0.15)
    gp = gp.learn(data, start="kernel", polish=False, progress=False)
    post = gp.condition(data, hyperparameters="average", progress=False)
    assert post.grid.shape == GRID.shape and post.mean.shape == GRID.shape
    assert {part.grid.shape for part in post.engine.parts} == {post.engine.grid.shape}
