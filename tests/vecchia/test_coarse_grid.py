"""Where the grid is too coarse for the data, `condition` says so; where it is fine enough, it is silent."""

import warnings

import numpy as np
import pytest

import dense
import hipgp as hg
from hipgp.apps import report
from hipgp.model.problem import Problem
from hipgp.model.trend import Trend
from hipgp.vecchia import grid_check
from hipgp.vecchia.local_problems import local_problems

KERNEL, DENSE_KERNEL = hg.Matern32(1.0, 0.3), dense.Matern32(1.0, 0.3)
RNG = np.random.default_rng(0)
PLACES = RNG.uniform(0, 1, (40, 2))
FIELD = np.linalg.cholesky(
    dense.covariance(DENSE_KERNEL, dense.points(PLACES), dense.points(PLACES))
) @ RNG.normal(size=40)


def square(*shape):
    return hg.Grid.cover((0, 0), (1, 1), shape=shape)


def told(grid, data, kernel=KERNEL, method=None):
    """The diagnostics of a fit that warns, and the warning."""
    with pytest.warns(hg.GridTooCoarse) as caught:
        post = hg.GP(kernel, grid).condition(data, method or hg.Batch(), progress=False)
    return post, next(w for w in caught if w.category is hg.GridTooCoarse)


def silent(grid, data, kernel=KERNEL, method=None):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return hg.GP(kernel, grid).condition(data, method or hg.Batch(), progress=False)


def errors(post, f, exact):
    """Of the mean, in exact posterior standard deviations."""
    return np.abs(post.predict(f).mean - exact.mean) / exact.std


@pytest.mark.parametrize(
    "shape, noise",
    [
        ((24, 24), 1e-8),
        ((24, 24), 10.0 ** np.linspace(-10, 2, 40)),
        ((2, 2), 0.05),
        ((2, 400), 0.05),
    ],
    ids=["noise of 1e-8", "noise over twelve orders", "2 x 2", "2 x 400"],
)
def test_a_grid_far_too_coarse_is_told(shape, noise):
    post, _ = told(square(*shape), hg.observe(hg.Points(PLACES), FIELD, noise=noise))
    assert post.diagnostics["grid_mean_error"] > 1


def repeated(noise, times=75):
    """A series of 40 places, each measured many times: data, and the exact posterior there."""
    rng = np.random.default_rng(1)
    x = np.sort(rng.uniform(0, 1, (40, 1)), axis=0)
    f = dense.points(x)
    field = np.linalg.cholesky(dense.covariance(DENSE_KERNEL, f, f) + 1e-12 * np.eye(40)) @ rng.normal(
        size=40
    )
    y = field[:, None] + noise * rng.normal(size=(40, times))
    exact = dense.exact_gp(DENSE_KERNEL, f, y.mean(axis=1), noise / np.sqrt(times), f)
    return x, hg.observe(hg.Points(np.repeat(x, times, axis=0)), y.ravel(), noise=noise), exact


def test_repeated_places_share_what_the_grid_cannot_see():
    x, data, exact = repeated(noise=1.0)
    grid = hg.Grid.cover(0, 1, shape=9)
    post, _ = told(grid, data)
    assert post.diagnostics["residual_to_noise"] < 0.02  # of each alone, nothing to speak of
    off = np.max(errors(post, hg.Points(x), exact))
    assert off > 0.3
    assert off / 3 < post.diagnostics["grid_mean_error"] < 3 * off


def test_places_beside_the_data_count_too():
    """Repeated points have their residuals jointly, so that nothing is amiss at them, nor at grid points."""
    rng = np.random.default_rng(4)
    x, kernel = np.repeat(rng.uniform(0.1, 0.9, (12, 2)), 2, axis=0), dense.SquaredExponential(1.0, 0.08)
    y, near = rng.standard_normal(24), x[::2] + 0.04
    exact = dense.exact_gp(kernel, dense.points(x), y, np.full(24, 0.5), dense.points(near))
    data = hg.observe(hg.Points(x), y, noise=0.5)
    post, _ = told(square(7, 7), data, hg.SquaredExponential(1.0, 0.08))
    assert post.diagnostics["residual"] == "joint"
    off = np.max(errors(post, hg.Points(near), exact))
    assert off > 0.2 and off / 4 < post.diagnostics["grid_mean_error"] < 4 * off


def test_the_grid_that_is_named_will_do():
    x, data, exact = repeated(noise=1.0)
    grid = hg.Grid.cover(0, 1, shape=9)
    needed = told(grid, data)[0].diagnostics["grid_needed"]
    post = silent(hg.Grid.cover(0, 1, shape=needed), data)
    assert np.max(errors(post, hg.Points(x), exact)) < 0.2


def test_crowded_places_are_counted_together():
    rng = np.random.default_rng(2)
    grid, count = hg.Grid.cover(0, 1, shape=9), 20_000
    x = rng.uniform(0, 1, (count, 1))
    many = told(grid, hg.observe(hg.Points(x), np.sin(5 * x[:, 0]), noise=3.0))[0].diagnostics
    few = silent(grid, hg.observe(hg.Points(x[:40]), np.sin(5 * x[:40, 0]), noise=3.0)).diagnostics
    assert many["residual_to_noise"] < 0.01
    assert many["grid_mean_error"] > 10 * few["grid_mean_error"]


def test_only_the_axis_that_is_too_coarse_is_refined():
    post, warning = told(square(2, 400), hg.observe(hg.Points(PLACES), FIELD, noise=0.05))
    needed = post.diagnostics["grid_needed"]
    assert needed[0] > 2 and needed[1] == 400
    assert f"{needed[0]} x 400" in str(warning.message)


def test_the_warning_points_at_the_line_that_asked():
    warning = told(square(3, 3), hg.observe(hg.Points(PLACES), FIELD, noise=0.05))[1]
    assert warning.filename == __file__


@pytest.mark.parametrize("residual", ["noise", "bound"])
def test_every_engine_tells(residual):
    data = hg.observe(hg.Points(PLACES), FIELD, noise=0.05)
    batch = told(square(5, 5), data, method=hg.Batch(residual=residual, weights="exact"))[0].diagnostics
    other = told(square(5, 5), data, method=hg.Variational("full", residual=residual))[0].diagnostics
    np.testing.assert_allclose(other["grid_mean_error"], batch["grid_mean_error"], rtol=0.5)


LINES = hg.LineIntegrals(PLACES[:20], PLACES[20:])
BOXES = hg.BoxAverages(PLACES * 0.8, PLACES * 0.8 + 0.15)
SLOPES = hg.Derivatives(PLACES, direction=(1.0, 0.5))
SUMS = hg.Functionals(PLACES.reshape(20, 2, 2), [1.0, -1.0])


@pytest.mark.parametrize("functional", [LINES, BOXES, SLOPES, SUMS], ids=["lines", "boxes", "slopes", "sums"])
def test_other_functionals(functional):
    kernel = hg.Matern52(1.0, 0.4)
    y = np.zeros(len(functional))
    assert told(square(4, 4), hg.observe(functional, y, noise=0.01), kernel)[0].diagnostics["grid_needed"]
    silent(square(40, 40), hg.observe(functional, y, noise=0.2), kernel)


@pytest.mark.parametrize("count", [1, 40])
def test_a_fine_grid_is_silent(count):
    post = silent(square(60, 60), hg.observe(hg.Points(PLACES[:count]), FIELD[:count], noise=0.1))
    assert post.diagnostics["grid_mean_error"] < 0.03
    assert "grid_needed" not in post.diagnostics


def test_data_at_grid_points_leave_errors_only_between_them():
    grid, rng = square(5, 5), np.random.default_rng(6)
    f, at = dense.points(grid.coordinates()), rng.uniform(0, 1, (200, 2))
    y = np.linalg.cholesky(dense.covariance(DENSE_KERNEL, f, f) + 1e-6 * np.eye(25)) @ rng.normal(size=25)
    post = silent(grid, hg.observe(hg.Points(grid.coordinates()), y, noise=1e-3))
    exact = dense.exact_gp(DENSE_KERNEL, f, y, np.full(25, 1e-3), f)
    assert np.max(errors(post, hg.Points(grid.coordinates()), exact)) < 1e-3
    exact = dense.exact_gp(DENSE_KERNEL, f, y, np.full(25, 1e-3), dense.points(at))
    off = np.max(errors(post, hg.Points(at), exact))
    assert off / 4 < post.diagnostics["grid_mean_error"] < 4 * off


def test_what_is_advised_for_few_data_of_many_kinds_comes_out_right(monkeypatch):
    """A rough kernel in one dimension with points, lines and sums on a grid far too coarse: leaving it out is advised."""
    rng = np.random.default_rng(3)
    x, (start, end) = rng.uniform(0, 1, (16, 1)), rng.uniform(0, 1, (2, 8, 1))
    nodes, c = rng.uniform(0, 1, (8, 3, 1)), rng.normal(size=(8, 3))
    parts = (
        dense.points(x),
        dense.line_integrals(start, end, panels=40, average=True),
        dense.functionals(nodes, c),
    )
    f, of_dense = dense.concatenate(*parts), dense.Matern12(1.0, 0.2)
    y = np.linalg.cholesky(dense.covariance(of_dense, f, f) + 0.05**2 * np.eye(32)) @ rng.normal(size=32)
    data = hg.observe(hg.Points(x), y[:16], 0.05) + hg.observe(
        hg.LineIntegrals(start, end, average=True), y[16:24], 0.05
    )
    data += hg.observe(hg.Functionals(nodes, c), y[24:], 0.05)
    kernel, at = hg.Matern12(1.0, 0.2), rng.uniform(0, 1, (10, 1))
    exact = dense.exact_gp(of_dense, f, y, 0.05, dense.points(at))
    grid = hg.Grid.cover(0.0, 1.0, shape=12)
    post, warning = told(grid, data, kernel)
    assert np.max(errors(post, hg.Points(at), exact)) > 0.5  # so that the warning is called for
    assert 'use method="auto", which computes' in str(warning.message)
    assert np.max(errors(silent(grid, data, kernel, "auto"), hg.Points(at), exact)) < 0.1
    monkeypatch.setattr(grid_check, "FEW", 31)
    assert "auto" not in str(told(grid, data, kernel)[1].message)


@pytest.mark.parametrize("kernel", ["Matern32", "SquaredExponential"])
def test_boxes_have_as_many_nodes_as_their_noise_asks_for(kernel):
    """What their quadrature misses is small beside the noise, and no grid, however fine, makes it finer."""
    lower = np.random.default_rng(2).uniform(0, 0.7, (12, 3))
    data = hg.observe(hg.BoxAverages(lower, lower + 0.3), np.zeros(12), noise=0.1)
    fine = hg.Grid.cover((0, 0, 0), (1, 1, 1), shape=(65, 65, 65))
    of_ours = getattr(hg, kernel)(1.0, 0.3)
    problems = local_problems(Problem(of_ours, fine, data, None, Trend(None)), None, stencil=2)
    assert problems.pairs(fine) < 1e8
    ((nodes, rows),) = problems.nodes(fine, np.arange(len(problems.rows)), 1)
    ours = dense.functionals(nodes.x, nodes.weights)
    exact = dense.box_averages(problems.data.blocks[0].functional.lower, lower[problems.rows] + 0.3, order=12)
    theirs = getattr(dense, kernel)(1.0, 0.3)
    missed = dense.variance(theirs, ours) + dense.variance(theirs, exact)
    missed -= 2 * np.diag(dense.covariance(theirs, ours, exact))
    assert len(rows) == len(problems.rows) and np.max(missed) < 3e-4 * 0.1**2


def test_units_do_not_matter():
    data = hg.observe(hg.Points(PLACES), FIELD, noise=0.05)
    scaled = hg.observe(hg.Points(1e3 * PLACES), 1e-6 * FIELD, noise=0.05e-6)
    grid = hg.Grid.cover((0, 0), (1e3, 1e3), shape=(8, 8))
    first = told(square(8, 8), data)[0].diagnostics["grid_mean_error"]
    second = told(grid, scaled, hg.Matern32(1e-12, 300.0))[0].diagnostics["grid_mean_error"]
    np.testing.assert_allclose(second, first, rtol=1e-6)


@pytest.mark.parametrize(
    "shape, grade, said", [((4, 4), "poor", "too coarse"), ((60, 60), "good", "fine enough")]
)
def test_the_report_says_so(shape, grade, said):
    data = hg.observe(hg.Points(PLACES), FIELD, noise=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", hg.GridTooCoarse)
        post = hg.GP(KERNEL, square(*shape)).condition(data, hg.Batch(), progress=False)
    assert [found for found, text in report.verdicts(post, None) if said in text] == [grade]
