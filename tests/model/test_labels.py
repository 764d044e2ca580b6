"""Any label a user gives is kept in files and shown in pictures and reports as it is, or refused before the work."""

import io as buffers

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from typer.testing import CliRunner

import hipgp as hg
from hipgp import plots
from hipgp.apps import report
from hipgp.apps.cli import app
from hipgp.files import io
from hipgp.model.labels import Labels

X = np.random.default_rng(0).uniform(0, 1, (40, 2))
GRID = hg.Grid.cover((0, 0), (1, 1), shape=(9, 8), margin=0.05)
ODD = {
    "a formula of no meaning": r"$\undefinedthing$",
    "half a formula": r"$\frac{1$",
    "one dollar": "price [$",
    "a place of the template": "{{PICTURES}}",
    "a script": "<script>alert(1)</script>",
    "a path": "x/km",
    "a path upwards": "../../x",
    "a part of the map": "model",
    "a file of the archive": "zarr.json",
    "zarr's own": "__reserved",
    "Greek": "λ in µm",
    "braces and percents": "{x} %s {0}",
    "quotes": '"it\'s"',
}


@pytest.fixture(scope="module")
def post():
    data = hg.observe(hg.Points(X), np.sin(5 * X[:, 0]) + X[:, 1], noise=0.1)
    return hg.GP(hg.Matern32(1.0, 0.4), GRID).condition(data)


@pytest.mark.parametrize("label", ODD.values(), ids=ODD.keys())
def test_odd_labels_are_kept_and_shown(post, tmp_path, label):
    path, std = tmp_path / "map.hipgp", np.ones(GRID.shape)
    named = post.labelled((label, "y"), (label, ""), label, label)
    named.save(path, std=std)
    back = hg.load(path)
    assert back.labels == named.labels
    assert back.to_xarray(std)["mean"].dims == (label, "y")
    shown = label.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    page = report.page(path)
    title = page.split("<title>")[1].split("</title>")[0]
    assert title.replace("&quot;", '"').replace("&#x27;", "'") == f"{shown}: map.hipgp"
    assert page.count("<figure>") == len(report.pictures(back, back.leave_out()))
    figure = plots.maps({label: back.mean, "std": std}, GRID, named.labels, title=label)
    plots.save(figure, tmp_path / "map.svg")
    assert figure.axes[0].get_title() == label


@pytest.mark.parametrize("label", ODD.values(), ids=ODD.keys())
def test_odd_labels_fit_into_fits(post, tmp_path, label):
    fits = pytest.importorskip("astropy.io.fits")
    post.labelled((label, "y"), (label, "km"), label, label).to_fits(tmp_path / "map.fits")
    header = fits.getheader(tmp_path / "map.fits")
    escaped = label.encode("ascii", "backslashreplace").decode()
    assert header["CNAME1"] == header["CUNIT1"] == header["BUNIT"] == escaped


@pytest.mark.parametrize("label", [*ODD.values(), "axis1"], ids=[*ODD, "another axis"])
def test_odd_labels_fit_into_netcdf(post, label):
    labels = Labels.of(2, (label, "λ"), (label, "months since 1970-01-01"), label, label)
    content = io.netcdf(io.dataset(GRID, labels, {"samples": post.mean[None]}), labels)
    with xr.open_dataset(buffers.BytesIO(content), decode_times=False) as made:
        assert made["axis0"].attrs == {"long_name": label, "units": label}
        np.testing.assert_array_equal(made["axis1"], GRID.axes[1])
        np.testing.assert_array_equal(made["samples"][0], post.mean)


def test_a_literal_label_is_drawn_as_its_letters(tmp_path):
    """And a formula as a formula."""
    width = {}
    for text in (r"$\undefinedthing$", r"\undefinedthing", r"$\alpha$"):
        figure = plots.maps({text: np.ones(GRID.shape)}, GRID, Labels.of(2))
        plots.save(figure, tmp_path / "map.png")
        width[text] = figure.axes[0].title.get_window_extent().width
    assert width[r"$\undefinedthing$"] > width[r"\undefinedthing"] > 5 * width[r"$\alpha$"]


@pytest.mark.parametrize("unit", ["months since 1970-01-01", "days since 2000-01-01", "seconds"])
def test_units_of_time_come_back(post, tmp_path, unit):
    named = post.labelled(("t", "y"), (unit, "km"))
    named.save(tmp_path / "m")
    assert hg.load(tmp_path / "m").labels.axis_units == (unit, "km")
    made = named.to_xarray()
    assert made["t"].attrs["units"] == unit and np.issubdtype(made["t"].dtype, np.floating)


def test_xarray_alone_shows_the_names(post, tmp_path):
    import zarr

    post.labelled(("a/b", "mean of y"), ("months since 1970-01-01", "km")).save(tmp_path / "map.zip")
    with zarr.storage.ZipStore(tmp_path / "map.zip", mode="r") as store:
        made = xr.open_zarr(store, consolidated=False, decode_times=False).load()
    assert made["mean"].dims == ("axis0", "axis1") and made["axis0"].attrs["long_name"] == "a/b"
    np.testing.assert_array_equal(made["axis1"], GRID.axes[1])
    np.testing.assert_array_equal(made["mean"], post.mean)


REFUSED = ["mean", "std", "samples", "sample", "", " ", "a\nb", "a\0", "\x1b[31m", "\ud800", "x" * 201]


@pytest.mark.parametrize("name", REFUSED)
def test_names_that_no_map_can_have_are_refused(post, name):
    with pytest.raises(ValueError, match="axes: expected"):
        post.labelled((name, "y"))


@pytest.mark.parametrize("what", ["axis_units", "name", "unit"])
def test_control_characters_are_refused_everywhere(post, what):
    with pytest.raises(ValueError, match=f"{what}: expected"):
        post.labelled(**{what: "a\nb"})


def test_the_command_refuses_a_name_before_it_learns(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(hg.GP, "learn", None)
    table = pd.DataFrame({"std": X[:, 0], "y": X[:, 1], "value": X[:, 0], "error": 0.1})
    table.to_csv("t.csv", index=False)
    found = CliRunner().invoke(app, ["fit", "t.csv", "--coordinates", "std,y", "--error", "error"])
    assert found.exit_code == 2 and "axes: expected names other than" in found.output
    table.rename(columns={"std": "x"}).to_csv("t.csv", index=False)
    found = CliRunner().invoke(app, ["fit", "t.csv", "--name", "a\tb"])
    assert found.exit_code == 2 and "name: expected" in found.output
