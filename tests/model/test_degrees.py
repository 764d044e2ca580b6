"""Columns and coordinates called longitude and latitude: on a plane in kilometres, or refused, but never plain numbers."""

import sys

import numpy as np
import pandas as pd
import pytest
import xarray as xr

import hipgp as hg

pyproj = pytest.importorskip("pyproj")

RNG = np.random.default_rng(1)
COUNT = 12
TABLE = pd.DataFrame({"Lat": RNG.uniform(44, 46, COUNT), "Lon": RNG.uniform(-76, -74, COUNT)})
Y = np.sin(np.arange(COUNT))
KERNEL = hg.Matern32(1.0, 80.0)
ELLIPSOID = pyproj.Geod(ellps="WGS84")


@pytest.fixture(scope="module")
def post():
    data = hg.observe(TABLE.assign(rain=Y), "rain", 0.1)
    return hg.GP(KERNEL).condition(data, hg.Exact(), progress=False)


def test_distances_are_those_on_the_ellipsoid():
    data = hg.observe(TABLE.assign(rain=Y, error=0.1), "rain", "error")
    assert data.frame.axes == ("km", "km") and "aeqd" in data.frame.crs
    x, (i, j) = data.functionals[0].x, np.triu_indices(COUNT, 1)
    lon, lat = TABLE["Lon"].to_numpy(), TABLE["Lat"].to_numpy()
    *_, metres = ELLIPSOID.inv(lon[i], lat[i], lon[j], lat[j])
    np.testing.assert_allclose(np.linalg.norm(x[i] - x[j], axis=1), metres / 1000, rtol=2e-4)


def test_predictions_take_degrees_in_tables_and_arrays(post):
    found = post.predict(TABLE, progress=False)
    expected = post.predict(hg.observe(TABLE.assign(rain=Y), "rain", 0.1).functionals[0].given_in(post.units))
    assert list(found.columns) == ["Lat", "Lon", "mean", "std"]
    np.testing.assert_allclose(found["mean"], expected.mean, rtol=1e-9)
    grid = xr.Dataset(coords={"lat": [44.5, 45.0, 45.5], "lon": [-75.5, -74.5]})
    on_grid = post.predict(grid, progress=False)
    assert on_grid["mean"].sizes == {"lat": 3, "lon": 2} or on_grid["mean"].sizes == {"lon": 2, "lat": 3}
    at = pd.DataFrame({"lon": [-74.5], "lat": [45.5]})
    one = float(on_grid["mean"].sel(lon=-74.5, lat=45.5))
    np.testing.assert_allclose(one, post.predict(at, progress=False)["mean"].iloc[0], rtol=1e-9)


def test_cells_of_an_array_are_points_or_averages_on_the_plane():
    array = xr.DataArray(
        Y[:6].reshape(2, 3), dims=("lat", "lon"), coords={"lat": [44.0, 45.0], "lon": [-76.0, -75.0, -74.0]}
    )
    points, cells = (hg.observe(array, noise=0.1, kind=kind) for kind in ("points", "averages"))
    table = pd.DataFrame({"lon": np.tile([-76.0, -75.0, -74.0], 2), "lat": np.repeat([44.0, 45.0], 3)})
    same = hg.observe(table.assign(z=Y[:6]), "z", 0.1)
    np.testing.assert_allclose(points.functionals[0].x, same.functionals[0].x)
    np.testing.assert_array_equal(cells.y, Y[:6])
    corners = [ELLIPSOID.polygon_area_perimeter([-0.5, 0.5, 0.5, -0.5], [lat - 0.5] * 2 + [lat + 0.5] * 2)[0]
               for lat in (44.0, 45.0)]  # fmt: skip
    # edges along geodesics there and along parallels here
    np.testing.assert_allclose(cells.functionals[0].area, np.repeat(corners, 3) / 1e6, rtol=3e-3)
    np.testing.assert_allclose(np.mean(cells.functionals[0].places()[0], axis=0)[1], -55.6, atol=2.0)


def test_the_regressor_counts_in_km():
    sklearn = pytest.importorskip("hipgp.estimator")
    model = sklearn.HIPGPRegressor(KERNEL, noise=0.1, learn=False, method=hg.Exact(), trend=None)
    found = model.fit(TABLE, Y).predict(TABLE)
    assert model.crs_ and model.units_ == ("km", "km")
    data = hg.observe(TABLE.assign(rain=Y), "rain", 0.1)
    expected = hg.GP(KERNEL).condition(data, hg.Exact(), progress=False).predict(data.functionals[0])
    np.testing.assert_allclose(found, expected.mean, rtol=1e-8)
    np.testing.assert_allclose(model.predict(TABLE[2:4]), found[2:4], rtol=1e-9)
    with pytest.raises(ValueError, match="X: expected columns in 'km', 'km' like those of fit"):
        model.predict(TABLE.to_numpy())


WHEN = pd.date_range("2024-03-01", periods=COUNT, freq="2D")
STATIONS = TABLE.assign(depth=np.linspace(0, 4, COUNT), rain=Y)
SPREAD = hg.Matern32(1.0, (80.0, 80.0, 2.0))


def on_the_plane(table, origin):
    """Kilometres east and north of a place, by the distances and directions of the ellipsoid."""
    one = np.ones(len(table))
    east, _, metres = ELLIPSOID.inv(origin[0] * one, origin[1] * one, table["Lon"], table["Lat"])
    return np.stack([np.sin(np.radians(east)), np.cos(np.radians(east))], axis=1) * metres[:, None] / 1000


def test_depths_and_dates_beside_degrees_keep_their_own_units():
    deep = hg.observe(STATIONS, "rain", 0.1)
    assert deep.units == ("km", "km", "") and "aeqd" in deep.frame.crs
    x = deep.functionals[0].x
    middle = [0.5 * (TABLE[name].min() + TABLE[name].max()) for name in ("Lon", "Lat")]
    np.testing.assert_allclose(x[:, :2], on_the_plane(TABLE, middle), atol=1e-3)
    np.testing.assert_array_equal(x[:, 2], STATIONS["depth"])
    dated = hg.observe(TABLE.assign(when=WHEN, rain=Y), "rain", 0.1)
    assert dated.units == ("km", "km", "days since 2024-03-01")
    np.testing.assert_allclose(dated.functionals[0].x, np.column_stack([x[:, :2], 2 * np.arange(COUNT)]))


def test_a_field_over_degrees_and_dates_is_that_over_km_and_days():
    later = TABLE.assign(when=WHEN, rain=Y)[::-1]
    data = hg.observe(later[: COUNT // 2], "rain", 0.1) + hg.observe(later[COUNT // 2 :], "rain", 0.1)
    post = hg.GP(SPREAD).condition(data, hg.Exact(), progress=False)
    first = data.functionals[0].crs
    x = hg.observe(later, "rain").functionals[0].x
    lon, lat = (float(first.split(f"+{word}_0=")[1].split()[0]) for word in ("lon", "lat"))
    x[:, :2] = on_the_plane(later, (lon, lat))
    plain = hg.GP(SPREAD).condition(hg.observe(hg.Points(x), later["rain"], 0.1), hg.Exact(), progress=False)
    asked = later[["when", "Lon", "Lat"]]
    found = post.predict(asked, progress=False)
    np.testing.assert_allclose(found["mean"], plain.predict(x, progress=False).mean, atol=1e-5)
    np.testing.assert_allclose(found["std"], plain.predict(x, progress=False).std, rtol=1e-5)
    grid = (
        later[:3]
        .rename(columns={"Lon": "lon", "Lat": "lat", "when": "time"})
        .set_index(["time", "lat", "lon"])
    )
    cells = post.predict(grid.to_xarray(), progress=False)["mean"]
    at = [cells.sel(time=r.when, lat=r.Lat, lon=r.Lon) for r in later[:3].itertuples()]
    np.testing.assert_allclose(at, found["mean"][:3], rtol=1e-9)
    with pytest.raises(ValueError, match="expected when beside Lon and Lat, got depth, layer"):
        post.predict(TABLE.assign(depth=1.0, layer=2.0), progress=False)


def test_cells_by_degrees_and_depth():
    array = xr.DataArray(
        Y.reshape(2, 3, 2),
        {"depth": ("depth", [0.0, 5.0], {"units": "m"}), "lat": [44.0, 45.0, 46.0], "lon": [-76.0, -75.0]},
    )
    data = hg.observe(array, noise=0.1)
    table = array.to_dataframe("z").reset_index()[["lon", "lat", "depth", "z"]]
    same = hg.observe(table, "z", 0.1)
    assert data.units == ("km", "km", "m") and data.frame.crs == same.frame.crs
    np.testing.assert_allclose(data.functionals[0].x, same.functionals[0].x)
    np.testing.assert_array_equal(data.y, same.y)


def test_the_regressor_takes_degrees_and_dates():
    sklearn = pytest.importorskip("hipgp.estimator")
    table = TABLE.assign(when=WHEN)[["when", "Lat", "Lon"]]
    model = sklearn.HIPGPRegressor(SPREAD, noise=0.1, learn=False, method=hg.Exact(), trend=None)
    found = model.fit(table, Y).predict(table)
    data = hg.observe(TABLE.assign(when=WHEN, rain=Y), "rain", 0.1)
    expected = hg.GP(SPREAD).condition(data, hg.Exact(), progress=False).predict(data.functionals[0])
    np.testing.assert_allclose(found, expected.mean, rtol=1e-8)
    np.testing.assert_allclose(model.predict(table[5:]), found[5:], rtol=1e-8)  # whose first date is another


@pytest.mark.filterwarnings("ignore:the data do not determine")
def test_one_lengthscale_for_km_and_days_is_told():
    data = hg.observe(TABLE.assign(when=WHEN, rain=Y), "rain", 0.1)
    with pytest.warns(
        UserWarning, match=r"one lengthscale for axes in dates, km.*lengthscale=\(1.0, 1.0, 1.0\)"
    ):
        hg.GP(hg.Matern32()).learn(data, progress=False)


@pytest.mark.parametrize(
    "call",
    [
        lambda: hg.Points(TABLE),
        lambda: hg.LineIntegrals(TABLE, TABLE + 1),
        lambda: hg.observe(
            xr.DataArray(np.ones((2, 2, 2)), {"lon": [0, 1], "lat": [0, 1], "depth": [0, 1]}), kind="averages"
        ),
    ],
)
def test_degrees_where_plain_coordinates_are_expected_are_refused(call):
    with pytest.raises(ValueError, match=r"got longitude and latitude \([Ll]on, [Ll]at\).*hg.Region.of"):
        call()


def test_the_whole_earth_and_a_missing_package_are_refused(monkeypatch):
    world = pd.DataFrame({"lon": [-170.0, 0.0, 170.0], "lat": [-60.0, 0.0, 60.0], "z": [1.0, 2.0, 3.0]})
    with pytest.raises(ValueError, match=r"use hg.sphere\(lon, lat\) and a kernel in three dimensions"):
        hg.observe(world, "z")
    monkeypatch.setitem(sys.modules, "pyproj", None)
    with pytest.raises(ImportError, match=r"need pyproj .*give plain degrees"):
        hg.observe(TABLE.assign(z=Y), "z")


def test_axes_that_the_user_called_lon_and_lat_stay_plain_numbers():
    data = hg.observe(hg.Points(TABLE[["Lon", "Lat"]].to_numpy()), Y, 0.1)
    found = hg.GP(hg.Matern32(1.0, 1.0)).condition(data, hg.Exact(), progress=False)
    named = found.labelled(("Lon", "Lat"))
    np.testing.assert_array_equal(
        named.predict(TABLE, progress=False)["mean"], found.predict(data.functionals[0]).mean
    )
