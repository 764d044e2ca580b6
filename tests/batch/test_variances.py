"""Which standard deviation is taken by itself, and the two ways to an exact one."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

import hipgp as hg
from batch_problem import GRID, KERNEL, mixture, pair
from hipgp.batch import decisions, exact_variances, variances
from hipgp.runtime.lazy import Lazy

# grids here are coarse, so that the dense reference is small; `test_coarse_grid.py` tests the warning
pytestmark = pytest.mark.filterwarnings("ignore::hipgp.GridTooCoarse")


@pytest.fixture
def only(monkeypatch):
    """Makes one of the two ways the only one."""
    return lambda way: monkeypatch.setattr(exact_variances, "exact_by_factor", lambda *given: way == "factor")


def without_factor(post):
    """The same posterior before its factor was computed."""
    factor = Lazy(functools.partial(exact_variances.factor_of, post.engine.lazy.system))
    return hg.Posterior(dataclasses.replace(post.engine, lazy=post.engine.lazy._replace(factor=factor)))


@pytest.mark.parametrize(
    ("kinds", "settings", "dtype"),
    [
        (("points", "derivatives", "rays"), {}, "float64"),
        pytest.param(("points", "derivatives", "rays"), {}, "float32", marks=pytest.mark.quick),
        (("rays",), {"space": "grid"}, "float64"),
        (("rays",), {"weights": "exact"}, "float64"),
    ],
)
def test_the_factor_and_the_solves_give_the_same_std(kinds, settings, dtype, only):
    data = jax.tree.map(lambda a: np.asarray(a, dtype), mixture(kinds)[0])
    post = hg.GP(KERNEL, GRID, trend="linear").condition(data, hg.Batch(tolerance=1e-4, **settings))
    target = jax.tree.map(lambda a: np.asarray(a, dtype), pair("rays", 90, 10)[0])
    only("factor")
    by_factor = post.predict(target, std="exact").std
    only("solves")
    by_solves = post.predict(target, std="exact").std
    np.testing.assert_allclose(by_factor, by_solves, rtol=1e-4 if dtype == "float64" else 5e-3)


@pytest.mark.parametrize("settings", [{}, {"space": "grid"}, {"residual": "bound"}], ids=str)
@pytest.mark.parametrize("trend", [None, "linear"])
def test_a_grid_of_few_points_is_factored_in_place_of_the_data(monkeypatch, settings, trend):
    """72 data, 20 grid points."""
    data, grid = (
        mixture(("points", "derivatives", "rays"))[0],
        hg.Grid.cover(GRID.lower, GRID.upper, shape=(5, 4)),
    )
    post = hg.GP(KERNEL, grid, trend=trend).condition(data, hg.Batch(tolerance=1e-8, **settings))
    target = pair("rays", 90, 10)[0] if trend is None else pair("points", 90, 10)[0]
    on_grid = post.predict(target, std="exact").std
    assert post.engine.lazy.factor.get().matrix[0].shape == (20, 20)
    monkeypatch.setattr(type(post.engine.system), "grid_is_smaller", False)
    post = without_factor(post)
    of_data = post.predict(target, std="exact").std
    assert post.engine.lazy.factor.get().matrix.shape == (len(data), len(data))
    np.testing.assert_allclose(on_grid, of_data, rtol=1e-9)


def test_the_factor_is_taken_where_it_is_the_shorter_way(monkeypatch):
    post = hg.GP(KERNEL, GRID).condition(mixture(("rays",))[0], hg.Batch(neighbours=0))
    observed, steps = 24, post.diagnostics["iterations"]
    solves = 10
    most = solves * steps - observed  # targets, with which both take as many products
    assert most > 0
    work = decisions.work(post.engine.system, steps)
    assert decisions.exact_by_factor(work, most + 1, solves)  # for so small a grid at any rate
    monkeypatch.setattr(decisions, "CHEAP", 0.0)
    assert decisions.exact_by_factor(work, most, solves)
    assert not decisions.exact_by_factor(work, most + 1, solves)


def test_the_factor_is_kept():
    post = hg.GP(KERNEL, GRID).condition(mixture(("rays",))[0], hg.Batch())
    target = pair("points", 90, 40)[0]
    first = post.predict(target, std="exact").std
    kept = post.engine.lazy.factor.get()
    assert kept is not None and kept.matrix.shape == (24, 24)
    np.testing.assert_array_equal(post.predict(target, std="exact").std, first)
    assert post.engine.lazy.factor.get() is kept


def test_solves_stand_in_where_rounding_leaves_no_factor(monkeypatch):
    post = hg.GP(KERNEL, GRID).condition(mixture(("rays",))[0], hg.Batch())
    target = pair("points", 90, 10)[0]
    by_factor = post.predict(target, std="exact").std

    def fails(*given, **options):
        raise np.linalg.LinAlgError("not positive definite")

    monkeypatch.setattr(exact_variances.scipy.linalg, "cholesky", fails)
    post = without_factor(post)
    np.testing.assert_allclose(post.predict(target, std="exact").std, by_factor, rtol=1e-4)


def test_the_nearest_observations_serve_where_they_tell_nearly_all(monkeypatch):
    end = np.random.default_rng(0).uniform(0.05, 0.95, (30, 2))
    rays = lambda rows: hg.LineIntegrals(np.full(2, 0.5), end[rows])
    points = lambda rows: hg.Points(end[rows])
    crossing = lambda rows: hg.LineIntegrals(end[rows][::-1], end[rows])
    boxes = lambda rows: hg.BoxAverages(0.9 * end[rows], 0.9 * end[rows] + 0.05)
    seen, asked = np.arange(20), np.arange(20, 30)

    def taken(data, target, samples=64):
        observed, work = hg.observe(data(seen), np.sin(seen), noise=0.1), lambda: decisions.Work(20, 3, 4000)
        one_place = variances.from_one_place
        return decisions.standard_deviations(observed, target(asked), 10, samples, work, one_place).choice

    assert taken(points, points) == "vecchia"
    assert taken(rays, rays) == "vecchia"
    assert taken(crossing, crossing) == "exact"
    assert taken(boxes, boxes) == "exact"
    assert taken(rays, points) == "exact"
    assert taken(points, rays) == "exact"
    post = hg.GP(KERNEL, GRID).condition(hg.observe(points(seen), np.sin(seen), noise=0.1), hg.Batch())
    assert variances.automatic(post.engine, rays(asked), 64).choice == "exact"
    monkeypatch.setattr(decisions, "CHEAP", 0.0)
    assert taken(points, rays, samples=2) == "samples"  # fewer products than the factor takes


@pytest.mark.slow  # a solve for each of many lines
def test_the_default_std_of_crossing_lines_is_that_of_exact_solves(only):
    """Their nearest neighbours would leave it far too wide."""
    rng = np.random.default_rng(1)
    start, end = rng.uniform(0.0, 1.0, (2, 620, 2))
    lines = hg.LineIntegrals(start, end)
    data = hg.observe(lines[:600], rng.standard_normal(600), noise=0.02)
    grid = hg.Grid.cover((0, 0), (1, 1), shape=(20, 20))
    post = hg.GP(hg.Matern32(lengthscale=0.1), grid).condition(data, hg.Batch(neighbours=20))
    default = post.predict(lines[600:]).std
    wide = post.predict(lines[600:], std="vecchia").std
    only("solves")
    exact = post.predict(lines[600:], std="exact").std
    np.testing.assert_allclose(default, exact, rtol=1e-3)
    assert np.mean(wide / exact) > 1.1


def _sampled_problem(name):
    rng = np.random.default_rng(1)
    place = rng.uniform(0, 1, (200, 2))
    other = rng.uniform(0, 1, (40, 2))
    lines = hg.observe(hg.LineIntegrals(other[::-1], other), rng.standard_normal(40), noise=0.1)
    points = hg.observe(hg.Points(place), rng.standard_normal(200), noise=0.1)
    slopes = hg.observe(hg.Derivatives(place), rng.standard_normal(200), noise=0.1)
    crowd = hg.observe(hg.Points(rng.uniform(0, 1, (3000, 2))), rng.standard_normal(3000), noise=1.0)
    low = rng.uniform(0, 0.7, (150, 2))
    boxes, asked = hg.BoxAverages(low, low + 0.3), hg.Points(rng.uniform(0, 1, (150, 2)))
    return {
        "points": (points, asked, 30),
        "points, coarse grid": (points, asked, 12),
        "points, boxes": (points, boxes, 20),
        "slopes": (points + slopes, asked, 30),
        "bins": (crowd, asked, 30),
        "lines": (lines, asked, 20),
        "lines, boxes": (lines, boxes, 20),
    }[name]


slow = pytest.mark.slow
CONTROLLED = {"points", "points, coarse grid", "bins"}


@pytest.mark.parametrize(
    ("name", "trend"),
    [
        ("points, coarse grid", "linear"),
        pytest.param("lines, boxes", "linear", marks=slow),
        pytest.param("slopes", None, marks=slow),
        pytest.param("points", "linear", marks=slow),
        pytest.param("points, boxes", "linear", marks=slow),
        pytest.param("slopes", "linear", marks=slow),
        pytest.param("bins", None, marks=slow),
        pytest.param("bins", "linear", marks=slow),
        pytest.param("lines", "linear", marks=slow),
    ],
)
def test_sampled_std_is_the_exact_one_within_its_stated_error(name, trend):
    data, target, side = _sampled_problem(name)
    grid = hg.Grid.cover((0, 0), (1, 1), shape=(side, side))
    post = hg.GP(hg.Matern32(lengthscale=0.15), grid, trend=trend).condition(data, hg.Batch(stencil=4))
    exact = post.predict(target, std="exact").std
    sampled = post.predict(target, std="samples", samples=256)
    pull = (sampled.std - exact) / sampled.std_error
    assert abs(np.mean(pull)) < 0.6  # neighbouring targets err alike
    assert 0.6 < np.sqrt(np.mean(pull**2)) < 1.5
    plain = 1 / np.sqrt(2 * 256)  # the relative error of the root of a mean of 256 squares
    assert np.mean(sampled.std_error / exact) < (0.6 if name in CONTROLLED else 1.2) * plain
