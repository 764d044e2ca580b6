"""What objects say of themselves at the prompt and in notebooks, and what predictions turn into."""

from importlib import resources

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from scipy.stats import norm

import hipgp as hg

X = np.random.default_rng(0).uniform(0, 1, (40, 2))
Y = np.sin(5 * X[:, 0]) + X[:, 1]
GRID = hg.Grid.cover((0, 0), (1, 1), shape=(9, 8), margin=0.05)
KERNEL = hg.Matern32(variance=1.0, lengthscale=0.4)
PLACES = np.array([[0.2, 0.3], [0.7, 0.1], [0.5, 0.5]])


@pytest.fixture(scope="module")
def post():
    return hg.GP(KERNEL, GRID, trend="constant").condition(hg.observe(hg.Points(X), Y, noise=0.1))


def test_an_array_of_places_means_points(post):
    given, named = post.predict(PLACES), post.predict(hg.Points(PLACES))
    for a, b in zip(given[:2], named[:2], strict=True):
        np.testing.assert_array_equal(a, b)
    drawn = post.sample(2, key=3, at=PLACES)
    np.testing.assert_array_equal(drawn, post.sample(2, key=3, at=hg.Points(PLACES)))
    with pytest.raises(
        ValueError, match=r"^grid: expected 1 dimension like the places, got 2; write \[\[x, y\]\]"
    ):
        post.predict([0.2, 0.3])


def test_a_prediction_becomes_a_frame_with_its_places(post):
    found = post.labelled(("east", "north")).predict(PLACES)
    frame = found.to_frame()
    assert list(frame.columns) == ["east", "north", "mean", "std"]
    np.testing.assert_array_equal(frame["north"], PLACES[:, 1])
    np.testing.assert_array_equal(frame["std"], found.std)
    rays = post.predict(hg.LineIntegrals((0.0, 0.0), PLACES), std="samples").to_frame()
    assert list(rays.columns) == ["start_x", "start_y", "end_x", "end_y", "mean", "std", "std_error"]
    boxes = post.predict(hg.BoxAverages(PLACES, PLACES + 0.1)).to_frame()
    assert list(boxes.columns)[:4] == ["lower_x", "lower_y", "upper_x", "upper_y"]
    mean, std, error = found  # still a tuple of three
    assert mean is found.mean and std is found.std and error is None


def test_a_prediction_with_noise_is_of_new_measurements(post):
    found = post.predict(PLACES)
    noise = np.array([0.1, 0.0, 2.0])
    noisy = found.with_noise(noise)
    np.testing.assert_allclose(noisy.std, np.sqrt(found.std**2 + noise**2), rtol=1e-12)
    np.testing.assert_allclose(noisy.quantile(0.9), found.mean + norm.ppf(0.9) * noisy.std)
    assert list(noisy.to_frame().columns) == ["x", "y", "mean", "std"]
    sampled = post.predict(PLACES, std="samples")
    rng = np.random.default_rng(0)  # the error of sqrt(s^2 + n^2) where s has an error
    shifted = np.hypot(sampled.std + 1e-6 * rng.standard_normal(3), noise)
    slope = (shifted - np.hypot(sampled.std, noise)) / 1e-6
    rng = np.random.default_rng(0)
    expected = slope / rng.standard_normal(3) * sampled.std_error
    np.testing.assert_allclose(sampled.with_noise(noise).std_error, expected, rtol=1e-4)
    for wrong in (-0.1, [0.1, 0.2]):
        with pytest.raises(ValueError, match=r"^noise: expected a standard deviation"):
            found.with_noise(wrong)


def test_to_xarray_computes_the_std_and_a_loaded_map_keeps_its_own(post, tmp_path):
    std, draws = post.std(), post.sample(2)
    np.testing.assert_array_equal(post.to_xarray(std=True)["std"], std)
    assert "std" not in post.to_xarray()
    post.save(tmp_path / "m", std=2 * std, samples=draws)
    back = hg.load(tmp_path / "m")
    for made in (back.to_xarray(), back.to_xarray(std=True), back.labelled(("a", "b")).to_xarray()):
        np.testing.assert_array_equal(made["std"], 2 * std)
        np.testing.assert_array_equal(made["samples"], draws)
    assert set(back.to_xarray(std=False, samples=False).data_vars) == {"mean"}
    back.save(tmp_path / "again")
    np.testing.assert_array_equal(hg.load(tmp_path / "again").to_xarray()["std"], 2 * std)
    with pytest.raises(ValueError, match=r"^samples: expected draws"):
        post.to_xarray(samples=True)
    assert isinstance(back.to_xarray(), xr.Dataset)


def test_kernels_show_their_values():
    kernel = (hg.Matern32(2.0, (0.5, 1 / 3)) + hg.Matern12()) * hg.RationalQuadratic(alpha=3.0)
    assert repr(kernel) == (
        "(Matern32(variance=2, lengthscale=(0.5, 0.333333)) + Matern12(variance=1, lengthscale=1)) * "
        "RationalQuadratic(variance=1, lengthscale=1, alpha=3)"
    )
    assert kernel.left.left._repr_html_() == "<b>Matern32(variance=2, lengthscale=(0.5, 0.333333))</b>"
    shown = kernel._repr_html_()
    assert shown.startswith("<b>(Matern32 + Matern12) * RationalQuadratic</b><table>")
    assert (
        "<td>1. Matern32</td><td style='text-align: left'>variance 2, lengthscale (0.5, 0.333333)</td>"
        in shown
    )
    assert "3. RationalQuadratic" in shown and "alpha 3<" in shown
    assert "auto" in hg.GP("auto").kernel._repr_html_()
    import jax

    seen = []
    jax.jit(lambda k: seen.append(repr(k)))(hg.Matern12())
    assert seen == ["Matern12(variance=float64[], lengthscale=float64[])"]


def test_objects_show_themselves_in_a_few_lines(post):
    data = hg.observe(hg.Points(X), Y, noise=0.1) + hg.observe(
        hg.BoxAverages(X, X + 1), np.round(Y), likelihood=None
    )
    assert repr(data) == (
        f"Data: 80 observations in 2 dimensions\n  block 1: 40 Points, y from {Y.min():.4g} to {Y.max():.4g}, noise 0.1\n"
        "  block 2: 40 BoxAverages, y from -1 to 2, noise to be learned"
    )
    assert (
        repr(GRID)
        == "Grid(shape=(9, 8), lower=(-0.05, -0.05), upper=(1.05, 1.05), spacing=(0.1375, 0.157143))"
    )
    noisy = Y + 0.1 * np.random.default_rng(1).standard_normal(40)
    learned = hg.GP(KERNEL, GRID).learn(hg.observe(hg.Points(X), noisy), progress=False, polish=False)
    said = repr(learned)
    for name, text in learned.learned.rows.items():
        assert f"\n  learned {name}: {text}" in said
        assert f"<td>{name}</td><td style='text-align: left'>{text}</td>" in learned.learned._repr_html_()
    assert "±" in said and "trace" not in said
    for shown in (repr(post), said):
        assert len(shown.splitlines()) <= 8 and "f64" not in shown and "array(" not in shown
        assert "Matern32(variance=" in shown and repr(GRID) in shown
    for thing in (post, learned, data, GRID):
        title = repr(thing).splitlines()[0]
        assert thing._repr_html_().startswith(f"<b>{title}</b>")
    assert "<script>" not in post.labelled(name="<script>")._repr_html_()


def test_predictions_show_themselves_in_a_few_lines(post):
    assert repr(post.predict(PLACES)).startswith("Prediction(mean=[")
    assert len(repr(post.predict(GRID.coordinates()))) < 150
    assert post.predict(GRID.coordinates())._repr_html_().count("<tr") <= 12


def test_only_public_names_are_listed():
    listed = dir(hg)
    assert {"GP", "HIPGPRegressor", "plots", "report", "simulate", "demos"} <= set(listed)
    assert not [name for name in listed if name.startswith("_") and name != "__version__"]
    assert {"importlib", "TYPE_CHECKING", "Any", "annotations"}.isdisjoint(listed)


def test_columns_of_a_table_name_the_axes():
    table = pd.DataFrame({"easting": X[:, 0], "depth": X[:, 1], "salt": Y})
    post = hg.GP(KERNEL).condition(hg.observe(table, "salt", 0.1), hg.Exact(), progress=False)
    assert post.labels.axes == ("easting", "depth") and post.labels.name == "salt"
    assert post.labelled(unit="g").labels.value() == "salt [g]"
    sums = hg.observe(hg.LineIntegrals(X, X + 1), table["salt"], 0.1)
    assert (sums.name, hg.observe(hg.Points(X), table["salt"]).name) == ("", "salt")
    assert hg.observe(table.round(), "salt", likelihood=hg.StudentT()).name == "salt"
    assert hg.observe(hg.Points(X), table["salt"].abs().round(), likelihood=hg.Poisson()).name == ""
    asked = table.assign(ship="Meteor")[["depth", "ship", "easting"]][:3]
    found = post.predict(asked)
    assert list(found.columns) == ["depth", "ship", "easting", "mean", "std"]
    np.testing.assert_array_equal(found["mean"], post.predict(X[:3]).mean)
    reserved = hg.observe(table.rename(columns={"depth": "mean"}), "salt", 0.1)
    assert hg.GP(KERNEL).condition(reserved, hg.Exact(), progress=False).labels.axes == ("x", "y")


def test_a_name_that_is_spelt_wrong_has_its_nearest_suggested():
    with pytest.raises(AttributeError) as caught:
        hg.Matern23  # noqa: B018
    assert (caught.value.name, caught.value.obj) == ("Matern23", hg)
    with pytest.raises(ValueError, match=r"got ndarray; write hg.Points\(x\) for values at the places x"):
        hg.observe(X, Y, 0.1)


def test_types_are_declared():
    """The wheel holds every file of the package."""
    assert resources.files("hipgp").joinpath("py.typed").is_file()
