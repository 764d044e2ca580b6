"""Tables with dates, through the command: the answer that arrays of dates have in Python, and dates wherever one looks."""

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import hipgp as hg
from hipgp import display, plots
from hipgp.apps import report
from hipgp.apps.cli import app, tables
from hipgp.apps.cli.console import BadInput

WHEN = pd.date_range("2020-03-01 06:00", periods=40, freq="8h", tz="Europe/Berlin")
Y = np.sin(np.arange(40) / 6)
TABLE = pd.DataFrame({"time": WHEN, "value": Y, "error": 0.1})
ASKED = pd.DataFrame({"time": WHEN[[3, 20]] + pd.Timedelta(hours=5)})
FIXED = ("--lengthscale", "4", "--variance", "1", "--shape", "60")


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def hipgp(*arguments, code=0):
    found = CliRunner().invoke(app, [str(a) for a in arguments])
    assert found.exit_code == code, found.output
    return found.output.replace("\n", " ")


def test_dates_in_files_have_the_answer_of_dates_in_arrays():
    TABLE.to_csv("t.csv", index=False)
    TABLE.to_parquet("t.parquet")
    TABLE.assign(time=WHEN.tz_convert("UTC").strftime("%Y-%m-%d %H:%M")).to_csv("naive.csv", index=False)
    ASKED.to_csv("asked.csv", index=False)
    data = hg.observe(hg.Points(WHEN), Y, noise=0.1)
    grid = hg.Grid.cover(data.blocks[0].functional.x.min(), data.blocks[0].functional.x.max(), shape=60)
    post = hg.GP(hg.Matern32(1.0, 4.0), grid, trend="constant").condition(data)
    expected = post.predict(ASKED["time"])
    for name in ("t.csv", "t.parquet", "naive.csv"):
        hipgp("fit", name, *FIXED, "-o", "map.hipgp", "--overwrite")
        back = hg.load("map.hipgp")
        assert back.labels.axis_units == ("days since 2020-03-01",) and back.labels.axes == ("time",)
        np.testing.assert_allclose(back.predict(ASKED["time"])[:2], expected[:2], rtol=1e-7)
        hipgp("predict", "map.hipgp", "asked.csv", "-o", "p.csv", "--overwrite")
        np.testing.assert_allclose(
            pd.read_csv("p.csv")[["mean", "std"]].to_numpy().T, expected[:2], rtol=1e-7
        )
    said = hipgp("info", "map.hipgp")
    assert "2020-03-01 05:00:00" in said and "lengthscale 4 days" in said
    page = report.page("map.hipgp")
    assert "time from 2020-03-01 05:00:00 to 2020-03-14 05:00:00" in page and "lengthscale 4 days" in page
    axis = display.figure(back).axes[0]
    axis.figure.canvas.draw()
    assert axis.get_xlabel() == "time"
    ticks = [label.get_text() for label in axis.get_xticklabels()]
    assert ticks == ["05", "09", "13"] and axis.xaxis.get_major_formatter().get_offset() == "2020-Mar"


def test_dates_and_numbers_do_not_mix():
    TABLE.to_csv("t.csv", index=False)
    TABLE.assign(time=np.arange(40.0)).to_csv("numbers.csv", index=False)
    assert "expected dates like the others" in hipgp("fit", "t.csv", "numbers.csv", *FIXED, code=2)
    hipgp("fit", "t.csv", *FIXED, "--std", "none")
    said = hipgp("predict", "map.hipgp", "numbers.csv", "-o", "p.csv", code=2)
    assert "expected places in 'days since 2020-03-01' like the data, got plain numbers" in said
    wrong = TABLE.assign(error=WHEN)
    wrong.to_parquet("wrong.parquet")
    assert "column 'error' should hold numbers, but holds dates" in hipgp(
        "fit", "wrong.parquet", *FIXED, "--overwrite", code=2
    )


def sheet(**columns):
    return tables.Sheet(pd.DataFrame(columns), {})


def numbers(drop=False, **columns):
    made = sheet(**columns)
    return tables.numbers(made, list(columns), drop, "t.csv", len(columns))


@pytest.mark.parametrize("word", ["01/02/2020", "yesterday", "2020-02-30"])
def test_dates_that_cannot_be_read_are_refused_with_their_row(word):
    with pytest.raises(
        BadInput, match=r"t.csv: column 'time' should hold dates such as .*but row 3 has '" + word
    ):
        numbers(time=["2020-02-01", word, "2020-02-03"])
    with pytest.raises(
        BadInput, match=r"should hold numbers, but row 2 has '1/2/2020'.*; write dates as 2020-02-01"
    ):
        numbers(time=["1/2/2020", "2/2/2020"])


def test_missing_dates_are_refused_or_dropped():
    columns = {"time": ["2020-02-01", None, "2020-02-03T12:00+02:00"], "x": [1.0, 2.0, 3.0]}
    with pytest.raises(BadInput, match=r"1 rows have empty.*rows 3"):
        numbers(**columns)
    table, good, units = numbers(True, **columns)
    np.testing.assert_allclose(table, [[0.0, 1.0], [2 + 10 / 24, 3.0]])
    assert good.tolist() == [True, False, True] and units == {"time": "days since 2020-02-01"}


def test_rows_of_spans_have_dates_at_both_ends():
    made = sheet(lower_t=["2020-02-01", "2020-02-05"], upper_t=["2020-02-03", "2020-02-09"], value=[1.0, 2.0])
    columns = tables.infer(made)
    assert columns.kind == "averages"
    functional, _, _ = tables.functional(made, columns, False, False)
    np.testing.assert_array_equal(functional.places()[:, :, 0], [[0, 2], [4, 8]])
    assert functional.units == ("days since 2020-02-01",)
    half = sheet(lower_t=["2020-02-01"], upper_t=[3.0], value=[1.0])
    with pytest.raises(
        BadInput, match="expected dates at both ends of an axis or at none, got lower_t alone"
    ):
        tables.functional(half, tables.infer(half), False, False)


@pytest.mark.parametrize("name", ["date", "Datetime", "timestamp", "time"])
def test_columns_of_dates_are_found_by_their_names(name):
    assert tables.infer(sheet(**{name: ["2020-01-01"], "value": [1.0]})).first == (name,)


def test_maps_and_slices_have_dates_along_an_axis():
    grid = hg.Grid.cover((0, 0), (60, 1), shape=(7, 5))
    labels = hg.model.labels.Labels.of(2, ("time", "depth"), ("days since 2020-03-01", "m"))
    axis = plots.maps({"mean": np.ones(grid.shape)}, grid, labels).axes[0]
    axis.figure.canvas.draw()
    assert axis.get_xlabel() == "time" and axis.get_ylabel() == "depth [m]"
    assert "Apr" in [label.get_text() for label in axis.get_xticklabels()]
    low, high = axis.get_xlim()
    expected = [np.datetime64("2020-03-01") + np.timedelta64(days, "D") for days in (-5, 65)]
    np.testing.assert_allclose([low, high], [d.astype("M8[D]").astype(float) for d in expected])
