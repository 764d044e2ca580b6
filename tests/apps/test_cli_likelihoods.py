"""Counts, probabilities and outliers from tables: `hipgp fit --likelihood`, and what is refused."""

import json
import os
import pathlib

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import hipgp as hg
from hipgp import display
from hipgp.apps.cli import app

RNG = np.random.default_rng(0)
X = RNG.uniform(0, 1, (120, 2))
PEOPLE = RNG.integers(5, 60, 120)
RATE = 0.3 * np.exp(np.sin(5 * X[:, 0]))
TABLE = pd.DataFrame(
    {"x": X[:, 0], "y": X[:, 1], "cases": RNG.poisson(RATE * PEOPLE), "population": PEOPLE, "error": 1.0}
)
FIXED = ("--lengthscale", "0.4", "--variance", "1", "--shape", "12", "--value", "cases")


def hipgp(*arguments, code=0):
    found = CliRunner().invoke(app, [str(a) for a in arguments])
    assert found.exit_code == code, found.output
    return found


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("counts")
    TABLE.to_csv(place / "table.csv", index=False)
    told = hipgp(
        "fit",
        place / "table.csv",
        "-o",
        place / "map",
        *FIXED,
        "--likelihood",
        "poisson",
        "--exposure",
        "population",
    )
    assert "link: exp, which suits poisson; the field is positive" in told.output
    return place


def test_rates_from_counts_and_populations(folder):
    post = hg.load(folder / "map")
    data = hg.observe(hg.Points(X), TABLE["cases"].to_numpy(), likelihood=hg.Poisson(PEOPLE.astype(float)))
    gp = hg.GP(hg.Matern32(1.0, 0.4), post.grid, trend="constant", link="exp")
    own = gp.condition(data, progress=False).predict(hg.Points(X[:5]))
    found = post.predict(hg.Points(X[:5]))
    np.testing.assert_allclose(found.mean, own.mean, rtol=1e-3)
    told = json.loads(hipgp("info", folder / "map", "--json").output)
    assert told["link"] == "exp" and told["rounds"] > 2 and told["converged"]


def test_predictions_have_asymmetric_intervals_and_may_be_of_new_counts(folder):
    hipgp("predict", folder / "map", folder / "table.csv", "-o", "rates.csv", "-q")
    rates = pd.read_csv("rates.csv")
    assert np.all(rates["lower95"] > 0)
    assert np.all(rates["upper95"] - rates["mean"] > rates["mean"] - rates["lower95"])
    hipgp(
        "predict",
        folder / "map",
        folder / "table.csv",
        "-o",
        "new.csv",
        "--noisy",
        "--exposure",
        "population",
        "-q",
    )
    new = pd.read_csv("new.csv")
    np.testing.assert_allclose(new["mean"], rates["mean"] * PEOPLE, rtol=1e-6)
    inside = (TABLE["cases"] >= new["lower95"]) & (TABLE["cases"] <= new["upper95"])
    assert inside.mean() > 0.9


def test_picture_and_report_of_a_positive_map(folder):
    hipgp("plot", folder / "map", "-o", "map.png")
    hipgp("report", folder / "map", "-o", "map.html")
    page = pathlib.Path("map.html").read_text()
    assert "rounds the posterior moved by" in page and "exp(f) of a Gaussian process f" in page
    assert "whose likelihood is Poisson" in page and os.path.getsize("map.png") > 10_000


def test_a_curve_of_a_positive_field_has_a_band_above_zero():
    x = np.linspace(0, 1, 30)
    data = hg.observe(hg.Points(x), RNG.poisson(0.5, 30), likelihood=hg.Poisson())
    gp = hg.GP(hg.Matern32(1.0, 0.3), hg.Grid.cover(0.0, 1.0, shape=32), trend="constant", link="exp")
    post = gp.condition(data, progress=False)
    lower, upper = post.interval(0.95)
    found = post.predict(hg.Points(post.grid.coordinates()))
    for end, other in zip((lower, upper), found.interval(0.95), strict=True):
        np.testing.assert_allclose(end, other, rtol=1e-5)
    band = display.figure(post).axes[0].collections[0].get_paths()[0].vertices[:, 1]
    assert band.min() > 0 and np.isclose(band.max(), upper.max())


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--likelihood", "poison"), "likelihood: expected gaussian, student-t, poisson"),
        (("--link", "log"), "link: expected none, exp, softplus or logistic"),
        (("--likelihood", "binomial"), "give --trials NAME"),
        (("--likelihood", "poisson", "--trials", "population"), "trials: expected none with --likelihood poisson"),
        (("--exposure", "population"), "exposure: expected none with --likelihood gaussian"),
        (("--likelihood", "poisson", "--noise", "0.1"), "noise: expected neither --noise nor --error with --likelihood poisson"),
        (("--likelihood", "poisson", "--engine", "variational"), "engine: expected batch with a link"),
        (("--likelihood", "poisson", "--exposure", "people"), "no column 'people'"),
        (("--likelihood", "binomial", "--trials", "few"), "y: expected at most as many successes as trials"),
        (("--likelihood", "poisson", "--exposure", "none"), "exposure: expected positive numbers, got 0"),
        (("--likelihood", "bernoulli"), "y: expected at most as many successes as trials"),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_refused(flags, message):
    TABLE.assign(few=1, none=0).to_csv("table.csv", index=False)
    found = hipgp("fit", "table.csv", *FIXED, *flags, "-q", code=2)
    assert message in found.output.replace("\n", " ")


def test_limits_of_detection_are_a_number_or_a_column():
    """Both tell the same, and more than the values taken as they are."""
    faint = pd.DataFrame({"x": np.linspace(0, 1, 40), "limit": 0.5})
    faint["flux"] = np.maximum(np.exp(np.sin(6 * faint["x"]) - 0.5), 0.5)
    faint.to_csv("faint.csv", index=False)
    flags = (
        "--coordinates",
        "x",
        "--value",
        "flux",
        "--noise",
        "0.05",
        "--lengthscale",
        "0.3",
        "--variance",
        "1",
        "--shape",
        "24",
    )
    for name, limit in (
        ("one", ("--lower-limit", "0.5")),
        ("column", ("--lower-limit", "limit")),
        ("none", ()),
    ):
        told = hipgp("fit", "faint.csv", "-o", name, *flags, *limit, "--link", "exp")
        assert ("up to the limits limit" in told.output) == (name == "column")
    one, column, none = (hg.load(name) for name in ("one", "column", "none"))
    np.testing.assert_allclose(one.mean, column.mean, rtol=1e-6)
    lowest = hg.Points([0.78])
    assert one.predict(lowest).mean[0] < 0.4 < none.predict(lowest).mean[0]


def test_limits_that_do_not_go_are_refused():
    TABLE.to_csv("table.csv", index=False)
    for flags, message in (
        (
            ("--likelihood", "poisson", "--lower-limit", "1"),
            "limits go with gaussian, student-t, gamma, log-normal",
        ),
        (
            ("--lower-limit", "nan", "--noise", "1"),
            "lower_limit: expected a finite number or the name of a column",
        ),
        (("--lower-limit", "3", "--upper-limit", "2", "--noise", "1"), "check whether they are swapped"),
    ):
        found = hipgp("fit", "table.csv", *FIXED, *flags, "-q", code=2)
        assert message in found.output.replace("\n", " ")
