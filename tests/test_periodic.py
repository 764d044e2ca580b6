"""Kernels that repeat: every engine against the exact Gaussian process, forecasts, and periods that are learned."""

import numpy as np
import pytest

import dense
import hipgp as hg
from hipgp.batch import decisions
from hipgp.choices.domain import in_step
from hipgp.model.kernel_scales import cells_of_periods, spacing_in_step
from hipgp.weights.toeplitz import embed

PERIOD = 1.037
KERNELS = {
    "quasi-periodic": (
        hg.Periodic(1.2, 0.25, PERIOD) * hg.Matern52(0.8, 6.0),
        dense.Periodic(1.2, 0.25, PERIOD) * dense.Matern52(0.8, 6.0),
    ),
    "season and trend": (
        hg.Periodic(1.2, 0.25, PERIOD) + hg.Matern52(0.8, 3.0),
        dense.Periodic(1.2, 0.25, PERIOD) + dense.Matern52(0.8, 3.0),
    ),
    "alone": (hg.Periodic(1.2, 0.25, PERIOD), dense.Periodic(1.2, 0.25, PERIOD)),
}
every_kernel = pytest.mark.parametrize("name", KERNELS)


def functionals(rng, lower, upper, count=12):
    """Points, slopes, averages along lines and over boxes between two places, and their twins."""
    x, start = rng.uniform(lower, upper, (2, count, 1))
    end = start + rng.uniform(0.1, 0.7, (count, 1))
    ours = [hg.Points(x), hg.Derivatives(x), hg.LineIntegrals(start, end), hg.BoxAverages(start, end)]
    line = dense.line_integrals(start, end, order=16, panels=2)
    return ours, [
        dense.points(x),
        dense.derivatives(x, axis=0),
        line,
        dense.box_averages(start, end, order=16),
    ]


def problem(name, noise=0.1):
    rng = np.random.default_rng(3)
    ours, twins = functionals(rng, 0.0, 6.0, 25)
    f = dense.concatenate(*twins)
    prior = dense.covariance(KERNELS[name][1], f, f)
    std = noise * np.sqrt(np.diag(prior))
    y = rng.multivariate_normal(np.zeros(len(std)), prior + np.diag(std**2))
    data = [hg.observe(a, b, c) for a, b, c in zip(ours, np.split(y, 4), np.split(std, 4), strict=True)]
    return sum(data[1:], data[0]), f, y, std


@every_kernel
def test_every_functional_within_and_beyond_is_that_of_the_exact_process(name):
    """Of the exact engine to the quadrature's accuracy; of the batch engine, with wide stencils, to a hundredth.

    The grid ends at 7, the targets at 12: conditioning goes on a wider one for them.
    """
    kernel, twin = KERNELS[name]
    data, f, y, std = problem(name)
    grid = in_step(kernel, hg.Grid.cover(-0.2, 7.0, spacing=0.04))
    posts = [(hg.GP(kernel).condition(data, hg.Exact(), progress=False), 5e-4)]
    if name == "season and trend":
        method = hg.Batch(tolerance=1e-8, stencil=8)
        posts += [(hg.GP(kernel, grid).condition(data, method, progress=False), 0.01)]
    for ours, other in zip(*functionals(np.random.default_rng(5), 0.0, 11.0), strict=True):
        truth = dense.exact_gp(twin, f, y, std, other)
        for post, near in posts:
            found = post.predict(ours, progress=False)
            assert np.max(np.abs(found.mean - truth.mean) / truth.std) < near
            np.testing.assert_allclose(found.std, truth.std, rtol=near)


@every_kernel
def test_the_embedding_is_exact_on_a_grid_in_step(name):
    """K = R R' to rounding, and K is the kernel's own: nothing is clipped, though it may be singular."""
    kernel, twin = KERNELS[name]
    grid = in_step(kernel, hg.Grid.cover(0.0, 5.0, shape=90))
    toeplitz, x = embed(kernel, grid), grid.coordinates()
    k = np.asarray(toeplitz.matmul(np.eye(grid.size)))
    root = np.asarray(toeplitz.root(np.eye(toeplitz.torus.size))).T
    np.testing.assert_allclose(root @ root.T, k, rtol=0, atol=1e-13)
    np.testing.assert_allclose(k, twin.value(x[:, None] - x), rtol=0, atol=1e-10)
    assert toeplitz.clipped_mass < 1e-10


def test_space_and_time():
    """Periodic along the last of two axes, on a torus that closes there; singular along time, and no harm."""
    kernel = hg.Matern32(1.1, (0.4, 5.0)) * hg.Periodic(1.0, 0.3, 0.77, axis=1)
    grid = in_step(kernel, hg.Grid.cover((0.0, 0.0), (1.0, 2.0), shape=(7, 16)))
    assert grid.shape[0] == 7 and cells_of_periods(kernel, np.asarray(grid.spacing))[0] == 1
    toeplitz, x = embed(kernel, grid), grid.coordinates()
    k = np.asarray(toeplitz.matmul(np.eye(grid.size).reshape(-1, *grid.shape))).reshape(grid.size, -1)
    np.testing.assert_allclose(k, kernel(x, x), rtol=0, atol=1e-8)


def test_a_grid_out_of_step_with_what_repeats_is_refused_with_the_remedy():
    kernel = hg.Periodic(1.0, 0.2, PERIOD)
    grid = hg.Grid.cover(0.0, 5.0, shape=100)
    with pytest.raises(
        ValueError, match=r"divides the kernel's period.*would be lost; use spacing=\(0\.0493"
    ):
        embed(kernel, grid)
    embed(kernel, hg.Grid.cover(0.0, 5.0, spacing=spacing_in_step(kernel, np.asarray(grid.spacing))))
    embed(kernel * hg.Matern32(1.0, 0.5), grid)  # forgets before the period does not fit


def test_spacings_divide_every_period_where_they_can():
    week, day = hg.Periodic(period=7.0), hg.Periodic(period=1.0)
    assert spacing_in_step(week + day, np.array([0.3])) == pytest.approx([0.25])
    assert cells_of_periods(week + day, np.array([0.25])) == (28,)
    assert cells_of_periods(week, np.array([np.pi])) == (None,)
    assert cells_of_periods(hg.Matern32(), np.array([0.3])) == (1,)


def test_the_nearest_observations_do_not_decide_where_a_kernel_repeats():
    data, one = hg.observe(hg.Points(np.zeros((2, 1))), np.zeros(2), 0.1), hg.Points([0.0])
    work = decisions.Work(10, 5, 64)
    found = decisions.standard_deviations(
        data, one, 1, 64, lambda: work, lambda f: False, nearest_suffice=False
    )
    assert found.choice != "vecchia" and "repeats" in found.reason


@pytest.mark.parametrize("count", [150, pytest.param(3000, marks=pytest.mark.slow)])
def test_a_period_is_learned_within_a_range_and_kept_where_it_is_given(count):
    """A cycle with two humps, whose second harmonic is the stronger, that slowly changes; 3,000 go by the nearest observations."""
    rng = np.random.default_rng(0)
    x = np.sort(rng.uniform(0.0, 40.0, count))
    y = 0.6 * np.sin(2 * np.pi * x / 3.3 + np.sin(x / 5)) + np.cos(x / 7) * np.sin(4 * np.pi * x / 3.3 + 0.4)
    data = hg.observe(hg.Points(x), y + 0.1 * rng.standard_normal(count), noise=0.1)
    kernel = hg.Periodic(1.0, 0.5, period=(1.0, 12.0)) * hg.Matern32(1.0, 20.0)
    gp = hg.GP(kernel, trend="constant").learn(data, progress=False)
    assert float(gp.kernel.left.period) == pytest.approx(3.3, rel=0.02)
    assert "Periodic.period" in gp.learned.names
    given = hg.Periodic(1.0, 0.5, period=3.3) * hg.Matern32(1.0, 20.0)
    kept = hg.GP(given, trend="constant").learn(data, progress=False)
    assert float(kept.kernel.left.period) == 3.3 and "Periodic.period" not in kept.learned.names


def test_a_period_to_be_learned_is_not_used_before():
    kernel = hg.Periodic(period=(300.0, 400.0))
    assert "period=(300, 400)" in repr(kernel)
    data = hg.observe(hg.Points([0.0, 1.0]), [0.0, 1.0], noise=0.1)
    with pytest.raises(ValueError, match=r"period: expected a number, got \(300\.0, 400\.0\).*gp\.learn"):
        hg.GP(kernel).condition(data)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: hg.Periodic(period=(3.0, 2.0)), "period: expected a number, or .low, high."),
        (lambda: hg.Periodic(period=-1.0), "period: expected positive"),
        (lambda: hg.Periodic(axis=-1), "axis: expected the number of an axis"),
        (lambda: hg.Periodic(lengthscale=(1.0, 2.0)), "lengthscale: expected"),
        (lambda: hg.Periodic()([[0.0, 0.0]], [[0.0, 0.0]]), "axis: expected Periodic"),
        (lambda: hg.Periodic(axis=3)([[0.0, 0.0]], [[0.0, 0.0]]), "axis: expected a number from 0 to 1"),
        (
            lambda: hg.Periodic(axis=1)([[0.0, 0.0]], [[0.0, 0.0]]),
            "kernel: expected one that varies along all",
        ),
    ],
)
def test_settings_that_make_no_sense(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_map_comes_back_with_its_period(tmp_path):
    data, *_ = problem("quasi-periodic")
    post = hg.GP(KERNELS["quasi-periodic"][0]).condition(data, hg.Exact(), progress=False)
    post.save(tmp_path / "map.npz")
    again = hg.load(tmp_path / "map.npz")
    assert repr(again.kernel) == repr(post.kernel)
    at = hg.Points([0.3, 9.0])
    np.testing.assert_allclose(again.predict(at).mean, post.predict(at).mean, rtol=1e-9)
