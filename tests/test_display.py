"""Pictures of posteriors are predicted on fine grids, with the data on top, and agree with the exact posterior."""

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pytest

import hipgp as hg
from hipgp import display, plots

matplotlib.use("Agg")
RNG = np.random.default_rng(0)
PLANE = hg.Grid.cover((0, 0), (1, 1), shape=(12, 15))
RAYS = hg.LineIntegrals(RNG.uniform(0, 1, (60, 2)), RNG.uniform(0, 1, (60, 2)))
# grids here are coarse on purpose; `test_coarse_grid.py` tests the warning
pytestmark = pytest.mark.filterwarnings("ignore::hipgp.GridTooCoarse")


AS_USERS_SEE = display.PIXELS, display.SERIES  # read before conftest.py makes pictures coarse


@pytest.fixture(autouse=True)
def fine(monkeypatch):
    monkeypatch.setattr(display, "PIXELS", AS_USERS_SEE[0])
    monkeypatch.setattr(display, "SERIES", AS_USERS_SEE[1])


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


def points_in_a_plane(method=None, grid=PLANE):
    x = RNG.uniform(0, 1, (50, 2))
    data = hg.observe(hg.Points(x), np.sin(7 * x[:, 0]) + x[:, 1] - 0.5, noise=0.1)
    return hg.GP(hg.Matern32(1.0, 0.4), grid).condition(data, method)


@pytest.mark.parametrize("method", [hg.Batch(), hg.Exact()], ids=["batch", "exact"])
def test_maps_are_predicted_not_the_bare_grid(method):
    post = points_in_a_plane(method)
    seen = display.view(post)
    assert min(seen.grid.shape) >= 300 and seen.mean.shape == seen.std.shape == seen.grid.shape
    some = RNG.integers(0, seen.grid.size, 40)
    p = post.predict(seen.grid.coordinates()[some])
    np.testing.assert_allclose(seen.mean.ravel()[some], p.mean, atol=1e-5)
    np.testing.assert_allclose(seen.std.ravel()[some], p.std, atol=1e-5)


def test_lines_are_interpolated_from_the_grid():
    post = hg.GP(hg.Matern32(1.0, 0.4), PLANE).condition(
        hg.observe(RAYS, RNG.standard_normal(60), noise=0.1), hg.Batch()
    )
    seen = display.view(post)
    every = tuple(
        slice(None, None, (m - 1) // (n - 1)) for m, n in zip(seen.grid.shape, PLANE.shape, strict=True)
    )
    np.testing.assert_allclose(seen.mean[every], post.mean, atol=1e-9)
    np.testing.assert_allclose(seen.std[every], post.std(), atol=1e-9)
    assert seen.std.min() >= post.std().min()


def test_smoothed_sampled_deviations_are_closer_to_the_exact_ones():
    """Of 32 draws; and speckle is gone: neighbours differ by a fraction of what they did."""
    grid = hg.Grid.cover((0, 0), (1, 1), shape=(33, 33))
    post = hg.GP(hg.Matern32(1.0, 0.2), grid).condition(hg.observe(RAYS, np.ones(60), noise=0.1), hg.Batch())
    exact, sampled = post.std("exact"), post.std("samples", samples=32)
    smooth = display.smoothed(sampled, post.kernel, grid)
    inside = (slice(3, -3),) * 2
    rms = lambda a: float(np.sqrt(np.mean(a[inside] ** 2)))
    assert rms(smooth - exact) < 0.9 * rms(sampled - exact)
    assert rms(np.diff(smooth, axis=0)) < 0.7 * rms(np.diff(sampled, axis=0))


def test_a_series_has_many_vertices_its_data_and_dates(tmp_path):
    when = np.datetime64("2021-03-01") + np.sort(RNG.uniform(0, 90, 40) * 24).astype("m8[h]")
    y = RNG.standard_normal(40)
    data = hg.observe(hg.Points(when), y, noise=0.2) + hg.observe(
        hg.Derivatives(when[:5]), np.zeros(5), noise=0.1
    )
    ax = hg.GP(hg.Matern52(1.0, 20.0), hg.Grid.cover(-1.0, 91.0, shape=23)).condition(data, hg.Batch()).plot()
    curve = max((line for line in ax.lines), key=lambda line: len(line.get_xdata()))
    assert len(curve.get_xdata()) >= 2000 and ax.get_xlabel() == "time"
    ax.figure.canvas.draw()
    assert "Apr" in [t.get_text() for t in ax.get_xticklabels()]
    assert {len(line.get_xdata()) for line in ax.lines} >= {40, 5}


def test_data_on_top_are_without_the_part_of_columns():
    """As the map is, which has no columns."""
    x = np.linspace(0, 1, 30)
    column = np.where(np.arange(30) % 2, 50.0, 0.0)
    data = hg.observe(hg.Points(x), np.sin(6 * x) + column, noise=0.01)
    post = hg.GP(hg.Matern32(1.0, 0.3), trend=np.stack([column], 1)).condition(
        data, hg.Exact(), progress=False
    )
    shown = display.observed(post)
    np.testing.assert_allclose(shown.y, post.predict(x, columns=np.zeros((30, 1))).mean, atol=0.05)
    np.testing.assert_array_equal(shown.noise_std(None), 0.01)


def test_pictures_are_returned_as_axes():
    post = points_in_a_plane()
    mean, std = post.plot()
    assert (mean.get_title(), std.get_title()) == ("posterior mean", "std")
    assert mean.images[0].get_array().shape >= (300, 300) and len(mean.collections) == 1
    fig, ax = plt.subplots()
    assert post.plot(ax, data=False) is ax and not ax.collections and len(fig.axes) == 2
    left, right = post.predict(RNG.uniform(0, 1, (30, 2))).plot()
    assert left.get_xlabel() == "x" and right.get_title() == "std"
    assert post.predict(hg.BoxAverages([[0, 0]], [[1, 1]])).plot().get_ylabel() == "prediction"
    covariance, draws = hg.GP(hg.Matern32(2.0, (1.0, 3.0)), noise=0.3).plot()
    assert len(covariance.lines) == 2 and covariance.lines[0].get_ydata()[0] == pytest.approx(2.0)
    assert len(draws.lines) == 3


def test_a_prediction_of_a_series_is_a_curve_in_order():
    data = hg.observe(hg.Points([0.0, 1.0, 2.0]), [0.0, 1.0, 0.0], noise=0.1)
    ax = hg.GP(hg.Matern32()).condition(data).predict(hg.Points([2.0, 0.0, 1.0])).plot()
    np.testing.assert_array_equal(ax.lines[0].get_xdata(), [0.0, 1.0, 2.0])


def test_volumes_are_planes_on_a_fine_grid():
    x = RNG.uniform(0, 1, (40, 3))
    grid = hg.Grid.cover((0, 0, 0), (1, 1, 1), shape=(8, 9, 7))
    post = hg.GP(hg.Matern32(1.0, 0.5), grid).condition(
        hg.observe(hg.Points(x), x[:, 0], noise=0.1), hg.Batch()
    )
    seen = display.view(post)
    assert seen.mean.shape[:2] >= (300, 300) and seen.mean.shape[2] == 3
    np.testing.assert_allclose(seen.planes, grid.axes[2][[2, 3, 4]])
    steps = [(m - 1) // (n - 1) for m, n in zip(seen.mean.shape[:2], grid.shape[:2], strict=True)]
    np.testing.assert_allclose(seen.mean[:: steps[0], :: steps[1]], post.mean[:, :, [2, 3, 4]], atol=1e-9)
    assert len(post.plot()) == 6
    with pytest.raises(ValueError, match="ax: expected None for a volume"):
        post.plot(plt.subplots()[1])


def test_colours_diverge_only_about_zero():
    signed, positive = RNG.standard_normal((5, 5)), RNG.uniform(1, 2, (5, 5))
    found = plots.scale(signed)
    assert found["cmap"] == plots.SIGNED and found["vmin"] == -found["vmax"]
    assert plots.scale(positive)["cmap"] == plots.scale(signed, positive)["cmap"] == plots.VALUE
