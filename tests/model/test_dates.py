"""Dates as coordinates: of any library and resolution the same days, in data, predictions, files and the regressor."""

import datetime as dt
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pytest
import xarray as xr

import hipgp as hg
from hipgp.model import dates

HOURS = np.array([6, 30, 33, 100, 240])  # after 2020-03-27T00Z; clocks in Berlin go forward on the 29th
DAYS = HOURS / 24
STAMPS = pd.Timestamp("2020-03-27", tz="UTC") + pd.to_timedelta(HOURS, "h")
NAIVE = STAMPS.tz_localize(None)
KERNEL = hg.Matern32(variance=1.0, lengthscale=3.0)

GIVEN = {
    "pandas index": NAIVE,
    "pandas series": pd.Series(NAIVE, index=[5, 4, 3, 2, 1]),
    "a table": pd.DataFrame({"when": NAIVE}),
    "xarray": xr.DataArray(NAIVE.to_numpy()),
    "timestamps": list(NAIVE),
    "datetimes": [t.to_pydatetime() for t in NAIVE],
    "an array of objects": np.array([t.to_pydatetime() for t in NAIVE]),
    "a column of objects": np.array([[t] for t in NAIVE], object),
    "UTC": STAMPS,
    "Berlin": STAMPS.tz_convert("Europe/Berlin"),
    "a series in Berlin": pd.Series(STAMPS.tz_convert("Europe/Berlin")),
    "datetimes in New York": [t.to_pydatetime().astimezone(ZoneInfo("America/New_York")) for t in STAMPS],
    "datetime64 scalars": list(NAIVE.to_numpy()),
    **{unit: NAIVE.to_numpy().astype(f"M8[{unit}]") for unit in ("h", "m", "s", "ms", "us", "ns")},
    "a column": NAIVE.to_numpy()[:, None],
}


@pytest.mark.parametrize("given", GIVEN.values(), ids=GIVEN.keys())
def test_dates_of_all_kinds_are_the_same_days(given):
    points = hg.Points(given)
    np.testing.assert_allclose(points.x, DAYS[:, None], rtol=0, atol=1e-13)
    assert points.units == ("days since 2020-03-27",) and points.x.dtype == np.float64


def test_astropy_times_are_dates():
    time = pytest.importorskip("astropy.time")
    points = hg.Points(time.Time(NAIVE.to_numpy()))
    np.testing.assert_allclose(points.x[:, 0], DAYS, atol=1e-9)


@pytest.mark.parametrize(
    ("given", "days"),
    [
        (np.array(["2020-01", "2021-03"], "M8[M]"), [0, 425]),
        (np.array(["1900", "2100"], "M8[Y]"), [0, 73049]),
        ([dt.date(1, 1, 1), dt.date(9999, 12, 31)], [0, 3652058]),
        (
            np.array(["2020-01-01T00:00:00.000000001", "2020-01-01T00:00:00.000000003"], "M8[ns]"),
            [1e-9 / 86400, 3e-9 / 86400],
        ),
        (np.array(["1969-12-31T23:00", "1970-01-01T01:00"], "M8[s]"), [23 / 24, 25 / 24]),
        (np.array([0, 5], "M8[ps]"), [0, 5e-12 / 86400]),
    ],
)
def test_no_resolution_and_no_century_is_lost(given, days):
    np.testing.assert_allclose(hg.Points(given).x[:, 0], days, rtol=1e-15)


def test_dates_that_are_missing_or_none_are_refused():
    with pytest.raises(
        ValueError, match=r"^x: expected dates, got NaT \(no date\) at index \(1,\) \(1 of 5 are missing"
    ):
        hg.Points(pd.Series(NAIVE).where(np.arange(5) != 1))
    with pytest.raises(
        ValueError, match=r"^x: expected dates throughout, got 'noon' at index 1; convert with"
    ):
        hg.Points([NAIVE[0].to_pydatetime(), "noon"])
    with pytest.raises(ValueError, match=r"^x\['when'\]: expected dates, got NaT"):
        hg.Points(pd.DataFrame({"when": [NAIVE[0], pd.NaT], "depth": [1.0, 2.0]}))
    with pytest.raises(ValueError, match=r"^x: .*timedelta64.*divide by a unit of time"):
        hg.Points(NAIVE.to_numpy() - NAIVE.to_numpy()[0])
    with pytest.raises(ValueError, match=r"^y: .*dates can be coordinates only"):
        hg.observe(hg.Points(DAYS), NAIVE.to_numpy())


def test_beside_dates_an_axis_may_have_numbers():
    table = pd.DataFrame({"when": STAMPS.tz_convert("Asia/Tokyo"), "depth": [1, 2, 3, 4, 5]})
    for given in (table, table.to_numpy()):
        points = hg.Points(given)
        np.testing.assert_allclose(points.x, np.stack([DAYS, [1, 2, 3, 4, 5]], axis=1), atol=1e-13)
        assert points.units == ("days since 2020-03-27", "")


def test_spans_of_time_have_one_origin():
    start, end = NAIVE.to_numpy()[:, None], (NAIVE + pd.Timedelta(days=40)).to_numpy()[:, None]
    for made in (hg.LineIntegrals(start, end, average=True), hg.BoxAverages(start, end)):
        np.testing.assert_allclose(made.places()[:, :, 0], np.stack([DAYS, DAYS + 40], axis=1), atol=1e-12)
        assert made.units == ("days since 2020-03-27",)
    with pytest.raises(
        ValueError, match=r"^end: expected dates like the others along this axis, got plain numbers"
    ):
        hg.LineIntegrals(start, DAYS[:, None])


def _data(given, y):
    return hg.observe(hg.Points(given), y, noise=0.1)


def test_data_with_dates_have_the_posterior_of_the_same_days():
    y = np.sin(DAYS)
    plain = hg.GP(KERNEL, trend="linear").condition(_data(DAYS, y))
    dated = hg.GP(KERNEL, trend="linear").condition(_data(NAIVE, y))
    when = pd.to_datetime(
        ["2020-03-20", "2020-03-28T12:00", "2020-05-01"], format="ISO8601"
    )  # before, within and beyond the data
    ahead = (when - pd.Timestamp("2020-03-27")) / pd.Timedelta("1D")
    known, found = plain.predict(ahead), dated.predict(when)
    np.testing.assert_allclose(found.mean, known.mean, rtol=1e-9)
    np.testing.assert_allclose(found.std, known.std, rtol=1e-9)
    assert dated.units == ("days since 2020-03-27",) and dated.labels.axes == ("time",)
    assert list(found.to_frame().columns) == ["time", "mean", "std"]
    assert list(found.to_frame()["time"]) == list(when)
    np.testing.assert_allclose(dated.sample(2, at=when), plain.sample(2, at=ahead), rtol=1e-6)
    slopes = dated.predict(hg.Derivatives(when)).mean, plain.predict(hg.Derivatives(ahead)).mean
    np.testing.assert_allclose(*slopes, rtol=1e-9)


def test_data_with_other_first_days_are_brought_together():
    y = np.arange(5.0)
    whole = _data(NAIVE, y)
    parts = _data(NAIVE[3:], y[3:]) + _data(NAIVE[:3], y[:3])
    assert parts.units == ("days since 2020-03-31",)
    at = pd.to_datetime(["2020-03-29"])
    found = [hg.GP(KERNEL).condition(data).predict(at) for data in (whole, parts)]
    np.testing.assert_allclose(found[0].mean, found[1].mean, rtol=1e-10)
    with pytest.raises(
        ValueError, match=r"^functional: expected dates like the others along this axis, got plain"
    ):
        whole + _data(DAYS, y)
    with pytest.raises(
        ValueError, match=r"^functional: expected plain numbers like the others along this axis, got dates"
    ):
        _data(DAYS, y) + whole


def test_a_saved_map_knows_its_dates(tmp_path):
    post = hg.GP(KERNEL).condition(_data(NAIVE, np.sin(DAYS)))
    post.save(tmp_path / "map")
    back = hg.load(tmp_path / "map")
    at = pd.to_datetime(["2020-03-29T06:00"])
    assert back.predict(at).mean == post.predict(at).mean
    assert back.labels == post.labels and back.units == post.units
    decoded = xr.decode_cf(back.to_xarray())["time"].to_numpy()
    expected = np.datetime64("2020-03-27") + (post.grid.axes[0] * 86400e6).astype("m8[us]")
    assert np.max(np.abs(decoded - expected)) <= np.timedelta64(2, "us")
    with pytest.raises(
        ValueError, match=r"^functional: expected places in 'days since 2020-03-27' like the data, got plain"
    ):
        back.predict([3.0])
    there = hg.Points([2.25]).given_in(back.units)
    np.testing.assert_allclose(back.predict(there).mean, post.predict(at).mean)
    with pytest.raises(ValueError, match=r"^axis_units: expected days since 2020-03-27 like the data, got h"):
        back.labelled(("t",), "h")
    assert back.labelled(("t",)).labels.axis_units == ("days since 2020-03-27",)


def test_a_map_labelled_with_dates_is_asked_for_dates():
    post = (
        hg.GP(KERNEL).condition(_data(DAYS, np.sin(DAYS))).labelled(("t",), "hours since 2020-03-27 12:00:00")
    )
    at = pd.to_datetime(["2020-03-27T15:30"])
    np.testing.assert_allclose(post.predict(at).mean, post.predict([3.5]).mean)
    unlabelled = post.labelled(("t",), "parsecs since 1")
    with pytest.raises(
        ValueError, match=r"^functional: expected quantities in 'parsecs since 1' like the others"
    ):
        unlabelled.predict(at)


def test_learned_lengthscales_are_durations():
    rng = np.random.default_rng(0)
    when = pd.Timestamp("2020-01-01") + pd.to_timedelta(np.arange(80) * 8, "h")
    y = np.sin(np.arange(80) / 10) + 0.1 * rng.standard_normal(80)
    gp = hg.GP(hg.Matern32()).learn(_data(when, y), progress=False)
    days = float(gp.kernel.lengthscale)
    assert f"lengthscale: {days:.3g} days ±" in repr(gp)
    later = pd.DatetimeIndex(when) + pd.Timedelta(days=1000)
    moved = gp.condition(
        hg.observe(hg.Points(later), y, noise=0.1)
    )  # the kernel is in days since the first data's origin
    assert moved.units == ("days since 2020-01-01",)


@pytest.mark.parametrize(
    ("days", "said"),
    [
        (1500.0, "4.11 years"),
        (12.34, "12.3 days"),
        (1.5, "36 hours"),
        (0.05, "72 minutes"),
        (1e-4, "8.64 seconds"),
        (1e-9, "86.4 µs"),
    ],
)
def test_durations_are_said_in_a_unit_that_suits(days, said):
    assert dates.length(days, "days since 2020-01-01") == said
    assert dates.length(days * 24, "hours since 2020-01-01") == said


def test_the_regressor_takes_dates():
    pytest.importorskip("sklearn")
    when = pd.Timestamp("2020-01-01T03:00") + pd.to_timedelta(np.arange(40) * 8, "h")
    days, y = (np.arange(40) * 8 + 3) / 24, np.sin(np.arange(40) / 5)
    settings = {"kernel": KERNEL, "noise": 0.1, "learn": False}
    plain = hg.HIPGPRegressor(**settings).fit(days[:, None], y)
    ahead = when[[3, 39]] + pd.Timedelta(days=30)
    expected = plain.predict(days[[3, 39], None] + 30, return_std=True)
    for fitted, asked in (
        (pd.DataFrame({"when": when}), pd.DataFrame({"when": ahead})),
        (when.to_numpy()[:, None], ahead.to_numpy().astype("M8[s]")[:, None]),
    ):
        model = hg.HIPGPRegressor(**settings).fit(fitted, y)
        np.testing.assert_allclose(model.predict(asked, return_std=True), expected, rtol=1e-8)
        assert model.units_ == ("days since 2020-01-01",) and model.posterior_.units == model.units_
        with pytest.raises(
            ValueError, match=r"^X: expected columns in 'days since 2020-01-01' like those of fit, got plain"
        ):
            model.predict(days[:, None])
    draws = model.sample_y(asked, 2)
    np.testing.assert_allclose(draws, plain.sample_y(days[[3, 39], None] + 30, 2), rtol=1e-6)


def test_places_in_words_and_units_without_a_date():
    assert dates.place(1.5, "days since 2020-01-01") == "2020-01-02 12:00:00"
    assert dates.place(2.0, "days since 2020-01-01") == "2020-01-03"
    assert dates.place(1.23456, "kpc") == "1.235"
    assert dates.origin("days since yesterday") is None and dates.origin("days since NaT") is None
