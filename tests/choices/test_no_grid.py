"""A Gaussian process without a grid: what is chosen in its place, what is said of it, and how good the answer is."""

import numpy as np
import pytest

import dense
import hipgp as hg
from hipgp.choices import domain, method
from hipgp.choices import grid as choice
from hipgp.model.problem import OpenProblem
from hipgp.model.trend import Trend
from hipgp.runtime import memory

KERNEL, DENSE_KERNEL = hg.Matern52(1.3, (0.3, 0.4)), dense.Matern52(1.3, (0.3, 0.4))


def square(count=120, seed=0, noise=0.1):
    rng = np.random.default_rng(seed)
    x = rng.uniform(0.0, 1.0, (count, 2))
    y = np.sin(5 * x[:, 0]) * np.cos(3 * x[:, 1]) + noise * rng.standard_normal(count)
    return x, y, hg.observe(hg.Points(x), y, noise=noise)


def without_grid(kernel, data):
    return OpenProblem(kernel, None, data, None, Trend(None))


@pytest.fixture(scope="module")
def by_batch():
    x, y, data = square()
    return x, y, hg.GP(KERNEL).condition(data, method=hg.Batch(tolerance=1e-6), progress=False)


def test_few_data_take_the_exact_engine_and_say_so():
    x, y, data = square()
    post = hg.GP(KERNEL).condition(data, progress=False)
    assert post.diagnostics["engine"] == "exact"
    assert post.diagnostics["engine_chosen"].startswith("exact: 120 observations")
    assert "to show the map on" in post.diagnostics["grid_chosen"]
    truth = dense.exact_gp(DENSE_KERNEL, dense.points(x), y, 0.1, dense.points(post.grid.coordinates()))
    np.testing.assert_allclose(post.mean.ravel(), truth.mean, atol=1e-8)
    np.testing.assert_allclose(post.std().ravel(), truth.std, atol=1e-7)
    assert np.all(post.grid.outside(x) == 0)


def test_what_is_asked_on_the_grid_works_without_one(tmp_path, monkeypatch):
    monkeypatch.setattr(domain, "SHOWN", 150)
    _, _, data = square(30)
    post = hg.GP(KERNEL).condition(data, progress=False)
    assert post.sample(2, key=0).shape == (2, *post.grid.shape)
    assert post.to_xarray()["mean"].shape == post.mean.shape == post.grid.shape
    post.save(tmp_path / "map.nc")
    again = hg.load(tmp_path / "map.nc")
    assert again.grid == post.grid
    assert again.diagnostics["grid_chosen"] == post.diagnostics["grid_chosen"]
    np.testing.assert_allclose(again.mean, post.mean, atol=1e-10)


def test_a_grid_that_is_given_keeps_the_batch_engine_and_auto_may_leave_it():
    _, _, data = square(40)
    gp = hg.GP(KERNEL, hg.Grid.cover((0, 0), (1, 1), shape=16))
    kept = gp.condition(data, progress=False)
    assert kept.diagnostics["engine"] == "batch"
    assert "engine_chosen" not in kept.diagnostics
    assert "grid_chosen" not in kept.diagnostics
    auto = gp.condition(data, method="auto", progress=False)
    assert auto.diagnostics["engine"] == "exact"
    assert auto.grid == gp.grid


def test_the_chosen_grid_is_fine_enough(by_batch):
    x, y, post = by_batch
    places = np.random.default_rng(1).uniform(0.0, 1.0, (60, 2))
    truth = dense.exact_gp(DENSE_KERNEL, dense.points(x), y, 0.1, dense.points(places))
    found = post.predict(hg.Points(places))
    assert np.max(np.abs(found.mean - truth.mean) / truth.std) < 0.1
    np.testing.assert_allclose(found.std, truth.std, rtol=0.1)
    said = post.diagnostics["grid_chosen"]
    assert said.startswith(f"grid {' x '.join(map(str, post.grid.shape))}, spacing ")
    assert "of the noise variance unseen" in said


def test_the_grid_is_chosen_for_the_stencil_that_the_engine_uses():
    points, lines = square(8)[2], hg.observe(hg.LineIntegrals((0.0, 0.0, 0.0), np.eye(3)), np.zeros(3), 0.1)
    assert hg.Batch().points_per_axis(points) == 4
    assert hg.Batch().points_per_axis(lines) == 2
    assert hg.Batch(stencil=6).points_per_axis(points) == 6


def test_more_noise_and_smoother_kernels_take_coarser_grids():
    x, y, _ = square()
    data = lambda noise: hg.observe(hg.Points(x), y, noise)
    size = lambda kernel, noise: choice.grid_for(hg.Batch(), without_grid(kernel, data(noise))).choice.size
    assert size(KERNEL, 0.5) < size(KERNEL, 0.02)
    assert size(hg.SquaredExponential(1.3, (0.3, 0.4)), 0.05) < size(hg.Matern32(1.3, (0.3, 0.4)), 0.05)


@pytest.mark.parametrize("factor", [1e-6, 1.0, 1e6])
def test_units_of_the_coordinates_change_nothing(factor):
    x, y, data = square(60)
    scaled = hg.observe(hg.Points(factor * x), y, noise=0.1)
    one = choice.grid_for(hg.Batch(), without_grid(KERNEL, data)).choice
    kernel = hg.Matern52(1.3, (0.3 * factor, 0.4 * factor))
    other = choice.grid_for(hg.Batch(), without_grid(kernel, scaled)).choice
    assert one.shape == other.shape
    np.testing.assert_allclose(np.asarray(other.spacing), factor * np.asarray(one.spacing))
    assert domain.learning_grid(data).shape == domain.learning_grid(scaled).shape
    assert domain.map_grid(KERNEL, data).shape == domain.map_grid(kernel, scaled).shape


@pytest.mark.parametrize("trend", [None, "linear"])
def test_far_beyond_the_chosen_grid_it_is_prior_and_trend(trend):
    x, y, data = square()
    y = y + 3.0 + 2.0 * x[:, 0]
    data = hg.observe(hg.Points(x), y, noise=0.1)
    gp = hg.GP(KERNEL, trend=trend)
    far = np.array([[1.4, 0.5], [-0.6, 1.5], [9.0, -7.0]])
    columns = (lambda a: np.column_stack([np.ones(len(a)), a])) if trend else (lambda a: None)
    f, f_star = dense.points(x), dense.points(far)
    truth = dense.exact_gp(DENSE_KERNEL, f, y, 0.1, f_star, columns(x), columns(far))
    for engine in (hg.Batch(tolerance=1e-6), hg.Exact()):
        post = gp.condition(data, method=engine, progress=False)
        assert np.all(post.grid.outside(far) > 0)
        found = post.predict(hg.Points(far))
        assert np.max(np.abs(found.mean - truth.mean) / truth.std) < 0.1
        np.testing.assert_allclose(found.std, truth.std, rtol=0.05)
    if trend is None:
        np.testing.assert_allclose(found.mean[-1], 0.0, atol=1e-6)
        np.testing.assert_allclose(found.std[-1], np.sqrt(1.3), rtol=1e-6)


def test_beyond_the_grid_lines_and_slopes_count_as_what_they_are():
    """Taken for values at points, they put the mean off by hundreds of standard deviations."""
    rng = np.random.default_rng(4)
    start, end, x = rng.uniform(0.0, 1.0, (3, 30, 2))
    f = dense.line_integrals(start, end) + dense.derivatives(x, axis=0)
    y = rng.standard_normal(60)
    data = hg.observe(hg.LineIntegrals(start, end), y[:30], 0.3) + hg.observe(hg.Derivatives(x), y[30:], 2.0)
    far = np.array([[1.35, 0.5], [-0.4, 1.3], [5.0, 5.0]])
    truth = dense.exact_gp(DENSE_KERNEL, f, y, np.repeat([0.3, 2.0], 30), dense.points(far))
    post = hg.GP(KERNEL).condition(data, method=hg.Batch(tolerance=1e-6), progress=False)
    assert np.all(post.grid.outside(far) > 0)
    found = post.predict(hg.Points(far))
    assert np.max(np.abs(found.mean - truth.mean) / truth.std) < 0.05
    np.testing.assert_allclose(found.std, truth.std, rtol=0.05)


def test_other_functionals_beyond_it_take_a_wider_grid(by_batch):
    x, y, post = by_batch
    start, end = np.array([[0.5, 0.5], [1.2, 0.1]]), np.array([[1.6, 0.5], [1.5, 1.4]])
    truth = dense.exact_gp(
        DENSE_KERNEL, dense.points(x), y, 0.1, dense.line_integrals(start, end, order=16, panels=8)
    )
    found = post.predict(hg.LineIntegrals(start, end), std="exact", progress=False)
    assert np.max(np.abs(found.mean - truth.mean) / truth.std) < 0.1
    np.testing.assert_allclose(found.std, truth.std, rtol=0.05)
    draws = post.sample(300, key=1, at=hg.LineIntegrals(start, end), progress=False)
    assert np.max(np.abs(draws.mean(axis=0) - truth.mean) / truth.std) < 0.35
    with pytest.raises(ValueError, match="functional: expected places near the data"):
        post.predict(hg.LineIntegrals([[0.0, 0.0]], [[1e9, 0.0]]))


@pytest.mark.parametrize(
    "method", [hg.Batch(tolerance=1e-8), hg.Variational(family="full", weights="exact", epochs=8)]
)
def test_beyond_a_grid_that_was_given_it_is_the_same_model(method):
    """Of the variational engine that of its inducing points, which has a residual there: none is left out."""
    x, y, data = square(20)
    grid = hg.Grid.cover((0, 0), (1, 1), shape=16)
    post = hg.GP(KERNEL, grid).condition(data, method, progress=False)
    far = np.array([[0.5, 0.5], [1.3, 0.5], [9.0, -7.0]])
    f, f_star = dense.points(x), dense.points(far)
    truth = dense.svgp(DENSE_KERNEL, grid.coordinates(), f, y, 0.1, f_star, residual="noise")
    found = post.predict(far)
    assert np.max(np.abs(found.mean - truth.mean) / truth.std) < 0.05
    np.testing.assert_allclose(found.std, truth.std, rtol=0.05)
    assert found.mean[-1] == pytest.approx(0.0, abs=1e-6) and found.std[-1] == pytest.approx(np.sqrt(1.3))


def test_learning_needs_no_grid():
    rng = np.random.default_rng(3)
    x = rng.uniform(0.0, 1.0, (400, 1))
    a = dense.covariance(dense.Matern32(2.0, 0.1), dense.points(x), dense.points(x))
    y = np.linalg.cholesky(a + 0.04 * np.eye(400)) @ rng.standard_normal(400)
    learned = hg.GP(hg.Matern32()).learn(hg.observe(hg.Points(x), y), progress=False)
    assert learned.grid is None
    assert 0.05 < float(learned.kernel.lengthscale) < 0.2
    assert learned.noise == pytest.approx(0.2, rel=0.2)
    post = learned.condition(hg.observe(hg.Points(x), y), progress=False)
    assert post.diagnostics["engine"] == "exact"
    with pytest.raises(ValueError, match="polish: expected a GP with a grid"):
        learned.learn(hg.observe(hg.Points(x), y), polish=True)


def test_the_learning_grid_follows_the_data():
    rng = np.random.default_rng(0)
    x = rng.uniform(0.0, 1.0, (500, 2)) * [1.0, 1000.0]
    grid = domain.learning_grid(hg.observe(hg.Points(x), np.zeros(500)))
    shape = np.array(grid.shape)
    assert np.all(shape > 2 * np.sqrt(500) - 2)
    assert np.all(shape < 6 * np.sqrt(500))
    flat = hg.observe(hg.Points(np.column_stack([x[:, 0], np.full(500, 7.0)])), np.zeros(500))
    assert domain.learning_grid(flat).lower[1] < 7.0 < domain.learning_grid(flat).upper[1]
    one = domain.learning_grid(hg.observe(hg.Points([[2.0, 3.0]]), [1.0]))
    assert np.all(one.outside(np.array([[2.0, 3.0]])) == 0)


def test_a_grid_that_is_too_coarse_to_learn_on_is_named_with_one_that_would_do():
    rng = np.random.default_rng(5)
    x = np.sort(rng.uniform(0.0, 1.0, (500, 1)), axis=0)
    a = dense.covariance(dense.Matern32(1.0, 0.02), dense.points(x), dense.points(x))
    y = np.linalg.cholesky(a + 1e-4 * np.eye(500)) @ rng.standard_normal(500)
    data = hg.observe(hg.Points(x), y)
    coarse = hg.Grid.cover(0.0, 1.0, shape=6)
    with pytest.warns(
        hg.GridTooCoarse, match=r"the grid is too coarse .* best at Matern32\.lengthscale 0\.0[123]"
    ) as told:
        hg.GP(hg.Matern32(), coarse).learn(data, progress=False, polish=False)
    words = " ".join(str(w.message) for w in told)
    assert "which needs grid " in words
    assert "MiB" in words
    assert "do not determine" not in words


def test_a_domain_that_no_grid_in_memory_can_serve_says_which_accuracy_it_can(monkeypatch):
    monkeypatch.setattr(memory, "bytes_available", lambda: 1e6)
    x, y, _ = square(60)
    data = hg.observe(hg.Points(1e3 * x), y, noise=0.1)
    with pytest.raises(ValueError, match=r"leaves \d+% of the variance of the data unseen") as error:
        hg.GP(hg.Matern32(1.0, 0.1)).condition(data, method=hg.Batch(), progress=False)
    assert "method=Exact()" in str(error.value)


def test_the_choice_of_the_engine(monkeypatch):
    x, y, data = square(60)
    assert isinstance(method.method_for(hg.Batch(), without_grid(KERNEL, data)).choice, hg.Exact)
    assert "checkpoint" in method.method_for(hg.Batch(), without_grid(KERNEL, data), "file").reason
    monkeypatch.setattr(method, "MOST_OBSERVATIONS", 50)
    assert isinstance(method.method_for(hg.Batch(), without_grid(KERNEL, data)).choice, hg.Batch)
    assert "slower beyond 50" in method.method_for(hg.Batch(), without_grid(KERNEL, data)).reason
    rays = hg.observe(hg.LineIntegrals(x[:30], x[30:]), y[:30], noise=0.1)
    monkeypatch.setattr(method, "ACCURACIES", ((1e-2, 1e4),))
    assert (
        "quadrature nodes" in method.method_for(hg.Batch(), without_grid(hg.Matern12(1.0, 0.1), rays)).reason
    )
    monkeypatch.setattr(memory, "bytes_available", lambda: 10.0)
    assert "would need" in method.method_for(hg.Batch(), without_grid(KERNEL, rays)).reason


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda d: hg.GP(KERNEL).condition(d, method="best"),
            'method: expected Batch.* or "auto", got .best',
        ),
        (lambda d: hg.GP(hg.Matern32(1.0, (1.0, 1.0, 1.0))).condition(d), "lengthscale: expected"),
        (lambda d: hg.GP(hg.Matern32(1.0, (1.0, 1.0, 1.0))).learn(d), "lengthscale: expected"),
        (lambda d: hg.GP(KERNEL, grid="fine"), "grid: expected a Grid, or None"),
        (lambda d: hg.GP(KERNEL).condition([1.0]), "data: expected something made by observe"),
    ],
)
def test_bad_input_in_words(call, words):
    with pytest.raises(ValueError, match=words):
        call(square(10)[2])


def test_derivatives_of_a_kernel_without_them_are_refused_before_a_grid_is_chosen():
    data = hg.observe(hg.Derivatives([[0.1, 0.2]]), [1.0], noise=0.1)
    with pytest.raises(ValueError, match="whose draws have a derivative"):
        hg.GP(hg.Matern12()).condition(data)


def test_counts_need_no_grid():
    """Neither to learn nor to condition; the answer is that on a fine grid."""
    x = np.linspace(0.0, 6.0, 60)
    counts = np.random.default_rng(0).poisson(np.exp(1 + np.sin(x)))
    data = hg.observe(hg.Points(x), counts, likelihood=hg.Poisson())
    gp = hg.GP(hg.Matern52(0.6, 1.5), trend="constant", link="exp")
    post = gp.condition(data, progress=False)
    fine = hg.GP(gp.kernel, hg.Grid.cover(-1.0, 7.0, shape=100), trend="constant", link="exp").condition(
        data, progress=False
    )
    at = np.array([1.0, 3.3, 5.9])
    np.testing.assert_allclose(post.predict(at).mean, fine.predict(at).mean, rtol=0.02)
    assert gp.learn(data, start="kernel", polish=False, progress=False).learned is not None
